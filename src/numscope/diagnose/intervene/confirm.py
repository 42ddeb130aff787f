"""Confirms a suspect: runs the target's script again with the suspect rerouted, and says what is left of the difference."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from numscope.compare.comparison import Comparison, compare
from numscope.core.errors import SettingsError
from numscope.core.report import Report
from numscope.diagnose.intervene.proof import Proof, Reroute, prove, reroutable, reroutes


def confirm(comparison: Comparison, report: Report, command: str, dtype: str | None = None) -> list[Proof]:
    """Run `command` (a script and its arguments) under capture with the origin rerouted, in each way that can prove it.

    With a `dtype` there is one way: on the CPU in that dtype.
    """
    assert report.origin is not None
    words = shlex.split(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise SettingsError("--confirm needs the script to run: --confirm 'train.py --steps 2'")
    name = reroutable(report.origin)
    ways = reroutes(comparison, report.origin)
    if dtype:
        ways = (Reroute("run", ("--to-cpu", name, "--dtype", dtype), f"{name} rerouted to the CPU in {dtype}", True),)
    proofs = []
    with tempfile.TemporaryDirectory(prefix="numscope-confirm-") as folder:
        for way in ways:
            out = Path(folder) / way.folder
            line = [sys.executable, "-m", "numscope", "run", *way.options, "--out", str(out), "--", *words]
            status = subprocess.run(line, stdout=sys.stderr).returncode
            if status:
                raise SettingsError(f"the command ended with status {status}: {command}")
            again = compare(out, comparison.reference, allow_incomplete=True)
            proofs.append(prove(comparison, report.origin, again, way))
    return proofs
