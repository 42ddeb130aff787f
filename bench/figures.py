"""Write the figures of bench/results/*.json, and no others, into the pages that show them.

python -m bench.figures

A page has a pair of comments for each table; the text between them is replaced: all figures in
docs/explanation/performance.md, a few that compare with msprobe in the README.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.table import cells

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- figures: python -m bench.figures -->\n", "<!-- end of figures -->\n"

# results file → the rows of it that a reader wants
CHOSEN = {
    "capture": [
        "TinyLM, 2 layers: module stats",
        "TinyLM, 2 layers: mix stats",
        "TinyLM, 2 layers: mix tensors",
        "TinyLM, 12 layers: mix stats",
        "TinyLM, 12 layers: mix stats, no compiler",
        "Medium: mix stats",
        "Medium: mix tensors",
        "TinyLM, 2 layers: stopped",
    ],
    "keep": ["tensors of 1 MB kept, over plain writes"],
    "guard": ["TinyLM, 2 layers: guard, mix"],
    "compare": ["compare TinyLM, 56 layers: stats", "compare Medium: tensors"],
    "measures": ["measures of float32", "measures of bfloat16", "measures of float16"],
    "scale": ["compare 100,000 calls with 100,000", "compare runs of 10 million slots"],
    "growth": ["growth"],
    "start": ["numscope --help"],
}
COMPARED = {
    "capture": ["TinyLM, 2 layers: mix stats", "Medium: mix stats", "Medium: mix tensors"],
    "compare": ["compare TinyLM, 56 layers: stats"],
}


def load(name: str) -> dict[str, Any]:
    """Return the results of one part of the benchmark."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def compared_with_msprobe() -> str:
    """Return the README's table: numscope beside msprobe."""
    rows, measured_on = measured(COMPARED)
    lines = [" | ".join(row[:4]) for row in rows]
    return table("on a CPU | numscope | msprobe | numscope / msprobe", lines) + f"\n{measured_on}\n" if rows else ""


def all_figures() -> str:
    """Return the tables of docs/explanation/performance.md: the measured figures, and their limits."""
    rows, measured_on = measured(CHOSEN)
    if not rows:
        return gpu_figures()
    figures = [" | ".join((*row[:4], row[5])) for row in rows]
    limits = [f"{row[0]} | {limit}" for row in rows if row[4] for limit in in_short_lines(row[4])]
    text = table("on a CPU | numscope | msprobe | numscope / msprobe | written, read", figures)
    text += f"\n{measured_on}\n\n" + table("on a CPU | limit (✗: missed)", limits)
    return text + gpu_figures()


def measured(chosen: dict[str, list[str]]) -> tuple[list[tuple[str, ...]], str]:
    """Return the chosen rows, and a sentence of the dates and machines of their results."""
    found: list[tuple[str, ...]] = []
    machines: dict[str, list[str]] = {}  # → the parts that were measured there
    for name, wanted in chosen.items():
        result = load(name)
        rows = {row["what"]: row for row in result["rows"] if "error" not in row["numscope"]}
        for what in wanted:
            if what in rows:
                found.append(cells(rows[what]))
                about = result["about"]
                machine = f"{about['date']}, {about['processor']}, {about['cores']} cores, torch {about['torch']}"
                parts = machines.setdefault(machine, [])
                if name not in parts:
                    parts.append(name)
    sentences = (f"{', '.join(parts)}: {machine}" for machine, parts in machines.items())
    return found, ("; ".join(sentences) if len(machines) > 1 else "".join(machines)) + "."


def table(head: str, rows: list[str]) -> str:
    """Return a table in Markdown, of lines whose cells are separated."""
    rule = "|".join("---" for _ in head.split("|"))
    return "".join(f"| {row} |\n" if row != rule else f"|{row}|\n" for row in (head, rule, *rows))


def in_short_lines(limits: str) -> list[str]:
    """Return the limits of a row together, or one by one where they are long."""
    return [limits] if len(limits) < 70 else limits.split(", ")


def gpu_figures() -> str:
    """Return the table of steps on a GPU, and that of its kernels."""
    result = load("gpu")
    rows = [row for row in result["rows"] if "ratio" in row and "error" not in row]
    if not rows:
        return ""
    lines = [f"{row['what']} | {row['ratio']:.2f} × | {gpu_limit(row)} | {gpu_contents(row)}" for row in rows]
    about = result["about"]
    text = "\n" + table("on a GPU, bf16 GPT | step over plain | limit (✗: missed) | in a step", lines)
    return text + f"\n{about['date']}, {about['device']}, torch {about['torch']}.\n" + kernel_figures()


def kernel_figures() -> str:
    """Return the speed of a tensor's fingerprint on the GPU, over the bandwidth of a copy, and its cost on the host."""
    result = load("gpu_fingerprint")
    if "sizes" not in result:
        return ""
    shares = {(name, megabytes): share for name, megabytes, _, share in result["sizes"]}
    lines = []
    for name, limit in (("float32", 0.7), ("bfloat16", 0.5)):
        found = [shares[name, megabytes] for megabytes in (16, 64, 256, 1024)]
        missed = "" if min(found[1:]) >= limit else " ✗"
        lines.append(f"{name} | {' | '.join(f'{part:.0%}' for part in found)} | ≥ {limit:.0%}{missed} of copy")
    host = max(result["launch"][name] for name in ("float32 4 KB", "bfloat16 512 KB", "strided float32 64 KB"))
    missed = "" if host <= 15 else " ✗"
    text = "\n" + table("fingerprint of | 16 MB | 64 MB | 256 MB | 1 GB | limit from 64 MB up", lines)
    return text + f"\nBelow 1 MB the host's time counts: {host:.1f} µs for a tensor (limit 15{missed}).\n"


def gpu_limit(row: dict[str, Any]) -> str:
    """Return the limit of a step on the GPU, marked where it is missed."""
    if "over the floor" in row:
        kept = row["over the floor"] <= 1.2
        return f"≤ 1.2{'' if kept else ' ✗'} × its bytes over link and disk: {row['over the floor']:.2f}"
    if row["limit"] is None:
        return ""
    return f"≤ {row['limit']} ×{'' if row['ratio'] <= row['limit'] else ' ✗'}"


def gpu_contents(row: dict[str, Any]) -> str:
    """Return the number of tensors of a step, and their bytes."""
    if "tensors" not in row:
        return ""
    read = f", {row['gigabytes']:.1f} GB of contents" if not row["what"].endswith("structure") else ""
    return f"{row['tensors']:,} tensors{read}"


PAGES: dict[Path, Callable[[], str]] = {
    ROOT / "README.md": compared_with_msprobe,
    ROOT / "docs" / "explanation" / "performance.md": all_figures,
}


def with_figures(text: str, figures: str) -> str:
    """Return a page with its figures filled in."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{figures}{END}{after}"


if __name__ == "__main__":
    for page, figures in PAGES.items():
        page.write_text(with_figures(page.read_text(), figures()))
