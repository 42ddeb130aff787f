"""The cost per call in steps of more and more calls, and the memory it takes: prints one line of JSON.

Every size makes the same number of calls in all, so that the writer, which works beside the job, has its share in each.
The sizes take turns, and the least time of each counts: other programs on the machine disturb that least. The cost
without the fingerprint is that of `keep="structure"`.
"""

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
IN_ALL = 100_000


def chain(calls: int) -> None:
    x = torch.zeros(16)
    for _ in range(calls):
        x = torch.add(x, 1.0)


def measure(calls: int, keep: str, run: Path) -> float:
    """Return the microseconds that a call takes besides its operator, in steps of this many calls."""
    repeats = max(1, IN_ALL // calls)
    plain = min(many(lambda: chain(calls), repeats)) * repeats
    cap: Any = ns.capture(run, None, level="api", keep=keep, overwrite=True, on_error="raise")

    def recorded() -> None:
        chain(calls)
        cap.step()

    cap.start()
    recorded()
    taken = sum(many(recorded, repeats))
    seconds(cap.close)
    return (taken - plain) / (calls * repeats) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=CALLS[-1])
    args = parser.parse_args()
    torch.set_num_threads(1)
    chain(1_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = [calls for calls in CALLS if calls <= args.most]
    least: dict[str, float] = {}
    for _ in range(args.rounds):
        for calls in sizes:
            cost = measure(calls, "stats", args.out / "growth")
            least[str(calls)] = min(cost, least.get(str(calls), cost))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    without = min(measure(10_000, "structure", args.out / "growth") for _ in range(args.rounds))
    result: dict[str, Any] = {calls: {"microseconds": cost} for calls, cost in least.items()}
    result |= {"rise": least[str(sizes[-1])] / least[str(sizes[0])], "structure": without, "memory_mb": memory}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
