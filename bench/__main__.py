"""`make bench`: measure, write bench/results/*.json, and print one table of ratios.

python -m bench [part …] [--msprobe PYTHON] [--results DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench import limits
from bench.machine import about
from bench.parts import LONG, PARTS
from bench.table import lines
from bench.work import Bench

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="numscope's benchmarks, msprobe beside it")
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)} (default: all), or {', '.join(LONG)}")
    parser.add_argument("--msprobe", metavar="PYTHON", type=Path, help="the interpreter of msprobe's environment")
    parser.add_argument("--results", metavar="DIR", type=Path, default=RESULTS)
    parser.add_argument("--quick", action="store_true", help="a few steps of one model, to try the bench: no figures")
    args = parser.parse_args()
    if args.quick and args.results == RESULTS:
        parser.error("--quick gives no figures to keep: say where else to write with --results DIR")
    unknown = sorted(set(args.part) - {*PARTS, *LONG})
    if unknown:
        parser.error(f"no part {', '.join(unknown)}: there are {', '.join([*PARTS, *LONG])}")
    msprobe = args.msprobe
    if msprobe is not None and not shutil.which(msprobe):
        print(f"bench: no interpreter at {msprobe}: numscope alone is measured", file=sys.stderr)
        msprobe = None
    if msprobe is not None:
        msprobe = Path(os.path.abspath(msprobe))  # not resolved: the link is what makes it that environment's

    if os.getloadavg()[0] > 1:
        print(f"bench: the machine is busy (load {os.getloadavg()[0]:.1f}): no ratio below will hold", file=sys.stderr)
    began = time.monotonic()
    facts, rows = about(), []
    args.results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="numscope-bench-") as scratch:
        bench = Bench(Path(scratch), msprobe, args.quick)
        for name in args.part or PARTS:
            at = time.monotonic()
            found = {**PARTS, **LONG}[name](bench)
            for row in found:
                row["limits"] = limits.as_json(row)
            taken = round(time.monotonic() - at)
            print(f"  {name}: {taken} s", file=sys.stderr, flush=True)
            result = {"format": "numscope.bench/1", "about": {**facts, "seconds": taken}, "rows": found}
            (args.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            rows += found
    print("\n".join(lines(rows)))
    held = [limit for row in rows for limit in row["limits"]]
    print(f"{sum(limit['kept'] for limit in held)} of {len(held)} limits are kept")
    print(f"({time.monotonic() - began:.0f} s; written to {os.path.relpath(args.results)})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
