"""Explains a fault of the device: the call is the same on both sides, but one recorded output is not what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from numscope.core.errors import NotKeptError
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.subgraph import Subgraph
from numscope.diagnose.replay.elements import which
from numscope.diagnose.replay.lift import Lift
from numscope.diagnose.replay.measures import relative_error
from numscope.diagnose.replay.outcome import Recorded
from numscope.diagnose.replay.own_error import OwnError, own_error
from numscope.diagnose.replay.replayable import Replayable

_COARSER = {"bfloat16": 8, "TF32": 11}  # significant bits to which a product may round what it is given
_MOST_CALLS = 16  # of a subgraph that are looked at one by one


class FaultyCall(NamedTuple):
    """The call at fault, alone where its tensors were kept."""

    name: str
    replay: Replayable
    own: OwnError
    other: OwnError | None  # the same of the other side, where it is the same call
    is_target: bool

    @property
    def elements(self) -> str:
        """Which elements are off, in words."""
        return which(self.own.elements_off(self.other), self.own.recorded, self.own.exact)

    @property
    def made_by(self) -> str:
        """The recorded facts of the kernel, in words: dispatched operators, chip and versions."""
        graph = self.replay.graph
        numerics = graph.run.manifest.get("numerics")
        facts = numerics if isinstance(numerics, dict) else {}
        chips = {str(value) for value in (facts.get("hardware") or {}).values()}
        versions = [f"{name} {value}" for name, value in (facts.get("versions") or {}).items() if name != "numpy"]
        orders = {call.order for call in self.replay.calls}
        kernels = {call.op for call in graph.calls.values() if call.kind == "aten" and call.parent in orders}
        return ", ".join([*(f"aten::{name}" for name in sorted(kernels)), *sorted(chips), *versions])


def explain(target: Replayable, reference: Replayable, figures: Lift) -> Explanation:
    """Explain a suspect whose outcome is that of a device at fault."""
    fault = faulty_call(target, reference, figures)
    told: dict[str, object] = {
        "side": "target" if fault.is_target else "reference",
        "call": fault.name,
        "device": fault.own.device,
        "error": fault.own.relative,
        "operator_error": fault.own.replayed,
        "elements": fault.elements,
        "again": _again(fault),
        "made_by": fault.made_by,
    }
    if (rounded := _rounded_inputs(fault)) is not None:
        told["rounded_inputs"] = rounded
    if not fault.is_target:
        told["note"] = "it is the reference that is off here: the target's output is what its inputs give"
    return Explanation("device", details={"device": told})


def faulty_call(target: Replayable, reference: Replayable, figures: Lift) -> FaultyCall:
    """Return the first call of the faulty side whose recorded output is not what its recorded inputs give."""
    is_target = figures.outcome.target is Recorded.OFF
    side, own, other = (target, figures.target, figures.reference)
    if not is_target:
        side, own, other = (reference, figures.reference, figures.target)
    assert own is not None
    whole = FaultyCall(", ".join(call.name for call in side.calls[-2:]), side, own, other, is_target)
    if not isinstance(side, Subgraph) or not 1 < len(side.calls) <= _MOST_CALLS:
        return whole
    for call in side.calls:
        for number in side.graph.outputs(call.order).values():
            alone = Subgraph(side.graph, (call,), tuple(dict.fromkeys(side.graph.inputs(call.order))), number)
            try:
                found = own_error(alone, floor=own.replayed)
            except (CannotReplay, NotKeptError):
                continue
            if found is not None and found.is_off():
                return FaultyCall(call.name, alone, found, None, is_target)
    return whole


def neither() -> Explanation:
    """Explain a suspect of which neither side's recorded output follows from its recorded inputs."""
    note = "on neither side is the recorded output what the recorded inputs give: something else took part, unseen"
    return Explanation("unknown", details={"note": note})


def _again(fault: FaultyCall) -> str:
    """Return in words whether the fault comes back when the call is made again."""
    here = "on the CPU here it comes back" if _comes_back(fault, fault.own.replayed) else "on the CPU here it is right"
    kind = fault.own.device.partition(":")[0]
    if kind in ("", "cpu") or not _is_here(kind):
        return here
    try:
        once, twice = (_on_device(fault.replay, kind) for _ in range(2))
    except CannotReplay as why:
        return f"{here}; on {kind} it can't be made again: {why}"
    if not torch.equal(once.nan_to_num(), twice.nan_to_num()):
        return f"{here}; on {kind} here it gives something else each time"
    is_back = _comes_back(fault, relative_error(once, fault.own.exact))
    return f"{here}; on {kind} here it {'comes back' if is_back else 'does not come back: it is no constant fault'}"


def _comes_back(fault: FaultyCall, error: float) -> bool:
    return error > fault.own.relative / 2


def _is_here(kind: str) -> bool:
    """Tell whether this machine has a device of a kind."""
    is_available: Callable[[], bool] | None = getattr(getattr(torch, kind, None), "is_available", None)
    return is_available is not None and is_available()


def _on_device(side: Replayable, kind: str) -> torch.Tensor:
    """Make a side's calls on a device of this machine; return the output on the CPU."""
    try:
        inputs = {number: side.graph.data(number).to(kind) for number in side.inputs}
        return side.run(inputs).cpu()
    except RuntimeError as error:  # torch's: the device is busy, full, or lacks the operator
        raise CannotReplay(str(error).splitlines()[0]) from error


def _rounded_inputs(fault: FaultyCall) -> str | None:
    """Return the format to which the kernel rounded its inputs, where that gives the recorded output."""
    own = fault.own
    if own.dtype != "float32":
        return None
    for name, bits in _COARSER.items():
        try:
            inputs = {n: _rounded(fault.replay.graph.data(n), bits) for n in fault.replay.inputs}
            made = fault.replay.run(inputs, torch.float64)
        except (CannotReplay, NotKeptError):
            return None
        if relative_error(own.recorded, made) <= own.relative / 20:
            return f"its inputs were rounded to {name} ({bits} significant bits): that gives the recorded output"
    return None


def _rounded(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Return an operand of a product rounded to so many significant bits; a bias is added as it is."""
    if not tensor.is_floating_point() or tensor.dim() < 2:
        return tensor
    fraction, exponent = torch.frexp(tensor.double())
    return torch.ldexp((fraction * 2**bits).round() / 2**bits, exponent)
