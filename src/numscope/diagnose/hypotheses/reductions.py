"""Mean in place of sum, and other operators that take each other's place."""

from __future__ import annotations

from collections.abc import Iterator

from numscope.diagnose.hypotheses.arguments import holds_given
from numscope.diagnose.hypotheses.case import Case, Repair, hypothesis, operator, text
from numscope.diagnose.recorded.invocation import Given, Invocation

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
    """Put the reference's operator in the place of the target's, where one stands for one."""
    extra, missing = case.unpaired()
    if len(extra) != 1 or len(missing) != 1:
        return
    target, reference = case.target_calls[extra[0].order], case.reference_calls[missing[0].order]
    tensors = [value for value in target.args if isinstance(value, Given)]
    filled: list[object] = []
    waiting = iter(tensors)
    for value in reference.args:
        filled.append(next(waiting, None) if isinstance(value, Given) else value)
    edited = Invocation(target.call, reference.function, tuple(filled), reference.kwargs)
    here, there = operator(target.call), operator(reference.call)
    form = _WORDS.get(frozenset({here, there}), "{there} in place of {here}")
    change = form.format(here=_SYMBOLS.get(here, here), there=_SYMBOLS.get(there, there))
    shown = [text(value) for value in reference.args if not holds_given(value)]
    shown += [f"{name}={text(value)}" for name, value in reference.kwargs.items() if not holds_given(value)]
    tail = f" ({', '.join(shown)})" if shown else ""
    yield Repair(f"{change}{tail} in {target.call.name}", lambda: case.edited({extra[0].order: edited}))
