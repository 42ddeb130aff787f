"""Builds the chain from a call that computes something else to what made it so, on both sides.

    eps=1e-06 (1e-05 in the reference)  ←  self.eps  ←  modeling_llama4.py:327 `self.eps = eps`
    ←  modeling_llama4.py:410 `Llama4TextL2Norm()`  ←  eps=1e-06, the default of __init__, modeling_llama4.py:322

Nothing is executed: source, attributes, configuration objects and stacks are those that the runs recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from numscope.compare.align.arguments import Difference, differences
from numscope.compare.cause.changes import changes, class_of_call
from numscope.compare.cause.recorded import Frame, RecordedCall, RecordedRun
from numscope.compare.cause.sources import ProgramSources
from numscope.compare.cause.values import conditions_followed, followed, module_followed, optimizer_followed, value_text
from numscope.core.operators import canonical
from numscope.core.report import Origin
from numscope.store.reader import Run

_MOST_LINES = 40  # changed lines that are kept


@dataclass(frozen=True)
class Chain:
    """The links from the use to the cause, in words, and the changed lines of the functions on the way."""

    links: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def _recorded(run: Run, rank: int) -> RecordedRun:
    """Return what a rank of a run recorded; of its first rank where it has none of that number."""
    return RecordedRun(run, rank if rank in run.ranks else run.ranks[0])


def chain_of(origin: Origin, target: RecordedRun, reference: RecordedRun) -> Chain:
    """Return the chain of an origin, empty where the runs do not have what it takes."""
    if not target.sources.definitions:
        return Chain()
    orders = origin.details.get("target_order"), origin.details.get("reference_order")
    call, other = (run.call(origin.step, order) for run, order in zip((target, reference), orders, strict=True))
    if origin.kind == "parameter":  # it shows in a module's slot; of interest is the call that filled it
        slot = origin.details.get("slot")
        call, other = (
            run.maker(origin.step, order, slot) for run, order in zip((target, reference), orders, strict=True)
        )
        if call is None or other is None or call.operator != other.operator:
            return Chain()
    links = [*_asked(call, other)]
    if origin.kind == "optimizer":
        links += _optimizer(call, other, target.sources, reference.sources)
    elif call is not None and other is not None:
        links += followed(target.sources, reference.sources, call, other)
        links += module_followed(target.sources, reference.sources, call.modules)
    elif lone := call or other:
        who = "target" if call is not None else "reference"
        links += conditions_followed(target.sources, reference.sources, lone, who)
        links += module_followed(target.sources, reference.sources, lone.modules)
    if call is not None and other is not None:
        links += _callers(call, other, target, reference)
    else:
        links += _callers_of_lone(origin, call or other, target, reference)
    changed = changes(origin, call, other, target.sources, reference.sources)
    for one in [one for one in changed if one.feeds][:2] or changed[:2]:
        links.append(one.link)
    if call is not None or other is not None:
        links += _versions(target.sources, reference.sources)
    return Chain(tuple(dict.fromkeys(links)), tuple(line for one in changed for line in one.lines)[:_MOST_LINES])


def with_chains(origins: list[Origin], target: Run, reference: Run, most: int) -> list[Origin]:
    """Return origins, the first few with the chains that lead to their causes."""
    sides: dict[int, tuple[RecordedRun, RecordedRun]] = {}
    found = []
    for origin in origins[:most]:
        if origin.rank not in sides:
            sides[origin.rank] = _recorded(target, origin.rank), _recorded(reference, origin.rank)
        chain = chain_of(origin, *sides[origin.rank])
        changed = {"changed": list(chain.changed)} if chain.changed else {}
        found.append(replace(origin, chain=chain.links, details={**origin.details, **changed}))
    return found + origins[most:]


# The call itself --------------------------------------------------------------------------------------------------------


def _asked(call: RecordedCall | None, other: RecordedCall | None) -> Iterator[str]:
    """Yield the arguments that differ."""
    if call is None or other is None:
        return
    found: list[Difference] = differences(call.arguments, other.arguments, canonical(call.operator))
    telling = [one for one in found if one.telling] or [one for one in found if not _is_default(one)]
    for one in telling[:2]:
        name = f"argument {one.name}" if one.name[-1:].isdecimal() else one.name
        target, reference = (value_text(value) for value in (one.target, one.reference))
        yield f"{name}={target} ({reference} in the reference)"


def _is_default(difference: Difference) -> bool:
    """Return whether one side passes None, and the other nothing."""
    return {value_text(difference.target), value_text(difference.reference)} == {"None", "not given"}


def _optimizer(
    call: RecordedCall | None, other: RecordedCall | None, target: ProgramSources, reference: ProgramSources
) -> Iterator[str]:
    """Yield the place of the optimizer's own step: the user's line only calls it."""
    for one, sources, of in ((call, target, ""), (other, reference, " in the reference")):
        name = class_of_call(one.name) if one is not None else ""
        step = next((method for method in sources.methods(name) if method.node.name == "step"), None)
        if step is not None and (not of or call is None or name != class_of_call(call.name)):
            yield f"{name}.step, {step.place()}{of}"
    if call is not None and other is not None and call.name.split(".")[1] == other.name.split(".")[1]:
        yield from optimizer_followed(target, reference, call.name.split(".")[1])


def _callers(call: RecordedCall, other: RecordedCall, target: RecordedRun, reference: RecordedRun) -> Iterator[str]:
    """Yield the outermost lines at which the two stacks part."""
    for one, theirs in zip(call.frames, other.frames, strict=False):
        if (one.function, _uncommented(one.code)) != (theirs.function, _uncommented(theirs.code)):
            if not _both_ran(one, theirs, target, reference):
                yield f"{one.place} `{one.code}` (`{theirs.code}`, {theirs.place}, in the reference)"
            return


def _callers_of_lone(
    origin: Origin, lone: RecordedCall | None, target: RecordedRun, reference: RecordedRun
) -> Iterator[str]:
    """Yield the line, further out than a call that one side alone has, at which the other side's stack parts from its own.

    The other side's stack is that of the call in which the lone one shows.
    """
    shown = target.named(origin.step, origin.details.get("shows_in"))
    if lone is None or shown is None:
        return
    is_missing = origin.kind == "missing"
    if not is_missing:
        shown = reference.named(origin.step, shown.name) or shown
    around = shown.frames[:-1]  # its own line is another call's
    own, other = (around, lone.frames) if is_missing else (lone.frames, around)
    for one, theirs in zip(own, other, strict=False):
        if (one.function, _uncommented(one.code)) != (theirs.function, _uncommented(theirs.code)):
            if not _both_ran(one, theirs, target, reference):
                yield f"{one.place} `{one.code}` (`{theirs.code}`, {theirs.place}, in the reference)"
            return
        if one.place.line != theirs.place.line and one.place.file == theirs.place.file:
            return  # another call of the same line of code


def _both_ran(one: Frame, theirs: Frame, target: RecordedRun, reference: RecordedRun) -> bool:
    """Return whether both runs ran both lines: then the stacks only stand at two lines of one function."""
    if one.function != theirs.function:
        return False
    for run, frame in ((target, one), (reference, theirs)):
        function = run.sources.around(frame.place)
        other = theirs if frame is one else one
        lines = run.sources.lines_of(function, other.code) if function is not None else []
        if not any(run.ran(place) for place in lines):
            return False
    return True


def _uncommented(code: str) -> str:
    return code.partition("  #")[0].strip()


def _versions(target: ProgramSources, reference: ProgramSources) -> Iterator[str]:
    for name, version in target.packages.items():
        other = reference.packages.get(name, version)
        if other != version:
            yield f"{name} {version} ({other} in the reference)"
