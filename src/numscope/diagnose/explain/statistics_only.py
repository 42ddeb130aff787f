"""The limits of a diagnosis of statistics alone, and the commands that would tell more."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from numscope.core.names import parse_call
from numscope.core.report import Origin
from numscope.diagnose.recorded.differing_tensors import differing_tensors
from numscope.diagnose.recorded.paired_step import PairedStep
from numscope.diagnose.recorded.shared_inputs import subgraphs_of
from numscope.store.reader import Run

_MOST_PATTERNS = 6  # more calls are kept by a whole step


@dataclass(frozen=True)
class Unknowable:
    """The tensors that a diagnosis lacks, as patterns, and how to keep them."""

    patterns: tuple[str, ...]  # empty: all tensors of the step
    sentence: str
    commands: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Return it for the report."""
        return {"sentence": self.sentence, "patterns": list(self.patterns), "commands": list(self.commands)}


def unknowable(pairs: PairedStep, origin: Origin, most_tensors: int) -> Unknowable:
    """Return what is lacking to explain an origin whose tensors were not kept."""
    patterns: dict[str, None] = {_pattern(origin.call): None}
    for tensor in differing_tensors(pairs, origin)[:most_tensors]:
        for subgraph in subgraphs_of(pairs, tensor):
            patterns.update(dict.fromkeys(map(_pattern, subgraph.call_names())))
    chosen = tuple(patterns) if len(patterns) <= _MOST_PATTERNS else ()
    what = f"the tensors of {origin.call}" + (" and of the calls before it" if len(patterns) > 1 else "")
    return Unknowable(
        chosen,
        f"why they differ cannot be known from statistics: {what} were not kept; run both again with",
        (
            *(_command(run, chosen, origin) for run in (pairs.target.run, pairs.reference.run)),
            f"numscope diagnose {_folder(pairs.target.run)} {_folder(pairs.reference.run)}",
        ),
    )


def _pattern(call: str) -> str:
    """Return the pattern of all tensors of a call, forward and backward: `Functional.gelu.2.*`."""
    parts = parse_call(call)
    if parts is None:
        return f"{call}.*"
    if parts.prefix == "Module":
        return f"Module.{parts.path}.{parts.op}.*" if parts.path else f"Module.{parts.op}.*"
    return (
        f"{parts.prefix}.{parts.op}.*" if parts.prefix == "Optimizer" else f"{parts.prefix}.{parts.op}.{parts.index}.*"
    )


def _command(run: Run, patterns: tuple[str, ...], origin: Origin) -> str:
    """Return the command that captures a run again with its tensors; in Python's words where the job captured itself."""
    manifest = run.manifest
    settings = manifest.get("settings") or {}
    level = settings.get("level", "mix")
    steps = "" if origin.kind == "optimizer" else str(origin.step)  # an optimizer's state is rebuilt from all before
    if not manifest.get("job"):
        keep = f"tensors={list(patterns)}" if patterns else "keep='tensors'"
        return f"ns.capture('{_folder(run)}', …, {keep}{f', steps={steps}' if steps else ''})"
    options = [f"--tensors={pattern}" for pattern in patterns] or ["--keep", "tensors"]
    options += ["--steps", steps] if steps else []
    options += ["--level", level] if level != "mix" else []
    command = [*options, "--out", _folder(run), "--", *manifest.get("argv", ())]
    return f"numscope run {shlex.join(command)}"


def _folder(run: Run) -> str:
    return f"{str(run.path).rstrip('/')}-tensors"
