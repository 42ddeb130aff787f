"""Confirms a suspect: runs the target's script again with the suspect rerouted to the CPU, and compares."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from numscope.compare.comparison import Comparison, compare
from numscope.core.errors import SettingsError
from numscope.core.names import parse_call
from numscope.core.report import Origin, Report


def confirm(comparison: Comparison, report: Report, command: str, dtype: str | None = None) -> str:
    """Run `command` (a script and its arguments) under capture with the origin rerouted; return the result in words."""
    assert report.origin is not None
    name = reroutable(report.origin)
    words = shlex.split(command)
    if words and Path(words[0]).name.startswith("python"):
        words = words[1:]
    if not words:
        raise SettingsError("--confirm needs the script to run: --confirm 'train.py --steps 2'")
    with tempfile.TemporaryDirectory(prefix="numscope-confirm-") as folder:
        out = Path(folder) / "run"
        options = ["--to-cpu", name, *(["--dtype", dtype] if dtype else [])]
        line = [sys.executable, "-m", "numscope", "run", *options, "--out", str(out), "--", *words]
        status = subprocess.run(line, stdout=sys.stderr).returncode
        if status:
            raise SettingsError(f"the command ended with status {status}: {command}")
        again = compare(out, comparison.reference, allow_incomplete=True)
        where = f"{name} rerouted to the CPU" + (f" in {dtype}" if dtype else "")
        if again.verdict in ("identical", "equivalent"):
            return f"with {where} the two runs are {again.verdict}: the fault is proven to be there"
        assert again.origin is not None
        if again.origin.call == report.origin.call and again.origin.step == report.origin.step:
            return f"with {where} they still differ at {again.origin.call}: it is not the device, but what is computed"
        return f"with {where} that difference is gone; the next one is {again.origin.call}, step {again.origin.step}"


def reroutable(origin: Origin) -> str:
    """Return the name under which a suspect can be rerouted: its API, or its module's path."""
    parts = parse_call(origin.call)
    if parts is None or parts.prefix in ("Optimizer", "Distributed", "Data", "Save", "Parameter"):
        raise SettingsError(f"{origin.call} can't be rerouted: it is no function and no module")
    if parts.prefix == "Module":
        if not parts.path:
            raise SettingsError("the origin is the whole model: there is nothing smaller to reroute")
        return parts.path
    return f"{parts.prefix}.{parts.op}"
