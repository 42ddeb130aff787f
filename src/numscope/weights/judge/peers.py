"""Holds each conversion beside its peers: the same role in other layers has to be converted the same way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from numscope.weights.judge.case import Case
from numscope.weights.matching.names import read
from numscope.weights.pair import FaultName

_NOT_LINEAR = ("emb", "head.weight", "positions.weight")  # tables, and the head, which may be tied to one
_CLEAR = 1e-3  # of factors that are the same


class _Folded(NamedTuple):
    """The factors that were folded into a tensor."""

    factor: float
    offset: float

    def is_near(self, other: _Folded) -> bool:
        """Tell whether another tensor has the same."""
        is_factor = abs(other.factor - self.factor) <= _CLEAR * abs(self.factor)
        return is_factor and abs(other.offset - self.offset) <= _CLEAR


def judge(cases: Sequence[Case]) -> None:
    """Name what is not converted as its peers are."""
    _transposition(cases)
    _orders(cases)
    _factors(cases)


def _transposition(cases: Sequence[Case]) -> None:
    """Tell by the matrices whose shape says it whether this conversion transposes; then judge the square ones."""
    told: Counter[bool] = Counter()
    for case in cases:
        if _is_linear(case) and case.a[0].shape[-1] != case.a[0].shape[-2] and case.verdict != "diverged":
            told[case.structure is not None and case.structure.is_transposed] += 1
    for case in cases:
        if not _is_linear(case) or case.a[0].shape[-1] != case.a[0].shape[-2]:
            continue
        turned = case.structure is not None and case.structure.is_transposed
        if turned and (told[False] >= told[True] or _peers_differ(case, cases)):
            case.blame("transposed", "transposed: a square matrix, whose shape does not show it", "transpose it")
            case.relation = "transposed"
        elif not turned and case.verdict != "diverged" and told[True] > 1 and not told[False]:
            reason = f"not transposed, as {told[True]} matrices of other shapes are: a square matrix does not show it"
            case.blame("transposed", reason, "transpose it")


def _peers_differ(case: Case, cases: Sequence[Case]) -> bool:
    """Tell whether the same matrix of the other layers is not transposed."""
    role = case.component.role
    peers = [one for one in cases if one is not case and one.component.role == role and one.verdict != "diverged"]
    return bool(peers) and not any(one.structure is not None and one.structure.is_transposed for one in peers)


def _is_linear(case: Case) -> bool:
    return (
        case.is_single
        and len(case.a[0].shape) == 2
        and len(case.b[0].shape) == 2
        and min(case.a[0].shape) > 1
        and not any(word in read(case.b[0].name).role for word in _NOT_LINEAR)
    )


def _orders(cases: Sequence[Case]) -> None:
    """Judge where lines were put, beside the names and beside the same role in other layers."""
    by_role: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if case.structure is not None and case.verdict != "diverged":
            by_role[case.component.role].append(case)
    for peers in by_role.values():
        signatures = Counter(case.structure.signature for case in peers if case.structure is not None)
        usual, count = signatures.most_common(1)[0]
        for case in peers:
            found = case.structure
            if found is None or (found.relation in ("equal", "padded") and found.is_in_order):
                continue
            if case.is_single and case.component.has_same_name and not found.is_in_order:
                case.blame("order", f"{found.words}; both sides name it the same", "put them back")
            elif not found.is_in_order and len(case.a) + len(case.b) > 2:
                fault: FaultName = "expert" if _are_experts(case) else "order"
                case.blame(
                    fault, f"{found.words}: not in the order of their names", "put them into the order of their names"
                )
            elif not found.is_regular:
                case.blame("order", found.words, "put them back")
            elif found.signature != usual and count > len(peers) // 2:
                words = next(
                    c.structure.words for c in peers if c.structure is not None and c.structure.signature == usual
                )
                case.blame(
                    "order",
                    f"{found.words}; {count} of its {len(peers)} peers have {words}",
                    "convert it as its peers are",
                )


def _are_experts(case: Case) -> bool:
    members = case.a if len(case.a) > 1 else case.b
    return all(".experts." in f".{tensor.name}." or len(read(tensor.name).numbers) > 1 for tensor in members)


def _factors(cases: Sequence[Case]) -> None:
    """Accept a factor or an offset that all layers have, where the two sides are of other conventions."""
    by_role: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_role[case.component.role].append(case)
    for peers in by_role.values():
        scaled = [
            case
            for case in peers
            if case.finding is not None and case.finding.fault == "scale" and case.fault == "scale"
        ]
        if len(scaled) < len(peers) or any(case.component.has_same_name for case in scaled):
            continue
        first, *others = (
            _Folded(one.finding.factor or 1.0, one.finding.offset or 0.0) for one in scaled if one.finding
        )
        if all(first.is_near(other) for other in others):
            for case in scaled:
                case.verdict, case.fault, case.repair = "equivalent", None, None
                case.reason = f"{case.reason}, as in all {len(scaled)} of its kind: folded in by the conversion"
