"""The answer on one screen: verdict, origin with its line, the story, the worst pairs, coverage.

DIVERGED  at Functional.layer_norm.3.forward in blocks.1.ln2, step 0

  LayerNorm in blocks.1.ln2: inputs identical, outputs differ by 3.1e-3 (rounding explains 4e-7); argument eps …
  model.py:41 in forward    x = F.layer_norm(x, …)
"""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from numscope.compare.comparison import Comparison
from numscope.compare.grafted import Graft, sentence
from numscope.compare.spool import Rows
from numscope.core.report import Origin, Report
from numscope.core.untrusted import shown as safely_shown
from numscope.store.schema import TableRow

_MOST_LINKS = 8  # of the chain to the cause that are shown
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
        shown += [f"  {line}" for line in textwrap.wrap(report.reason, width - 2, break_long_words=False)[:5]]
    if report.origin:
        shown += _source(report.origin, paint, width)
        shown += _chain(report.origin, paint, width)
        shown += ["", *_story(comparison, paint, width)]
        shown += _rivals(report.suspects[1:], paint, width)
    if "graft" in report.details:
        shown += ["", *_graft(report.details["graft"], paint, width)]
    table = chosen_pairs(comparison.pair_rows, top, only, sort)
    if report.verdict == "incomparable":
        table = table.slice(0, 0)
    elif only == "unmatched":  # a call without a counterpart is in no pair of tensors
        shown += ["", *_unmatched(comparison, top, paint, width)]
    else:
        shown += ["", *_worst(table, paint, width, only, sort)]
    if report.resolution is not None and "sentence" in report.resolution:
        first, *others = textwrap.wrap(report.resolution["sentence"], width - 13, break_long_words=False)
        shown += ["", f"  {paint('resolution', '36')} {first}", *(f"             {line}" for line in others)]
    shown += ["", *_coverage(comparison, paint, width)]
    if any(_estimated(row) for row in table.to_pylist()):
        shown.append(_cut("  ~ estimated from fingerprints; --keep tensors gives exact measures", width))
    return shown


def verdict_badge(report: Report, paint: Paint) -> str:
    """Return the verdict as the first line begins with it; of an incomplete comparison that is the whole line."""
    colour = f"{_COLOURS[report.verdict]};7;1"
    if report.verdict == "incomplete":
        return f"{paint(' INCOMPLETE:', colour)} {report.details['rest']['headline']}"
    return paint(f" {report.verdict.upper()} ", colour)


def _settings(report: Report, paint: Paint, width: int) -> list[str]:
    """Return the line of the settings in which the two runs differ, that which explains the origin first."""
    if not report.settings:
        return []
    cause = report.origin.details.get("setting") if report.origin else None
    first = sorted(report.settings, key=lambda one: one["name"] != cause)
    told = [f"{one['name']}: {_setting(one['target'])} against {_setting(one['reference'])}" for one in first[:3]]
    more = f" and {len(first) - 3} more (numscope doctor TARGET REFERENCE)" if len(first) > 3 else ""
    return [f"  {paint('settings', '36')}   {_cut('; '.join(told) + more, width - 13)}"]


def _setting(value: object) -> str:
    return "not set" if value is None else str(value)


def _missing(report: Report, paint: Paint, width: int) -> list[str]:
    """Return what was compared with nothing, a line each, and what the rest is."""
    told: list[str] = []
    said = report.details["rest"]["headline"]
    for lack in [one for one in report.coverage["missing"] if not said.startswith(one)][:6]:
        first, *others = textwrap.wrap(lack, width - 13, break_long_words=False)
        told += [f"  {paint('missing', '33')}    {first}", *(f"             {line}" for line in others)]
    first, *others = textwrap.wrap(report.details["rest"]["reason"], width - 13, break_long_words=False)[:4]
    told += [f"  the rest   {first}", *(f"             {line}" for line in others)]
    return [*told, "", _cut("  --allow-incomplete gives the verdict of the rest; --step and --rank choose", width)]


def _headline(origin: Origin, badge: str, paint: Paint) -> str:
    where = f" in {origin.module}" if origin.module and origin.kind not in ("module", "parameter") else ""
    rank = f", rank {origin.rank}" if origin.rank else ""
    kind = f" ({origin.kind})" if origin.kind in ("missing", "extra", "data", "parameter") else ""
    return f"{badge} at {paint(origin.call, '1')}{kind}{where}, step {origin.step}{rank}"


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
    links = list(origin.chain[:_MOST_LINKS])
    return [f"    {paint('←', '36')} {_cut(link, width - 6)}" for link in links]


