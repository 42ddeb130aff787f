"""Examines all components: first each by itself, then what is wrong beside all others, then beside its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numscope.weights.judge import adapters, elsewhere, peers
from numscope.weights.judge.case import Case
from numscope.weights.judge.single import Looker
from numscope.weights.matching.components import Component
from numscope.weights.matching.lines import Book
from numscope.weights.matching.values import by_value, tied
from numscope.weights.pair import Weights
from numscope.weights.tensor import Tensor

# What each model makes anew, or measures of its activations: its absence says nothing.
_MADE_ANEW = (
    ".input_scale",
    ".input_global_scale",
    "inv_freq",
    "rope_freqs",
    "masked_bias",
    "num_batches_tracked",
    "position_ids",
    "_extra_state",
    "causal_mask",
)


class Examiner:
    """One comparison."""

    def __init__(
        self,
        a: Sequence[Tensor],
        b: Sequence[Tensor],
        earlier: Sequence[Sequence[Tensor]],
        progress: Callable[[int, int], None] | None,
        adapter_factor: float | None = None,
    ) -> None:
        self._a, self._b, self._earlier = list(a), list(b), earlier
        self._book = Book()
        self._looker = Looker(self._book)
        self._progress = progress
        self._adapter_factor = adapter_factor
        self._total = sum(tensor.size for tensor in b)
        self._done = 0

    def answer(self, components: Sequence[Component], a: str, b: str) -> Weights:
        """Return the answer for components that names have given."""
        pairs = [component for component in components if component.a and component.b]
        cases = [self._look(component) for component in pairs]
        left_a = [tensor for component in components if not component.b for tensor in component.a]
        left_b = [tensor for component in components if not component.a for tensor in component.b]
        merged = adapters.judge(cases, left_a, left_b, self._adapter_factor)
        left_a = [tensor for tensor in left_a if tensor.name not in merged]
        left_b = [tensor for tensor in left_b if tensor.name not in merged]
        for component in by_value(self._book, left_a, left_b):
            cases.append(self._look(component))
            left_a = [tensor for tensor in left_a if tensor not in component.a]
            left_b = [tensor for tensor in left_b if tensor not in component.b]
        ties = tied(self._book, self._a, left_b) + tied(self._book, left_a, self._b)
        for component in ties:
            case = Case(component)
            cases.append(case.settle("tied", "identical", f"the same as {_partner(component, left_a)}", 0.0))
            left_a = [tensor for tensor in left_a if tensor not in component.a]
            left_b = [tensor for tensor in left_b if tensor not in component.b]
        elsewhere.judge(cases, self._b, self._earlier, self._book)
        peers.judge(cases)
        missing, extra = (tuple(name for t in side for name in t.names) for side in (left_b, left_a))
        unjudged = tuple(name for name in (*missing, *extra) if name.endswith(_MADE_ANEW))
        order = {tensor.name: number for number, tensor in enumerate(self._b)}
        cases.sort(key=lambda case: min(order.get(tensor.name, len(order)) for tensor in case.b))
        return Weights(a, b, tuple(case.pair() for case in cases), missing, extra, unjudged)

    def _look(self, component: Component) -> Case:
        case = self._looker.look(component)
        self._done += sum(tensor.size for tensor in component.b)
        if self._progress is not None:
            self._progress(self._done, self._total)
        return case


def _partner(component: Component, left_a: Sequence[Tensor]) -> str:
    if component.a[0] in left_a:
        return f"{component.b[0].name}: B stores tied weights once"
    return f"{component.a[0].name}: A stores tied weights once"
