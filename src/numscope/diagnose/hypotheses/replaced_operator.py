"""One operator in the place of another: mean for sum, `<` for `<=`."""

from __future__ import annotations

from collections.abc import Iterator

from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis
from numscope.diagnose.hypotheses.wording import plain_argument_words
from numscope.diagnose.recorded.invocation import Invocation, TensorRef

_WORDS = {
    frozenset({"mean", "sum"}): "the reduction {there} in place of {here}",
    frozenset({"lt", "le"}): "{there} in place of {here}, which moves the mask or window by one",
    frozenset({"gt", "ge"}): "{there} in place of {here}, which moves the mask or window by one",
    frozenset({"tril", "triu"}): "{there} in place of {here}, which turns the mask over",
    frozenset({"repeat", "repeat_interleave"}): "{there} in place of {here}, which permutes the copies",
    frozenset({"softmax", "log_softmax"}): "{there} in place of {here}",
}
_SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@hypothesis("operator")
def replaced(case: Case) -> Iterator[Repair]:
    """Run the reference's operator instead of the target's, where a single call differs on each side."""
    extra, missing = case.unmatched()
    if len(extra) != 1 or len(missing) != 1:
        return
    target, reference = case.target_calls[extra[0].order], case.reference_calls[missing[0].order]
    tensors = [value for value in target.args if isinstance(value, TensorRef)]
    filled: list[object] = []
    waiting = iter(tensors)
    for value in reference.args:
        filled.append(next(waiting, None) if isinstance(value, TensorRef) else value)
    edited = Invocation(target.call, reference.function, tuple(filled), reference.kwargs)
    here, there = target.call.operator, reference.call.operator
    form = _WORDS.get(frozenset({here, there}), "{there} in place of {here}")
    change = form.format(here=_SYMBOLS.get(here, here), there=_SYMBOLS.get(there, there))
    tail = plain_argument_words(reference)
    yield Repair(f"{change}{tail} in {target.call.name}", lambda: case.edited({extra[0].order: edited}))
