"""Explains a suspect by its module, replayed as a whole, and by the calls inside it.

Both sides' modules are built again and called on the same inputs. Where they differ, both are called once more under
capture, and the two captures are diagnosed like two runs: so a run of modules alone still ends with the call at fault
and the change that repairs it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from numscope.capture.session import capture
from numscope.core.errors import NotKeptError, NumscopeError
from numscope.core.report import Origin, Report
from numscope.diagnose.explain import device
from numscope.diagnose.explain.calls import MOST_TENSORS
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.recorded.differing_tensors import differing_tensors
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.paired_step import CallPair, PairedStep
from numscope.diagnose.recorded.step_graph import RecordedCall
from numscope.diagnose.replay.calls import Values
from numscope.diagnose.replay.module_replay import ModuleLift, ModuleReplay, lift_modules

DiagnoseRuns = Callable[[Path, Path], Report]

_MOST_ENCLOSING = 4  # modules around a suspect that are replayed


def explain(pairs: PairedStep, origin: Origin, found: Explanation, diagnose_inside: DiagnoseRuns | None) -> Explanation:
    """Return the explanation `found` by the recorded calls, with that of the suspect's module added.

    A suspect that is a module is always replayed. The module around a suspect is replayed where the call itself could
    not be explained: it is random, or not a function of torch's, or was not recorded. Where a module is right for its
    inputs, but its inputs differ, the module around it is replayed. `diagnose_inside` is None where all calls inside
    were recorded.
    """
    suspect = pairs.call(origin.call, origin.kind)
    if suspect is None or not (suspect.kind == "module" or found.mechanism == "unknown"):
        return found
    is_module = suspect.kind == "module"
    pair = suspect if is_module else _enclosing(pairs, suspect)
    why = ""
    for _ in range(_MOST_ENCLOSING):
        if pair is None or pair.matched is None:
            break
        try:
            lifted = _lift(pairs, pair)
        except (CannotReplay, NotKeptError) as error:
            why = why or str(error)
            break
        if lifted.figures.mechanism() == "device" and found.mechanism != "device":
            return _of_the_device(found, lifted, pair)
        if lifted.figures.native or lifted.figures.float64:
            return _joined(found, lifted, pair, pair is suspect, diagnose_inside)
        if pair is suspect:
            found = replace(found, details={**found.details, "unit": _told(lifted, pair)})
        if not lifted.unlike:
            break
        pair = _enclosing(pairs, pair)
    if is_module and "unit" not in found.details and why:
        return replace(found, details={**found.details, "unit": {"call": origin.call, "could_not": why}})
    return found


def _lift(pairs: PairedStep, pair: CallPair) -> ModuleLift:
    """Lift-test a module by an output that differs in meaning, else by its first output."""
    why: Exception = CannotReplay("no output of it differs")
    first = None
    module = Origin(pair.target_name or "", "module", pair.phase, pair.step, pair.rank, "")
    for tensor in differing_tensors(pairs, module)[:MOST_TENSORS]:
        try:
            assert pair.matched is not None
            found = lift_modules(pairs, pair.matched, tensor)
        except (CannotReplay, NotKeptError) as error:
            why = error
            continue
        if found.figures.mechanism() == "semantic":
            return found
        first = first or found
    if first is None:
        raise why
    return first


def _enclosing(pairs: PairedStep, pair: CallPair) -> CallPair | None:
    """Return the module's call in which a call was made."""
    if pair.target_order is not None:
        order = _module_around(pairs.target.calls, pair.target_order)
        return next((other for other in pairs.calls if order is not None and other.target_order == order), None)
    order = _module_around(pairs.reference.calls, pair.reference_order)
    return next((other for other in pairs.calls if order is not None and other.reference_order == order), None)


def _module_around(calls: Mapping[int, RecordedCall], order: int | None) -> int | None:
    """Return the order of the innermost module's call around a call."""
    parent = calls[order].parent if order is not None else None
    while parent is not None and parent in calls and calls[parent].kind != "module":
        parent = calls[parent].parent
    return parent


def _told(lifted: ModuleLift, pair: CallPair) -> dict[str, object]:
    """Return the details of a module that was replayed."""
    told: dict[str, object] = {
        "call": pair.target_name,
        "how": lifted.class_words,
        "lift": lifted.figures.to_dict(),
    }
    if lifted.unlike:
        told["inputs_that_differ"] = list(lifted.unlike)
    return told


def _of_the_device(found: Explanation, lifted: ModuleLift, pair: CallPair) -> Explanation:
    """Return the explanation of a module whose recorded output is not what it gives, with its figures added."""
    explained = device.explain(lifted.target, lifted.reference, lifted.figures)
    kept = {key: value for key, value in found.details.items() if key not in ("could_not", "next", "lift")}
    return explained.with_details({**kept, "lift": lifted.figures.to_dict(), "unit": _told(lifted, pair)})


def _joined(
    found: Explanation,
    lifted: ModuleLift,
    pair: CallPair,
    is_suspect: bool,
    diagnose_inside: DiagnoseRuns | None,
) -> Explanation:
    """Return an explanation with that of the module added; a repair that was found before stays."""
    told = _told(lifted, pair)
    mechanism, repair = lifted.figures.mechanism(), found.repair
    if repair is None and diagnose_inside is not None and mechanism in ("semantic", "precision"):
        inner = _origin_inside(lifted, diagnose_inside)
        if inner is not None:
            told["inside"] = {"call": inner.call, "reason": inner.reason, "mechanism": inner.mechanism}
            mechanism = inner.mechanism if inner.mechanism != "unknown" else mechanism
            repair = f"{inner.repair}, inside {lifted.target.forward.module}" if inner.repair else None
    if mechanism == "unknown" or (is_suspect and found.repair is not None and found.mechanism != "unknown"):
        mechanism = found.mechanism
    dropped = () if mechanism == "unknown" else ("could_not", "next")
    details = {key: value for key, value in found.details.items() if key not in dropped}
    return replace(found, mechanism=mechanism, repair=repair, details={**details, "unit": told})


def _origin_inside(lifted: ModuleLift, diagnose_inside: DiagnoseRuns) -> Origin | None:
    """Return the diagnosed origin of the difference inside two modules; None where there is none."""
    with tempfile.TemporaryDirectory(prefix="numscope-inside-") as folder:
        target, reference = Path(folder) / "target", Path(folder) / "reference"
        try:
            _capture(lifted.target, lifted.values, target)
            _capture(lifted.reference, lifted.reference_values, reference)
            report = diagnose_inside(target, reference)
        except NumscopeError:  # the modules' own code fails, or the two captures can't be compared
            return None
    return report.origin if report.verdict == "diverged" else None


def _capture(replay: ModuleReplay, values: Values, path: Path) -> None:
    """Call a module again under capture."""

    def fetch(number: int) -> torch.Tensor:
        found = values[number] if number in values else replay.graph.data(number)
        found = found.detach().clone()
        return found.requires_grad_() if replay.call.is_gradient and found.is_floating_point() else found

    args, kwargs = replay.arguments(fetch)
    module = replay.module(lambda number: fetch(number).detach())
    recording = capture(path, {replay.forward.module: module}, keep="tensors", on_error="raise")
    with torch.set_grad_enabled(replay.call.is_gradient), replay.on_cpu(None), recording:
        with replay.module_errors():
            result = module(*args, **kwargs)
        if replay.call.is_gradient:
            outputs, gradients = replay.incoming(result, fetch)
            with replay.module_errors():
                torch.autograd.backward(outputs, gradients)
