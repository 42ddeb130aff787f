"""Casts: the same arithmetic in another dtype, or a cast in another place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from numscope.core.dtypes import FLOATS
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis


@hypothesis("wider dtype")
def wider(case: Case) -> Iterator[Repair]:
    """Compute the target in float32 (or float64) and cast after it."""
    if case.error > case.limit:
        return  # the difference is one of meaning
    made = getattr(torch, case.target.graph.tensors[case.target.output].dtype)
    wanted = case.native_reference_output.dtype
    out = wanted if wanted.is_floating_point else made
    narrow = _narrowest(case)
    if narrow is None:
        return
    for dtype in (torch.float32, torch.float64):
        if FLOATS[_name(dtype)].bits <= FLOATS[narrow.dtype].bits:
            continue
        where = f"{narrow.call} in {_name(dtype)} and the cast to {_name(out)} after it"
        if out == dtype:
            where = f"{narrow.call} in {_name(dtype)}, without the cast to {narrow.dtype}"
        yield Repair(f"{where} (now {narrow.dtype})", partial(_run_and_cast, case, dtype, out), lifted=False)


def _run_and_cast(case: Case, dtype: torch.dtype, out: torch.dtype) -> torch.Tensor:
    return case.target.run(case.values, dtype).to(out)


@hypothesis("rounded")
def rounded(case: Case) -> Iterator[Repair]:
    """Leave out a cast to a narrower dtype and back, as of a weight that was saved in bf16."""
    ours, theirs = case.native_target_output, case.native_reference_output
    if not (ours.is_floating_point() and ours.shape == theirs.shape and theirs.is_floating_point()):
        return
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        name = _name(dtype)
        if FLOATS[name].bits >= 8 * theirs.element_size():
            continue
        if torch.equal(ours.to(theirs.dtype), theirs.to(dtype).to(theirs.dtype)):
            change = f"its values before they were rounded to {name} (now each is a {name} number)"
            yield Repair.giving(change, theirs)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Narrowest(NamedTuple):
    """The narrowest dtype that a subgraph computes in, and its first call that does."""

    dtype: str
    call: str


def _narrowest(case: Case) -> _Narrowest | None:
    found: _Narrowest | None = None
    for call in case.target.calls:
        for number in case.target.graph.outputs(call.order).values():
            dtype = case.target.graph.tensors[number].dtype
            if dtype not in FLOATS or dtype.startswith("complex"):
                continue
            if found is None or FLOATS[dtype].bits < FLOATS[found.dtype].bits:
                found = _Narrowest(dtype, call.name)
    return found
