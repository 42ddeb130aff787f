"""Examines one component by itself: which relation holds, how far both sides are apart, and what the values say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from numscope.core.dtypes import FLOATS, AnyArray
from numscope.weights import measure
from numscope.weights.judge import content, rounding, structure
from numscope.weights.judge.case import Case
from numscope.weights.matching.components import Component
from numscope.weights.matching.lines import ALIKE, Book, Placement, place
from numscope.weights.measure import Difference
from numscope.weights.pair import PairVerdict
from numscope.weights.summary import summarise
from numscope.weights.tensor import Summary, Tensor, of_array

_MOST = 1 << 27  # elements of a tensor whose axes are tried in every order
_SIGMAS = 5.0
_SKETCHED = 2.0**-20  # relative: sketches are stored in float32, 61 sums of one tensor


class Looker:
    """Examines components; the fingerprints of their lines are measured once."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def look(self, component: Component) -> Case:
        """Return the case of a component."""
        case = Case(component)
        if case.is_single and case.a[0].shape == case.b[0].shape:
            return self._same_shape(case)
        return self._moved(case)

    def _same_shape(self, case: Case) -> Case:
        a, b = case.a[0], case.b[0]
        if a.read is None or b.read is None:
            return self._from_summaries(case)
        d = case.difference = measure.directly(a, b)
        if not d.differing and a.dtype == b.dtype:
            return _equal(case)
        if a.encoding is None and b.encoding is None:
            if a.dtype != b.dtype and (d.is_cast_of_a or d.is_cast_of_b) and not _has_own_trouble(d):
                way = (
                    f"{b.dtype} of B, cast to {a.dtype}"
                    if d.is_cast_of_b
                    else f"cast to {b.dtype}, it is B's to the bit"
                )
                return case.settle("cast", "equivalent", way, d.relative)
            found = content.explain(a, b, d)
            if found is not None:
                return self._found(case, found)
            if _is_truncated(d):
                reason = f"rounded toward zero from a finer dtype, where B was rounded to the nearest {b.dtype}"
                case.settle("cast", "equivalent", reason, d.relative).fault = "dtype"
                return case
        explained = rounding.is_explained(d, [a, b]) & (not _has_own_trouble(d))
        if explained.all() and d.elements:
            return self._within_rounding(case, d)
        return self._other_lines(case, d, explained)

    def _within_rounding(self, case: Case, d: Difference) -> Case:
        coded = [t.encoding.name for t in (*case.a, *case.b) if t.encoding is not None]
        if coded:
            ratio = rounding.sqnr(d.relative)
            case.details["sqnr"] = ratio
            return case.settle("quantised", "equivalent", f"{coded[0]}, SQNR {ratio:.1f} dB", d.relative)
        dtypes = {tensor.dtype for tensor in (*case.a, *case.b)}
        relation: structure.Relation = "cast" if len(dtypes) > 1 else "equal"
        return case.settle(relation, "equivalent", f"within rounding of {', '.join(sorted(dtypes))}", d.relative)

    def _other_lines(self, case: Case, d: Difference, explained: NDArray[np.bool_]) -> Case:
        """Look for the reference's lines elsewhere in the suspect; else name those that differ."""
        a, b = case.a[0], case.b[0]
        if a.encoding is not None or b.encoding is not None:
            found = content.explain(a, b, d)
            if found is not None and found.fault in ("zero", "non-finite"):
                return self._found(case, found)
        placement = place(self._book, case.a, case.b) if not a.is_vector else None
        if placement is not None and not placement.is_identity and placement.found > 0.999:
            return self._placed(case, placement)
        case.placement = placement
        case.settle("equal", "diverged", f"the values differ, by {d.relative:.2e} of their norm", d.relative)
        wrong = ~explained
        if a.dtype == b.dtype and not (a.encoding or b.encoding):
            wrong = d.line_differs
        found = content.slice_of(d, wrong)
        if found is not None:
            return self._found(case, found)
        case.fault = "values"
        if d.cosine > ALIKE:
            share = d.differing / max(1, d.elements)
            case.reason = (
                f"{share:.0%} of the elements differ, by {d.relative:.2e} of the norm: trained further, left from an earlier"
                " step, or computed otherwise"
            )
        return case

    def _found(self, case: Case, found: content.Finding) -> Case:
        d = case.difference
        relative = d.relative if d is not None else None
        case.finding = found
        relation: structure.Relation = "scaled" if found.fault == "scale" else "cast" if found.is_loss else "equal"
        case.settle(relation, "equivalent" if found.is_loss else "diverged", found.reason, relative)
        case.fault, case.repair = found.fault, found.repair
        return case

    def _from_summaries(self, case: Case) -> Case:
        """Judge by fingerprints, where one side has no elements."""
        a, b = case.a[0], case.b[0]
        ours, theirs = _summary(a), _summary(b)
        if a.dtype == b.dtype and ours.hash == theirs.hash:
            return _equal(case)
        placement = place(self._book, case.a, case.b) if not a.is_vector else None
        if placement is not None:
            case.explain.append("judged by the fingerprints of its lines")
            return self._placed(case, placement)
        relative = _estimate(ours, theirs)
        floats = [t for t in (a, b) if t.dtype in FLOATS]
        if relative is None:
            return case.settle("none", "incomplete", "its fingerprints cannot be compared", None)
        limit = max(rounding.tolerance(floats), rounding.encoding_tolerance([a, b]))
        if ours.non_finite != theirs.non_finite:
            case.blame("non-finite", "NaN or infinite elements on one side")
        elif not ours.l2 and theirs.l2:
            case.blame("zero", "all zero: it was never loaded or was masked", "load it")
        elif (factor := _factor(ours, theirs)) is not None and relative > limit:
            case.blame("scale", f"{factor:.6g} times what it should be (by its fingerprint)", f"divide by {factor:.6g}")
            case.relation, case.relative = "scaled", relative
            return case
        elif relative <= limit:
            relation: structure.Relation = "cast" if a.dtype != b.dtype else "equal"
            return case.settle(relation, "equivalent", "within rounding, by its fingerprint", relative)
        else:
            case.blame("values", f"the values differ, by about {relative:.1e} of their norm (estimated)")
        case.relation, case.relative = "equal", relative
        return case

    # --- tensors whose lines are elsewhere ------------------------------------------------------------------------

    def _moved(self, case: Case) -> Case:
        """Find the lines of the one side on the other: of other shapes, or of several tensors."""
        best: Placement | None = None
        view = case.component  # under which it was found
        for component in self._views(case.component):
            if len(component.a) == len(component.b) == 1 and component.a[0].shape == component.b[0].shape:
                a, b = component.a[0], component.b[0]
                if a.read is not None and b.read is not None and a.dtype == b.dtype and measure.same_content(a, b):
                    reason = f"the same elements, {list(case.a[0].shape)} as {list(case.b[0].shape)}: {component.why}"
                    relation: structure.Relation = "transposed" if component.is_turned else "equal"
                    return case.settle(relation, "identical", reason, 0.0)
            placement = place(self._book, component.a, component.b)
            if component.is_turned and placement is not None and not placement.is_identity:
                continue  # its lines happen to be elsewhere under axes that are not the right ones
            if placement is not None and (best is None or placement.found > best.found):
                best, view = placement, component
            if best is not None and best.found > 0.999:
                break
        if best is None and any(_is_bare(tensor) for tensor in (*case.a, *case.b)):
            reason = "its lines cannot be told from the fingerprints of a run: keep its tensors, or give the weights"
            return case.settle("none", "incomplete", reason, None)
        if best is None or best.found < ALIKE:
            ours, theirs = (" and ".join(str(list(t.shape)) for t in side[:4]) for side in (case.a, case.b))
            case.settle("none", "diverged", f"no relation holds between {ours} of A and {theirs} of B", None)
            case.fault = "shape"
            return case
        whole = Case(view, explain=case.explain)
        self._placed(whole, best)
        whole.component = replace(case.component, a=case.a, b=case.b)
        return whole

    def _views(self, component: Component) -> Iterator[Component]:
        """Yield the component as it is, then with its tensors seen as matrices of other shapes."""
        if len(component.a) == len(component.b) == 1 and len(component.a[0].shape) > 2:
            yield from _axes(component)
        yield component
        if all(tensor.is_vector for tensor in (*component.a, *component.b)):
            yield replace(component, a=[_column(t) for t in component.a], b=[_column(t) for t in component.b])
            return
        if len(component.a) == len(component.b) == 1:
            yield from _axes(component)
        flat_a, flat_b = _flattened(component.a), _flattened(component.b)
        for a, b in ((flat_a, component.b), (component.a, flat_b), (flat_a, flat_b)):
            yield replace(component, a=list(a), b=list(b))

    def _placed(self, case: Case, placement: Placement) -> Case:
        """Judge lines that were found elsewhere."""
        a, b = case.a, case.b
        case.placement = placement
        found = case.structure = structure.read(placement, a, b)
        case.explain.append(f"{placement.equal.mean():.0%} of the {len(placement.order)} lines have the same bits")
        has_elements = all(tensor.read is not None for tensor in (*a, *b))
        there = placement.order >= 0
        if placement.equal[there].all():
            same = len({tensor.dtype for tensor in (*a, *b)}) == 1
            relative, verdict = self._exactly(case, placement, same and has_elements)
            reason = found.words if same else f"{found.words}; cast from {a[0].dtype} to {b[0].dtype}"
            if not there.all() or found.relation == "padded":
                return self._padded(case, placement, relative, reason)
            placed: structure.Relation = "cast" if found.relation == "equal" and not same else found.relation
            return case.settle(placed, verdict if same else "equivalent", reason, relative)
        if has_elements:
            d = case.difference = measure.placed(a, b, placement)
            explained = rounding.is_explained(d, [*a, *b])
            relative = d.relative
        else:
            limit = max(rounding.tolerance([*a, *b]), rounding.encoding_tolerance([*a, *b]))
            # A line's error is estimated from a few sums: single lines scatter by a factor of two, the whole does not.
            error = placement.error[there]
            explained = error <= 3 * limit
            relative = float(np.sqrt((error**2).mean())) if len(error) else math.inf
            explained &= relative <= limit if explained.all() else True
        relation: structure.Relation = found.relation
        if explained.all():
            coded = [t.encoding.name for t in (*a, *b) if t.encoding is not None]
            case.explain.append(found.words)
            if coded:
                ratio = case.details["sqnr"] = rounding.sqnr(relative)
                relation = "quantised" if found.relation == "equal" else found.relation
                reason = f"{coded[0]}, SQNR {ratio:.1f} dB" + ("" if found.relation == "equal" else f"; {found.words}")
            else:
                relation = "cast" if found.relation == "equal" else found.relation
                reason = f"{found.words}; within rounding of {', '.join(sorted({t.dtype for t in (*a, *b)}))}"
            return case.settle(relation, "equivalent", reason, relative)
        wrong = np.zeros(len(placement.order), bool)
        wrong[there] = ~explained
        wrong |= ~there
        return self._wrong_lines(case, placement, wrong, relative)

    def _exactly(self, case: Case, placement: Placement, can_measure: bool) -> tuple[float, PairVerdict]:
        """Prove on elements what the hashes of lines say."""
        if not can_measure:
            return 0.0, "identical"
        case.difference = measure.placed(case.a, case.b, placement)
        return (case.difference.relative, "diverged") if case.difference.differing else (0.0, "identical")

    def _padded(self, case: Case, placement: Placement, relative: float, reason: str) -> Case:
        """Judge tensors of which one has lines that the other does not have."""
        lacking = placement.order < 0
        found = case.structure
        assert found is not None
        if lacking.any() and not (found.relation == "padded" and found.is_in_order):
            return self._wrong_lines(case, placement, lacking, relative)
        return case.settle("padded", "equivalent", f"{reason} than B has; all that both have are equal", relative)

    def _wrong_lines(self, case: Case, placement: Placement, wrong: NDArray[np.bool_], relative: float) -> Case:
        """Name the lines that differ, and the tensors that they are of."""
        found = case.structure
        assert found is not None
        line = "columns" if placement.axes.b else "rows"
        case.settle(found.relation, "diverged", f"{found.words}; {line} {content.spans(wrong)} differ", relative)
        case.fault = "slice" if wrong.mean() < 0.999 else "values"
        starts = np.cumsum([0, *placement.counts_a])
        lines = placement.order[wrong & (placement.order >= 0)]
        if len(case.a) > 1 and len(lines):
            members = sorted({int(n) for n in np.searchsorted(starts, lines, side="right") - 1})
            names = ", ".join(case.a[n].name for n in members[:4])
            case.reason += f", which are of {names}"
        return case


