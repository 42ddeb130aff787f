"""Whether two runs are of two precisions throughout: then the coarser one's rounding counts, and the answer says so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from numscope.compare.align.alignment import Alignment
from numscope.compare.align.slots import OUTPUT, STATE, SlotPairs
from numscope.compare.load.side import Flags, Ints, Side, distinct
from numscope.core.dtypes import is_discrete, unit_roundoff
from numscope.core.operators import MULTIPLIES, operator

_SHARE = 0.3  # of the products, or of the parameters, that must differ in dtype


@dataclass(frozen=True)
class Precisions:
    """The dtypes of two runs of two precisions."""

    target: str
    reference: str
    parameters: bool = False  # only what they keep differs: autocast computes in bfloat16, as a bfloat16 model does

    @property
    def roundoff(self) -> float:
        """The unit roundoff of the coarser one."""
        return max(unit_roundoff(self.target), unit_roundoff(self.reference))

    def sentence(self) -> str:
        """Return the precisions in words."""
        if self.parameters:
            return f"the target's parameters are {self.target}, the reference's {self.reference}"
        return f"the target computes in {self.target}, the reference in {self.reference}"


def precisions(a: Side, b: Side, alignment: Alignment, slots: SlotPairs) -> Precisions | None:
    """Return the precisions of two runs, None where they are of one."""
    rounded = np.array([not is_discrete(word) for word in a.book.words] + [False])
    floats = rounded[a.tensors.dtype[slots.a]] & rounded[b.tensors.dtype[slots.b]]
    forward = (a.calls.phase[alignment.target] == a.book.code("forward"))[slots.pair]
    out = floats & forward & (slots.role == OUTPUT)
    heavy = out & _products(a)[alignment.target[slots.pair]]
    if heavy.any() or not out.any():
        computed = _differing_dtypes(a, b, slots, heavy) or _dtypes_of_products(a, b, rounded)
    else:
        computed = _differing_dtypes(a, b, slots, out)
    if computed is not None:
        return Precisions(*computed)
    kept = _differing_dtypes(a, b, slots, floats & forward & (slots.role == STATE))
    return None if kept is None else Precisions(*kept, parameters=True)


def _products(side: Side) -> Flags:
    present, place = distinct(side.calls.op)
    classes = [operator(side.book.words[code]).rounding if code >= 0 else 0 for code in present.tolist()]
    return np.asarray(np.isin(np.array(classes, dtype=np.int64), MULTIPLIES)[place])


def _differing_dtypes(a: Side, b: Side, slots: SlotPairs, chosen: Flags) -> tuple[str, str] | None:
    """Return the two dtypes of most of the pairs that differ in dtype, None where only a few do."""
    x, y = a.tensors.dtype[slots.a[chosen]], b.tensors.dtype[slots.b[chosen]]
    unlike = x != y
    if not len(x) or unlike.mean() <= _SHARE:
        return None
    (mine, theirs), _ = Counter(zip(x[unlike].tolist(), y[unlike].tolist())).most_common(1)[0]
    return a.book.words[mine], b.book.words[theirs]


def _dtypes_of_products(a: Side, b: Side, rounded: Flags) -> tuple[str, str] | None:
    """Return the dtypes in which the two runs make most of their products, where those differ.

    No call needs to be paired: all of them may have other names.
    """
    target, reference = (_most_common(_product_dtypes(side, rounded)) for side in (a, b))
    if target < 0 or reference < 0 or target == reference:
        return None
    return a.book.words[target], b.book.words[reference]


def _most_common(codes: Ints) -> int:
    """Return the most common code, -1 of none."""
    return next((code for code, _ in Counter(codes.tolist()).most_common(1)), -1)


def _product_dtypes(side: Side, rounded: Flags) -> Ints:
    """Return the dtypes of the outputs of all products in a run's forward."""
    wanted = [side.book.code("output.0"), side.book.code("output")]
    calls = _products(side) & (side.calls.phase == side.book.code("forward")) & (side.calls.children == 0)
    rows = np.flatnonzero(np.isin(side.slots.slot, wanted) & calls[side.slots.call] & (side.slots.tensor >= 0))
    dtypes = side.tensors.dtype[side.slots.tensor[rows]]
    return np.asarray(dtypes[rounded[dtypes]])
