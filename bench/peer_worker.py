"""One mode of msprobe on one model, in msprobe's own environment: prints one line of JSON.

    python -m bench.peer_worker "TinyLM, 2 layers" statistics mix --steps 8 --out DIR

The plain steps come first, in the same process: msprobe's wrappers stay in place once it has been constructed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from statistics import median

from bench.models import build
from bench.timing import many, seconds, written


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("task")
    parser.add_argument("level")
    parser.add_argument("--steps", type=int, required=True, help="0: two steps are dumped, and nothing is timed")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        result = measure(args.model, args.task, args.level, args.steps, args.out)
    sys.stdout.write(json.dumps(result) + "\n")


def measure(name: str, task: str, level: str, steps: int, out: Path) -> dict[str, object]:
    model, step = build(name)
    around = max(10, steps) if steps else 0
    plain = many(step, 5 + around)[5:] if steps else []

    from msprobe.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(task=task, dump_path=str(out), level=level)
    idle = many(step, around)

    def recorded() -> None:
        debugger.start(model=model)
        step()
        debugger.stop()
        debugger.step()

    first = seconds(recorded)
    wrote = written(out)
    captured = many(recorded, max(steps, 1))
    if not steps:
        return {"dumped": written(out)["bytes"]}
    after = many(step, around)
    return {
        "plain": median(plain),
        "captured": median(captured),
        "first": first,
        "not started": median(idle),
        "stopped": median(after),
        **wrote,
        "version": importlib.metadata.version("mindstudio-probe"),
    }


if __name__ == "__main__":
    main()
