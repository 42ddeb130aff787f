"""The answer on one screen: verdict, origin with its line, the story, the worst pairs, coverage.

DIVERGED  at Functional.layer_norm.3.forward in blocks.1.ln2, step 0

  LayerNorm in blocks.1.ln2: inputs identical, outputs differ by 3.1e-3 (rounding explains 4e-7); argument eps …
  model.py:41 in forward    x = F.layer_norm(x, …)
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.compare.grafted import Graft, sentence
from numscope.compare.parts.rows import Rows
from numscope.core.language.chinese import language, say, translated
from numscope.core.report import Origin, Report
from numscope.core.untrusted import shown as safely_shown
from numscope.report.terminal.lines import columns, localised, padded, wrapped
from numscope.report.terminal.worst_pairs import groups
from numscope.store.schema import TableRow

_HEADS = (("relative", 10), ("cosine", 9), ("max abs", 9))
_MOST_LOSSES = 4  # steps whose losses are shown
_MOST_LINKS = 8  # of the chain to the cause that are shown
_LINES_OF_A_LINK = 5  # changed lines of code are long
MEANING = {
    "semantic": "the two compute different things, in any precision",
    "precision": "the same computation, in another dtype or cast at another place",
    "order": "the same sums in another order: rounding, no fault",
    "device": "the same call on the same inputs, made again elsewhere, is right; the recorded output is not",
    "input": "the calls are right: they were given something else",
    "parameter": "the calls are right: their parameters differ",
    "unknown": "could not be told",
}
_COLOURS = {"identical": "32", "equivalent": "32", "diverged": "31", "incomplete": "33", "incomparable": "33"}
_CALL_COLOURS = {"identical": "32", "equivalent": "32", "origin": "31;1", "inherited": "33", "unmatched": "35"}


class Paint:
    """Colours where the stream is a terminal, plain text elsewhere."""

    def __init__(self, stream: TextIO | None, colour: bool | None = None) -> None:
        terminal = stream is not None and stream.isatty() and "NO_COLOR" not in os.environ
        self.on = terminal if colour is None else colour

    def __call__(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text


def print_comparison(
    comparison: Comparison,
    stream: TextIO,
    *,
    top: int = 10,
    only: str | None = None,
    sort: str = "error",
    colour: bool | None = None,
) -> None:
    """Print the answer, at most one screen of it."""
    width = min(max(shutil.get_terminal_size((100, 40)).columns, 60), 140)
    paint = Paint(stream, colour)
    for line in lines(comparison, paint, width, top, only, sort):
        print(safely_shown(line, coloured=True), file=stream)


def text(comparison: Comparison, width: int = 100, top: int = 10) -> str:
    """Return the answer as plain text."""
    return "\n".join(lines(comparison, Paint(None, colour=False), width, top))


def lines(
    comparison: Comparison, paint: Paint, width: int = 100, top: int = 10, only: str | None = None, sort: str = "error"
) -> list[str]:
    """Return the lines of the answer."""
    report = comparison.report
    badge = verdict_badge(report, paint)
    shown = [_headline(report.origin, badge, paint) if report.origin else badge.rstrip()]
    shown += [*_settings(report, paint, width), ""]
    if report.verdict == "incomplete":
        shown += _missing(report, paint, width)
    else:
        shown += _wrapped("  ", report.reason, width)[:6]
    if report.origin:
        shown += _source(report.origin, paint, width)
        shown += _chain(report.origin, paint, width)
        shown += ["", *_losses(report, paint, width), *_story(comparison, paint, width)]
        shown += _rivals(report.suspects[1:], paint, width)
    else:
        shown += _losses(report, paint, width)
    if "graft" in report.details:
        shown += ["", *_graft(report.details["graft"], paint, width)]
    grouped = only is None and sort == "error"
    found = groups(comparison, top) if grouped else []
    table = [one.worst for one in found] if grouped else chosen_pairs(comparison.pair_rows, top, only, sort).to_pylist()
    if report.verdict == "incomparable":
        table = []
    elif only == "unmatched":  # a call without a counterpart is in no pair of tensors
        shown += ["", *_unmatched(comparison, top, paint, width)]
    else:
        said = [f"{one.place}: the worst of {one.count}" if one.count > 1 else one.place for one in found]
        shown += ["", *_pairs(table, said, paint, width, only)]
    if report.resolution is not None and "sentence" in report.resolution:
        shown += ["", *_labelled(paint, "resolution", "36", report.resolution["sentence"], width)]
    shown += ["", *_coverage(comparison, paint, width)]
    if any(_estimated(row) for row in table):
        shown += _wrapped("  ", "~ estimated from fingerprints; --keep tensors gives exact measures", width)
    if report.origin is not None:
        shown += ["", f"  {_label(paint, 'next', '36')}{_next(comparison)}"]
    return shown


def _next(comparison: Comparison) -> str:
    """Return the command that says more: why, or what it looks like."""
    origin = comparison.origin
    command = "diagnose" if origin is not None and origin.repair is None else "view"
    return f"numscope {command} {shlex.join([str(comparison.target.path), str(comparison.reference.path)])}"


def _losses(report: Report, paint: Paint, width: int) -> list[str]:
    """Return what the two losses did."""
    known = report.details.get("losses")
    if not known:
        return []
    chosen = known if len(known) <= _MOST_LOSSES else [*known[: _MOST_LOSSES - 1], known[-1]]
    sides = [
        f"{side} {', '.join(f'{one[side]:.7g}' for one in chosen[:-1])}"
        f"{' … ' if len(known) > len(chosen) else ', ' if len(chosen) > 1 else ''}{chosen[-1][side]:.7g}"
        for side in ("target", "reference")
    ]
    apart = max(_apart(one["target"], one["reference"]) for one in known)
    said = f"apart by {_number(apart)} at most" if apart else "the same to the bit"
    steps = f" in {len(known)} steps" if len(known) > 1 else ""
    return _labelled(paint, "loss", "36", f"{'; '.join(sides)}; {said}{steps}", width)


def _apart(target: float, reference: float) -> float:
    difference = abs(target - reference)
    return difference / abs(reference) if reference else difference


def _labelled(paint: Paint, label: str, colour: str, text: str, width: int) -> list[str]:
    """Return a text of as many lines as it needs, under a label of eleven columns."""
    first, *others = wrapped(translated(text), width - 13) or [""]
    return [f"  {_label(paint, label, colour)}{first}", *(f"             {line}" for line in others)]


def _label(paint: Paint, label: str, colour: str) -> str:
    said = say(label)
    return paint(said, colour) + " " * max(1, 11 - columns(said))


def _wrapped(indent: str, text: str, width: int, hang: str = "") -> list[str]:
    return wrapped(translated(text), width, indent, indent + hang)


def verdict_badge(report: Report, paint: Paint) -> str:
    """Return the verdict as the first line begins with it; of an incomplete comparison that is the whole line."""
    colour = f"{_COLOURS[report.verdict]};7;1"
    if report.verdict == "incomplete":
        label = "INCOMPLETE:" if language() == "en" else f"{say(report.verdict)}："
        return f"{paint(f' {label}', colour)} {translated(report.details['rest']['headline'])}"
    return paint(f" {report.verdict.upper() if language() == 'en' else say(report.verdict)} ", colour)


def _settings(report: Report, paint: Paint, width: int) -> list[str]:
    """Return the line of the settings in which the two runs differ, that which explains the origin first."""
    if not report.settings:
        return []
    cause = report.origin.details.get("setting") if report.origin else None
    first = sorted(report.settings, key=lambda one: one["name"] != cause)
    told = [f"{one['name']}: {_setting(one['target'])} against {_setting(one['reference'])}" for one in first[:3]]
    more = f" and {len(first) - 3} more (numscope doctor TARGET REFERENCE)" if len(first) > 3 else ""
    return _labelled(paint, "settings", "36", "; ".join(told) + more, width)


def _setting(value: object) -> str:
    return "not set" if value is None else str(value)


def _missing(report: Report, paint: Paint, width: int) -> list[str]:
    """Return what was compared with nothing, a line each, and what the rest is."""
    told: list[str] = []
    said = report.details["rest"]["headline"]
    for lack in [one for one in report.coverage["missing"] if not said.startswith(one)][:6]:
        told += _labelled(paint, "missing", "33", lack, width)
    told += _labelled(paint, "the rest", "", report.details["rest"]["reason"], width)[:4]
    return [*told, "", localised("  --allow-incomplete gives the verdict of the rest; --step and --rank choose")]


def _headline(origin: Origin, badge: str, paint: Paint) -> str:
    rank = f", rank {origin.rank}" if origin.rank else ""
    kind = f" ({say(origin.kind)})" if origin.kind in ("missing", "extra", "data", "parameter") else ""
    call = paint(origin.call, "1") + kind
    if origin.module and origin.kind not in ("module", "parameter"):
        call = say("{0} in {1}", call, origin.module)
    return f"{badge} {say('at {0}, step {1}', call, origin.step)}{rank}"


def _source(origin: Origin, paint: Paint, width: int) -> list[str]:
    if origin.source is None:
        return []
    location = f"{origin.source.file}:{origin.source.line}"
    room = width - 4
    if len(location) > room:
        location = f"…{location[-room + 1 :]}"
    code = origin.source.code.strip()
    return [f"  {paint(location, '36')}"] + ([f"    {_cut(code, width - 4)}"] if code else [])


def _chain(origin: Origin, paint: Paint, width: int) -> list[str]:
    """Return the links from the use to the cause, a line each."""
    shown = []
    for link in origin.chain[:_MOST_LINKS]:
        first, *others = wrapped(translated(link), width - 6) or [""]
        shown += [f"    {paint('←', '36')} {first}", *(f"      {line}" for line in others[: _LINES_OF_A_LINK - 1])]
    return shown


def _story(comparison: Comparison, paint: Paint, width: int) -> list[str]:
    """Return the identical prefix, the origin, and the calls that inherited it."""
    report = comparison.report
    prefix = report.prefix
    told = []
    if prefix["calls"]:
        said = f"the first {_calls(prefix['calls'])}" if prefix["calls"] > 1 else "the first call"
        told += _labelled(paint, "identical", "32", f"{said}, to {prefix['last']}", width)
    origin = report.origin
    assert origin is not None
    told += _labelled(paint, "origin", "31;1", f"{origin.call}: {_error(origin)}", width)
    if origin.mechanism != "unknown":
        meaning = f"{say(origin.mechanism)}: {translated(MEANING[origin.mechanism])}"
        told += _labelled(paint, "mechanism", "36", meaning, width)
    count, seen = 0, {name: dict[str, None]() for name in ("module", "phase", "step")}
    for part in comparison.call_rows.batches(["verdict", *seen]):
        spread = part.filter(pc.equal(part["verdict"], "inherited"))
        count += spread.num_rows
        for name, values in seen.items():
            values.update(dict.fromkeys(pc.unique(spread[name]).to_pylist()))
    if count:
        modules, phases = ([word for word in seen[name] if word] for name in ("module", "phase"))
        steps = len(seen["step"])
        text = f"{_calls(count)}, {', '.join(phases)}, {steps} step{'s' * (steps > 1)}: "
        text += ", ".join(modules[:4]) + (f" and {len(modules) - 4} more modules" if len(modules) > 4 else "")
        told += _labelled(paint, "inherited", "33", text.rstrip(": "), width)
    return told


def _error(origin: Origin) -> str:
    if origin.relative is None:
        return "differs"
    explained = "" if origin.expected is None else f", rounding explains {_number(origin.expected)}"
    return f"off by {_number(origin.relative)}{explained}"


def _rivals(rivals: Iterable[Origin], paint: Paint, width: int) -> list[str]:
    return [line for rival in list(rivals)[:2] for line in _labelled(paint, "also", "33", rival.reason, width)]


def _graft(graft: Graft, paint: Paint, width: int) -> list[str]:
    return _labelled(paint, "grafted", "36", sentence(graft), width)


def _pairs(rows: list[TableRow], said: list[str], paint: Paint, width: int, only: str | None) -> list[str]:
    """Return a line of figures per pair of tensors, and under it what stands beside it."""
    if not rows:
        return [localised("  no pair of tensors differs" if not only else f"  no pair is {only}")]
    places = {(row["step"], row["rank"]) for row in rows}
    name_width = width - 46
    title = padded(say("largest differences" if said else "pairs"), name_width)
    heads = " ".join(padded(say(name), room, right=True) for name, room in _HEADS)
    told = [paint(f"  {title}{heads}  {say('verdict')}", "2")]
    for number, row in enumerate(rows):
        mark = "~" if _estimated(row) else " "
        cells = f"{mark}{_cell(row['relative_l2']):>9} {_cell(row['cosine'], 5):>9} {_cell(row['max_abs_err']):>9}"
        verdict = paint(say(row["verdict"] or "unmeasured"), _CALL_COLOURS.get(row["verdict"], ""))
        name = row["target_name"]
        rank = f", rank {row['rank']}" if row["rank"] else ""
        at = f"{said[number]}{rank}" if said else f"step {row['step']}{rank}" if len(places) > 1 else ""
        if len(name) >= name_width:  # a name is never cut: its figures come under it
            told.append(f"  {name}")
            name = ""
        told.append(f"  {name:<{name_width}}{cells}  {verdict}".rstrip())
        if at:
            told.append(paint(f"      {translated(at)}", "2"))
        if row["reason"] and row["verdict"] in ("equivalent", None):
            told += [paint(line, "2") for line in _wrapped("      ", row["reason"], width)]
    return told


def _unmatched(comparison: Comparison, top: int, paint: Paint, width: int) -> list[str]:
    """Return the first calls that only one of the runs has, in the order of running."""
    columns = ["verdict", "step", "target_name", "reference_name", "source_file", "source_line"]
    told: list[str] = []
    for part in comparison.call_rows.batches(columns):
        for row in part.filter(pc.equal(part["verdict"], "unmatched")).slice(0, top - len(told)).to_pylist():
            side = "target" if row["target_name"] else "reference"
            location = f"  {os.path.basename(row['source_file'])}:{row['source_line']}" if row["source_file"] else ""
            call = f"{row['target_name'] or row['reference_name']}, step {row['step']}{location}"
            only = padded(localised(f"only in the {side}"), 21)
            told.append(f"  {paint(only, _CALL_COLOURS['unmatched'])}  {_cut(call, width - 25)}")
    return told or [localised("  no call is unmatched")]


def _estimated(row: TableRow) -> bool:
    return bool(row["estimated"]) and not row["bitwise_equal"]


def chosen_pairs(pairs: Rows, top: int, only: str | None = None, sort: str = "error") -> pa.Table:
    """Return the rows of `pairs` that a user asked for: of one verdict, the worst first or in order."""
    column = "target_name" if sort == "name" else "relative_l2"
    best: list[tuple[float | str, int]] = []  # the sort key, and the row
    begin = 0
    for part in pairs.batches(["verdict", column]):
        chosen = pc.equal(part["verdict"], only) if only else pc.not_equal(part["verdict"], "identical")
        chosen = pc.is_null(part["verdict"]) if only == "unmeasured" else chosen
        rows = np.flatnonzero(pc.fill_null(chosen, False).to_numpy())
        keys = rows + begin
        if sort == "error":
            error = part[column].to_numpy().astype(float)[rows]
            keys = -np.nan_to_num(error, nan=-1.0, posinf=np.inf)
            first = np.argsort(keys, kind="stable")[:top]
            rows, keys = rows[first], keys[first]
        listed = part[column].take(pa.array(rows)).to_pylist() if sort == "name" else keys.tolist()
        best = sorted([*best, *zip(listed, (rows + begin).tolist())])[:top]
        begin += part.num_rows
    return pairs.take([row for _, row in best])


def _coverage(comparison: Comparison, paint: Paint, width: int) -> list[str]:
    coverage, counts = comparison.report.coverage, comparison.report.counts
    told = "  ".join(f"{paint(str(count), _CALL_COLOURS[name])} {say(name)}" for name, count in counts.items() if count)
    text = f"{coverage['matched']} of {coverage['target']} calls matched with {coverage['reference']}"
    if coverage["unmatched_target"] or coverage["unmatched_reference"]:
        text += f" ({coverage['unmatched_target']} only in the target, {coverage['unmatched_reference']} only in the reference)"
    skipped = "; ".join(f"{count} {reason}" for reason, count in coverage["skipped"].items())
    shown = [f"  {told}" if told else "", *_wrapped("  ", f"{text}, {coverage['tensors']} tensors", width)]
    if comparison.verdict != "incomplete" and (lacking := coverage["missing"]):
        skipped = "; ".join([*lacking, *([skipped] if skipped else [])])
    if skipped:
        shown += _wrapped("  ", f"not compared: {skipped}", width, "  ")
    if comparison.origin is not None and "conditions" in comparison.report.details:
        shown += _wrapped("  ", comparison.report.details["conditions"]["sentence"], width)
    return [line for line in shown if line]


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _number(value: float) -> str:
    return "infinity" if value == float("inf") else f"{value:.2g}"


def _cell(value: float | None, digits: int = 3) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}"


def _cut(text: str, width: int, keep_end: bool = False) -> str:
    if len(text) <= width:
        return text
    return f"…{text[-width + 1 :]}" if keep_end else f"{text[: width - 1]}…"
