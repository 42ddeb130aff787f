"""One file per command of the command line: `HELP`, `add_arguments(parser)` and `run(args) -> exit status`.

What all of them share is in `grammar.py`.

`numscope --help` needs only the table below and loads no command.
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
    "weights": "are these the same weights?",
    "doctor": "what of this machine, or of two runs, changes numbers",
    "show": "calls, statistics and call stacks of a run",
    "view": "a run, or two side by side, in the browser",
    "import": "turn another tool's dump into a run",
    "export": "write a run in another tool's format",
    "cache": "the copies of runs that were read from an address",
    "mcp": "the answers as tools of a coding agent",
    "completion": "the completion script of bash, zsh or fish",
    "demo": "the whole path on a small model with a real bug",
}


def module_of(command: str) -> str:
    """Return the module of a command; a command that is a keyword of Python has an underscore after its name."""
    return f"numscope.commands.{command}{'_' if keyword.iskeyword(command) else ''}"


def available() -> dict[str, str]:
    """Return the commands whose modules exist, with their one line of help."""
    root = Path(__file__).parents[2]
    return {
        name: line
        for name, line in COMMANDS.items()
        if (root / module_of(name).replace(".", "/")).with_suffix(".py").exists()
    }
