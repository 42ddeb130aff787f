"""Why a call, a parameter or the data is named as the origin: one type per reason, each with its own sentence.

The kind and the mechanism that a report gives follow from the reason's type. A sentence is about a finding, which says
where the reason was found and how far off the result is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from numscope.compare.judge.call_titles import module_of, number, operator, title
from numscope.compare.judge.findings import Finding, Inputs, Reason, Who
from numscope.compare.judge.rounding.moments import StandOut
from numscope.compare.load.side import Side
from numscope.core.names import label_of
from numscope.core.words import Mechanism, OriginKind

_DDP = "DistributedDataParallel"


# Data and parameters ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataDiffers(Reason):
    """The two runs are given other data."""

    kind: ClassVar[OriginKind | None] = "data"
    mechanism: ClassVar[Mechanism | None] = "input"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        side, row = finding.call(a, b)
        off = number(finding.relative)
        return f"the input data differs before any call: {side.calls.name(row)}, {finding.slot} is off by {off}"


@dataclass(frozen=True)
class DataOfAnotherSize(Reason):
    """The two runs are given parts of different sizes of a batch."""

    kind: ClassVar[OriginKind | None] = "data"
    mechanism: ClassVar[Mechanism | None] = "input"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        side, row = finding.call(a, b)
        shapes = finding.batch_shapes
        return f"the input data is of another size: {side.calls.name(row)}, {finding.slot} is {shapes}"


@dataclass(frozen=True)
class ParameterDiffers(Reason):
    """A parameter or buffer differs though no recorded call made it differ."""

    kind: ClassVar[OriginKind | None] = "parameter"
    mechanism: ClassVar[Mechanism | None] = "parameter"
    between_steps: bool = False  # it was right when the step before ended

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        when = "changed between the steps" if self.between_steps else "differs before any call"
        what = "buffer" if finding.slot.startswith("buffers") else "parameter"
        return f"{what} {self.name(finding, a, b)} {when}: off by {number(finding.relative)}"

    def name(self, finding: Finding, a: Side, b: Side) -> str:
        side, row = finding.call(a, b)
        return ".".join(part for part in (module_of(side, row), label_of(finding.slot)) if part)


# Calls that one side alone has ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneSidedCall(Reason):
    """Only one side has a call, and a later call is off because of it."""

    mechanism: ClassVar[Mechanism | None] = "semantic"
    shows_in: str  # the name of the call that is off

    def details(self, finding: Finding) -> Mapping[str, str]:
        return {**super().details(finding), "shows_in": self.shows_in}

    def consequence(self, finding: Finding) -> str:
        off = number(finding.relative)
        if finding.inputs is not Inputs.RECORDED:
            return f"; {self.shows_in} ({finding.inputs.value}) is then off by {off}"
        return f"; {self.shows_in} then gets {finding.slot or 'an input'} off by {off}"


@dataclass(frozen=True)
class MissingCall(OneSidedCall):
    """Only the reference has a call."""

    kind: ClassVar[OriginKind | None] = "missing"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return f"{title(b, finding.reference)}: only the reference has this call" + self.consequence(finding)


@dataclass(frozen=True)
class ExtraCall(OneSidedCall):
    """Only the target has a call."""

    kind: ClassVar[OriginKind | None] = "extra"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        text = f"{title(a, finding.target)}: only the target has this call"
        if finding.reference >= 0:
            text += f" (the reference has {operator(b, finding.reference)} in its place)"
        return text + self.consequence(finding)


def one_sided_call(target: int, shows_in: str) -> OneSidedCall:
    """Return the reason for a call that one side alone has: the target where it has a row, else the reference."""
    return ExtraCall(shows_in) if target >= 0 else MissingCall(shows_in)


# Something that was not recorded ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnrecordedWork(Reason):
    """A tensor that no recorded call made differs, though every call before it agrees."""

    mechanism: ClassVar[Mechanism | None] = "input"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return (
            f"{title(a, finding.target)}: its {finding.slot} is off by {number(finding.relative)} though the calls "
            "before it agree: something that was not recorded made it differ" + self._reducing(finding, a, b)
        )

    @staticmethod
    def _reducing(finding: Finding, a: Side, b: Side) -> str:
        """Say that DistributedDataParallel reduces gradients after backward, which only level aten records."""
        in_module = a.calls.module[finding.target] >= 0 and a.book.words[a.calls.module[finding.target]]
        code = a.book.numbers.get(_DDP, -2)
        has = [bool((side.calls.module_class == code).any()) for side in (a, b)]
        if in_module or not any(has):
            return ""
        if all(has):
            return f"; {_DDP} reduces gradients before it"
        return f"; only the {'target' if has[0] else 'reference'} is in {_DDP}, which reduces gradients before it"


# Paired calls -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallReason(Reason):
    """A pair of calls does not compute the same."""


@dataclass(frozen=True)
class OutputDiffers(CallReason):
    """A call's outputs are further apart than rounding explains."""

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return _outputs_differ(finding, a, b) + _from_other_ranks(finding, a)


