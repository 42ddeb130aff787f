"""Judges an optimizer's step, parameter by parameter: the error of the step it took against what it was given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numscope.compare.align.optimizer_parameters import has_parameter
from numscope.compare.judge.findings import EQUIVALENT, IDENTICAL, INHERITED, ORIGIN, RIGHT, Made, or_zero
from numscope.compare.judge.ledger import Ledger
from numscope.compare.judge.paths.provenance import Provenance
from numscope.compare.judge.reasons import UpdateDiffers, UpdatedOnOneSide, Who
from numscope.compare.judge.rules.gradients import cut
from numscope.compare.judge.rules.micro_batches import blame_gradients, lost_in_rounding
from numscope.compare.load.side import Ints, Side

# Steps proportional to the gradient; all others divide by its size, and turn the sign of a tiny one into a full step.
_LINEAR = ("SGD", "ASGD")
_UNKNOWN = 1e-4  # taken for the error of a gradient that cannot be compared: a shard here, the whole there


@dataclass(frozen=True)
class _Update:
    label: str
    error: float
    explained: float
    came_in: float
    slot: str
    who: Who | None = None  # the side that alone has it

    @property
    def excess(self) -> float:
        return self.error / max(self.explained, 1e-300)


def judge_optimizer(ledger: Ledger, provenance: Provenance, pair: int) -> None:
    """Judge one optimizer step."""
    ledger.history.tensors.clear()
    parts: dict[str, dict[str, int]] = {}
    for row in ledger.rows(pair):
        head, _, label = ledger.slot(row).partition(".")
        parts.setdefault(label, {})[head] = row
    gradients = [part["parameters_grad"] for part in parts.values() if "parameters_grad" in part]
    if _are_mostly_unknown(ledger, gradients):
        ledger.heal_by_gradients(ledger.order(pair), blindly=True)
    elif _gradients_agree(ledger, parts):
        ledger.heal_by_gradients(ledger.order(pair))
    elif ledger.parts and gradients and not ledger.history.diverged:
        blame_gradients(ledger, pair, gradients)
    lost = lost_in_rounding(ledger, gradients) if ledger.parts else ()
    told = any(difference.telling for difference in ledger.differences.get(pair, ())) or _are_unlike(ledger, pair)
    longest, names = _longest(ledger, parts), _names(ledger, pair)
    verdict = IDENTICAL if ledger.errors.identical[pair] else EQUIVALENT
    wrong: list[_Update] = []
    for label, rows in parts.items():
        if f"parameters.{label}" in ledger.history.layouts:
            continue
        given = [rows[head] for head in ("parameters", "parameters_grad") if head in rows and rows[head] not in lost]
        causes = [provenance.check(pair, row) for row in given]
        tainted = [cause for status, cause in causes if status != RIGHT and ledger.is_open(cause)]
        if "output" not in rows:
            continue
        update, is_wrong = _judge_update(ledger, pair, label, rows, told, longest)
        left = update.explained if np.isnan(ledger.error(rows["output"])) else update.error
        if is_wrong and not tainted and "parameters_grad" not in rows and _one_sided(ledger, pair, label):
            tainted = [_cut(ledger, pair, update)]
        t, r = ledger.tensors(rows["output"])
        for name in {label, names.get(r, label)}:  # an optimizer of copies knows no names
            _remember(ledger, t, name, left, bool(tainted) or is_wrong)
        if tainted:
            verdict = INHERITED
            ledger.mark_wrong(t, r, update.error, tainted[0])
            ledger.cause_of[pair] = tainted[0]
        elif is_wrong:
            wrong.append(update)
    for update in _updated_alone(ledger, pair):
        ledger.cause_of.setdefault(pair, _cut(ledger, pair, update))
        ledger.history.wrong.add(f"parameters.{update.label}")
        verdict = INHERITED
    follows = ledger.blind and ledger.anything_wrong()
    if wrong and not ledger.history.diverged and not follows:
        worst = max(wrong, key=lambda update: update.excess)
        cause = ledger.find(UpdateDiffers(), pair, worst.error, worst.explained, worst.came_in, slot=worst.slot)
        ledger.cause_of[pair] = cause
        verdict = ORIGIN
        for update in wrong:
            t, r = ledger.tensors(parts[update.label]["output"])
            ledger.mark_wrong(t, r, update.error, cause)
    elif wrong:
        verdict = INHERITED
        ledger.cause_of.setdefault(pair, ledger.first_cause())
    ledger.verdict[pair] = verdict


def _are_unlike(ledger: Ledger, pair: int) -> bool:
    """Return whether the two optimizers are of two classes: Adam decays gradients, AdamW weights."""
    target, reference = int(ledger.alignment.target[pair]), int(ledger.alignment.reference[pair])
    return bool(ledger.a.calls.op[target] != ledger.b.calls.op[reference])


def _names(ledger: Ledger, pair: int) -> dict[int, str]:
    """Return what the reference calls the parameters that its optimizer made, by their tensors."""
    slots, call = ledger.b.slots, int(ledger.alignment.reference[pair])
    here = range(int(slots.start[call]), int(slots.start[call + 1]))
    parts = ((int(slots.tensor[row]), *ledger.b.book.words[slots.slot[row]].partition(".")) for row in here)
    return {int(ledger.flow_b.same[r]): label for r, head, _, label in parts if head == "output" and r >= 0}


def _one_sided(ledger: Ledger, pair: int, label: str) -> bool:
    """Return whether one side alone has a gradient for a parameter."""
    slot = ledger.a.book.numbers.get(f"parameters_grad.{label}", -1)
    rows = ((ledger.a, ledger.alignment.target), (ledger.b, ledger.alignment.reference))
    has = [slot in side.slots.slot[side.slots.start[c[pair]] : side.slots.start[c[pair] + 1]] for side, c in rows]
    return has[0] != has[1]


def _cut(ledger: Ledger, pair: int, update: _Update) -> int:
    if ledger.anything_wrong():
        return ledger.first_cause()
    cause = cut(ledger, pair, update.label, update.error, update.explained)
    if cause is None:
        reason = UpdateDiffers() if update.who is None else UpdatedOnOneSide(update.who)
        return ledger.find(reason, pair, update.error, update.explained, update.came_in, slot=update.slot)
    return cause


def _updated_alone(ledger: Ledger, pair: int) -> list[_Update]:
    """Return the parameters that one side alone updates in this step, that it does move, and that the other has, too."""
    found = []
    sides: tuple[tuple[int, Side, Side, Ints, Ints, Who], ...] = (
        (0, ledger.a, ledger.b, ledger.slots.alone_a, ledger.alignment.target, "target"),
        (1, ledger.b, ledger.a, ledger.slots.alone_b, ledger.alignment.reference, "reference"),
    )
    for number, side, other, alone, calls, who in sides:
        rows = alone[side.slots.call[alone] == calls[pair]]
        tensors = {side.book.words[side.slots.slot[row]]: int(side.slots.tensor[row]) for row in rows.tolist()}
        for slot, after in tensors.items():
            head, _, label = slot.partition(".")
            before = tensors.get(f"parameters.{label}", -1)
            if head == "output" and min(before, after) >= 0:
                moved = _distance(side, after, before)
                missed = moved > 0 and has_parameter(other, label, side, before)
                if missed and not (ledger.elsewhere is not None and ledger.elsewhere.holds(1 - number, label)):
                    found.append(_Update(label, moved, 0.0, 0.0, slot, who))
    return found


def _remember(ledger: Ledger, t: int, label: str, error: float, wrong: bool) -> None:
    """Keep what the next step will find: a parameter that is off, by rounding or by a fault."""
    history, name = ledger.history, f"parameters.{label}"
    history.parameters[name] = max(history.parameters.get(name, 0.0), error)
    history.tensors[int(ledger.a.tensors.hash[t])] = Made(error, wrong)
    (history.wrong.add if wrong else history.wrong.discard)(name)


def _are_mostly_unknown(ledger: Ledger, rows: list[int]) -> bool:
    """Return whether most of all gradients, by their norm, cannot be compared: shards here, the whole there."""
    norms = np.array([or_zero(ledger.b.tensors.l2[ledger.slots.b[row]]) for row in rows])
    known = ~np.isnan([ledger.error(row) for row in rows])
    return bool(np.linalg.norm(norms[known]) < 0.5 * np.linalg.norm(norms)) if rows else False


def _gradients_agree(ledger: Ledger, parts: dict[str, dict[str, int]]) -> bool:
    """Return whether all gradients together are the same but for rounding."""
    rows = [part["parameters_grad"] for part in parts.values() if "parameters_grad" in part]
    norms = np.array([or_zero(ledger.b.tensors.l2[ledger.slots.b[row]]) for row in rows])
    errors = np.array([ledger.size(row) for row in rows])
    total = float(np.linalg.norm(norms))
    if not rows or not total > 0 or not np.isfinite(errors).all():
        return False
    roundoff = max(ledger.roundoff(*ledger.tensors(row)) for row in rows)
    off = float(np.linalg.norm(norms * errors)) / total
    # Below float32 rounding is as large as many a bug: agreement then proves nothing.
    return roundoff < 2.0**-20 and off <= 32 * roundoff + 2 * ledger.history.noise + 32 * _drift(ledger, parts)


def _drift(ledger: Ledger, parts: dict[str, dict[str, int]]) -> float:
    """Return how far the optimizer's own rounding has left the parameters apart, all together."""
    left = ledger.history.parameters
    labels = [label for label, rows in parts.items() if "parameters" in rows]
    norms = np.array([or_zero(ledger.b.tensors.l2[ledger.slots.b[parts[label]["parameters"]]]) for label in labels])
    errors = np.array([or_zero(left.get(f"parameters.{label}", 0.0)) for label in labels])
    total = float(np.linalg.norm(norms))
    return min(float(np.linalg.norm(norms * errors)) / total, 1e-4) if total > 0 else 0.0


