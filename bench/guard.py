"""The guard on one model, plain and guarded steps in turn: prints one line of JSON.

python -m bench.guard "TinyLM, 2 layers" --rounds 6 --steps 10
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median

import numscope as ns
from bench.models import build
from bench.timing import many


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    model, step = build(args.model)
    many(step, 5)
    result = {}
    for level in ("mix", "module"):
        plain: list[float] = []
        guarded: list[float] = []
        for _ in range(args.rounds):
            plain += many(step, args.steps)
            with ns.guard(model, level=level, record=None):
                step()
                guarded += many(step, args.steps)
        result[level] = {"plain": median(plain), "captured": median(guarded), "files": 0, "bytes": 0}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
