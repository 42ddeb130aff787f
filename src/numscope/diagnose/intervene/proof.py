"""The proof of a suspect: the target once more, with that operator elsewhere and the rest as it was; what is left then?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.compare.grafted import final_error
from numscope.core.errors import SettingsError
from numscope.core.names import parse_call, split_tensor
from numscope.core.report import Origin, Report, plain
from numscope.core.words import Verdict
from numscope.diagnose.recorded.step_graph import StepGraph

IN_FLOAT64 = "numscope.diagnose.intervene.reroute:install_float64"


@dataclass(frozen=True)
class Reroute:
    """One way to run the target again: the options of `numscope run`, and what they do."""

    folder: str
    options: tuple[str, ...]
    where: str
    on_cpu: bool


@dataclass(frozen=True)
class FinalErrors:
    """How far a step ends from the reference's: relative errors of the loss and of all gradients together."""

    loss: float | None
    gradients: float | None


@dataclass(frozen=True)
class Proof:
    """A run of the target with a suspect rerouted, held against the reference."""

    where: str  # "Functional.gelu on the CPU"
    on_cpu: bool
    verdict: Verdict
    before: FinalErrors
    after: FinalErrors
    is_same_place: bool  # the two runs still stop agreeing there
    next_place: str | None  # where they stop agreeing now

    def __str__(self) -> str:
        if self.verdict in ("identical", "equivalent"):
            told = f"the two runs are {self.verdict}: the fault is proven to be there"
        elif self.is_same_place:
            why = "it is not the device, but what is computed" if self.on_cpu else "in float64 it is wrong too"
            told = f"they still differ at {self.next_place}: {why}"
        elif self.next_place is not None:
            told = f"that difference is gone; the next one is {self.next_place}"
        else:
            told = "nothing could be compared"
        gone = [
            f"of the {name}' difference ({before:.1e}) {_share(before, after)} is gone"
            for name, before, after in (
                ("loss", self.before.loss, self.after.loss),
                ("gradients", self.before.gradients, self.after.gradients),
            )
            if before and after is not None
        ]
        return f"with {self.where} {'; '.join([told, *gone])}"

    def to_dict(self) -> dict[str, object]:
        """Return the proof for the report."""
        return {
            "sentence": str(self),
            "where": self.where,
            "verdict": self.verdict,
            "loss": {"before": self.before.loss, "after": self.after.loss},
            "gradients": {"before": self.before.gradients, "after": self.after.gradients},
            "next": self.next_place,
        }


def with_proofs(report: Report, proofs: Sequence[Proof]) -> Report:
    """Return a report with the proofs of its origin, as `details.proof`."""
    if report.origin is None:
        return report
    details = {**report.origin.details, "proof": [plain(proof.to_dict()) for proof in proofs]}
    return replace(report, origin=replace(report.origin, details=details))


def prove(comparison: Comparison, origin: Origin, rerouted: Comparison, way: Reroute) -> Proof:
    """Return what a run of the target with its origin rerouted proves."""
    found = rerouted.origin
    is_same = found is not None and (found.call, found.step, found.rank) == (origin.call, origin.step, origin.rank)
    return Proof(
        way.where,
        way.on_cpu,
        rerouted.verdict,
        final_errors(comparison, origin.step, origin.rank),
        final_errors(rerouted, origin.step, origin.rank),
        is_same,
        None if found is None else found.call if is_same else f"{found.call}, step {found.step}",
    )


def final_errors(comparison: Comparison, step: int, rank: int) -> FinalErrors:
    """Return how far a step of a rank ends from the reference's."""
    pairs = comparison.pairs
    pairs = pairs.filter(pc.and_(pc.equal(pairs["step"], step), pc.equal(pairs["rank"], rank)))
    loss = _loss(pairs)
    return FinalErrors(final_error(comparison) if loss is None else loss, _gradients(pairs))


def _loss(pairs: pa.Table) -> float | None:
    """Return the error of the loss: the last single number of a floating dtype that the backward pass begins from.

    Without a backward pass it is the last such number of the forward pass.
    """
    columns = pairs.select(["target_name", "slot", "reference_shape", "reference_dtype", "relative_l2"]).to_pydict()
    names = {split_tensor(name or "") for name in columns["target_name"]}
    calls = {name[0] for name in names if name is not None}
    found: float | None = None
    is_found = False
    for name, slot, shape, dtype, error in zip(*columns.values()):
        parts = split_tensor(name or "")
        if parts is None or shape != "[]" or "float" not in (dtype or "") or not slot.startswith("output"):
            continue
        call, _ = parts
        has_backward = call.endswith(".forward") and f"{call.removesuffix('forward')}backward" in calls
        if ".forward" in call and (has_backward or not is_found):
            found, is_found = error, is_found or has_backward
    return found


def _gradients(pairs: pa.Table) -> float | None:
    """Return the error of all gradients that an optimizer was given, or else that the modules made, together."""
    rows = pairs.filter(pc.starts_with(pairs["slot"], "parameters_grad."))
    of_optimizer = rows.filter(pc.starts_with(pc.fill_null(rows["target_name"], ""), "Optimizer."))
    rows = of_optimizer if of_optimizer.num_rows else rows
    rows = rows.filter(pc.and_(pc.is_valid(rows["relative_l2"]), pc.is_valid(rows["reference_l2"])))
    if not rows.num_rows:
        return None
    sizes = rows["reference_l2"].to_numpy()
    whole = float((sizes**2).sum()) ** 0.5
    return float(((rows["relative_l2"].to_numpy() * sizes) ** 2).sum()) ** 0.5 / whole if whole else None


def _share(before: float, after: float) -> str:
    share = 1 - after / before
    if share <= 0:
        return "nothing"
    if share > 0.999:
        return "all" if share == 1 else "more than 99.9%"
    return f"{share:.0%}" if share < 0.99 else f"{share:.1%}"


def reroutable(origin: Origin) -> str:
    """Return the name under which a suspect can be rerouted: its API, or its module's path."""
    parts = parse_call(origin.call)
    if parts is None or parts.prefix in ("Optimizer", "Distributed", "Data", "Save", "Parameter"):
        raise SettingsError(f"{origin.call} can't be rerouted: it is no function and no module")
    if parts.prefix == "Module":
        if not parts.path:
            raise SettingsError("the origin is the whole model: there is nothing smaller to reroute")
        return parts.path
    return f"{parts.prefix}.{parts.op}"


def reroutes(comparison: Comparison, origin: Origin) -> tuple[Reroute, ...]:
    """Return the ways to prove an origin: on the CPU, unless all ran there, and in float64 on its own device."""
    name = reroutable(origin)
    found = [Reroute("target-float64", (f"--also={IN_FLOAT64}={name}",), f"{name} in float64 where it was", False)]
    if _devices(comparison, origin) - {"", "cpu"}:
        found.insert(0, Reroute("target-on-cpu", ("--to-cpu", name), f"{name} on the CPU", True))
    return tuple(found)


def _devices(comparison: Comparison, origin: Origin) -> set[str]:
    """Return the devices of the tensors that the target's origin made."""
    graph = StepGraph(comparison.target, origin.step, origin.rank)
    call = graph.by_name.get(origin.call)
    return {graph.tensors[number].device for number in graph.outputs(call.order).values()} if call else set()
