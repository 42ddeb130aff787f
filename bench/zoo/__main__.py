"""Capture, compare and judge every case: `python -m bench.zoo`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench.zoo import catalogue, execute, judge, table


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; return 0 where all met the requirement."""
    options = _parser().parse_args(arguments)
    cases = catalogue.load(options.only)
    if not cases:
        print(f"no case matches {options.only!r}", file=sys.stderr)
        return 2
    import torch
    import torch._dynamo  # the optimizers import it: once, before the forks

    torch.set_num_threads(1)
    sys.path[:0] = [str(execute.ROOT / "src")]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="zoo") as temporary:
        folder = Path(options.out or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tasks = [_task(case, folder, options) for case in cases]
        results = []
        for result in execute.in_parallel(options.jobs, tasks, folder):
            results.append(result)
            print(f"{len(results)}/{len(cases)} {result['case']}", file=sys.stderr)
    order = {case.name: number for number, case in enumerate(cases)}
    results.sort(key=lambda result: order[result["case"]])
    summary = table.summary(results) | {
        "keep": None if options.plain else options.keep,
        "seconds": round(time.perf_counter() - start, 1),
    }
    print(table.plain(results, summary) if options.plain else table.judged(results, summary, options.diagnose))
    if options.json:
        Path(options.json).write_text(json.dumps({"summary": summary, "cases": results}, indent=1))
    return 0 if summary["failures"] == 0 else 1


def _task(case: catalogue.Case, folder: Path, options: argparse.Namespace) -> Any:
    if options.plain:
        return partial(judge.plain_outcome, case, folder)
    settings = ["--level", options.level, "--keep", options.keep]
    how = {"diagnose": options.diagnose, "erase": options.out is None, "reuse": options.reuse}
    return partial(judge.outcome, case, folder, settings, **how)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.zoo", description=__doc__)
    parser.add_argument("--keep", default="tensors", choices=("tensors", "stats"))
    parser.add_argument("--level", default="mix", choices=("mix", "api", "module", "aten"))
    parser.add_argument("--only", default="*", metavar="PATTERNS", help="shell patterns of names, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", metavar="DIR", help="keep the runs and reports here")
    parser.add_argument("--reuse", action="store_true", help="judge the runs that --out holds, capture the rest")
    parser.add_argument("--json", metavar="FILE", help="write the results here")
    parser.add_argument("--plain", action="store_true", help="no capture: do the variants differ as they should?")
    parser.add_argument("--diagnose", action="store_true", help="also ask why: mechanism and repair")
    return parser


if __name__ == "__main__":
    sys.exit(main())