def _equal(case: Case) -> Case:
    return case.settle("equal", "identical", "the same bits", 0.0)


def _has_own_trouble(d: Difference) -> bool:
    """Tell whether one side has NaN or infinities that the other has not."""
    return d.non_finite_a != d.non_finite_b


def _is_truncated(d: Difference) -> bool:
    """Tell whether the suspect is what rounding toward zero gives: half of the elements, one place lower."""
    spread = _SIGMAS * math.sqrt(d.elements) / 2
    return d.is_toward_zero and abs(d.differing - d.elements / 2) < spread and d.differing > 0


def _is_bare(tensor: Tensor) -> bool:
    """Tell whether there is nothing but the fingerprint of a whole."""
    return tensor.read is None and (tensor.summary is None or tensor.summary.rows is None)


def _summary(tensor: Tensor) -> Summary:
    return tensor.summary if tensor.summary is not None else summarise(tensor, lines=False)


def _estimate(a: Summary, b: Summary) -> float | None:
    """Return the relative error that two sketches tell, or None without them."""
    if a.sketch is None or b.sketch is None or a.sketch.shape != b.sketch.shape:
        return None
    norm = b.l2 or a.l2
    return float(np.linalg.norm(a.sketch - b.sketch)) / norm if norm else 0.0


def _factor(a: Summary, b: Summary) -> float | None:
    """Return the factor between two sketches, to which nothing is left over, or None."""
    if a.sketch is None or b.sketch is None or not b.sketch.any():
        return None
    factor = float(a.sketch @ b.sketch / (b.sketch @ b.sketch))
    left = np.linalg.norm(a.sketch - factor * b.sketch)
    return factor if left <= _SKETCHED * np.linalg.norm(a.sketch) and abs(factor - 1) > _SKETCHED else None


