"""An origin that the guard has found, in words: the call, its line, its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numscope.capture.torch.guard.calls import Item, OpenModule, Seen, resolve
from numscope.core.report import Origin, Source
from numscope.nonfinite.rule import Counts, Judgement, Value

FINER = 'level="mix" names the call'


class Strike:
    """An origin, with the call and the tensors that show it."""

    __slots__ = ("inputs", "origin", "outputs", "phase", "seen")

    def __init__(self, origin: Origin, seen: Seen, phase: str, inputs: Sequence[Item], outputs: Sequence[Item]) -> None:
        self.origin = origin
        self.seen = seen
        self.phase = phase
        self.inputs = inputs
        self.outputs = outputs


def describe(
    judge: Any, seen: Seen, phase: str, value: Value, reason: str, inputs: Sequence[Item], outputs: Sequence[Item],
    kind: str | None = None, site: int | None = None,
) -> Strike:  # fmt: skip
    """Return an origin; `site`: where it showed, if that is not where the call was made."""
    counts = value.counts
    frame = judge.sites.source(seen.site if site is None else site)
    parent = seen.parent
    tensor = next((resolve(item.tensor) for item in [*outputs, *inputs] if item.slot == value.slot), None)
    origin = Origin(
        call=judge.strings[seen.name(phase if phase in ("backward", "input") else "forward")],
        kind=kind or seen.kind,  # type: ignore[arg-type]
        phase=phase,  # type: ignore[arg-type]
        step=judge.step,
        rank=judge.rank,
        reason=reason,
        module=judge.strings[parent.module] if parent is not None else "",
        source=Source(**frame) if frame else None,
        mechanism="input" if kind == "data" else "parameter" if kind == "parameter" else "unknown",
        details={
            "slot": value.slot,
            "nan": counts.nan,
            "posinf": counts.posinf,
            "neginf": counts.neginf,
            "elements": counts.elements,
            **(
                {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
                if tensor is not None
                else {}
            ),
            "inputs": {item.slot: str(item.found()) for item in inputs if not item.found().clean},
        },
    )
    return Strike(origin, seen, phase, inputs, outputs)


def around(seen: Seen) -> Seen | None:
    """Return the module in whose own code a module was called; of calls that are watched themselves, None."""
    if seen.kind != "module" or not isinstance(seen.parent, OpenModule):
        return None
    outer = seen.parent.outer
    return outer.seen if isinstance(outer, OpenModule) else None


def counts_of(gradient: Any) -> Counts:
    """Return the counts of an item, or of a look with its slot."""
    return gradient.found() if isinstance(gradient, Item) else gradient[1].counts()


def as_parameter(item: Item, path: str) -> Item:
    """Return an input of a call in its module's slot, where it is that module's parameter."""
    owner, _, own = item.parameter.rpartition(".")
    return item._replace(slot=f"parameters.{own}") if own and owner == path else item


def reason_of(name: str, result: Judgement) -> str:
    assert result.output is not None
    counts, cause = result.output.counts, result.cause
    if cause is None:
        return f"{name} turned finite inputs into {counts}"
    if cause.state == "constant":
        return f"a constant of NaN enters {name} as {cause.slot}, and the output has {counts}"
    return f"{name} made {counts} out of infinities: {cause.slot} has {cause.counts}"
