"""One file per command of the command line: `HELP`, `add_arguments(parser)` and `run(args) -> exit status`.

The table below is all that `numscope --help` needs, so that it loads none of them.
"""

from __future__ import annotations

import keyword
from pathlib import Path

COMMANDS = {
    "run": "capture a training script with no change to it",
    "compare": "the first call at which two runs stop agreeing",
    "diagnose": "why they stop agreeing: replay the suspects",
    "bisect": "capture, compare and diagnose two commands, coarse to fine",
    "check": "the first non-finite value of a run, and where it came from",
    "doctor": "what of this machine, or of two runs, changes numbers",
    "show": "calls, statistics and call stacks of a run",
    "view": "a run, or two side by side, in the browser",
    "import": "turn another tool's dump into a run",
    "export": "write a run in another tool's format",
    "demo": "the whole path on a small model with a real bug",
}


def module_of(command: str) -> str:
    """Return the module that has a command; one that is a word of Python's own has an underscore after it."""
    return f"numscope.commands.{command}{'_' if keyword.iskeyword(command) else ''}"


def available() -> dict[str, str]:
    """Return the commands that are there, with their one line of help."""
    here = Path(__file__).parent
    return {
        name: line for name, line in COMMANDS.items() if (here / f"{module_of(name).rpartition('.')[2]}.py").exists()
    }