def _column(tensor: Tensor) -> Tensor:
    """Return a vector as a matrix of one column, whose lines are its elements."""
    if tensor.read is None:
        return tensor
    size = tensor.size
    return replace(
        tensor,
        shape=(size, 1),
        summary=None,
        read=lambda start, stop: np.ascontiguousarray(tensor.elements().reshape(-1, 1)[start:stop]),
    )


def _flattened(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of three axes or more as matrices whose rows are all but the first axis."""
    return [_reshaped(t, (t.shape[0], t.size // t.shape[0])) if len(t.shape) > 2 and t.size else t for t in tensors]


def _reshaped(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of the same elements, in the same order, in another shape."""
    if tensor.read is None:
        return tensor
    factor = shape[-1] // tensor.width if shape[-1] % max(1, tensor.width) == 0 else 0

    def read(start: int, stop: int) -> AnyArray:
        if factor:
            return tensor.elements(start * factor, stop * factor).reshape(stop - start, shape[-1])
        return tensor.elements().reshape(-1, shape[-1])[start:stop]

    return replace(tensor, shape=shape, read=read, summary=None)


def _axes(component: Component) -> Iterator[Component]:
    """Yield the suspect's tensor with its axes in another order, or in the reference's shape."""
    a, b = component.a[0], component.b[0]
    if a.size != b.size or a.read is None or not a.size:
        return
    is_small = 3 <= len(a.shape) <= 5 and a.size <= _MOST
    for axes in itertools.permutations(range(len(a.shape))) if is_small else ():
        if tuple(a.shape[axis] for axis in axes) == b.shape and list(axes) != sorted(axes):
            array = a.elements().reshape(a.shape).transpose(axes)
            turned = replace(of_array(a.name, np.ascontiguousarray(array)), dtype=a.dtype)
            yield replace(component, a=[turned], why=f"axes in the order {', '.join(map(str, axes))}", is_turned=True)
    if a.shape != b.shape:
        yield replace(component, a=[_reshaped(a, b.shape)], why=f"{component.why}, reshaped")
