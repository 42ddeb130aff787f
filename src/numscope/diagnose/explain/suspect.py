"""Explains one suspect: asks the explainers of its kind, then replays it."""

from __future__ import annotations

from dataclasses import replace

from numscope.core.names import CallName, parse_call
from numscope.core.report import Origin
from numscope.diagnose.explain import calls, collectives, gradients, modules, optimizers, parameters, side_effects
from numscope.diagnose.explain.explanation import Explanation
from numscope.diagnose.explain.modules import DiagnoseRuns
from numscope.diagnose.recorded.paired_step import CallPair, PairedStep


def explain(pairs: PairedStep, origin: Origin, diagnose_inside: DiagnoseRuns | None = None) -> Explanation:
    """Explain a suspect; `diagnose_inside` diagnoses two captures of a module's inside, None inside such a capture."""
    found = _explain_by_kind(pairs, origin, diagnose_inside)
    if found is not None:
        return found
    if "paddle" in (graph.run.manifest.get("framework") for graph in (pairs.target, pairs.reference)):
        told = "make Paddle's calls again, as it does torch's: what compare says is all that is known"
        return replace(Explanation.could_not(told), mechanism=origin.mechanism)
    return explain_call(pairs, origin, diagnose_inside)


def explain_call(pairs: PairedStep, origin: Origin, diagnose_inside: DiagnoseRuns | None) -> Explanation:
    """Explain a suspect that is a call by its recorded calls, or by its module where that shows more."""
    return modules.explain(pairs, origin, calls.explain(pairs, origin), diagnose_inside)


def _explain_by_kind(pairs: PairedStep, origin: Origin, diagnose_inside: DiagnoseRuns | None) -> Explanation | None:
    """Explain a suspect of a kind with its own explainer: data, a parameter, an optimizer's step … or return None."""

    def explain_forward(suspect: Origin) -> Explanation:
        return explain_call(pairs, suspect, diagnose_inside)

    name = parse_call(origin.call)
    prefix = name.prefix if name is not None else ""
    is_detach = origin.kind == "extra" and name is not None and _is_detach(name)
    if is_detach or origin.kind in ("parameter", "optimizer") or origin.phase in ("backward", "optimizer"):
        found = parameters.explain_tied(pairs)
        if found is not None:
            return found
    if origin.phase == "forward" and _shows_in_backward(origin):
        found = explain_forward(replace(origin, relative=None))  # the error is that of a gradient, not of its output
        if found.repair or not is_detach:
            return found if found.repair else explain_forward(origin)
    if is_detach:
        return Explanation("semantic", f"equal to the reference without {origin.call}, which stops the gradient")
    suspect = pairs.call(origin.call, origin.kind)
    if suspect is not None:
        for pair in _with_different_arguments(pairs, suspect):
            if pair.matched is not None and (found := side_effects.explain_state(pairs, pair.matched)) is not None:
                return found
        if (found := side_effects.explain_in_place(pairs, suspect)) is not None:
            return found
    if origin.kind == "data":
        return parameters.explain_data(pairs, origin)
    if origin.kind == "parameter":
        return parameters.explain_parameter(pairs, origin)
    if origin.kind == "optimizer" or prefix == "Optimizer":
        return optimizers.explain(pairs, origin)
    if prefix == "Distributed":
        return collectives.explain(pairs, origin)
    if origin.phase == "backward":
        return gradients.explain(pairs, origin, explain_forward)
    return None


def _is_detach(name: CallName) -> bool:
    return name.prefix != "Module" and name.op in ("detach", "detach_")


def _shows_in_backward(origin: Origin) -> bool:
    """Tell whether a call that one run alone has makes a difference in the backward pass first."""
    shows_in = origin.details.get("shows_in")
    name = parse_call(shows_in) if isinstance(shows_in, str) else None
    return name is not None and name.phase == "backward"


def _with_different_arguments(pairs: PairedStep, suspect: CallPair) -> list[CallPair]:
    """Return the calls with different arguments among a suspect and, where it is a module, the calls in it."""
    inside = [pair for pair in pairs.calls if pair.kind == "api" and pair.module == suspect.module]
    return [pair for pair in (suspect, *(inside if suspect.kind == "module" else ())) if pair.arguments_differ]