def _judge_update(
    ledger: Ledger, pair: int, label: str, rows: dict[str, int], told: bool, longest: float
) -> tuple[_Update, bool]:
    row = rows["output"]
    error = ledger.size(row)
    roundoff = ledger.roundoff(*ledger.tensors(row))
    gradient = ledger.error(rows["parameters_grad"]) if "parameters_grad" in rows else 0.0
    gradient = _UNKNOWN if np.isnan(gradient) else gradient
    before = ledger.size(rows["parameters"]) if "parameters" in rows else 0.0
    history = ledger.history.parameters
    # The optimizer's state remembers the gradients of all steps.
    known = max(gradient, history.get(f"gradient.{label}", 0.0))
    history[f"gradient.{label}"] = known
    moved = _moved(ledger, rows, 1)
    name = ledger.a.book.words[ledger.a.calls.op[ledger.alignment.target[pair]]].rpartition(".")[2]
    if known == 0.0:
        allowed = moved * 4e-6
    elif name in _LINEAR:
        allowed = moved * (8.0 * known + 1e-4)
    else:  # where all signs may be others, the two steps together
        allowed = 1.02 * (moved + min(_moved(ledger, rows, 0), 1.5 * max(moved, _rms_to_share(ledger, rows, longest))))
        allowed = max(allowed, 1.5 * moved)
    explained = 4 * roundoff + 2 * before + allowed
    if told:  # other settings: only what noise in the gradient does by itself is an excuse
        explained = min(explained, 2 * before + 2 * roundoff + moved * (8.0 * known + 6.0 * known**0.5))
    return _Update(label, error, explained, max(gradient, before), ledger.slot(row)), error > explained


