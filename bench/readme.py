"""The README's figures, from bench/results/*.json and nowhere else: `python -m bench.readme` puts them in place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.table import cells

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
BEGIN, END = "<!-- figures: python -m bench.readme -->\n", "<!-- end of figures -->\n"

# results file, and the rows of it that a reader of the README wants
CHOSEN = {
    "capture": [
        "TinyLM, 2 layers: module stats",
        "TinyLM, 2 layers: mix stats",
        "TinyLM, 2 layers: mix tensors",
        "TinyLM, 12 layers: mix stats",
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


def load(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {"rows": []}


def figures() -> str:
    """The table in Markdown, with the machine and the date below; empty where nothing was measured."""
    lines, about = [], {}
    for name, wanted in CHOSEN.items():
        result = load(name)
        rows = {row["what"]: row for row in result["rows"] if "error" not in row["numscope"]}
        for what in wanted:
            if what in rows:
                lines.append("| " + " | ".join(cells(rows[what])) + " |")
                about = result["about"]
    text = ""
    if lines:
        head = ["| on a CPU | numscope | msprobe | numscope / msprobe | limit (✗: missed) | written, read |"]
        head.append("|---|---|---|---|---|---|")
        text += "\n".join([*head, *lines]) + "\n\n"
        text += f"{about['date']}, {about['processor']}, {about['cores']} cores, torch {about['torch']}.\n"
    return text + gpu_figures()


def gpu_figures() -> str:
    result = load("gpu")
    rows = [row for row in result["rows"] if "ratio" in row and "error" not in row]
    if not rows:
        return ""
    lines = ["", "| on a GPU, bf16 GPT | step over plain | limit (✗: missed) | in a step |", "|---|---|---|---|"]
    lines += [f"| {row['what']} | {row['ratio']:.2f} × | {gpu_limit(row)} | {gpu_contents(row)} |" for row in rows]
    about = result["about"]
    return "\n".join([*lines, "", f"{about['date']}, {about['device']}, torch {about['torch']}."]) + "\n"


def gpu_limit(row: dict[str, Any]) -> str:
    if "over the floor" in row:
        kept = row["over the floor"] <= 1.2
        return f"≤ 1.2{'' if kept else ' ✗'} × the time of its bytes over link and disk: {row['over the floor']:.2f}"
    if row["limit"] is None:
        return ""
    return f"≤ {row['limit']} ×{'' if row['ratio'] <= row['limit'] else ' ✗'}"


def gpu_contents(row: dict[str, Any]) -> str:
    if "tensors" not in row:
        return ""
    read = f", {row['gigabytes']:.1f} GB to read" if not row["what"].endswith("structure") else ""
    return f"{row['tensors']:,} tensors{read}"


def with_figures(text: str) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{figures()}{END}{after}"


if __name__ == "__main__":
    README.write_text(with_figures(README.read_text()))
