"""The answer: pairs of tensors that belong together, with their relation, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from numscope.core.json_value import JsonObject
from numscope.core.report import plain
from numscope.weights.judge.structure import Relation

FORMAT = "numscope.weights/1"
PairVerdict = Literal["identical", "equivalent", "diverged", "incomplete"]
FaultName = Literal[
    "zero",
    "initialisation",
    "swapped",
    "order",
    "expert",
    "transposed",
    "layer",
    "stale",
    "dtype",
    "scale",
    "slice",
    "bit",
    "non-finite",
    "values",
    "shape",
]
EXIT_STATUS: dict[PairVerdict, int] = {"identical": 0, "equivalent": 0, "diverged": 1, "incomplete": 2}


@dataclass(frozen=True)
class TensorFacts:
    """One logical tensor of a pair."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def to_dict(self) -> JsonObject:
        """Return it as JSON."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True)
class Pair:
    """Tensors of both sides that are the same logical tensors, or should be."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    relation: Relation
    relative: float | None
    verdict: PairVerdict
    reason: str
    fault: FaultName | None = None
    explain: tuple[str, ...] = ()  # why these belong together, and what was tried
    repair: str | None = None  # what conversion makes the reference of the suspect
    details: JsonObject = field(default_factory=dict)
    tensors_a: tuple[TensorFacts, ...] = ()
    tensors_b: tuple[TensorFacts, ...] = ()

    def to_dict(self) -> JsonObject:
        """Return the pair as JSON."""
        return {
            "a": list(self.a),
            "b": list(self.b),
            "relation": self.relation,
            "relative": plain(self.relative),
            "verdict": self.verdict,
            "reason": self.reason,
            "fault": self.fault,
            "repair": self.repair,
            "explain": list(self.explain),
            "tensors": {
                side: [one.to_dict() for one in held] for side, held in (("a", self.tensors_a), ("b", self.tensors_b))
            },
            **({"details": plain(self.details)} if self.details else {}),
        }


@dataclass(frozen=True)
class Weights:
    """The answer to the question whether A has the weights of B; A is the one under suspicion."""

    a: str
    b: str
    pairs: tuple[Pair, ...]
    missing: tuple[str, ...]  # of B's tensors, those that A lacks
    extra: tuple[str, ...]  # of A's tensors, those that B lacks
    unjudged: tuple[str, ...] = ()  # missing or extra, but made anew by each model: they change no verdict

    @property
    def verdict(self) -> PairVerdict:
        """The verdict of all."""
        verdicts = {pair.verdict for pair in self.pairs}
        if "diverged" in verdicts:
            return "diverged"
        lacking = set(self.missing) | set(self.extra)
        if "incomplete" in verdicts or lacking - set(self.unjudged) or not self.pairs:
            return "incomplete"
        return "identical" if verdicts == {"identical"} else "equivalent"

    @property
    def wrong(self) -> list[Pair]:
        """The pairs that diverge, in order."""
        return [pair for pair in self.pairs if pair.verdict == "diverged"]

    @property
    def reason(self) -> str:
        """The answer in one sentence."""
        if self.wrong:
            by_fault: dict[str, list[Pair]] = {}
            for pair in self.wrong:
                by_fault.setdefault(pair.fault or "values", []).append(pair)
            return "; ".join(_told(pairs) for pairs in by_fault.values())
        if self.verdict == "incomplete":
            parts = [_lacking(self.missing, "is missing", "are missing"), _lacking(self.extra, "is extra", "are extra")]
            parts += [pair.reason for pair in self.pairs if pair.verdict == "incomplete"][:1]
            return "; ".join(part for part in parts if part) or "no tensors belong together"
        losses = list(dict.fromkeys(pair.reason for pair in self.pairs if pair.fault))
        if losses:
            return losses[0] + (f", and {len(losses) - 1} more such remarks" if losses[1:] else "")
        relations = list(dict.fromkeys(pair.relation for pair in self.pairs if pair.relation != "equal"))
        if self.verdict == "identical":
            moved = f" ({', '.join(relations)})" if relations else ""
            return f"all {_count(self.pairs)} of B are in A to the bit{moved}"
        return f"all {_count(self.pairs)} of B are in A, within rounding ({', '.join(relations) or 'equal'})"

    def to_dict(self) -> JsonObject:
        """Return the answer as JSON."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "reason": self.reason,
            "a": self.a,
            "b": self.b,
            "matched": sum(1 for pair in self.pairs if pair.relation != "none"),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "missing": list(self.missing),
            "extra": list(self.extra),
            "unjudged": list(self.unjudged),
        }

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        from numscope.core.notebook import facts_html

        facts: list[tuple[str, object]] = [("verdict", self.verdict), ("pairs", len(self.pairs))]
        facts += [(", ".join(pair.a), pair.reason) for pair in self.wrong[:10]]
        return facts_html(self.reason, facts)


def _told(pairs: list[Pair]) -> str:
    first = pairs[0]
    more = f" (and {len(pairs) - 1} more of this kind)" if pairs[1:] else ""
    return f"{(first.a or first.b)[0]}: {first.reason}{more}"


def _lacking(names: Iterable[str], one: str, many: str) -> str:
    held = list(names)
    if not held:
        return ""
    return f"{held[0]} {one}" if len(held) == 1 else f"{held[0]} and {len(held) - 1} more {many}"


def _count(pairs: Iterable[Pair]) -> str:
    number = sum(len(pair.b) for pair in pairs)
    return f"{number} tensors" if number != 1 else "tensors"