def _moved(ledger: Ledger, rows: dict[str, int], side: int) -> float:
    """Return how far a parameter moved in this step on one side, relative to the reference's after it."""
    if "parameters" not in rows:
        return 1.0
    (after, kept), before = ledger.tensors(rows["output"]), ledger.tensors(rows["parameters"])[side]
    if side == 1:
        return _distance(ledger.b, kept, before)
    scale = float(ledger.a.tensors.l2[after]) / max(float(ledger.b.tensors.l2[kept]), 1e-300)
    return _distance(ledger.a, after, before) * scale


def _longest(ledger: Ledger, parts: dict[str, dict[str, int]]) -> float:
    """Return the longest step that the reference took with any parameter, per element."""
    steps = [0.0]
    for rows in parts.values():
        if "output" in rows and "parameters" in rows:
            tensors, after = ledger.b.tensors, ledger.tensors(rows["output"])[1]
            size = float(tensors.l2[after]) / max(float(tensors.elements[after]), 1.0) ** 0.5
            steps.append(_moved(ledger, rows, 1) * size)
    return float(max(step for step in steps if step == step))


def _rms_to_share(ledger: Ledger, rows: dict[str, int], step: float) -> float:
    """Return a step per element as a share of the reference's parameter."""
    tensors, after = ledger.b.tensors, ledger.tensors(rows["output"])[1]
    return float(step * float(tensors.elements[after]) ** 0.5 / max(float(tensors.l2[after]), 1e-300))


def _distance(side: Side, after: int, before: int) -> float:
    tensors = side.tensors
    if not (tensors.sketched[after] and tensors.sketched[before] and tensors.l2[after] > 0):
        return 1.0
    return float(np.linalg.norm(tensors.sketch[after] - tensors.sketch[before]) / tensors.l2[after])
