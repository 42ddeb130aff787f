"""Serve numscope's answers to a coding agent: a server of the Model Context Protocol on standard input and output.

  numscope mcp                                    # what an agent's settings name as the command of a server
  claude mcp add numscope -- numscope mcp         # for example

Its tools are compare, diagnose, check, show and weights; each gives the JSON that the command of that name writes.
It needs the package mcp.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from numscope.commands import available
from numscope.core.errors import MissingExtraError

HELP = "the answers as tools of a coding agent"
INSTRUCTIONS = """\
numscope finds the first operator at which two runs of a model stop agreeing, and why.
Begin with `compare`: target is the run under suspicion, reference the one that is trusted. `origin` is the answer: the
call, its line in the user's code, the reason. Then `diagnose` says why and how to repair it. `check` is for NaN and
infinities in one run. A run is a directory that `numscope run --out RUN -- script.py args` wrote: run that in a shell."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments: a client says everything in its requests."""


def run(args: argparse.Namespace) -> int:
    """Serve until the client leaves."""
    try:
        from mcp.server import MCPServer
    except ImportError:
        raise MissingExtraError("mcp", "numscope mcp") from None
    server = MCPServer("numscope", instructions=INSTRUCTIONS, log_level="WARNING")
    tools = {"compare": compare, "diagnose": diagnose, "check": check, "show": show, "weights": weights}
    for name in tools.keys() & available().keys():
        server.tool()(tools[name])
    server.run("stdio")
    return 0


def compare(
    target: str, reference: str, steps: list[int] | None = None, ranks: list[int] | None = None
) -> dict[str, Any]:
    """Find the first call at which two runs stop agreeing: verdict, origin (call, source line, reason), suspects."""
    return answer("compare", target, reference, *_part(steps, ranks))


def diagnose(
    target: str, reference: str, steps: list[int] | None = None, ranks: list[int] | None = None
) -> dict[str, Any]:
    """Say why two runs stop agreeing: the mechanism, and origin.repair. Needs runs captured with --keep tensors."""
    return answer("diagnose", target, reference, *_part(steps, ranks))


def check(run: str) -> dict[str, Any]:
    """Find the first NaN or infinity of a run, and the calls between it and the loss."""
    return answer("check", run)


def show(
    run: str,
    pattern: str | None = None,
    steps: list[int] | None = None,
    ranks: list[int] | None = None,
    top: int = 20,
    stack: bool = False,
) -> dict[str, Any]:
    """Show what a run holds; with a pattern (part of a name, or a glob) those calls, their tensors' statistics, stacks."""
    words = [pattern] if pattern else []
    return answer("show", run, *words, *_part(steps, ranks), "--top", str(top), *(["--stack"] if stack else []))


def weights(a: str, b: str) -> dict[str, Any]:
    """Say whether two checkpoints hold the same weights; `a` is the one under suspicion."""
    return answer("weights", a, b)


def _part(steps: list[int] | None, ranks: list[int] | None) -> list[str]:
    chosen = [("--step", step) for step in steps or []] + [("--rank", rank) for rank in ranks or []]
    return [word for name, number in chosen for word in (name, str(number))]


def answer(*words: str) -> dict[str, Any]:
    """Return what a command writes as JSON, with its exit status; raise what it says on stderr where it could not."""
    command = [sys.executable, "-m", "numscope", *words, "--json", "-"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)  # ours is the protocol's
    if not done.stdout.strip():
        from mcp.server.mcpserver.exceptions import ToolError

        raise ToolError(done.stderr.strip().removeprefix("numscope: ") or f"exit status {done.returncode}")
    document: dict[str, Any] = json.loads(done.stdout)
    return {**document, "exit_status": done.returncode}
