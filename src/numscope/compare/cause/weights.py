"""Says of a parameter that differs at the start how the weights of two runs differ, and what conversion would repair it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from numscope.core.errors import NumscopeError
from numscope.core.report import Origin
from numscope.store.reader import Run

if TYPE_CHECKING:
    from numscope.weights.pair import Pair, Weights

_UNTOLD = (None, "values", "shape")  # faults that say no more than that the values differ


def with_weights(suspects: Sequence[Origin], target: Run, reference: Run) -> list[Origin]:
    """Return the suspects, the first with what is known of the weights where a parameter differs before any call."""
    first = suspects[0] if suspects else None
    if first is None or first.kind != "parameter" or first.step != min(target.steps, default=first.step):
        return list(suspects)
    from numscope.weights.comparison import weights  # a dozen modules that no other answer needs

    try:
        answer = weights(target, reference)
    except NumscopeError:  # the runs hold no fingerprints of parameters to go by
        return list(suspects)
    pair = next((one for one in answer.wrong if first.call in one.a or first.call in one.b), None)
    if pair is None or pair.fault in _UNTOLD:
        return list(suspects)
    details = {**first.details, "weights": {"fault": pair.fault, "wrong": len(answer.wrong), "reason": answer.reason}}
    told = replace(first, reason=f"{first.reason}; {pair.reason}{_others(answer, pair)}", details=details)
    return [replace(told, repair=told.repair or pair.repair), *suspects[1:]]


def _others(answer: Weights, pair: Pair) -> str:
    """Return how many other parameters are wrong in the same way."""
    count = sum(one.fault == pair.fault for one in answer.wrong) - 1
    return f", as {count} more parameters" if count else ""