def _story(comparison: Comparison, paint: Paint, width: int) -> list[str]:
    """Return the identical prefix, the origin, and the calls that inherited it."""
    report = comparison.report
    prefix = report.prefix
    told = []
    if prefix["calls"]:
        told.append(f"  {paint('identical', '32')}  the first {_calls(prefix['calls'])}, to {prefix['last']}")
    origin = report.origin
    assert origin is not None
    told.append(f"  {paint('origin', '31;1')}     {origin.call}: {_error(origin)}")
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
        told.append(f"  {paint('inherited', '33')}  {_cut(text.rstrip(': '), width - 13)}")
    return told


def _error(origin: Origin) -> str:
    if origin.relative is None:
        return "differs"
    explained = "" if origin.expected is None else f", rounding explains {_number(origin.expected)}"
    return f"off by {_number(origin.relative)}{explained}"


def _rivals(rivals: Iterable[Origin], paint: Paint, width: int) -> list[str]:
    return [f"  {paint('also', '33')}       {_cut(rival.reason, width - 13)}" for rival in list(rivals)[:2]]


def _graft(graft: Graft, paint: Paint, width: int) -> list[str]:
    first, *rest = textwrap.wrap(sentence(graft), width - 13, break_long_words=False)
    return [f"  {paint('grafted', '36')}    {first}", *(f"             {line}" for line in rest)]


def _worst(table: pa.Table, paint: Paint, width: int, only: str | None, sort: str) -> list[str]:
    if not table.num_rows:
        return ["  no pair of tensors differs"] if not only else [f"  no pair is {only}"]
    rows = table.to_pylist()
    places = {(row["step"], row["rank"]) for row in rows}
    name_width = max(24, width - 50 - 8 * (len(places) > 1) - 8 * any(rank for _, rank in places))
    title = "worst pairs (relative L2, cosine, max abs)" if sort == "error" else "pairs"
    title = title if len(title) <= name_width else title.partition(" (")[0]
    header = f"  {title:<{name_width}}"
    told = [paint(f"{header}{'relative':>10} {'cosine':>9} {'max abs':>9}  {'verdict':<10}", "2")]
    for row in rows:
        mark = "~" if _estimated(row) else " "
        cells = f"{mark}{_cell(row['relative_l2']):>9} {_cell(row['cosine'], 5):>9} {_cell(row['max_abs_err']):>9}"
        verdict = paint(f"{row['verdict'] or 'unmeasured':<10}", _CALL_COLOURS.get(row["verdict"], ""))
        at = f" step {row['step']}" + (f", rank {row['rank']}" if row["rank"] else "") if len(places) > 1 else ""
        told.append(f"  {_cut(row['target_name'], name_width - 1, keep_end=True):<{name_width}}{cells}  {verdict}{at}")
        if row["reason"] and row["verdict"] in ("equivalent", None):
            told.append(paint(_cut(f"      {row['reason']}", width), "2"))
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
            told.append(f"  {paint(f'only in the {side:<9}', _CALL_COLOURS['unmatched'])}  {_cut(call, width - 25)}")
    return told or ["  no call is unmatched"]


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
    told = "  ".join(f"{paint(str(count), _CALL_COLOURS[name])} {name}" for name, count in counts.items() if count)
    text = f"{coverage['matched']} of {coverage['target']} calls matched with {coverage['reference']}"
    if coverage["unmatched_target"] or coverage["unmatched_reference"]:
        text += f" ({coverage['unmatched_target']} only in the target, {coverage['unmatched_reference']} only in the reference)"
    skipped = "; ".join(f"{count} {reason}" for reason, count in coverage["skipped"].items())
    shown = [f"  {told}" if told else "", _cut(f"  {text}, {coverage['tensors']} tensors", width)]
    if comparison.verdict != "incomplete" and (lacking := coverage["missing"]):
        skipped = "; ".join([*lacking, *([skipped] if skipped else [])])
    if skipped:
        shown.append(_cut(f"  not compared: {skipped}", width))
    if comparison.origin is not None and "conditions" in comparison.report.details:
        shown.append(_cut(f"  {comparison.report.details['conditions']['sentence']}", width))
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
