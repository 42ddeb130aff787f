"""Two sides of a step from scripts written by hand, judged: for tests of one rule at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numscope.compare.align.alignment import align
from numscope.compare.align.slots import pair_slots
from numscope.compare.judge.facts import Facts, gather_facts
from numscope.compare.judge.findings import VERDICTS, Finding, History
from numscope.compare.judge.rounding.precisions import Precisions
from numscope.compare.judge.state import State
from numscope.compare.judge.walk import Judgement, judge
from numscope.compare.load.side import Codebook
from numscope.compare.measure.measures import measure
from tests.unit.compare.scripted import Script, numbers

Array = NDArray[Any]
X = numbers((16, 64))
W = numbers((64, 64), seed=1) / np.float32(8)


@dataclass(frozen=True)
class Judged:
    """A judged step, by the names of its calls."""

    facts: Facts
    judgement: Judgement
    history: History

    @property
    def findings(self) -> list[Finding]:
        return self.judgement.findings

    def verdict(self, name: str) -> str:
        """Return the verdict of the pair of a target's call."""
        names = [self.facts.target_name(pair) for pair in range(len(self.facts.alignment.target))]
        return VERDICTS[self.judgement.verdict[names.index(name)]]

    def sentences(self) -> list[str]:
        """Return what is found, in words."""
        return [one.reason.sentence(one, self.facts.a, self.facts.b) for one in self.findings]

    def named(self) -> str:
        """Return the name of the first finding's call, "" for none."""
        if not self.findings:
            return ""
        side, row = self.findings[0].call(self.facts.a, self.facts.b)
        return side.calls.name(row)


def facts_of(target: Script, reference: Script, precisions: Precisions | None = None) -> Facts:
    """Return the facts of two scripted sides."""
    book = Codebook()
    a, b = target.side(book), reference.side(book)
    alignment = align(a, b)
    slots = pair_slots(a, b, alignment)
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values here
        return gather_facts(a, b, alignment, slots, measure(a, b, slots.a, slots.b), precisions)


def state_of(target: Script, reference: Script, history: History | None = None) -> State:
    """Return the state of two scripted sides before anything is judged."""
    return State(facts_of(target, reference), history or History())


def judged(target: Script, reference: Script, history: History | None = None) -> Judged:
    """Judge two scripted sides."""
    facts = facts_of(target, reference, history.precisions if history else None)
    history = history or History()
    with np.errstate(all="ignore"):
        judgement = judge(facts.a, facts.b, facts.alignment, facts.slots, facts.measures, history)
    return Judged(facts, judgement, history)


def off(array: Array, error: float, seed: int = 5) -> Array:
    """Return an array with a relative error that is not a multiple of it."""
    noise = numbers(array.shape, seed).astype(np.float64)
    exact = array.astype(np.float64)
    noise -= exact * (noise * exact).sum() / (exact * exact).sum()
    return np.asarray(exact + noise * (error * np.linalg.norm(exact) / np.linalg.norm(noise))).astype(array.dtype)


def data(script: Script, *arrays: Array) -> Script:
    """Let arrays enter a script as data."""
    for number, array in enumerate(arrays):
        script.call(f"Data.Net.{number}.input", made={"output.0": array})
    return script


def chain(*calls: tuple[str, Array], given: Array = X, **options: Any) -> Script:
    """Return a script in which each call is given the one before's output; calls are operators' names and outputs."""
    script = data(Script(), given)
    counts: dict[str, int] = {}
    for name, made in calls:
        index = counts.setdefault(name, 0)
        script.call(f"{name}.{index}.forward", {"input.0": given}, {"output.0": made}, **options)
        counts[name] += 1
        given = made
    return script
