"""numscope on one model, all modes in one process, plain and captured steps in turn: prints one line of JSON.

python -m bench.capture_worker "TinyLM, 2 layers" '[["mix", "stats"]]' --rounds 3 --steps 10 --out DIR
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

import numscope as ns
from bench.models import build
from bench.timing import many, seconds, written

SETTLED = 0.6  # seconds after which what was recorded is written, and the machine is done with the files


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("modes", help="JSON: a list of [level, keep]")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--idle", type=int, default=0, help="rounds in which nothing is recorded")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model, step = build(args.model)
    many(step, 5)
    modes = [(level, keep) for level, keep in json.loads(args.modes)]
    result: dict[str, Any] = {"modes": interleaved(model, step, modes, args.rounds, args.steps, args.out)}
    if args.idle:
        result["idle"] = idle(model, step, args.idle, args.out)
    sys.stdout.write(json.dumps(result) + "\n")


def interleaved(
    model: nn.Module, step: Callable[[], None], modes: list[tuple[str, str]], rounds: int, steps: int, out: Path
) -> dict[str, dict[str, Any]]:
    """Run rounds: some plain steps, then the same number captured, for every mode in turn."""
    times: dict[tuple[str, str], dict[str, list[float]]] = {}
    failed: dict[tuple[str, str], str] = {}
    for _ in range(rounds):
        for mode in modes:
            if mode in failed:
                continue
            found = times.setdefault(mode, {"plain": [], "captured": [], "all": []})
            found["plain"] += many(step, steps)
            try:
                each, everything = captured(model, step, *mode, steps, out / "run")
            except Exception as error:  # one mode that fails must not lose the others
                failed[mode] = f"{type(error).__name__}: {error}"
                continue
            found["captured"] += each
            found["all"].append(everything / steps)
    result: dict[str, dict[str, Any]] = {}
    for mode in modes:
        key = " ".join(mode)
        if mode in failed:
            result[key] = {"error": failed[mode]}
            continue
        result[key] = {part: median(values) for part, values in times[mode].items()}
        captured(model, step, *mode, 1, out / "run")
        result[key].update(written(out / "run"))
        shutil.rmtree(out / "run")
    return result


def captured(
    model: nn.Module, step: Callable[[], None], level: str, keep: str, steps: int, run: Path
) -> tuple[list[float], float]:
    """Return the time of each captured step, and of everything from start to the end of stop."""
    shutil.rmtree(run, ignore_errors=True)
    cap = ns.capture(run, model, level=level, keep=keep, on_error="raise")

    def recorded() -> None:
        step()
        cap.step()

    begin = time.perf_counter()
    cap.start()
    try:
        each = many(recorded, steps)
    finally:
        cap.stop()
    return each, time.perf_counter() - begin


def idle(model: nn.Module, step: Callable[[], None], rounds: int, out: Path) -> dict[str, float]:
    """Return steps under a capture that records nothing, over plain steps right after them: the median of many ratios."""
    ratios: dict[str, list[float]] = {"not started": [], "stopped": [], "step not recorded": []}

    def usual() -> float:
        many(step, 2)  # these find the caches cold
        return sorted(many(step, 8))[2]  # of those that nothing has disturbed

    for _ in range(rounds):
        before = usual()
        cap: Any = ns.capture(out / "idle", model, overwrite=True, on_error="raise")
        idle = usual()
        cap.close()
        ratios["not started"].append(2 * idle / (before + usual()))
        cap = ns.capture(out / "idle", model, overwrite=True, on_error="raise")
        cap.start()
        step()
        cap.stop()
        until = time.perf_counter() + SETTLED  # with steps, as a processor that has slept is slow at first
        while time.perf_counter() < until:
            step()
        idle = usual()
        cap.close()
        ratios["stopped"].append(idle / usual())
        cap = ns.capture(out / "idle", model, steps=[10**6], overwrite=True, on_error="raise")

        def unrecorded(cap: Any = cap) -> None:
            step()
            cap.step()

        for _ in range(20):
            cap.start()
            there = seconds(unrecorded)
            cap.stop()
            ratios["step not recorded"].append(there / seconds(step))
    return {what: median(values) for what, values in ratios.items()}


if __name__ == "__main__":
    main()
