"""Casts: the same arithmetic, in another dtype, or cast at another place."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from numscope.core.dtypes import FLOATS
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.recorded.step_graph import Record


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
        if narrow is None or FLOATS[name].bits <= FLOATS[narrow[0]].bits:
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
        if FLOATS[str(dtype).removeprefix("torch.")].bits >= 8 * wanted.element_size():
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
            form = None if dtype.startswith("complex") else FLOATS.get(dtype)
            if form is not None and (found is None or form.bits < found[0]):
                found = (form.bits, dtype, call.name)
    return (found[1], found[2]) if found else None
