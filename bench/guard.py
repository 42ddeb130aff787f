"""The guard on one model, plain and guarded steps in turn; with --msprobe the peer's statistics of all calls beside it.

    python -m bench.guard                                  # the guard alone
    python -m bench.guard --msprobe .venv-msprobe/bin/python

Prints one line of JSON for each level; what the guard adds to a step must be at most 1/15 of what msprobe adds to its own.
To stderr goes the same in words. The peer has a process of its own between two rounds of ours: one machine, one moment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numscope as ns
from bench.models import build
from bench.timing import many

MODEL = "TinyLM, 2 layers"
LIMIT = 1 / 15  # of the time that msprobe's statistics of the same calls add to a step
LEVELS = ("mix", "module")
Times = dict[str, dict[str, list[float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default=MODEL)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--msprobe", metavar="PYTHON", help="the interpreter of msprobe's environment")
    parser.add_argument("--peer-steps", type=int, default=12)
    args = parser.parse_args()
    model, step = build(args.model)
    many(step, 5)
    times: Times = {level: {"plain": [], "captured": []} for level in LEVELS}
    before = (args.rounds + 1) // 2
    measure(times, model, step, before, args.steps)
    peer = measure_peer(args.msprobe, args.model, args.peer_steps) if args.msprobe else None
    measure(times, model, step, args.rounds - before, args.steps)
    result: dict[str, Any] = {}
    for level, found in times.items():
        row: dict[str, Any] = {name: median(values) for name, values in found.items()}
        row |= {"ratio": row["captured"] / row["plain"], "files": 0, "bytes": 0}
        result[level] = row
        tell(f"guard, {level}: {row['ratio']:.2f} × plain ({1e3 * (row['captured'] - row['plain']):.2f} ms more)")
    if peer is not None:
        result["msprobe"] = peer
        if "error" not in peer:
            result["mix"] |= beside(result["mix"], peer)
    sys.stdout.write(json.dumps(result) + "\n")


def measure(times: Times, model: Any, step: Any, rounds: int, steps: int) -> None:
    """Time plain and guarded steps in turn."""
    for _ in range(rounds):
        for level, found in times.items():
            found["plain"] += many(step, steps)
            with ns.guard(model, level=level, record=None):
                step()
                found["captured"] += many(step, steps)


def measure_peer(python: str, model: str, steps: int) -> dict[str, Any]:
    """Time msprobe's statistics at its level mix, in its own environment and process."""
    with tempfile.TemporaryDirectory(prefix="numscope-guard-") as folder:
        words = [model, "statistics", "mix", "--steps", str(steps), "--out", str(Path(folder) / "dump")]
        done = subprocess.run([python, "-m", "bench.peer_worker", *words], capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def beside(ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """Return the time that the guard adds to a step, over the time that the peer adds."""
    share = (ours["captured"] - ours["plain"]) / (peer["captured"] - peer["plain"])
    tell(f"msprobe, statistics mix: {peer['captured'] / peer['plain']:.1f} × plain")
    kept = "kept" if share <= LIMIT else "MISSED"
    tell(f"the guard adds {share:.3f} of what msprobe adds; limit {LIMIT:.3f} (1/15): {kept}")
    return {"share": share, "limit": LIMIT}


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
