"""A comparison of any size, made up: for what depends on the number of rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from numscope.compare import schema

_APIS = ("linear", "gelu", "layer_norm", "softmax", "dropout", "add", "matmul", "transpose")
_COUNTS = ("identical", "equivalent", "origin", "inherited", "unmatched")


def comparison(rows: int, steps: int = 4, ranks: int = 4, seed: int = 0) -> tuple[pa.Table, pa.Table, dict[str, Any]]:
    """Return (calls, pairs, report) with about this many calls, as many pairs, and one origin."""
    random = np.random.default_rng(seed)
    each = rows // (steps * ranks)
    rows = each * steps * ranks
    number = np.arange(rows)
    within = number % each
    step, rank = number // each % steps, number // (each * steps)
    origin = each // 3
    after = (within > origin) | (step > 0)
    noise = 10.0 ** random.uniform(-8.0, -6.0, rows)
    grown = 10.0 ** (-4 + 2.5 * within / each + random.normal(0, 0.25, rows))
    lucky = random.random(rows) < 0.3
    verdict = np.full(rows, "identical", object)
    verdict[~after & ~lucky] = "equivalent"
    verdict[(within < each // 5) & (step == 0)] = "identical"
    verdict[after] = "inherited"
    verdict[after & (random.random(rows) < 0.1)] = "equivalent"
    verdict[random.random(rows) < 0.002] = "unmatched"
    verdict[(within == origin) & (step == 0)] = "origin"
    out = np.where(verdict == "identical", 0.0, np.where(np.isin(verdict, ["inherited", "origin"]), grown, noise))
    error_in = np.where(verdict == "origin", 0.0, np.concatenate([[0.0], out[:-1]]))
    out[random.integers(0, rows, 5)] = np.inf
    out[random.integers(0, rows, 5)] = np.nan
    layer = within * 24 // each
    names = [f"Functional.{_APIS[i % len(_APIS)]}.{i // len(_APIS)}.forward" for i in range(each)]
    modules = [f"model.layers.{j}.{'mlp' if i % 8 > 3 else 'attention'}" for i, j in enumerate(layer[:each])]
    unmatched = verdict == "unmatched"
    missing = unmatched & (number % 2 == 0)
    name = pa.DictionaryArray.from_arrays(pa.array(within, pa.int32()), pa.array(names)).cast(pa.string())
    module = pa.DictionaryArray.from_arrays(pa.array(within, pa.int32()), pa.array(modules)).cast(pa.string())
    columns: dict[str, Any] = {
        "pair": number,
        "step": step,
        "rank": rank,
        "target_order": pa.array(within, pa.int32(), mask=missing),
        "reference_order": pa.array(within, pa.int32(), mask=unmatched & ~missing),
        "target_name": pa.array(np.where(missing, None, name.to_numpy(False)), pa.string()),
        "reference_name": pa.array(np.where(unmatched & ~missing, None, name.to_numpy(False)), pa.string()),
        "kind": pa.array(["api"] * rows),
        "module": module,
        "phase": pa.array(np.where(within < each * 2 // 3, "forward", "backward").tolist()),
        "parent": pa.nulls(rows, pa.int32()),
        "alignment": pa.array(np.where(unmatched, "", "path").tolist()),
        "confidence": pa.array(np.where(unmatched, "", "certain").tolist()),
        "error_in": pa.array(error_in, mask=unmatched),
        "error_out": pa.array(out, mask=unmatched),
        "expected": pa.array(np.full(rows, 4e-6), mask=unmatched),
        "estimated": pa.array(np.ones(rows, bool)),
        "arguments_differ": pa.nulls(rows, pa.string()),
        "verdict": pa.array(verdict.tolist()),
        "reason": pa.array(["made up"] * rows),
        "source_file": pa.array(["model.py"] * rows),
        "source_line": pa.array(within % 400),
    }
    calls = pa.table({field.name: _column(columns[field.name], field.type) for field in schema.CALLS})
    pairs = _pairs(columns, calls, out, unmatched, random)
    first = {
        "call": names[origin],
        "kind": "api",
        "module": modules[origin],
        "phase": "forward",
        "step": 0,
        "rank": 0,
        "source": {"file": "model.py", "line": 41, "function": "forward", "code": "return F.gelu(x)"},
        "mechanism": "unknown",
        "reason": "its inputs agree to the bit, its output does not",
        "error": {"relative": float(out[origin]), "expected": 4e-6},
    }
    counts = {word: int((verdict == word).sum()) for word in _COUNTS}
    report = {
        "format": "numscope.report/1",
        "verdict": "diverged",
        "reason": "",
        "origin": first,
        "suspects": [first],
        "prefix": {"calls": each // 5, "last": names[each // 5 - 1]},
        "coverage": {"target": rows, "reference": rows, "matched": rows - counts["unmatched"], "tensors": rows},
        "counts": counts,
    }
    return calls, pairs, report


def _column(values: Any, kind: pa.DataType) -> Any:
    return values.cast(kind) if isinstance(values, (pa.Array, pa.ChunkedArray)) else pa.array(values, kind)


def _pairs(columns: dict[str, Any], calls: pa.Table, out: Any, unmatched: Any, random: Any) -> pa.Table:
    rows = len(out)
    made = {name: columns[name] for name in ("pair", "step", "rank", "verdict", "reason", "expected", "estimated")}
    made["slot"] = pa.array(["output.0"] * rows)
    for side in ("target", "reference"):
        made[f"{side}_name"] = pa.compute.binary_join_element_wise(calls[f"{side}_name"], made["slot"], ".")
        made[f"{side}_dtype"] = pa.array(["float32", "bfloat16"] * (rows // 2) + ["float32"] * (rows % 2))
        made[f"{side}_shape"] = pa.array(["[4, 32, 64]"] * rows)
        for word in ("min", "max", "mean", "l2"):
            made[f"{side}_{word}"] = pa.array(random.normal(size=rows))
        for word in ("nan", "inf", "zero"):
            made[f"{side}_{word}"] = pa.array(np.zeros(rows, np.int64))
    made["relative_l2"] = made["rmse"] = pa.array(out, mask=unmatched)
    made["cosine"] = pa.array(1 - np.nan_to_num(out, posinf=0) ** 2, mask=unmatched)
    made["bitwise_equal"] = pa.array(out == 0, mask=unmatched)
    arrays = [_column(made.get(field.name, pa.nulls(rows, field.type)), field.type) for field in schema.PAIRS]
    return pa.Table.from_arrays(arrays, schema=schema.PAIRS)