@dataclass(frozen=True)
class ComputesWrongly(CallReason):
    """A call is not what exact arithmetic gives from its own inputs, on one side alone: it was verified on both."""

    mechanism: ClassVar[Mechanism | None] = "device"
    who: Who
    words: str

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        of_reference = "in the reference, " if self.who == "reference" else ""
        return f"{title(a, finding.target)}: {of_reference}{self.words}; the other side computes as exactly as its kind does"


@dataclass(frozen=True)
class StandsOut(CallReason):
    """A call changes the norm or the mean of what passes through it as none of its siblings does."""

    by: StandOut

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        text, off = title(a, finding.target), number(finding.relative)
        return f"{text}: {self.by.sentence()}; outputs differ by {off}, inputs by {number(finding.came_in)}"


@dataclass(frozen=True)
class InnerCallsAgree(CallReason):
    """A call's outputs differ though its inner calls agree: a gradient added to an old one, an untied weight."""

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return _outputs_differ(finding, a, b) + "; its inner calls agree" + _from_other_ranks(finding, a)


@dataclass(frozen=True)
class ChangesState(CallReason):
    """A call with other arguments returns the same, and changes state that shows later: BatchNorm's momentum."""

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return f"{title(a, finding.target)}: it changes state that later steps read"


@dataclass(frozen=True)
class DoesAnotherJob(CallReason):
    """A pair of calls does not do the same job: it is given other operands, or is another operator."""

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        text, off = title(a, finding.target), number(finding.relative)
        if finding.batch_shapes and not finding.differences:
            how = f"the runs are given parts of other sizes of a batch ({finding.batch_shapes})"
        elif finding.reference >= 0 and operator(a, finding.target) != operator(b, finding.reference):
            how = f"the reference has {operator(b, finding.reference)} in its place"
        else:
            how = _other_operands(finding, a, b)
        return f"{text}: {how}; what follows is off by {off}"


@dataclass(frozen=True)
class ComputesInAnotherDtype(Reason):
    """A call computes in another dtype than the reference's, where the runs are of one precision."""

    mechanism: ClassVar[Mechanism | None] = "precision"
    target: str
    reference: str

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return (
            f"{title(a, finding.target)}: it computes in {self.target}, the reference in {self.reference}; outputs "
            f"differ by {number(finding.relative)}, inputs by {number(finding.came_in)}: rounding could make that too, "
            "but has not written the cast"
        )


@dataclass(frozen=True)
class AsksForAnother(CallReason):
    """A call is asked for something else, and is given something wrong besides: its own share cannot be told."""

    mechanism: ClassVar[Mechanism | None] = "semantic"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        given = (
            f"what it is given is off by {number(finding.came_in)} already" if finding.came_in else "inputs identical"
        )
        return f"{title(a, finding.target)}: it is asked for something else than its counterpart; {given}"


@dataclass(frozen=True)
class GradientOnOneSide(CallReason):
    """A backward call has a gradient on one side alone."""

    mechanism: ClassVar[Mechanism | None] = "semantic"
    who: Who

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        other = "reference" if self.who == "target" else "target"
        return f"{title(a, finding.target)}: the {self.who} has a gradient {finding.slot} here, the {other} has none"


@dataclass(frozen=True)
class AnotherLayout(CallReason):
    """A call lays its output out in another shape than its counterpart."""

    mechanism: ClassVar[Mechanism | None] = "semantic"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        text = f"{title(a, finding.target)}: it lays its output out in another shape than its counterpart"
        return f"{text}; what follows is off by {number(finding.relative)}"


@dataclass(frozen=True)
class WritesInPlace(CallReason):
    """A call writes into its input on one side alone, and a later call reads that."""

    mechanism: ClassVar[Mechanism | None] = "semantic"
    read_by: str  # the name of the later call

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        if a.writes_in_place(finding.target):
            how = "it writes into its input, which the reference's leaves as it is"
        else:
            how = "it leaves its input as it is, and the reference's writes into it"
        off = number(finding.relative)
        return f"{title(a, finding.target)}: {how}; {self.read_by} reads it afterwards, off by {off}"

    def details(self, finding: Finding) -> Mapping[str, str]:
        return {"slot": self.read_by}


