"""Captures both sides of a pair, compares them, and holds the answer against the fix."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.real.pair import Bug, Pair
from bench.real.releases import InstallError, environment

_SHOWN = 8  # links of a chain that the answer prints
_LIMIT = 600  # seconds that a job may take
BENIGN = ("identical", "equivalent")


@dataclass(frozen=True)
class Outcome:
    """The answer to one pair."""

    pair: str
    bad: str
    fixed: str
    control: bool
    verdict: str = ""
    detected: bool = False
    origin_right: bool = False
    origin_false: bool = False
    statement: bool = False
    origin: str = ""
    chain: tuple[str, ...] = ()
    fault: str = ""  # a job that failed


def outcome(pair: Pair, folder: Path, work: Path, reuse: bool = False) -> Outcome:
    """Return the answer to a pair; `folder` has the releases, `work` takes the runs, or has them."""
    releases = pair.releases
    plain = Outcome(pair.name, releases.bad, releases.fixed, pair.bug is None)
    try:
        runs = [_captured(pair, side, folder, work / pair.name, reuse) for side in ("bad", "fixed")]
    except (InstallError, JobError) as error:
        return Outcome(**{**asdict(plain), "fault": str(error)})
    report_file = work / pair.name / "report.json"
    command = [sys.executable, "-m", "numscope", "compare", *map(str, runs), "--json", str(report_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT)
    (work / pair.name / "answer.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if not report_file.exists():
        return Outcome(**{**asdict(plain), "fault": done.stderr[-500:]})
    return judged(plain, pair.bug, json.loads(report_file.read_text(encoding="utf-8")))


def judged(plain: Outcome, bug: Bug | None, report: dict[str, Any]) -> Outcome:
    """Return what a report is worth, held against the bug's fix."""
    origin, verdict = report["origin"], report["verdict"]
    found: dict[str, Any] = {**asdict(plain), "verdict": verdict, "detected": verdict == "diverged"}
    if origin is None:
        return Outcome(**found)
    use, links = use_of(origin), tuple(origin["chain"][:_SHOWN])
    found |= {"origin": f"{origin['call']} {use}", "chain": links}
    if bug is not None:
        right = any(re.search(pattern, use) for pattern in bug.shows)
        shown = "\n".join((use, *links))
        found |= {"origin_right": right, "statement": any(re.search(pattern, shown) for pattern in bug.statement)}
    return Outcome(**{**found, "origin_false": not found["origin_right"]})


def use_of(origin: dict[str, Any]) -> str:
    """Return the line that shows the difference, as `file.py:function: code`."""
    source = origin["source"]
    return f"{Path(source['file']).name}:{source['function']}: {source['code']}" if source else ""


class JobError(Exception):
    """A job failed; the message has the end of its output."""


def _captured(pair: Pair, side: str, folder: Path, work: Path, reuse: bool) -> Path:
    run = work / side
    done_before = work / f"{side}.log"  # which a failed job does not leave
    if reuse and done_before.exists():
        return run
    done_before.unlink(missing_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "numscope", "run", "--overwrite", "--keep", "tensors", "--out", str(run)]
    command += ["--", str(pair.script)]
    surroundings = environment(pair.releases, side, folder)
    done = subprocess.run(
        command, env=surroundings, cwd=work, capture_output=True, text=True, check=False, timeout=_LIMIT
    )
    if done.returncode:
        raise JobError(f"{side}: {done.stderr[-800:]}")
    done_before.write_text(done.stdout + done.stderr, encoding="utf-8")
    return run
