"""Joins the tables on disk into the two tables of a Run: a row per call, and a row per slot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from numscope.store.schema import CALLS, CHECKS, SKETCH

_CALLS = ("name", "kind", "module", "phase", "parent", "arguments")
_CALLS_MORE = tuple(name for name in CALLS.names if name not in ("step", "order", *_CALLS))
_FRAME = ("file", "line", "function", "code")
_STATISTICS = ("min", "max", "mean", "l2")
_OF_TENSOR = ["dtype", "shape", *_STATISTICS, "nan", "posinf", "neginf", "zero", "hash", "elements", "device"]
_OF_TENSOR += ["sampled", "placement"]


def joined_calls(calls: pa.Table, stacks: pa.Table, rank: int, checks: pa.Table | None = None) -> pa.Table:
    """Return `Run.calls` of one rank: calls with the innermost frame of the user's own code."""
    source = user_frames(stacks)
    rows = _lookup(_keys(stacks["stack"]), _keys(calls["stack"]))
    frames = source.take(rows)
    columns = {
        "step": calls["step"],
        "rank": _constant(rank, calls.num_rows),
        "order": calls["order"],
        **{name: calls[name] for name in _CALLS},
        "source_file": frames["file"],
        "source_line": frames["line"],
        **{name: calls[name] for name in _CALLS_MORE},
        "source_function": frames["function"],
        "source_code": frames["code"],
        **own_errors(calls, checks if checks is not None else CHECKS.empty_table()),
    }
    return pa.table(columns)


_VERIFIED = ("none", "sample", "projection", "exact")  # from the weakest on


def rows_of_checks(calls: pa.Table, checks: pa.Table) -> NDArray[np.int64]:
    """Return the row of the call that each check belongs to, or -1; those of backward know the forward call alone."""
    span = 1 + max(_largest(calls["order"]), _largest(checks["call"]), 0)
    steps, orders = _keys(calls["step"]) * span, _keys(calls["order"])
    of, backward = _keys(checks["call"]), checks["backward"].to_numpy().astype(bool)
    wanted = np.where(of < 0, -1, _keys(checks["step"]) * span + of)
    behind = _keys(calls["forward"])
    rows = np.full(len(of), -1, np.int64)
    for keys, mine in ((steps + orders, ~backward), (np.where(behind < 0, -2, steps + behind), backward)):
        found = _lookup(keys, wanted[mine]).fill_null(-1).to_numpy()
        rows[mine] = found
    return rows


def own_errors(calls: pa.Table, checks: pa.Table) -> dict[str, pa.Array]:
    """Return own_error, own_ulp and verified of each call: of its operators the largest, and the weakest word."""
    count = calls.num_rows
    errors, ulps = np.full(count, -1.0), np.full(count, -1.0)
    words = np.full(count, len(_VERIFIED))
    if checks.num_rows:
        rows = rows_of_checks(calls, checks)
        known = rows >= 0
        at = rows[known]
        for name, into in (("own_error", errors), ("own_ulp", ulps)):
            values = pc.fill_null(checks[name], -1.0).to_numpy()[known]
            np.maximum.at(into, at, values)
        ranks = pc.index_in(_one(checks["verified"]), pa.array(_VERIFIED)).fill_null(0).to_numpy()[known]
        np.minimum.at(words, at, ranks)
    return {
        "own_error": pa.array(errors, mask=errors < 0),
        "own_ulp": pa.array(ulps, mask=ulps < 0),
        "verified": pa.array([*_VERIFIED, None]).take(pa.array(words)),
    }


