"""The tables of a run as Arrow schemas, for the writer and the reader.

On disk a slot refers to a tensor by number and a call to a stack by number; `Run.calls` and `Run.tensors` are
the joined tables. `order` numbers the calls of one step of one rank in the order in which they began; `tensor` numbers the
distinct tensors of one step of one rank; `stack` numbers the distinct stacks of one rank.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

FORMAT = "numscope.run/1"
SKETCH = 64

TableRow = dict[str, Any]  # a row of a table, as Arrow's to_pylist gives it

CALLS = pa.schema(
    [
        ("step", pa.int32()),
        ("order", pa.int32()),
        ("name", pa.string()),
        ("kind", pa.string()),  # core.words.Kind
        # Path of the module in whose forward the call runs; of a module call its own.
        ("module", pa.string()),
        ("module_class", pa.string()),  # class of that module
        ("phase", pa.string()),  # core.words.Phase
        ("parent", pa.int32()),  # order of the enclosing call, or null
        ("forward", pa.int32()),  # for a backward call: order of its forward call, or null
        # JSON: {"args": {"1": 1e-5}, "kwargs": {...}}, non-tensor arguments only, or null.
        ("arguments", pa.string()),
        ("stack", pa.int32()),  # row of STACKS, or null
        ("recompute", pa.bool_()),  # a checkpoint's second execution; not counted in the numbering
        ("error", pa.string()),  # the exception the call raised, or null
        ("thread", pa.int32()),  # 0 for the first thread seen, 1 for the next …
        # The dtype that autocast had when the call began, or null: it was off, or the call is an aten operator, which
        # gets its inputs as autocast has cast them.
        ("autocast", pa.string()),
    ]
)

SLOTS = pa.schema(
    [
        ("step", pa.int32()),
        ("call", pa.int32()),  # order of the call
        # "input.0", "kwargs.mask", "output.0", "parameters.weight", "parameters_grad.weight"
        ("slot", pa.string()),
        ("tensor", pa.int32()),  # number of the tensor, or null where it was not measured
        ("note", pa.string()),  # why it was not measured, or null
    ]
)

TENSORS = pa.schema(
    [
        ("step", pa.int32()),
        ("tensor", pa.int32()),
        # torch's short name: float32, bfloat16, float8_e4m3fn, int64, bool, complex64
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("device", pa.string()),
        ("elements", pa.int64()),
        ("nan", pa.int64()),
        ("posinf", pa.int64()),
        ("neginf", pa.int64()),
        ("zero", pa.int64()),
        # min, max, mean, l2: of the finite elements; null where there are none or keep="structure"
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("mean", pa.float64()),
        ("l2", pa.float64()),
        ("hash", pa.uint64()),
        # NaN in place of null: Arrow before 26 cannot read null lists of fixed size back from Parquet.
        ("sketch", pa.list_(pa.float32(), SKETCH)),
        ("sketch_low", pa.binary()),  # 64 float32: what float32 cannot hold of a 64-bit dtype's sketch, else null
        ("placement", pa.string()),  # JSON: a shard's global shape, offsets and placements, or null
        ("shard", pa.string()),  # file that holds the data, relative to the rank's directory, or null
        ("key", pa.string()),  # key in that file
        ("sampled", pa.bool_()),  # the data is a sample (head, every k-th, tail), not the whole
    ]
)

FRAME = pa.struct([("file", pa.string()), ("line", pa.int32()), ("function", pa.string()), ("code", pa.string())])

STACKS = pa.schema(
    [
        ("stack", pa.int32()),
        ("frames", pa.list_(FRAME)),  # outermost first
        ("user", pa.int32()),  # index in frames of the innermost frame of the user's own code, or null
    ]
)

# Operators that were held against exact arithmetic while they ran (`verify`); those of a call give its own error.
CHECKS = pa.schema(
    [
        ("step", pa.int32()),
        ("call", pa.int32()),  # order of the call that the operator belongs to, or null
        ("backward", pa.bool_()),  # it belongs to the backward call of that one
        ("place", pa.int32()),  # of the operator among all of its step
        ("operator", pa.string()),  # aten's name, without overload and the underscore of in-place forms
        ("dtype", pa.string()),
        ("device", pa.string()),
        ("verified", pa.string()),  # exact, sample, projection or none
        ("reason", pa.string()),  # why it was not verified, or null
        ("elements", pa.int64()),  # that were computed again
        ("off", pa.int64()),  # … and are wrong
        ("own_error", pa.float64()),  # relative to the output's norm
        ("own_ulp", pa.float64()),  # the largest, in units of the last place of an element of usual size
        ("units", pa.float64()),  # the largest beyond what rounding to the dtype costs, in the terms of the limit
        ("limit", pa.float64()),  # what this operator, dtype and chip are granted
        ("pattern", pa.string()),  # JSON: which elements are wrong, where any are; or null
    ]
)

TABLES = {"calls": CALLS, "slots": SLOTS, "tensors": TENSORS, "stacks": STACKS, "checks": CHECKS}
