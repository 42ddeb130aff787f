"""Makes my-runs-differ.svg, the chart from what a user sees to what to do.

python docs/images/make_chart.py
"""

from __future__ import annotations

import html
from pathlib import Path

# name: (column, row, text, colour); lines of a text are divided by /
BOXES = {
    "start": (1, 0, "two runs differ", "ask"),
    "nan": (1, 1, "a NaN or infinity?", "ask"),
    "guard": (0, 1, "numscope check RUN/numscope run --guard", "do"),
    "compare": (1, 2, "numscope compare/TARGET REFERENCE", "do"),
    "identical": (0, 3, "identical: look at more/steps, all ranks", "end"),
    "equivalent": (1, 3, "equivalent: rounding/explains it", "end"),
    "incomplete": (2, 3, "incomplete: capture what/coverage.missing names", "end"),
    "incomparable": (3, 3, "incomparable: a map file,/or fingerprints", "end"),
    "diverged": (1, 4, "diverged: where?", "ask"),
    "data": (0, 5, "data: loader, seeds,/ranks", "end"),
    "parameter": (2, 5, "parameter: checkpoint,/initialisation", "end"),
    "missing": (3, 5, "missing, extra:/read the line", "end"),
    "diagnose": (1, 6, "numscope diagnose/TARGET REFERENCE", "do"),
    "semantic": (0, 7, "semantic, precision:/read repair", "end"),
    "order": (1, 7, "order: rounding,/no fault", "end"),
    "device": (2, 7, "device: --repro FILE/for its maker", "end"),
    "unknown": (3, 7, "unknown: keep its tensors,/the command is printed", "end"),
}
LINES = [
    ("start", "nan", ""), ("nan", "guard", "yes"), ("nan", "compare", "no"), ("compare", "identical", ""),
    ("compare", "equivalent", ""), ("compare", "incomplete", ""), ("compare", "incomparable", ""),
    ("equivalent", "diverged", "else"), ("diverged", "data", ""), ("diverged", "parameter", ""), ("diverged", "missing", ""),
    ("diverged", "diagnose", "a call"), ("diagnose", "semantic", ""), ("diagnose", "order", ""), ("diagnose", "device", ""),
    ("diagnose", "unknown", ""),
]  # fmt: skip
FILL = {"ask": "#e5eff8", "do": "#fcf3df", "end": "#f2f2f0"}
WIDTH, HEIGHT, ACROSS, DOWN = 196, 46, 216, 84


def chart() -> str:
    """Return the chart as SVG."""
    parts = []
    for begin, end, label in LINES:
        (x0, y0), (x1, y1) = corner(begin), corner(end)
        if BOXES[begin][1] == BOXES[end][1]:
            x0, x1, y = x0, x1 + WIDTH, y0 + HEIGHT / 2
            parts.append(f'<path d="M{x0} {y}H{x1}" marker-end="url(#a)"/>')
            parts.append(f'<text x="{(x0 + x1) / 2}" y="{y - 5}">{label}</text>')
            continue
        x0, x1, y0, middle = x0 + WIDTH / 2, x1 + WIDTH / 2, y0 + HEIGHT, y1 - 19
        parts.append(f'<path d="M{x0} {y0}V{middle}H{x1}V{y1}" marker-end="url(#a)"/>')
        if label:
            parts.append(f'<text x="{x1 + 8}" y="{y1 - 7}" style="text-anchor:start">{label}</text>')
    for name, (_, _, text, kind) in BOXES.items():
        x, y = corner(name)
        parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="{FILL[kind]}"/>')
        lines = text.split("/")
        for number, line in enumerate(lines):
            at = y + HEIGHT / 2 + 4 + 15 * (number - (len(lines) - 1) / 2)
            parts.append(f'<text x="{x + WIDTH / 2}" y="{at}">{html.escape(line)}</text>')
    size = f'viewBox="0 0 {4 * ACROSS + 4} {7 * DOWN + HEIGHT + 24}"'
    style = "text{font:13px system-ui,sans-serif;text-anchor:middle;fill:#1d1f23}path{fill:none;stroke:#8a8d93}rect{stroke:#c9cacb}"
    arrow = '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#8a8d93;stroke:none"/></marker>'
    back = '<rect width="100%" height="100%" fill="#fff" style="stroke:none"/>'
    body = "\n".join([back, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style><defs>{arrow}</defs>\n{body}\n</svg>\n'
    )


def corner(name: str) -> tuple[float, float]:
    column, row, _, _ = BOXES[name]
    return 12 + ACROSS * column, 12 + DOWN * row


if __name__ == "__main__":
    Path(__file__).with_name("my-runs-differ.svg").write_text(chart())
