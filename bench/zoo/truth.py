"""The right answer of a case, as data: an observer's answer, not the author's story.

A case marks the guilty line of its own source with a comment (`# origin`) and lists the few answers that are exactly
right. Where a call and the module call that is nothing but this call say the same, both are listed; nothing looser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Answer:
    """One acceptable origin."""

    call: str  # a pattern for the whole of the origin's name
    kinds: tuple[str, ...] = ()  # of the report; empty: any but missing and extra
    module: str | None = None  # the exact module path; None: not asked
    marker: str | None = "origin"  # the comment on the guilty line; None: no line is asked
    phase: str | None = None


@dataclass(frozen=True)
class Truth:
    """The true origin of a planted bug."""

    answers: tuple[Answer, ...]
    mechanisms: tuple[str, ...]  # what diagnose may call it, the best word first
    step: int | None = None
    rank: int | None = None
    repair: tuple[
        str, ...
    ] = ()  # patterns one of which fits a repairing sentence, with its value; empty: none expected
    second: tuple[Answer, ...] = ()  # a second, independent fault: one of the suspects must name it, too
    # Patterns one of which fits the chain from the use to the cause, `@cause` being a line with that comment; empty: none.
    chain: tuple[str, ...] = ()


def call(name: str, module: str | None = None, **more: Any) -> Answer:
    """Return an answer that names a call: `call("Functional.gelu", "blocks.1.mlp")`."""
    return Answer(_named(name) + r"\.\d+\.(forward|backward|input)", module=module, **more)


def module(path: str, class_name: str, **more: Any) -> Answer:
    """Return an answer that names a module call; its line is the caller's, so no marker is asked."""
    more.setdefault("marker", None)
    return Answer(rf"Module\.{re.escape(path)}\.{class_name}\.(forward|backward)\.\d+", module=path, **more)


def optimizer(class_name: str, **more: Any) -> Answer:
    """Return an answer that names an optimizer's step."""
    more = {"marker": None, "kinds": ("optimizer",)} | more
    return Answer(rf"Optimizer\.{class_name}\.step\.\d+", **more)


def missing(name: str, module: str | None = None, marker: str | None = "missing", **more: Any) -> Answer:
    """Return an answer that names a call which only the reference has, by the reference's marked line."""
    return Answer(_named(name) + r"\.\d+\.\w+", kinds=("missing",), module=module, marker=marker, **more)


def extra(name: str, module: str | None = None, **more: Any) -> Answer:
    """Return an answer that names a call which only the target has."""
    return Answer(_named(name) + r"\.\d+\.\w+", kinds=("extra",), module=module, **more)


def compiled(marker: str = "origin") -> Answer:
    """Return an answer that names a line inside a compiled region, whichever of the region's calls shows it."""
    kinds = ("api", "module", "aten", "optimizer", "parameter", "data", "missing", "extra")
    return Answer(".*", kinds=kinds, marker=marker)


def parameter(name: str) -> Answer:
    """Return an answer that names a parameter or buffer that differs before any call."""
    return Answer(rf"(.*\.)?{re.escape(name)}", kinds=("parameter",), marker=None)


def data(name: str = ".*") -> Answer:
    """Return an answer that says the model got other data."""
    return Answer(name, kinds=("data",), marker=None)


def accepts(truth: Truth, origin: dict[str, Any], script: Path | None = None) -> bool:
    """Return whether an origin of a report is exactly right; without a script the recorded line has the comment."""
    if truth.step is not None and origin["step"] != truth.step:
        return False
    if truth.rank is not None and origin["rank"] != truth.rank:
        return False
    return any(_fits(answer, origin, script) for answer in truth.answers)


def names_second(truth: Truth, suspects: list[dict[str, Any]], script: Path) -> bool:
    """Return whether one of the suspects names the second fault."""
    return any(_fits(answer, suspect, script) for suspect in suspects for answer in truth.second)


def leads_to_cause(truth: Truth, origin: dict[str, Any], script: Path) -> bool:
    """Return whether the origin's chain, from the use to the cause, has what the case expects of it."""
    text = " <- ".join(origin.get("chain") or ())

    def marked(found: re.Match[str]) -> str:
        numbers = "|".join(map(str, sorted(lines(script, found[1]))))
        return rf"{re.escape(script.name)}:({numbers})\b"

    return any(re.search(re.sub(r"@(\w+)", marked, pattern), text) for pattern in truth.chain)


def _fits(answer: Answer, origin: dict[str, Any], script: Path | None) -> bool:
    unmatched = origin["kind"] in ("missing", "extra")
    if origin["kind"] not in answer.kinds if answer.kinds else unmatched:
        return False
    if not re.fullmatch(answer.call, origin["call"]):
        return False
    if answer.module is not None and (origin["module"] or "") != answer.module:
        return False
    if answer.phase is not None and origin["phase"] != answer.phase:
        return False
    if answer.marker is None:
        return True
    source = origin["source"]
    if script is None:
        return source is not None and re.search(rf"# {answer.marker}\b", source["code"]) is not None
    return (
        source is not None
        and Path(source["file"]).name == script.name
        and source["line"] in lines(script, answer.marker)
    )


@cache
def lines(script: Path, marker: str) -> frozenset[int]:
    """Return the numbers of the lines that end with `# marker`."""
    text = script.read_text(encoding="utf-8").splitlines()
    return frozenset(number for number, line in enumerate(text, 1) if re.search(rf"# {marker}\b", line))


def _named(name: str) -> str:
    """Return a pattern for an API's name; `Tensor.lt` means the operator `Tensor.__lt__` as well."""
    prefix, _, operation = name.partition(".")
    return rf"{prefix}\.(__)?{operation}(__)?"