@dataclass(frozen=True)
class AnotherTensor(CallReason):
    """A call is given another tensor than its counterpart, and right calls made both."""

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        off = number(finding.relative)
        return f"{title(a, finding.target)}: its {finding.slot} is another tensor than the reference's, off by {off}"


# Optimizer steps --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UpdateDiffers(Reason):
    """An optimizer's step leaves a parameter further apart than its gradients explain."""

    kind: ClassVar[OriginKind | None] = "optimizer"

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        return _outputs_differ(finding, a, b) + _from_other_ranks(finding, a)


@dataclass(frozen=True)
class UpdatedOnOneSide(Reason):
    """An optimizer updates a parameter on one side alone."""

    kind: ClassVar[OriginKind | None] = "optimizer"
    who: Who

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        parameter = label_of(finding.slot)
        return f"{title(a, finding.target)}: only the {self.who} has {parameter} among the parameters it updates"


@dataclass(frozen=True)
class GradientsOfParts(Reason):
    """Gradients differ though the parts of a batch were added up."""

    kind: ClassVar[OriginKind | None] = "optimizer"
    off: int
    count: int
    factor: float | None  # where all that are off are the same multiple of the reference's
    rank: int = -1  # on which the gradient is not as on the others
    parts: str = ""  # what the gradients of all ranks would make, where that is right: a sum, a mean

    def sentence(self, finding: Finding, a: Side, b: Side) -> str:
        how = f"{self.factor:.4g} times the reference's" if self.factor is not None else "off"
        gradients = f"{self.off} of {self.count} gradients {'are' if self.off > 1 else 'is'} {how}"
        gradients = gradients if self.off else "all together are off"
        size = f"its {finding.slot} is off by {number(finding.relative)}, {gradients}"
        text = f"{title(a, finding.target)}: {size}"
        if self.parts:
            text += f"; each rank holds a part, and the {self.parts} over the ranks is right: no collective makes it"
        elif self.rank >= 0:
            text += f"; rank {self.rank} has another than the others"
        if finding.batch_shapes:
            text += f"; before it the runs are given parts of other sizes of a batch ({finding.batch_shapes})"
        return text


# Parts of sentences -----------------------------------------------------------------------------------------------


def _outputs_differ(finding: Finding, a: Side, b: Side) -> str:
    given = "inputs identical" if finding.came_in == 0 else f"inputs within {number(finding.came_in)}"
    if finding.inputs is not Inputs.RECORDED:
        given = finding.inputs.value
    outputs = f"{finding.slot} differs" if finding.slot else "outputs differ"
    text = f"{title(a, finding.target)}: {given}, {outputs} by {number(finding.relative)}"
    text += f" (rounding explains {number(finding.expected)})"
    if finding.reference >= 0 and operator(b, finding.reference) != operator(a, finding.target):
        text += f"; the reference has {operator(b, finding.reference)} in its place"
    return text


def _from_other_ranks(finding: Finding, a: Side) -> str:
    """Say of a collective that is given the same that its result comes from another rank."""
    collective = operator(a, finding.target).startswith("Distributed.")
    if collective and finding.came_in == 0 and not finding.differences:
        return "; it brings what another rank gave it"
    return ""


def _other_operands(finding: Finding, a: Side, b: Side) -> str:
    """Say which tensors one side alone is given, or only that the two calls differ."""
    given = []
    for side, row in ((a, finding.target), (b, finding.reference)):
        codes = side.slots.slot[side.slots.start[row] : side.slots.start[row + 1]] if row >= 0 else ()
        slots = [side.book.words[code] for code in codes]
        given.append([slot for slot in slots if slot.startswith(("input", "kwargs"))])
    own, others = given
    for slot in own:
        name, _, place = slot.rpartition(".")
        count, other = (sum(one.startswith(f"{name}.") for one in slots) for slots in (own, others))
        if place.isdecimal() and "." in name and count != other > 0:
            return f"it is given {count} tensors as {name}, its counterpart {other}"
    mine = ", ".join(slot for slot in own if slot not in others)
    theirs = ", ".join(slot for slot in others if slot not in own)
    if bool(mine) == bool(theirs):
        return "it does not do the same as its counterpart"
    return f"it is given {mine}, its counterpart is not" if mine else f"its counterpart is given {theirs}, it is not"
