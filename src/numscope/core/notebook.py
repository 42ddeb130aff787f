"""A report and a run in a notebook: one small piece of HTML, no script, no network, any theme."""

from __future__ import annotations

import html
from collections.abc import Iterable

from numscope.core.report import Report

_COLOURS = {
    "identical": "#6b7078",
    "equivalent": "#2f7fc1",
    "diverged": "#d3381f",
    "incomplete": "#8a5bd0",
    "incomparable": "#8a5bd0",
}
_GLYPHS = {"identical": "=", "equivalent": "≈", "origin": "✱", "inherited": "↳", "unmatched": "◇"}
_BOX = "border-left:4px solid {0};padding:6px 14px;margin:6px 0;font-family:system-ui,sans-serif;line-height:1.5"
_MOST_LINKS = 4  # of the chain to the cause
_MONO = "font-family:ui-monospace,monospace"


def report_html(report: Report, target: str = "", reference: str = "") -> str:
    """Return a report for a notebook."""
    parts = [f'<div style="font-weight:600;font-size:1.15em">{_text(report.verdict)}</div>']
    if target or reference:
        parts.append(f'<div style="opacity:.7">{_text(target)} against {_text(reference)}</div>')
    origin = report.origin
    if origin:
        where = f"{origin.phase}, step {origin.step}, rank {origin.rank}"
        parts.append(f'<div style="margin-top:6px"><b style="{_MONO}">{_text(origin.call)}</b> ({_text(where)})</div>')
        parts.append(f"<div>{_text(origin.reason)}</div>")
        if origin.source:
            line = f"{origin.source.file}:{origin.source.line}"
            code = _text(origin.source.code or "")
            parts.append(f'<div style="{_MONO};opacity:.8">{_text(line)}&ensp;{code}</div>')
        if origin.mechanism != "unknown":
            parts.append(f"<div><b>Mechanism:</b> {_text(origin.mechanism)}</div>")
        parts += [f'<div style="opacity:.8">← {_text(link)}</div>' for link in origin.chain[:_MOST_LINKS]]
        if origin.repair:
            parts.append(f"<div><b>Repair:</b> {_text(origin.repair)}</div>")
    elif report.reason:
        parts.append(f"<div>{_text(report.reason)}</div>")
    parts += _losses(report)
    counts = report.counts
    counted = [f"{glyph} {word} <b>{counts[word]:,}</b>" for word, glyph in _GLYPHS.items() if counts.get(word)]
    if counted:
        parts.append(f'<div style="margin-top:6px;opacity:.85">{" &ensp; ".join(counted)}</div>')
    return f'<div style="{_BOX.format(_COLOURS.get(report.verdict, "#888"))}">{"".join(parts)}</div>'


def _losses(report: Report) -> list[str]:
    """Return the first and the last loss of both runs."""
    known = report.details.get("losses") or []
    if not known:
        return []
    ends = [known[0], known[-1]] if len(known) > 1 else known
    sides = [f"{side} {' … '.join(f'{one[side]:.7g}' for one in ends)}" for side in ("target", "reference")]
    return [f'<div style="margin-top:6px"><b>Loss:</b> {_text("; ".join(sides))}</div>']


def facts_html(title: str, facts: Iterable[tuple[str, object]]) -> str:
    """Return a title and a few facts for a notebook."""
    rows = "".join(
        f'<tr><td style="text-align:left;opacity:.7;padding:1px 14px 1px 0">{_text(name)}</td>'
        f'<td style="text-align:left;padding:1px 0">{_text(value)}</td></tr>'
        for name, value in facts
        if value not in (None, "", [], {})
    )
    head = f'<div style="font-weight:600;{_MONO}">{_text(title)}</div>'
    return f'<div style="{_BOX.format("#2f7fc1")}">{head}<table style="margin-top:4px">{rows}</table></div>'


def _text(value: object) -> str:
    return html.escape(str(value))
