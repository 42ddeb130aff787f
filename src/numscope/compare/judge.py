"""Verdicts: which calls are identical, equivalent, inherited, and which are the origin.

The calls of a step are visited in the order in which they ran. Each is judged by what it did to the error that came
in: more than rounding explains, from right inputs, is an origin; what follows from a wrong input is inherited. An
input that is wrong though whatever made it was right points at what stands between: a call that only one side has, or
something that was not recorded. docs/explanation/verdicts.md gives the rule with its reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from numscope.compare import operators as op
from numscope.compare.align import VALUE, Alignment
from numscope.compare.arguments import Difference, differences
from numscope.compare.dtypes import unit_roundoff
from numscope.compare.flow import Region, flow, region
from numscope.compare.measure import Measures
from numscope.compare.noise import CallErrors, call_errors
from numscope.compare.side import Floats, Side
from numscope.compare.slots import OUTPUT, STATE, SlotPairs

IDENTICAL, EQUIVALENT, ORIGIN, INHERITED, UNKNOWN = range(5)
VERDICTS = ("identical", "equivalent", "origin", "inherited", "equivalent")


@dataclass(frozen=True)
class Finding:
    """One origin, before it is put into words."""

    kind: str  # call, data, parameter, missing, extra, gap, optimizer
    pair: int  # row in the alignment, -1 for a call that one side alone has
    target: int  # row of the target's call, -1
    reference: int
    step: int
    rank: int
    order: float  # place in the target's order
    relative: float
    expected: float
    came_in: float
    differences: tuple[Difference, ...] = ()
    slot: str = ""
    note: str = ""
    random: bool = False
    dtypes: tuple[str, str] | None = None
    region: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass
class History:
    """What the steps before this one showed, for one rank."""

    diverged: bool = False
    parameters: dict[str, float] = field(
        default_factory=dict
    )  # largest error of each parameter and its gradient so far
    arguments: dict[str, Finding] = field(
        default_factory=dict
    )  # a call whose arguments differ, by the state it changes


@dataclass
class Judgement:
    """The verdict on every pair of calls of one step of one rank."""

    verdict: np.ndarray
    errors: CallErrors
    differences: dict[int, list[Difference]]
    findings: list[Finding]
    reasons: dict[int, str]
    slot_wrong: np.ndarray
    noise: Floats | None


class _Judge:
    def __init__(
        self,
        a: Side,
        b: Side,
        alignment: Alignment,
        slots: SlotPairs,
        measures: Measures,
        history: History,
        two_precisions: bool,
        noise: Floats | None,
        scale: float,
    ) -> None:
        self.a, self.b, self.alignment, self.slots, self.measures = a, b, alignment, slots, measures
        self.history, self.two_precisions = history, two_precisions
        self.errors = call_errors(a, b, alignment, slots, measures, two_precisions)
        self.expected = self.errors.expected * scale
        if noise is not None:
            self.expected = np.fmax(self.expected, 4.0 * np.nan_to_num(noise))
        self.flow_a, self.flow_b = flow(a), flow(b)
        self.partner_a = np.full(len(a.calls), -1)
        self.partner_b = np.full(len(b.calls), -1)
        self.partner_a[alignment.target] = alignment.reference
        self.partner_b[alignment.reference] = alignment.target
        self.wrong_a = np.zeros(len(a.tensors.hash), np.bool_)
        self.wrong_b = np.zeros(len(b.tensors.hash), np.bool_)
        self.error_a = np.zeros(len(a.tensors.hash))
        self.error_b = np.zeros(len(b.tensors.hash))
        self.checked: set[tuple[int, int]] = set()
        self.start = np.searchsorted(slots.pair, np.arange(len(alignment.target) + 1))
        self.verdict = np.full(len(alignment.target), EQUIVALENT)
        self.findings: list[Finding] = []
        self.reasons: dict[int, str] = {}
        self.differences = self._differences()
        self.worst_right = {"forward": 0.0, "backward": 0.0, "optimizer": 0.0, "input": 0.0}
        self.anything_wrong = False
        self.composite = (a.calls.children[alignment.target] > 0) | (b.calls.children[alignment.reference] > 0)

    # Reading --------------------------------------------------------------------------------------------------------

    def _differences(self) -> dict[int, list[Difference]]:
        a, b, al = self.a, self.b, self.alignment
        words = a.book.words
        found = {}
        unlike = a.calls.arguments[al.target] != b.calls.arguments[al.reference]
        same_op = a.calls.op[al.target] == b.calls.op[al.reference]
        for pair in np.flatnonzero(unlike & same_op).tolist():
            x, y = a.calls.arguments[al.target[pair]], b.calls.arguments[al.reference[pair]]
            got = differences(words[x] if x >= 0 else None, words[y] if y >= 0 else None)
            if got:
                found[pair] = got
        return found

    def phase(self, pair: int) -> str:
        return str(self.a.book.words[self.a.calls.phase[self.alignment.target[pair]]])

    def kind(self, pair: int) -> str:
        return str(self.a.book.words[self.a.calls.kind[self.alignment.target[pair]]])

    def rows(self, pair: int) -> range:
        return range(int(self.start[pair]), int(self.start[pair + 1]))

    # The walk -------------------------------------------------------------------------------------------------------

    def run(self) -> Judgement:
        for pair, is_end in self._events():
            if self.errors.identical[pair] and not is_end:
                self.verdict[pair] = IDENTICAL
                if pair not in self.differences:
                    continue
            self._visit(pair, is_end)
        self._nested()
        return Judgement(
            self.verdict,
            self.errors,
            self.differences,
            self.findings,
            self.reasons,
            self._slot_wrong(),
            None,
        )

    def _events(self) -> list[tuple[int, bool]]:
        """Return pairs in the order in which they ran; a call with inner calls comes twice, its outputs after those."""
        last = np.arange(len(self.a.calls))
        parent = self.a.calls.parent
        for row in range(len(last) - 1, -1, -1) if self.composite.any() else ():
            if parent[row] >= 0:
                last[parent[row]] = max(last[parent[row]], last[row])
        interesting = np.flatnonzero(
            ~self.errors.identical | np.isin(np.arange(len(self.verdict)), list(self.differences))
        )
        self.verdict[self.errors.identical] = IDENTICAL
        events: list[tuple[float, int, bool]] = []
        for pair in interesting.tolist():
            row = int(self.alignment.target[pair])
            events.append((float(row), pair, False))
            if self.composite[pair]:
                events.append((float(last[row]) + 0.5 - row * 1e-9, pair, True))
        events.sort()
        return [(pair, is_end) for _, pair, is_end in events]

    def _visit(self, pair: int, is_end: bool) -> None:
        kind = self.kind(pair)
        if kind == "data":
            self._judge_data(pair)
        elif kind == "optimizer":
            self._judge_optimizer(pair)
        elif self.composite[pair]:
            if is_end:
                self._judge_composite(pair)
            else:
                self._check_inputs(pair)
        else:
            self._check_inputs(pair)
            self._judge_leaf(pair)

    # Inputs ---------------------------------------------------------------------------------------------------------

    def _check_inputs(self, pair: int) -> None:
        for row in self.rows(pair):
            if self.slots.role[row] == OUTPUT:
                continue
            t, r = int(self.slots.a[row]), int(self.slots.b[row])
            self._check(pair, row, t, r, is_state=self.slots.role[row] == STATE)

    def _check(self, pair: int, row: int, t: int, r: int, is_state: bool) -> None:
        """Judge a tensor that came from elsewhere than from a pair of calls: is its error explained?"""
        if (t, r) in self.checked:
            return
        self.checked.add((t, r))
        error = float(self.measures.error[self.measures.row_of[row]])
        if error == 0 or np.isnan(error):
            return
        maker_a, maker_b = int(self.flow_a.producer[t]), int(self.flow_b.producer[r])
        if maker_a >= 0 and self.partner_a[maker_a] == maker_b and maker_b >= 0:
            return
        if maker_a < 0 and maker_b < 0:
            self._check_source(pair, row, t, r, error, is_state)
        else:
            self._check_region(pair, row, t, r, error)

    def _check_source(self, pair: int, row: int, t: int, r: int, error: float, is_state: bool) -> None:
        phase = self.phase(pair)
        roundoff = self._roundoff(t, r)
        label = self._label(pair, row)
        if is_state:
            known = self.history.parameters.get(label, 0.0)
            explained = 4 * roundoff + 4 * known
            if error <= explained:
                return
            if self.history.diverged or self.anything_wrong:
                self._mark(t, r, error)
                return
            cause = self.history.arguments.get(label)
            if cause is not None:
                self.findings.append(cause)
            elif label in self.history.parameters or (self.a.step > 0 and ".buffers." in label):
                if self.a.step > 0 and known == 0.0 and label not in self.history.parameters:
                    self._mark(t, r, error)
                self._find("parameter", pair, error, explained, 0.0, slot=self._slot(row), note="between steps")
            else:
                self._find("parameter", pair, error, explained, 0.0, slot=self._slot(row))
            self._mark(t, r, error)
            return
        carried = 16.0 * max(self.worst_right.values()) if phase != "input" else 0.0
        explained = 16 * roundoff + carried
        if self.anything_wrong or (self.history.diverged and phase == "backward"):
            if error > explained:
                self._mark(t, r, error)
            return
        if error <= explained:
            self._note_right(pair, error)
            return
        if self.history.diverged:
            self._mark(t, r, error)
            return
        lone = self._lone_calls(pair) if phase == "backward" else None
        if lone is not None:
            self._find_lone(pair, lone, error, explained)
        elif self._is_data(pair, t, r):
            self._find("data", pair, error, explained, 0.0, slot=self._slot(row))
        else:
            self._find("gap", pair, error, explained, 0.0, slot=self._slot(row))
        self._mark(t, r, error)

    def _is_data(self, pair: int, t: int, r: int) -> bool:
        """Return whether a tensor that nothing recorded made can be called data: it is used before anything is made."""
        name = self.a.book.words[self.a.tensors.dtype[t]]
        first = (
            self.phase(pair) != "backward"
            and not any(self.verdict[:pair] >= 0)
            and self.a.calls.parent[self.alignment.target[pair]] < 0
        )
        return first or not unit_roundoff(name) or pair == 0

    def _check_region(self, pair: int, row: int, t: int, r: int, error: float) -> None:
        ahead, behind = region(self.flow_a, t, self.partner_a), region(self.flow_b, r, self.partner_b)
        front = max([0.0, *(self.error_a[x] for x in ahead.frontier), *(self.error_b[y] for y in behind.frontier)])
        if any(self.wrong_a[x] for x in (*ahead.frontier, *ahead.sources)) or any(
            self.wrong_b[y] for y in (*behind.frontier, *behind.sources)
        ):
            self._mark(t, r, error)
            return
        explained = self._region_allows(ahead, behind, t, r, front)
        if self.phase(pair) == "backward":
            explained = max(explained, 16.0 * self.worst_right["backward"])
            if self.anything_wrong:
                self._mark(t, r, error)
                return
        if error <= explained:
            self._note_right(pair, error)
            return
        if self.history.diverged:
            self._mark(t, r, error)
            return
        if not ahead.calls and not behind.calls:
            self._find("gap", pair, error, explained, front, slot=self._slot(row), note="another tensor")
        else:
            self._find_region(pair, row, ahead, behind, error, explained, front)
        self._mark(t, r, error)

    def _region_allows(self, ahead: Region, behind: Region, t: int, r: int, front: float) -> float:
        calls = [(self.a, x) for x in ahead.calls] + [(self.b, y) for y in behind.calls]
        active = sum(self._class(side, x) not in (op.MOVE, op.CREATE) for side, x in calls)
        roundoff = self._roundoff(t, r)
        for side, x in calls:
            here = side.slots.tensor[side.slots.start[x] : side.slots.start[x + 1]]
            for tensor in here[here >= 0].tolist():
                word = side.book.words[side.tensors.dtype[tensor]]
                if self.two_precisions or word in (self._dtype(self.a, t), self._dtype(self.b, r)):
                    roundoff = max(roundoff, unit_roundoff(word))
        low = roundoff > 2.0**-20
        each = 2.0 if low else 24.0
        return (each * np.sqrt(active) * roundoff if active else 0.0) + 32.0 * front

    def _find_region(
        self, pair: int, row: int, ahead: Region, behind: Region, error: float, explained: float, front: float
    ) -> None:
        extra = [x for x in ahead.calls if self._class(self.a, x) not in (op.MOVE, op.CREATE)] or list(ahead.calls)
        missing = [y for y in behind.calls if self._class(self.b, y) not in (op.MOVE, op.CREATE)] or list(behind.calls)
        target = extra[0] if extra else -1
        reference = missing[0] if missing else -1
        kind = "extra" if extra else "missing"
        self.findings.append(
            Finding(
                kind,
                -1,
                target,
                reference,
                self.a.step,
                self.a.rank,
                float(self.alignment.target[pair]) - 0.5,
                error,
                explained,
                front,
                slot=self._slot(row),
                region=(ahead.calls, behind.calls),
                note=self.a.calls.name(int(self.alignment.target[pair])),
            )
        )
        self.anything_wrong = True

    def _lone_calls(self, pair: int) -> tuple[int, int] | None:
        """Return the first numerically active forward call that one side alone has, as (target row, reference row)."""
        for side, rows, place in (
            (self.a, self.alignment.alone_target, 0),
            (self.b, self.alignment.alone_reference, 1),
        ):
            forward = side.book.code("forward")
            for row in rows.tolist():
                active = self._class(side, row) not in (op.MOVE, op.CREATE, op.DISCRETE)
                if side.calls.phase[row] == forward and active and side.calls.children[row] == 0:
                    return (row, -1) if place == 0 else (-1, row)
        return None

    def _find_lone(self, pair: int, lone: tuple[int, int], error: float, explained: float) -> None:
        target, reference = lone
        self.findings.append(
            Finding(
                "extra" if target >= 0 else "missing",
                -1,
                target,
                reference,
                self.a.step,
                self.a.rank,
                float(self.alignment.target[pair]) - 0.5,
                error,
                explained,
                0.0,
                note=self.a.calls.name(int(self.alignment.target[pair])),
            )
        )
        self.anything_wrong = True

    # Calls ----------------------------------------------------------------------------------------------------------

    def _judge_data(self, pair: int) -> None:
        for row in self.rows(pair):
            measure = self.measures.row_of[row]
            error = float(self.measures.error[measure])
            if self.measures.bitwise[measure]:
                continue
            t, r = int(self.slots.a[row]), int(self.slots.b[row])
            self.checked.add((t, r))
            explained = 4 * self._roundoff(t, r)
            if error > explained or not self.measures.known[measure]:
                if not self.history.diverged:
                    self._find("data", pair, error, explained, 0.0, slot=self._slot(row))
                self._mark(t, r, error)
                self.verdict[pair] = INHERITED if self.history.diverged else ORIGIN
            else:
                self._note_right(pair, error)

    def _judge_leaf(self, pair: int) -> None:
        errors = self.errors
        tainted = self._tainted(pair)
        out = float(errors.error_out[pair])
        came_in = float(np.nan_to_num(np.fmax(errors.error_in[pair], errors.error_state[pair])))
        if np.isnan(out):
            self.verdict[pair] = INHERITED if tainted else EQUIVALENT
            return
        excess = out > self._limit(pair, came_in)
        if tainted:
            self.verdict[pair] = INHERITED if out > 0 else self.verdict[pair]
            self._mark_outputs(pair, wrong=True)
            return
        if not excess:
            self.verdict[pair] = IDENTICAL if errors.identical[pair] else EQUIVALENT
            self._mark_outputs(pair, wrong=False)
            self._note_right(pair, out)
            if pair in self.differences:
                self._remember_arguments(pair, out)
            return
        self._find("call", pair, out, float(self.expected[pair]), came_in)
        self._mark_outputs(pair, wrong=True)

    def _limit(self, pair: int, came_in: float) -> float:
        """Return the error that is explained, lowered where there is other evidence that the two compute differently."""
        limit = float(self.expected[pair])
        told = [d for d in self.differences.get(pair, ()) if d.telling]
        if told and not self._is_idle(pair):
            # With arguments that differ, only the error that came in is an excuse, not the call's own rounding.
            return min(limit, 2.0 * came_in)
        if came_in == 0.0 and not self.errors.dtype_differs[pair] and self._is_scaled(pair):
            return limit / 16.0
        return limit

    def _is_idle(self, pair: int) -> bool:
        """Return whether the call does nothing at all on either side, whatever its arguments (dropout in evaluation)."""
        return bool(self.errors.error_out[pair] == self.errors.error_in[pair] == 0)

    def _is_scaled(self, pair: int) -> bool:
        """Return whether the error is a multiple of the result: rounding never is, a wrong factor always."""
        for row in self.rows(pair):
            if self.slots.role[row] == OUTPUT:
                measure = self.measures.row_of[row]
                correlation = self.measures.columns["correlation"][measure]
                elements = self.a.tensors.elements[self.slots.a[row]]
                if elements >= 256 and abs(correlation) > 0.7:
                    return True
        return False

    def _judge_composite(self, pair: int) -> None:
        """Judge a call with inner calls: they explain it, or what stands between them does."""
        if self.errors.identical[pair]:
            return
        inside = self._inner(pair)
        tainted = self._tainted(pair)
        wrong_inside = any(self.verdict[p] in (ORIGIN, INHERITED) for p in inside)
        before = len(self.findings)
        for row in self.rows(pair):
            if self.slots.role[row] != OUTPUT:
                continue
            t, r = int(self.slots.a[row]), int(self.slots.b[row])
            if self.wrong_a[t] or self.wrong_b[r]:
                continue
            error = float(self.measures.error[self.measures.row_of[row]])
            if not wrong_inside and not tainted:
                self._check_made(pair, row, t, r, error, inside)
            elif (
                error > 16 * self._roundoff(t, r)
                and (t, r) not in self.checked
                and self.flow_a.producer[t] in (-1, self.alignment.target[pair])
            ):
                self._mark(t, r, error)
        if len(self.findings) > before:
            self.verdict[pair] = ORIGIN
        elif (
            wrong_inside
            or tainted
            or any(self.wrong_a[int(self.slots.a[row])] for row in self.rows(pair) if self.slots.role[row] == OUTPUT)
        ):
            self.verdict[pair] = INHERITED

    def _check_made(self, pair: int, row: int, t: int, r: int, error: float, inside: list[int]) -> None:
        if (t, r) in self.checked or error == 0 or np.isnan(error):
            return
        maker_a, maker_b = int(self.flow_a.producer[t]), int(self.flow_b.producer[r])
        own_a, own_b = int(self.alignment.target[pair]), int(self.alignment.reference[pair])
        if maker_a >= 0 and self.partner_a[maker_a] == maker_b >= 0 and maker_a != own_a:
            return
        if maker_a not in (-1, own_a) or maker_b not in (-1, own_b):
            self.checked.add((t, r))
            self._check_region(pair, row, t, r, error)
            return
        # The call's own work, beyond its inner calls: the sum of gradients, or something not recorded.
        self.checked.add((t, r))
        front = max([0.0, *(float(np.nan_to_num(self.errors.error_out[p])) for p in inside)])
        front = max(front, float(np.nan_to_num(self.errors.error_in[pair])))
        if self.phase(pair) == "backward":
            front = max(front, self.worst_right["backward"])
        explained = 32 * self._roundoff(t, r) + 32 * front
        if error <= explained or self.anything_wrong or self.history.diverged:
            if error > explained:
                self._mark(t, r, error)
            return
        self._find("call", pair, error, explained, front, slot=self._slot(row), note="inner calls agree")
        self._mark(t, r, error)

    def _inner(self, pair: int) -> list[int]:
        if not hasattr(self, "_children"):
            self._children: dict[int, list[int]] = {}
            parent = self.a.calls.parent[self.alignment.target]
            for p in np.flatnonzero(parent >= 0).tolist():
                self._children.setdefault(int(parent[p]), []).append(p)
        return self._children.get(int(self.alignment.target[pair]), [])

    def _judge_optimizer(self, pair: int) -> None:
        rows: dict[str, dict[str, int]] = {}
        for row in self.rows(pair):
            head, _, label = self._slot(row).partition(".")
            rows.setdefault(label, {})[head] = row
        told = [d for d in self.differences.get(pair, ()) if d.telling]
        verdict, found = EQUIVALENT if not self.errors.identical[pair] else IDENTICAL, None
        for label, parts in rows.items():
            if "output" not in parts:
                continue
            wrong, error, explained, came_in = self._judge_update(pair, label, parts, bool(told))
            key = f"parameters.{label}"
            tainted = any(
                self.wrong_a[int(self.slots.a[parts[head]])]
                for head in ("parameters", "parameters_grad")
                if head in parts
            )
            self.history.parameters[key] = max(self.history.parameters.get(key, 0.0), error)
            row = parts["output"]
            t, r = int(self.slots.a[row]), int(self.slots.b[row])
            if tainted:
                verdict = INHERITED if verdict != ORIGIN else verdict
                self._mark(t, r, error)
            elif wrong:
                if found is None or error / max(explained, 1e-300) > found[0] / max(found[1], 1e-300):
                    found = (error, explained, came_in, self._slot(row))
                self._mark(t, r, error)
        if found is not None and not self.history.diverged:
            self._find("optimizer", pair, found[0], found[1], found[2], slot=found[3])
        elif found is not None:
            verdict = INHERITED
        if self.verdict[pair] != ORIGIN:
            self.verdict[pair] = verdict

    def _judge_update(
        self, pair: int, label: str, parts: dict[str, int], told: bool
    ) -> tuple[bool, float, float, float]:
        """Judge one parameter's update: the error of the step it took, against the errors of gradient and parameter."""
        row = parts["output"]
        error = self._error(row)
        t, r = int(self.slots.a[row]), int(self.slots.b[row])
        roundoff = self._roundoff(t, r)
        gradient = self._error(parts["parameters_grad"]) if "parameters_grad" in parts else 0.0
        before = self._error(parts["parameters"]) if "parameters" in parts else 0.0
        if "parameters" in parts:
            self._check_inputs_of(pair, parts["parameters"], is_state=True)
        if "parameters_grad" in parts:
            self._check_inputs_of(pair, parts["parameters_grad"], is_state=False)
        known = max(gradient, self.history.parameters.get(f"gradient.{label}", 0.0))
        self.history.parameters[f"gradient.{label}"] = known
        step = self._step_size(parts)
        # An optimizer that divides by the gradient's size turns a wrong sign of a tiny gradient into a full step.
        explained = 4 * roundoff + 2 * before + step * (min(2.0, 6.0 * np.sqrt(known)) + 1e-4 * (known > 0) + 2e-6)
        limit = 2 * before + 2 * roundoff if told and known == 0 else explained
        return error > limit, error, explained, max(gradient, before)

    def _check_inputs_of(self, pair: int, row: int, is_state: bool) -> None:
        self._check(pair, row, int(self.slots.a[row]), int(self.slots.b[row]), is_state)

    def _step_size(self, parts: dict[str, int]) -> float:
        """Return how far the reference's parameter moved, relative to itself."""
        if "parameters" not in parts:
            return 1.0
        after, before = int(self.slots.b[parts["output"]]), int(self.slots.b[parts["parameters"]])
        tensors = self.b.tensors
        if not (tensors.sketched[after] and tensors.sketched[before] and tensors.l2[after] > 0):
            return 1.0
        return float(np.linalg.norm(tensors.sketch[after] - tensors.sketch[before]) / tensors.l2[after])

    # Marks ----------------------------------------------------------------------------------------------------------

    def _find(
        self, kind: str, pair: int, error: float, explained: float, came_in: float, slot: str = "", note: str = ""
    ) -> None:
        row = int(self.alignment.target[pair])
        self.verdict[pair] = ORIGIN
        self.findings.append(
            Finding(
                kind,
                pair,
                row,
                int(self.alignment.reference[pair]),
                self.a.step,
                self.a.rank,
                float(row),
                error,
                explained,
                came_in,
                tuple(self.differences.get(pair, ())),
                slot,
                note,
                random=self.errors.operator[pair] == op.RANDOM,
                dtypes=self._dtypes(pair) if self.errors.dtype_differs[pair] else None,
            )
        )
        self.anything_wrong = True

    def _remember_arguments(self, pair: int, error: float) -> None:
        """Keep a call whose arguments differ without effect on its outputs: it may change state that shows later."""
        if not any(d.telling for d in self.differences[pair]):
            return
        row = int(self.alignment.target[pair])
        finding = Finding(
            "call",
            pair,
            row,
            int(self.alignment.reference[pair]),
            self.a.step,
            self.a.rank,
            float(row),
            error,
            0.0,
            0.0,
            tuple(self.differences[pair]),
            note="its effect is on state that later steps read",
        )
        module = self.a.book.words[self.a.calls.module[row]] if self.a.calls.module[row] >= 0 else ""
        for slot in ("running_mean", "running_var"):
            self.history.arguments.setdefault(f"buffers.{module}.{slot}".replace("..", "."), finding)

    def _mark(self, t: int, r: int, error: float) -> None:
        self.wrong_a[t] = True
        self.wrong_b[r] = True
        self.error_a[t] = self.error_b[r] = error
        self.anything_wrong = True

    def _mark_outputs(self, pair: int, wrong: bool) -> None:
        for row in self.rows(pair):
            if self.slots.role[row] != OUTPUT:
                continue
            t, r = int(self.slots.a[row]), int(self.slots.b[row])
            error = self._error(row)
            if wrong and error > 0:
                self._mark(t, r, error)
            else:
                self.error_a[t] = self.error_b[r] = error

    def _note_right(self, pair: int, error: float) -> None:
        phase = self.phase(pair)
        if np.isfinite(error) and not self.errors.discrete_in[pair]:
            self.worst_right[phase] = max(self.worst_right[phase], error)

    def _tainted(self, pair: int) -> bool:
        rows = self.rows(pair)
        given = [row for row in rows if self.slots.role[row] != OUTPUT]
        if any(self.wrong_a[int(self.slots.a[row])] or self.wrong_b[int(self.slots.b[row])] for row in given):
            return True
        x, y = int(self.alignment.target[pair]), int(self.alignment.reference[pair])
        loose = self.alignment.why[pair] == VALUE or len(given) == 0
        # Where inputs are not paired one to one, all of them on both sides count.
        if loose and (self.wrong_a[self.flow_a.inputs(x)].any() or self.wrong_b[self.flow_b.inputs(y)].any()):
            return True
        forward = int(self.a.calls.forward[x])
        if forward >= 0:
            # A backward call also reads what its forward call was given and made.
            start, end = self.a.slots.start[forward], self.a.slots.start[forward + 1]
            held = self.a.slots.tensor[start:end]
            return bool(self.wrong_a[held[held >= 0]].any())
        return False

    def _slot_wrong(self) -> np.ndarray:
        return self.wrong_a[self.slots.a] | self.wrong_b[self.slots.b] if len(self.slots.a) else np.zeros(0, np.bool_)

    def _nested(self) -> None:
        """A call whose inner call is an origin is not one itself."""
        parent = self.a.calls.parent
        pair_of = np.full(len(self.a.calls), -1)
        pair_of[self.alignment.target] = np.arange(len(self.alignment.target))
        for finding in self.findings:
            row = parent[finding.target] if finding.target >= 0 else -1
            while row >= 0:
                outer = pair_of[row]
                if outer >= 0 and self.verdict[outer] == EQUIVALENT:
                    self.verdict[outer] = INHERITED
                row = parent[row]

    # Small things ---------------------------------------------------------------------------------------------------

    def _error(self, row: int) -> float:
        return float(np.nan_to_num(self.measures.error[self.measures.row_of[row]], nan=0.0, posinf=np.inf))

    def _slot(self, row: int) -> str:
        return str(self.a.book.words[self.slots.slot[row]])

    def _label(self, pair: int, row: int) -> str:
        """Return a parameter's or buffer's name over all steps: its module's path and its own."""
        head, _, tail = self._slot(row).partition(".")
        if self.kind(pair) == "optimizer":
            return f"{head}.{tail}"
        code = self.a.calls.module[self.alignment.target[pair]]
        path = self.a.book.words[code] if code >= 0 else ""
        return f"{head}.{path}.{tail}" if path else f"{head}.{tail}"

    def _class(self, side: Side, row: int) -> int:
        if side.calls.kind[row] == side.book.code("module"):
            return op.classify(op.operator_of_module(side.book.words[side.calls.module_class[row]]))
        return op.classify(side.book.words[side.calls.op[row]])

    def _dtype(self, side: Side, tensor: int) -> str:
        return str(side.book.words[side.tensors.dtype[tensor]])

    def _roundoff(self, t: int, r: int) -> float:
        mine, theirs = unit_roundoff(self._dtype(self.a, t)), unit_roundoff(self._dtype(self.b, r))
        return max(mine, theirs) if self.two_precisions or mine == theirs else min(mine, theirs)

    def _dtypes(self, pair: int) -> tuple[str, str] | None:
        for row in self.rows(pair):
            if self.slots.role[row] == OUTPUT:
                mine = self._dtype(self.a, int(self.slots.a[row]))
                theirs = self._dtype(self.b, int(self.slots.b[row]))
                if mine != theirs:
                    return mine, theirs
        return None


def judge(
    a: Side,
    b: Side,
    alignment: Alignment,
    slots: SlotPairs,
    measures: Measures,
    history: History,
    two_precisions: bool = False,
    noise: Floats | None = None,
    scale: float = 1.0,
) -> Judgement:
    """Judge every pair of calls of one step of one rank."""
    judgement = _Judge(a, b, alignment, slots, measures, history, two_precisions, noise, scale).run()
    history.diverged = history.diverged or bool(judgement.findings)
    return judgement
