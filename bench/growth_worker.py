"""The cost per call in steps of more and more calls, and the memory it takes: prints one line of JSON."""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

import torch

import numscope as ns
from bench.timing import many, seconds

CALLS = (1_000, 10_000, 100_000)


def chain(calls: int) -> None:
    x = torch.zeros(16)
    for _ in range(calls):
        x = torch.add(x, 1.0)


def measure(calls: int, run: Path) -> dict[str, float]:
    """Microseconds per call besides the operator's own, and seconds until stop has written the rest."""
    repeats = 5 if calls < 100_000 else 2
    plain = min(many(lambda: chain(calls), 3))
    cap: Any = ns.capture(run, None, level="api", keep="stats", overwrite=True, on_error="raise")

    def recorded() -> None:
        chain(calls)
        cap.step()

    cap.start()
    recorded()
    best = min(many(recorded, repeats))
    return {"microseconds": (best - plain) / calls * 1e6, "stop": seconds(cap.stop)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    chain(1_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result: dict[str, Any] = {str(calls): measure(calls, args.out / "growth") for calls in CALLS}
    result["memory_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
