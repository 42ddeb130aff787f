"""The own error of each call beside msprobe's accuracy checker: the same faulty kernels, found or not, time and disk.

    python -m bench.checker --msprobe PYTHON [--only TEXT]

Each run is a process of its own, of one step of `tests/integration/device_faults.py`. Writes bench/results/checker.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.checker_worker import HEALTHY
from bench.machine import about
from tests.integration.device_faults import FAULTS

RESULT = Path(__file__).parent / "results" / "checker.json"
LIMIT = 300  # seconds of a run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.checker")
    parser.add_argument("--msprobe", metavar="PYTHON", help="the interpreter of msprobe's environment")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose names hold it")
    args = parser.parse_args()
    tools = {"numscope": sys.executable} | ({"msprobe": args.msprobe} if args.msprobe else {})
    rows = []
    for fault in (HEALTHY, *FAULTS):
        for tool, python in tools.items() if args.only in fault else ():
            with tempfile.TemporaryDirectory(prefix="numscope-checker-") as out:
                command = [python, "-W", "ignore", "-m", "bench.checker_worker", tool, fault, "--out", out]
                done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
            row = (
                json.loads(done.stdout)
                if done.returncode == 0
                else {"tool": tool, "fault": fault, "error": done.stderr}
            )
            rows.append(row)
            print(line(row), flush=True)
    for tool in tools:
        mine = [row for row in rows if row["tool"] == tool and "error" not in row]
        found = sum(row["found"] for row in mine)
        alarms = sum(len(row["calls"]) for row in mine if row["fault"] == HEALTHY)
        seconds, size = (sum(row[name] for row in mine) / max(1, len(mine)) for name in ("seconds", "bytes"))
        faults = sum(row["fault"] != HEALTHY for row in mine)
        print(
            f"{tool}: {found} of {faults} found, {alarms} alarms of healthy calls, {seconds:.1f} s, {size / 1e3:.0f} kB"
        )
    if not args.only:
        RESULT.write_text(json.dumps({"format": "numscope.bench/1", "about": about(), "rows": rows}, indent=1) + "\n")
    return 0


def line(row: dict[str, object]) -> str:
    if "error" in row:
        return f"{row['tool']:<9} {row['fault']:<40} failed: {str(row['error']).strip().splitlines()[-1:]}"
    seconds, size = row["seconds"], row["bytes"]
    calls = ", ".join(map(str, row["calls"]))  # type: ignore[call-overload]
    return f"{row['tool']:<9} {row['fault']:<40} found={row['found']!s:<6} {seconds:.1f} s {size / 1e3:.0f} kB  {calls}"  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
