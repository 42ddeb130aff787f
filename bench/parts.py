"""The parts of `make bench` that measure capture: start of the program, the captured step, kept tensors, the guard, growth.

A row has at least `what` and `numscope`, and `msprobe` where the peer was measured beside it; times are seconds. The two
tools take turns, so that a slow minute of the machine falls on both; ratios are of the medians of one run.
"""

from __future__ import annotations

import json
import sys

from bench.sizes import all_ranks, compare, measures, ranks, scale, weights
from bench.work import Bench, Row, merged, numscope, say, timed

# numscope's mode, and the peer's that records the same calls
PEER_MODE = {
    "module stats": ("statistics", "L0"),
    "api stats": ("statistics", "L1"),
    "mix stats": ("statistics", "mix"),
    "mix tensors": ("tensor", "mix"),
}
# model: (numscope's modes, turns, rounds in each, steps in each round, steps of the peer)
CAPTURE: dict[str, tuple[list[str], int, int, int, int]] = {
    "TinyLM, 2 layers": (
        ["module stats", "api stats", "mix stats", "aten stats", "mix structure", "mix tensors"],
        *(2, 4, 8, 8),
    ),
    "TinyLM, 12 layers": (["module stats", "mix stats", "aten stats", "mix tensors"], 2, 2, 5, 2),
    "Medium": (["module stats", "mix stats", "aten stats", "mix tensors"], 2, 2, 4, 2),
}
WITHOUT_COMPILER = "TinyLM, 12 layers"  # the model on which the absence of a compiler is measured
IDLE_ROUNDS = {"TinyLM, 2 layers": 40, "Medium": 4}  # in each turn
PEER_ON_ALL = {"mix stats", "mix tensors"}  # the other modes of the peer only on the first model


def capture(bench: Bench) -> list[Row]:
    """Measure the captured step over the plain step, and the bytes that it writes."""
    rows: list[Row] = []
    for model, (modes, turns, rounds, steps, peer_steps) in CAPTURE.items():
        if bench.quick and rows:
            break
        if bench.quick:
            turns, rounds, steps, peer_steps = 1, 1, 2, 1
        peer_modes = [mode for mode in modes if mode in PEER_MODE and (not rows or mode in PEER_ON_ALL)]
        ours: list[Row] = []
        interpreted: list[Row] = []
        theirs: dict[str, list[Row]] = {mode: [] for mode in peer_modes if bench.msprobe}
        for turn in range(turns):
            say(f"capture: {model}, turn {turn + 1} of {turns}")
            idle = 1 if bench.quick else IDLE_ROUNDS.get(model, 0)
            words = (model, json.dumps([mode.split() for mode in modes]), "--rounds", rounds, "--steps", steps)
            ours.append(bench.own("capture_worker", *words, "--idle", idle, "--out", bench.folder("numscope")))
            if model == WITHOUT_COMPILER:
                out = bench.folder("numscope")
                words = (model, json.dumps([["mix", "stats"], ["aten", "stats"]]), "--rounds", rounds, "--steps", steps)
                interpreted.append(bench.own("capture_worker", *words, "--idle", 0, "--out", out, compiled=False))
            for mode, found in theirs.items():
                found.append(bench.peer(model, *PEER_MODE[mode], peer_steps))
        for mode, side in merged(interpreted).get("modes", {}).items():
            mode = f"{mode}, no compiler"
            rows.append({"what": f"{model}: {mode}", "model": model, "mode": mode, "numscope": side})
        rows += capture_rows(model, modes, merged(ours), {mode: merged(found) for mode, found in theirs.items()})
    return rows


def capture_rows(model: str, modes: list[str], ours: Row, theirs: dict[str, Row]) -> list[Row]:
    rows: list[Row] = []
    for mode in modes:
        row: Row = {"what": f"{model}: {mode}", "model": model, "mode": mode}
        row["numscope"] = ours.get("modes", {}).get(mode, {"error": ours.get("error", "not measured")})
        if mode in theirs:
            row["msprobe"] = theirs[mode]
        rows.append(row)
    for what, ratio in ours.get("idle", {}).items():
        rows.append({"what": f"{model}: {what}", "model": model, "mode": what, "numscope": {"ratio": ratio}})
        peer = theirs.get("mix stats", {})
        if what in peer:
            rows[-1]["msprobe"] = {"ratio": peer[what] / peer["plain"]}
    return rows


def keep(bench: Bench) -> list[Row]:
    """Measure the time to write kept tensors of several sizes over that of plain writes of as many bytes."""
    say("kept tensors")
    words = (
        "--gigabytes",
        0.05 if bench.quick else 0.5,
        "--megabytes",
        1 / 16,
        1,
        16,
        "--rounds",
        1 if bench.quick else 5,
    )
    found = bench.own("keep", *words)
    if "error" in found:
        return [{"what": "kept tensors", "model": "", "mode": "keep", "numscope": found}]
    return [
        {"what": f"tensors of {size} kept, over plain writes", "model": "", "mode": "keep", "numscope": speeds}
        for size, speeds in found.items()
    ]


def guard(bench: Bench) -> list[Row]:
    """Measure the guarded step over the plain step, in turn with the peer's statistics of all calls."""
    model = "TinyLM, 2 layers"
    ours, theirs = [], []
    for turn in range(1 if bench.quick else 3):
        say(f"guard, turn {turn + 1}")
        ours.append(bench.own("guard", model, "--rounds", 1 if bench.quick else 4))
        if bench.msprobe:
            theirs.append(bench.peer(model, "statistics", "mix", 1 if bench.quick else 6))
    found = merged(ours)
    rows: list[Row] = []
    for level in ("mix", "module"):
        side = found.get(level, {"error": found.get("error", "not measured")})
        rows.append({"what": f"{model}: guard, {level}", "model": model, "mode": f"guard {level}", "numscope": side})
    if theirs:
        rows[0]["msprobe"] = merged(theirs)
    return rows


def start(bench: Bench) -> list[Row]:
    """Measure the start of the program and the import, before any work."""
    say("start of the program")
    repeats = 3 if bench.quick else 11
    bare = timed([sys.executable, "-c", "pass"], repeats)["seconds"]
    rows: list[Row] = []
    for what, command in (
        ("numscope --help", numscope("--help")),
        ("import numscope", [sys.executable, "-c", "import numscope"]),
    ):
        row: Row = {"what": what, "model": "", "mode": what, "numscope": timed(command, repeats)}
        row["numscope"]["bare interpreter"] = bare
        if bench.msprobe and what.endswith("--help"):
            row["msprobe"] = timed([str(bench.msprobe.with_name("msprobe")), "--help"], 1 if bench.quick else 3)
        rows.append(row)
    return rows


def growth(bench: Bench) -> list[Row]:
    """Measure the cost of a call in longer and longer steps."""
    say("growth")
    words = ("--rounds", 1, "--most", 10_000) if bench.quick else ("--rounds", 5)
    found = bench.own("growth_worker", "--out", bench.folder("growth"), *words)
    return [{"what": "growth", "model": "", "mode": "growth", "numscope": found}]


PARTS = {
    "start": start,
    "capture": capture,
    "keep": keep,
    "guard": guard,
    "compare": compare,
    "measures": measures,
    "growth": growth,
    "scale": scale,
    "ranks": ranks,
    "weights": weights,
}
LONG = {"all-ranks": all_ranks}  # only where they are named
