"""Casts: the same arithmetic, in another dtype, or cast at another place."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.recorded.step_graph import Record

_WIDTH = {"float8_e4m3fn": 1, "float8_e5m2": 1, "bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


@hypothesis("wider dtype")
def wider(case: Case) -> Iterator[Repair]:
    """Compute the target's group in float32 (or float64) and cast after it."""
    if case.before > max(1e-11, 25 * case.floor64):
        return  # a difference in meaning
    made = getattr(torch, case.target.record.tensors[case.target.output].dtype)
    wanted = case.native_wanted.dtype
    out = wanted if wanted.is_floating_point else made
    narrow = _narrowest(case.target.record, case)
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        if narrow is None or _WIDTH[name] <= _WIDTH.get(narrow[0], 8):
            continue
        where = f"{narrow[1]} in {name} and the cast to {str(out).removeprefix('torch.')} after it"
        if str(out).removeprefix("torch.") == name:
            where = f"{narrow[1]} in {name}, without the cast to {narrow[0]}"
        yield Repair(
            f"{where} (now {narrow[0]})",
            lambda dtype=dtype, out=out: case.target.run(case.shared, dtype).to(out),  # type: ignore[misc]
            lifted=False,
        )


@hypothesis("rounded")
def rounded(case: Case) -> Iterator[Repair]:
    """The target is the reference after a way through a narrower dtype: a weight that was saved in bf16."""
    given, wanted = case.native_given, case.native_wanted
    if not (given.is_floating_point() and given.shape == wanted.shape and wanted.is_floating_point()):
        return
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        if _WIDTH[str(dtype).removeprefix("torch.")] >= wanted.element_size():
            continue
        if torch.equal(given.to(wanted.dtype), wanted.to(dtype).to(wanted.dtype)):
            name = str(dtype).removeprefix("torch.")
            yield Repair(f"its values before they were rounded to {name} (now each is a {name} number)", lambda: wanted)


def _narrowest(record: Record, case: Case) -> tuple[str, str] | None:
    """Return the narrowest dtype the target's group computes in, and its first call that does."""
    found: tuple[int, str, str] | None = None
    for call in case.target.calls:
        for number in record.outputs(call.order).values():
            dtype = record.tensors[number].dtype
            if dtype in _WIDTH and (found is None or _WIDTH[dtype] < found[0]):
                found = (_WIDTH[dtype], dtype, call.name)
    return (found[1], found[2]) if found else None
