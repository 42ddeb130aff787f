"""Record the corpus on this machine, or judge a recorded one.

python -m bench.devices record DIR            # on a machine with a GPU; on another, the jobs of the CPU alone
python -m bench.devices judge DIR [--only GLOB] [--json FILE] [--ledger FILE]
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

from bench.devices import archive
from bench.devices.pairs import Pair, jobs, pairs
from bench.devices.planted import FAULTS


def main() -> int:
    """Do what the command line asks for; 0 where all answers are right."""
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("what", choices=("record", "pack", "judge", "list"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("archives", type=Path, nargs="?")
    parser.add_argument("--only", default="*", metavar="GLOB", help="pairs to judge, or jobs to record, by name")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="write the pairs that are judged wrongly")
    parser.add_argument("--wrong", action="store_true", help="print the pairs that are judged wrongly alone")
    options = parser.parse_args()
    if options.what == "list":
        print("\n".join(pair.name for pair in pairs()))
        return 0
    if options.what == "record":
        return record_all(options.folder, options.only)
    if options.what == "pack":
        archive.pack(options.folder, options.archives)
        return 0
    with tempfile.TemporaryDirectory(prefix="devices") as temporary:
        results = judge_all(archive.unpacked(options.folder, Path(temporary)), options.only)
    print_table(results, options.wrong)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if options.ledger:
        options.ledger.write_text(json.dumps(failures(results), indent=1) + "\n", encoding="utf-8")
    return 0 if all(result["right"] for result in results) else 1


def failures(results: list[dict[str, Any]]) -> dict[str, str]:
    """Return how each pair is judged that is judged wrongly: a false alarm, a fault that is missed, or another origin."""
    how = {(False, True): "false alarm", (True, False): "missed", (True, True): "another origin"}
    return {
        one["pair"]: how.get((one["fault"], one["detected"]), one["verdict"]) for one in results if not one["right"]
    }


def record_all(folder: Path, only: str) -> int:
    """Record every job that this machine can run; a job that fails is said and left out."""
    import torch

    from bench.devices.jobs import record

    failed = 0
    losses = {}
    for job in jobs():
        if not fnmatch.fnmatch(job.name, only) or (job.how.device == "cuda" and not torch.cuda.is_available()):
            continue
        begin = time.perf_counter()
        try:
            losses[job.name] = record(job, folder / job.name, steps=1 if job.model in FAULTS else 2)
            print(f"{job.name}: {losses[job.name]} in {time.perf_counter() - begin:.1f} s", flush=True)
        except Exception:
            failed += 1
            print(f"{job.name}: failed\n{traceback.format_exc(limit=-4)}", flush=True)
    (folder / "losses.json").write_text(json.dumps(losses, indent=1), encoding="utf-8")
    return int(failed > 0)


def judge_all(folder: Path, only: str) -> list[dict[str, Any]]:
    """Compare every pair whose runs are there."""
    results = []
    for pair in pairs():
        runs = (folder / pair.target.name, folder / pair.reference.name)
        if fnmatch.fnmatch(pair.name, only) and all(run.exists() for run in runs):
            results.append(judge(pair, *runs))
            print(end=".", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def judge(pair: Pair, target: Path, reference: Path) -> dict[str, Any]:
    """Compare one pair and hold the answer against the truth."""
    import numscope as ns
    from bench.zoo.truth import accepts

    begin = time.perf_counter()
    try:
        report: dict[str, Any] = ns.compare(target, reference).report.to_dict()
    except Exception as error:
        report = {"verdict": f"{type(error).__name__}: {error}", "origin": None}
    origin = report["origin"] or {}
    diverged = report["verdict"] == "diverged"
    if pair.truth is not None:
        right = diverged and accepts(pair.truth, origin)
    elif pair.setting:
        right = diverged and pair.setting in str(report.get("settings")) and origin.get("mechanism") == "precision"
    else:
        right = report["verdict"] in ("identical", "equivalent")
    return {
        "pair": pair.name,
        "fault": bool(pair.truth or pair.setting),
        "verdict": report["verdict"],
        "detected": diverged,
        "right": right,
        "origin": f"{origin.get('call', '')} {origin.get('module') or ''}".strip(),
        "reason": origin.get("reason", ""),
        "resolution": report.get("resolution"),
        "seconds": round(time.perf_counter() - begin, 2),
    }


def print_table(results: list[dict[str, Any]], wrong: bool) -> None:
    """Print a line a pair, and the figures of all."""
    for result in results:
        if not (wrong and result["right"]):
            mark = "ok " if result["right"] else "BAD"
            print(f"{mark} {result['pair']}: {result['verdict']} {result['origin']}  {result['reason']}"[:260])
    clean = [result for result in results if not result["fault"]]
    faults = [result for result in results if result["fault"]]
    print(
        f"clean: {len(clean)}, alarms {sum(result['detected'] for result in clean)}; "
        f"faults: {len(faults)}, detected {sum(result['detected'] for result in faults)}, "
        f"origin right {sum(result['right'] for result in faults)}; "
        f"{sum(result['seconds'] for result in results):.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
