"""The parts of `make bench` that measure comparison: of captured runs, of full tensors, of runs too large to capture here."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.timing import written
from bench.work import Bench, Row, numscope, say, timed

# model, what is kept, times that each tool is run
COMPARE = [
    ("TinyLM, 12 layers", "stats", 5, 2),
    ("TinyLM, 56 layers", "stats", 9, 1),  # 5,000 calls
    ("Medium", "tensors", 5, 1),
]


def compare(bench: Bench) -> list[Row]:
    """Measure the comparison of two runs of one step on the command line: wall time, start of the program included."""
    rows: list[Row] = []
    for model, keep, repeats, peer_repeats in COMPARE[:1] if bench.quick else COMPARE:
        say(f"compare: {model}, {keep}")
        out = bench.folder("compare")
        made = bench.own("keep_worker", model, keep, "--out", out)
        row: Row = {"what": f"compare {model}: {keep}", "model": model, "mode": keep, "numscope": made}
        if "error" not in made:
            command = numscope("compare", out / "target", out / "reference")
            timed(command, 1, answers=(0, 1))  # the first run finds the files cold
            row["numscope"] = {**made, **timed(command, repeats, answers=(0, 1)), "bytes": written(out)["bytes"]}
        if bench.msprobe:
            task = "tensor" if keep == "tensors" else "statistics"
            row["msprobe"] = bench.peer(model, task, "mix", 0)
            if "error" not in row["msprobe"]:
                out, program = bench.scratch / "msprobe", str(bench.msprobe.with_name("msprobe"))
                paths = ["--target_path", str(out / "step1"), "--golden_path", str(out / "step0")]
                result = str(bench.folder("msprobe-result"))
                say(f"msprobe compare: {model}, {task}")
                found = timed([program, "compare", *paths, "--output_path", result], peer_repeats)
                row["msprobe"] = {**found, "bytes": written(out)["bytes"]}
        rows.append(row)
    return rows


def measures(bench: Bench) -> list[Row]:
    """Measure exact measures of full tensors: bytes of both sides per second of processor time, on one core."""
    say("measures of full tensors")
    found = bench.own("exact_worker", *(("--elements", 1 << 18, "--repeats", 2) if bench.quick else ()))
    if "error" in found:
        return [{"what": "measures", "model": "", "mode": "measures", "numscope": found}]
    return [
        {"what": f"measures of {what}", "model": "", "mode": "measures", "numscope": {"gb_per_second": speed}}
        for what, speed in found.items()
    ]


def scale(bench: Bench) -> list[Row]:
    """Measure comparisons of 100,000 calls and of 10 million slots: time and peak memory."""
    rows: list[Row] = []
    template = bench.folder("template")
    made = bench.own(
        "keep_worker", "TinyLM, 12 layers" if bench.quick else "TinyLM, 56 layers", "stats", "--out", template
    )
    for form, what, words in (
        ("wide", "compare 100,000 calls with 100,000", ("--calls", 10_000 if bench.quick else 100_000)),
        ("long", "compare runs of 10 million slots", ("--slots", 50_000 if bench.quick else 10_000_000)),
    ):
        row: Row = {"what": what, "model": "", "mode": form, "numscope": made}
        if "error" not in made:
            say(what)
            out = bench.folder(form)
            row["numscope"] = size = bench.own("synthetic", form, template / "reference", out, *words, limit=400)
            if "error" not in size:
                row["numscope"] = {**size, **compare_once(out)}
            shutil.rmtree(out)
        rows.append(row)
    return rows


def ranks(bench: Bench) -> list[Row]:
    """Measure comparisons of 64 and of 256 ranks of 5,000 calls, 2 steps: processor time and peak memory."""
    return [_of_ranks(bench, count, 2) for count in ((4, 8) if bench.quick else (64, 256))]


def all_ranks(bench: Bench) -> list[Row]:
    """Measure the comparison of 1,024 ranks of 5,000 calls, 10 steps: half an hour, and 20 GB of temporary files."""
    return [_of_ranks(bench, *((16, 2) if bench.quick else (1024, 10)))]


def _of_ranks(bench: Bench, count: int, steps: int) -> Row:
    what = f"compare {count} ranks x {steps} steps"
    row: Row = {"what": what, "model": "", "mode": "ranks"}
    template = bench.folder("template")
    model = "TinyLM, 12 layers" if bench.quick else "TinyLM, 56 layers"
    row["numscope"] = made = bench.own("keep_worker", model, "stats", "--out", template)
    if "error" not in made:
        say(what)
        out = bench.folder("ranks")
        words = (template / "reference", out, "--ranks", count, "--steps", steps)
        row["numscope"] = bench.own("many_ranks", *words, limit=400)
        if "error" not in row["numscope"]:
            command = numscope("compare", out / "target", out / "reference")
            row["numscope"] |= timed(command, 1, answers=(1,), limit=7200)
        shutil.rmtree(out)
    return row


def weights(bench: Bench) -> list[Row]:
    """Measure `numscope weights` on pairs of 20 GB and less, beside a plain read of the same files."""
    rows: list[Row] = []
    for case, gigabytes in (("identical", 10.0), ("fused", 2.0), ("cast", 1.0)):
        words = ("--case", case, "--gigabytes", 0.3 if bench.quick else gigabytes, "--out", bench.folder("weights"))
        say(f"weights: {case}")
        found = bench.own("weights_worker", *words, limit=900)
        what = f"weights, {found.get('gigabytes', 0):.0f} GB, {case}"
        rows.append({"what": what, "model": "", "mode": "weights", "numscope": found})
    return rows


def compare_once(out: Path) -> Row:
    return timed(numscope("compare", out / "target", out / "reference"), 1, answers=(0, 1))
