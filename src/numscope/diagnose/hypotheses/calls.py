"""Whole calls that one side has and the other has not: said when nothing more specific fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from numscope.diagnose.hypotheses.arguments import holds_given
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis, text
from numscope.diagnose.recorded.invocation import Invocation
from numscope.diagnose.recorded.step_graph import Call
from numscope.diagnose.replay.measures import relative

_MOST = 6  # more calls than this are no repair


def removed_gives_target(case: Case, missing: Sequence[Call]) -> bool:
    """Tell whether the reference without these calls is the target."""
    if not case.target.calls:  # the target has nothing but what goes in
        return len(missing) == len(case.reference.calls)
    try:
        made = case.reference.run(case.reference_values, torch.float64, {call.order: None for call in missing})
    except case.expected_errors:
        return False
    return relative(made, case.given) <= max(1e-11, 25 * case.floor64)


@hypothesis("missing calls")
def missing_calls(case: Case) -> Iterator[Repair]:
    """The target lacks calls that the reference makes."""
    extra, missing = case.unpaired()
    if missing and not extra and len(missing) <= _MOST and removed_gives_target(case, missing):
        told = ", ".join(_with_arguments(case.reference_calls[call.order]) for call in missing)
        yield Repair(
            f"the call{'s' * (len(missing) > 1)} that {'are' if missing[1:] else 'is'} missing: {told}",
            lambda: case.wanted,
        )


@hypothesis("extra calls")
def extra_calls(case: Case) -> Iterator[Repair]:
    """The target makes calls that the reference does not."""
    extra, missing = case.unpaired()
    if extra and not missing and len(extra) <= _MOST:
        left_out = {call.order: None for call in extra}
        yield Repair(
            "",
            lambda: case.edited(left_out) if case.reference.calls else case.wanted,
            sentence=f"equal to the reference without {_names(extra)}",
        )


@hypothesis("other calls")
def other_calls(case: Case) -> Iterator[Repair]:
    """The target makes other calls than the reference, from the same inputs: what to write instead is known."""
    extra, missing = case.unpaired()
    if extra and missing and len(extra) + len(missing) <= _MOST and set(case.reference.inputs) <= _shared(case):
        yield Repair(f"{_names(missing)} in place of {_names(extra)}", lambda: case.wanted)


def _shared(case: Case) -> set[int]:
    """Return the reference's tensors that the target has too."""
    return set(case.reference_number.values())


def _with_arguments(made: Invocation) -> str:
    """Return a call's name with the arguments that are no tensors: `Tensor.add.0.forward (0.5)`."""
    shown = [text(value) for value in made.args if not holds_given(value)]
    shown += [f"{name}={text(value)}" for name, value in made.kwargs.items() if not holds_given(value)]
    return f"{made.call.name} ({', '.join(shown)})" if shown else made.call.name


def _names(calls: Sequence[Call]) -> str:
    return ", ".join(call.name for call in calls)
