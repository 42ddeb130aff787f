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
    """The table in Markdown, with the machines and the dates below; empty where nothing was measured."""
    lines: list[str] = []
    machines: dict[str, list[str]] = {}  # → the parts that were measured there
    for name, wanted in CHOSEN.items():
        result = load(name)
        rows = {row["what"]: row for row in result["rows"] if "error" not in row["numscope"]}
        for what in wanted:
            if what in rows:
                lines.append("| " + " | ".join(cells(rows[what])) + " |")
                about = result["about"]
                machine = f"{about['date']}, {about['processor']}, {about['cores']} cores, torch {about['torch']}"
                parts = machines.setdefault(machine, [])
                if name not in parts:
                    parts.append(name)
    text = ""
    if lines:
        head = ["| on a CPU | numscope | msprobe | numscope / msprobe | limit (✗: missed) | written, read |"]
        head.append("|---|---|---|---|---|---|")
        text += "\n".join([*head, *lines]) + "\n\n"
        text += "; ".join(
            f"{', '.join(parts)}: {machine}" if len(machines) > 1 else machine for machine, parts in machines.items()
        )
        text += ".\n"
    return text + gpu_figures()


def gpu_figures() -> str:
    result = load("gpu")
    rows = [row for row in result["rows"] if "ratio" in row and "error" not in row]
    if not rows:
        return ""
    lines = ["", "| on a GPU, bf16 GPT | step over plain | limit (✗: missed) | in a step |", "|---|---|---|---|"]
    lines += [f"| {row['what']} | {row['ratio']:.2f} × | {gpu_limit(row)} | {gpu_contents(row)} |" for row in rows]
    about = result["about"]
    lines += ["", f"{about['date']}, {about['device']}, torch {about['torch']}."]
    return "\n".join([*lines, *kernel_figures()]) + "\n"


def kernel_figures() -> list[str]:
    """How fast a tensor's fingerprint is on the GPU, over the bandwidth of a copy, and what it costs the host."""
    result = load("gpu_fingerprint")
    if "sizes" not in result:
        return []
    shares = {(name, megabytes): share for name, megabytes, _, share in result["sizes"]}
    lines = [
        "",
        "| fingerprint of | 16 MB | 64 MB | 256 MB | 1 GB | limit from 64 MB up |",
        "|---|---|---|---|---|---|",
    ]
    for name, limit in (("float32", 0.7), ("bfloat16", 0.5)):
        found = [shares[name, megabytes] for megabytes in (16, 64, 256, 1024)]
        missed = "" if min(found[1:]) >= limit else " ✗"
        lines.append(f"| {name} | {' | '.join(f'{part:.0%}' for part in found)} | ≥ {limit:.0%}{missed} of copy |")
    host = max(result["launch"][name] for name in ("float32 4 KB", "bfloat16 512 KB", "strided float32 64 KB"))
    missed = "" if host <= 15 else " ✗"
    return [*lines, "", f"Below 1 MB the host's time counts: {host:.1f} µs for a tensor (limit 15{missed})."]


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
    read = f", {row['gigabytes']:.1f} GB of contents" if not row["what"].endswith("structure") else ""
    return f"{row['tensors']:,} tensors{read}"


def with_figures(text: str) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{figures()}{END}{after}"


if __name__ == "__main__":
    README.write_text(with_figures(README.read_text()))
