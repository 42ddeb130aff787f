"""The tables of a comparison: `calls`, a row per pair of calls, and `pairs`, a row per pair of tensors.

Readers: report/ (all outputs) and view/ (the pages). A value that cannot be known is null, never 0.
The report is made of two more: `findings`, a row per origin, and `places`, a row per step of a rank.
"""

from __future__ import annotations

import pyarrow as pa

_STATISTICS = ("min", "max", "mean", "l2")
_COUNTS = ("nan", "inf", "zero")


def _side(side: str) -> list[tuple[str, pa.DataType]]:
    return [(f"{side}_{name}", pa.float64()) for name in _STATISTICS] + [
        (f"{side}_{name}", pa.int64()) for name in _COUNTS
    ]


CALLS = pa.schema(
    [
        (
            "pair",
            pa.int32(),
        ),  # this row's number, in the target's call order (unmatched reference calls in place)
        ("step", pa.int32()),
        ("rank", pa.int32()),
        ("target_order", pa.int32()),  # null: the reference alone has this call
        ("reference_order", pa.int32()),  # null: the target alone has this call
        ("target_name", pa.string()),
        ("reference_name", pa.string()),
        ("kind", pa.string()),
        ("module", pa.string()),
        ("phase", pa.string()),
        ("parent", pa.int32()),  # pair of the enclosing call, or null
        (
            "alignment",
            pa.string(),
        ),  # why the two were paired: "path", "sequence", "value", "map", or "" for unmatched
        # "certain": by name, by value, or as nothing else could be meant; "doubtful": by their order alone; "" for unmatched.
        ("confidence", pa.string()),
        ("error_in", pa.float64()),  # relative L2 error of the worst input, null where unknown
        ("error_out", pa.float64()),  # … of the worst output
        ("expected", pa.float64()),  # what rounding explains of error_out
        ("estimated", pa.bool_()),
        ("arguments_differ", pa.string()),  # "eps: 1e-05 against 1e-06", or null
        ("verdict", pa.string()),  # core.words.PairVerdict; null where nothing was measured
        ("reason", pa.string()),
        ("source_file", pa.string()),  # of the target's call (of the reference's where the target has none)
        ("source_line", pa.int32()),
    ]
)

PAIRS = pa.schema(
    [
        ("pair", pa.int32()),  # row of CALLS
        ("step", pa.int32()),
        ("rank", pa.int32()),
        ("slot", pa.string()),
        ("target_name", pa.string()),
        ("reference_name", pa.string()),
        ("target_dtype", pa.string()),
        ("reference_dtype", pa.string()),
        ("target_shape", pa.string()),  # "[4, 32, 64]"
        ("reference_shape", pa.string()),
        ("cosine", pa.float64()),
        ("rmse", pa.float64()),
        ("mape", pa.float64()),
        ("max_abs_err", pa.float64()),
        ("max_rel_err", pa.float64()),
        ("euclid", pa.float64()),
        ("bitwise_equal", pa.bool_()),
        ("relative_l2", pa.float64()),
        ("estimated", pa.bool_()),
        ("expected", pa.float64()),  # relative L2 error that rounding explains
        ("verdict", pa.string()),
        ("reason", pa.string()),
        *_side("target"),
        *_side("reference"),
        # Exact measures more, null where the data was not kept.
        ("bias", pa.float64()),  # mean signed error over RMSE: rounding is near 0
        ("ulp_median", pa.float64()),
        ("ulp_p99", pa.float64()),
        ("ulp_max", pa.float64()),
        ("within_0_1_percent", pa.float64()),
        ("within_0_5_percent", pa.float64()),
        ("mismatch_share", pa.float64()),  # under torch.testing's own tolerances for the dtype
        ("mape_excluded", pa.int64()),  # reference zeros left out of MAPE
        ("target_std", pa.float64()),
        ("reference_std", pa.float64()),
        ("structure", pa.string()),  # whole, row, channel, block, single
        ("first_index", pa.string()),
        ("worst_index", pa.string()),
        # Of an output: the smallest relative error that would have been called wrong; null where it was not judged.
        ("resolution", pa.float64()),
    ]
)

FINDINGS = pa.schema(
    [
        ("step", pa.int32()),
        ("rank", pa.int32()),
        ("role", pa.string()),  # origin, rearranged (no origin), beyond (the user's own limit)
        ("kind", pa.string()),
        ("call", pa.string()),
        ("module", pa.string()),
        ("file", pa.string()),
        ("line", pa.int32()),
        ("order", pa.float64()),  # place in the target's order
        ("weight", pa.int32()),
        ("text", pa.string()),  # the origin
    ]
)

PLACES = pa.schema([("step", pa.int32()), ("rank", pa.int32()), ("text", pa.string())])  # a summary of each (steps.py)