def joined_tensors(calls: pa.Table, slots: pa.Table, tensors: pa.Table, rank: int, sketch: bool = True) -> pa.Table:
    """Return `Run.tensors` of one rank: slots with their call's name and their tensor's fingerprint.

    Sketches are 256 bytes a slot: leaving them out (`sketch=False`) saves most of the work.
    """
    span = 1 + max(_largest(calls["order"]), _largest(slots["call"]), _largest(tensors["tensor"]), 0)
    steps = _keys(slots["step"]) * span
    of_call = _lookup(_keys(calls["step"]) * span + _keys(calls["order"]), steps + _keys(slots["call"]))
    numbers = _keys(slots["tensor"])
    wanted = np.where(numbers < 0, -1, steps + numbers)
    of_tensor = _lookup(_keys(tensors["step"]) * span + _keys(tensors["tensor"]), wanted)
    whole = pc.and_(pc.is_valid(tensors["shard"]), pc.invert(pc.fill_null(tensors["sampled"], False)))
    narrow = tensors.select(_OF_TENSOR).append_column("kept", whole).combine_chunks()
    seen = narrow.take(of_tensor)
    slot = _one(slots["slot"])
    name = pc.binary_join_element_wise(_one(calls["name"]).take(of_call), slot, ".")
    columns = {
        "step": slots["step"],
        "rank": _constant(rank, slots.num_rows),
        "call": slots["call"],
        "slot": slot,
        "name": name,
        "dtype": seen["dtype"],
        "shape": seen["shape"],
        **{column: seen[column] for column in _STATISTICS},
        "nan": seen["nan"],
        "inf": pc.add(seen["posinf"], seen["neginf"]),
        "zero": seen["zero"],
        "hash": seen["hash"],
        **({"sketch": _take_sketch(tensors["sketch"], of_tensor)} if sketch else {}),
        "kept": pc.fill_null(seen["kept"], False),
        "posinf": seen["posinf"],
        "neginf": seen["neginf"],
        "elements": seen["elements"],
        "device": seen["device"],
        "sampled": pc.fill_null(seen["sampled"], False),
        "placement": seen["placement"],
        "tensor": slots["tensor"],
        "note": slots["note"],
    }
    return pa.table(columns)


def user_frames(stacks: pa.Table) -> pa.Table:
    """Return file, line, function and code of each stack's user frame, null where it has none."""
    frames = _one(stacks["frames"])
    starts = frames.offsets.to_numpy()[:-1].astype(np.int64)
    user = _keys(stacks["user"])
    index = pa.array(starts + user, mask=(user < 0) | ~frames.is_valid().to_numpy(zero_copy_only=False))
    flat = frames.values
    return pa.table({name: flat.field(name).take(index) for name in _FRAME})


def _one(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def _keys(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return a column of numbers, null as -1."""
    numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), -1).to_numpy()
    return numbers


def _largest(column: pa.ChunkedArray) -> int:
    return int(pc.max(column).as_py() or 0)


def _constant(value: int, rows: int) -> pa.Array:
    return pa.array(np.full(rows, value, np.int32))


def _lookup(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> pa.Array:
    """Return for each wanted key the first row that has it, or null."""
    if not len(keys):
        return pa.nulls(len(wanted), pa.int64())
    order = None
    if np.any(keys[1:] < keys[:-1]):
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    rows = np.searchsorted(keys, wanted)
    rows[rows == len(keys)] = 0
    missing = keys[rows] != wanted
    return pa.array(rows if order is None else order[rows], mask=missing)


def _take_sketch(column: pa.ChunkedArray, rows: pa.Array) -> pa.Array:
    """Return the sketches of these rows by numpy: Arrow's own take is slow for lists."""
    values, valid = sketch_array(column)
    if not len(values):
        return pa.nulls(len(rows), pa.list_(pa.float32(), SKETCH))
    index = rows.fill_null(0).to_numpy()
    present = valid[index] & rows.is_valid().to_numpy(zero_copy_only=False)
    flat = pa.array(np.take(values, index, axis=0, mode="clip").reshape(-1))
    bits = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.list_(pa.float32(), SKETCH), len(rows), [bits], children=[flat])


def sketch_array(column: pa.ChunkedArray) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return a sketch column as an array of (rows, 64) numbers, and which rows have a sketch."""
    whole = _one(column)
    flat = whole.values.slice(whole.offset * SKETCH, len(whole) * SKETCH)
    values = flat.to_numpy(zero_copy_only=False).reshape(len(whole), SKETCH)
    return values, ~np.isnan(values[:, 0])
