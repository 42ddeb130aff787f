"""Calls that one side alone has, named where nothing more specific fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.wording import plain_argument_words
from numscope.diagnose.recorded.step_graph import RecordedCall

_MOST = 6  # more calls than this make no useful repair


def removed_gives_target(case: Case, missing: Sequence[RecordedCall]) -> bool:
    """Tell whether the reference without these calls gives the target's output."""
    if not case.target.calls:  # the target's output is one of its inputs
        return len(missing) == len(case.reference.calls)
    error = case.error_of_reference({call.order: None for call in missing})
    return error is not None and error <= case.limit


@hypothesis("missing calls")
def missing_calls(case: Case) -> Iterator[Repair]:
    """Make the calls that only the reference makes."""
    extra, missing = case.unmatched()
    if missing and not extra and len(missing) <= _MOST and removed_gives_target(case, missing):
        calls = (case.reference_calls[call.order] for call in missing)
        told = ", ".join(made.call.name + plain_argument_words(made) for made in calls)
        yield Repair(
            f"the call{'s' * (len(missing) > 1)} that {'are' if missing[1:] else 'is'} missing: {told}",
            lambda: case.reference_output,
        )


@hypothesis("extra calls")
def extra_calls(case: Case) -> Iterator[Repair]:
    """Leave out the calls that only the target makes."""
    extra, missing = case.unmatched()
    if extra and not missing and len(extra) <= _MOST:
        left_out = {call.order: None for call in extra}
        yield Repair(
            "",
            lambda: case.edited(left_out) if case.reference.calls else case.reference_output,
            sentence=f"equal to the reference without {_names(extra)}",
        )


@hypothesis("other calls")
def other_calls(case: Case) -> Iterator[Repair]:
    """Make the reference's calls in place of the target's, where both start from the same inputs."""
    extra, missing = case.unmatched()
    if extra and missing and len(extra) + len(missing) <= _MOST and set(case.reference.inputs) <= _shared(case):
        yield Repair(f"{_names(missing)} in place of {_names(extra)}", lambda: case.reference_output)


def _shared(case: Case) -> set[int]:
    """Return the reference's tensors that the target has too."""
    return set(case.counterpart.values())


def _names(calls: Sequence[RecordedCall]) -> str:
    return ", ".join(call.name for call in calls)
