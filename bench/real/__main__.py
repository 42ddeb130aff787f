"""Install, capture, compare and judge every pair of releases: `python -m bench.real`."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

from bench.real import judge, table
from bench.real.pair import load

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the pairs; return 0 where no origin is false and every bug is detected."""
    options = _parser().parse_args(arguments)
    pairs = load(options.only)
    if not pairs:
        print(f"no pair matches {options.only!r}", file=sys.stderr)
        return 2
    releases = Path(options.releases)
    with tempfile.TemporaryDirectory(prefix="real") as temporary, ThreadPoolExecutor(options.jobs) as pool:
        work = Path(options.out or temporary)
        outcomes = []
        for one in pool.map(lambda pair: judge.outcome(pair, releases, work, options.reuse), pairs):
            outcomes.append(one)
            print(f"{len(outcomes)}/{len(pairs)} {one.pair} {one.verdict or one.fault[-200:]}", file=sys.stderr)
    versions = {"torch": version("torch"), "numscope": version("numscope"), "python": platform.python_version()}
    summary = table.summary(outcomes) | {"date": date.today().isoformat(), **versions}
    print(table.text(outcomes, summary))
    if options.json:
        rows = [asdict(one) for one in outcomes]
        Path(options.json).write_text(json.dumps({"summary": summary, "pairs": rows}, indent=1) + "\n")
    return 0 if summary["passed"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument("--only", default="*", metavar="PATTERNS", help="shell patterns of names, separated by commas")
    parser.add_argument("--releases", default=str(ROOT / ".releases"), metavar="DIR", help="where releases are kept")
    parser.add_argument("--out", metavar="DIR", help="keep the runs, logs and answers here")
    parser.add_argument("--reuse", action="store_true", help="judge the runs that --out holds, capture the rest")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the results here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
