"""The sentences that say why a call is an origin: one set, for the guard and for `numscope check`."""

from __future__ import annotations

from dataclasses import dataclass

from numscope.nonfinite.rule import Counts, Ruling


@dataclass(frozen=True)
class Words:
    """The few words that differ between a job that is watched and a run that is read."""

    nobody: str  # the clause for a value that no known call made
    on_entry: str  # the words between a value that is there on entry and that clause
    finer: str  # how to find the call inside a module
    slot_names: bool  # name an optimizer's input by its slot instead of describing it


WATCHED = Words("no call that is watched made it", ": ", 'level="mix" names the call', slot_names=False)
RECORDED = Words("no recorded call made it", ", and ", "a run of level mix names the call", slot_names=True)


def made(name: str, ruling: Ruling, unmeasured: str) -> str:
    """Say why a forward call is the origin; `unmeasured` names the input of which nothing is known, if there is one."""
    assert ruling.output is not None
    counts, cause = ruling.output.counts, ruling.cause
    if cause is None and unmeasured:
        return f"{name} made {counts}; its {unmeasured} was not measured"
    if cause is None:
        return f"{name} turned finite inputs into {counts}"
    if cause.state == "constant":
        return f"a constant of NaN enters {name} as {cause.slot}, and the output has {counts}"
    return f"{name} made {counts} out of infinities: {cause.slot} has {cause.counts}"


def parameter(name: str, counts: Counts) -> str:
    """Say that a parameter was not finite from the start."""
    return f"the parameter {name} holds {counts} before anything computes with it"


def data(counts: Counts) -> str:
    """Say that the data was not finite."""
    return f"the data that enters the model holds {counts}"


def on_entry(words: Words, name: str, slot: str, counts: Counts) -> str:
    """Say that a call was given a non-finite value of unknown origin."""
    return f"{slot} of {name} holds {counts} on entry{words.on_entry}{words.nobody}"


def own_code(words: Words, outer: str, name: str, counts: Counts) -> str:
    """Say that a module's own code, between the modules that it calls, made the value."""
    return f"{outer} made {counts} in code of its own, before it called {name} with it: {words.finer}"


def own_code_backward(words: Words, outer: str, name: str, counts: Counts) -> str:
    """Say that the backward part of a module's own code made the value."""
    return f"{outer} made {counts} in code of its own, before the gradient came to {name}: {words.finer}"


def loss(words: Words, name: str, counts: Counts) -> str:
    """Say that the loss was not finite, where calls outside modules are not watched."""
    return f"the loss that {name} starts from holds {counts}, and no module made it: {words.finer}"


def gradient(name: str, counts: Counts) -> str:
    """Say that a backward part made the value out of finite gradients."""
    return f"{name} turned finite gradients into {counts}"


def gradient_on_entry(words: Words, name: str, counts: Counts, modules_only: bool) -> str:
    """Say that an incoming gradient was not finite, and which unwatched code may have made it so."""
    where = "the loss, or code that follows it" if modules_only else "a sum that overflowed"
    return (
        f"the gradient that comes into {name} has {counts}, and {words.nobody}: "
        f"it comes from {where}, or it was given to backward"
    )


def before_step(words: Words, name: str, slot: str, label: str, counts: Counts) -> str:
    """Say that an optimizer's step was given a non-finite value."""
    described = "the gradient" if slot.startswith("parameters_grad") else "the optimizer's state or parameter"
    what = slot if words.slot_names else f"{described} of {label}"
    return f"{what} has {counts} before {name}, and {words.nobody}"


def step(name: str, inside: str, label: str, counts: Counts, details: str) -> str:
    """Say that an optimizer's step made the value; `inside` names the call of the optimizer's own code that did."""
    at = f" ({inside} inside it)" if inside else ""
    return f"{name}{at} turned finite parameters, gradients and state into {counts} in {label}{details}"


def reduced_gradient(label: str, counts: Counts) -> str:
    """Say that a gradient became non-finite between this rank's backward and the optimizer, in the reduction over ranks."""
    return f"the gradient of {label} came in with {counts}: this rank's own backward was finite"


def received(name: str, counts: Counts) -> str:
    """Say that a collective brought the value from another rank."""
    return f"{name} gave {counts}, and this rank's own part was finite"


def collective(name: str, counts: Counts) -> str:
    """Say that a collective of one rank made the value."""
    return f"{name} turned finite values into {counts}"
