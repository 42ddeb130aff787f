"""Selects the calls whose values are written, by scope, list, the lists of functions, and overflows."""

from __future__ import annotations

import difflib
import math
import re
import warnings
from collections.abc import Sequence

from numscope.compat.msprobe.options import Options
from numscope.core.json_value import holds_non_finite
from numscope.core.names import parse_call
from numscope.store.formats.step_calls import StepCall, StepTensor


def chosen(options: Options, calls: list[StepCall]) -> list[StepCall]:
    """Return the calls whose values are written."""
    found = [call for call in calls if _is_supported(options, call)]
    if options.scope:
        found = _range(options.scope, found)
    if options.names:
        tests = [_test(name) for name in options.names]
        kept = [call for call in found if any(test.search(call.name) for test in tests)]
        if not kept:
            _warn(options.names, found)
        found = kept
    if options.task == "overflow_check":
        found = [call for call in found if is_overflow(call)]
    return found


def _is_supported(options: Options, call: StepCall) -> bool:
    if not options.operators or call.kind in ("module", "save"):
        return True
    parts = parse_call(call.name)
    listed = options.operators.get(parts.prefix.lower()) if parts else None
    return listed == "all" or (listed is not None and parts is not None and parts.op in listed)


def _range(scope: tuple[str, ...], calls: list[StepCall]) -> list[StepCall]:
    """Return the calls from the first name to the last, both included, and the backward calls of those."""
    ordered = sorted((call for call in calls if call.phase != "backward"), key=lambda call: call.order)
    places = [next((i for i, call in enumerate(ordered) if call.name.startswith(name)), None) for name in scope]
    first, last = places
    if first is None or last is None:
        _warn([name for name, place in zip(scope, places) if place is None], calls)
        return []
    inside = {call.order for call in ordered[first : last + 1]}
    return [call for call in calls if (call.forward if call.phase == "backward" else call.order) in inside]


def _test(entry: str) -> re.Pattern[str]:
    """Return the pattern of an entry: a regular expression where it looks like one, a part of the name otherwise."""
    named = re.fullmatch(r"name-regex\((?P<pattern>.*)\)", entry)
    if named or re.search(r"[\\^$*+?|\[\](){}]", entry):
        return re.compile(named["pattern"] if named else entry)
    return re.compile(re.escape(entry), re.IGNORECASE)


def _warn(wanted: Sequence[str], calls: list[StepCall]) -> None:
    names = [call.name for call in calls]
    near = [match for entry in wanted for match in difflib.get_close_matches(entry, names, 2, 0.3)]
    warnings.warn(
        f"{list(wanted)} matched none of {len(names)} calls; nearest: {', '.join(near) or 'none'}", stacklevel=6
    )


def is_overflow(call: StepCall) -> bool:
    """Tell whether a call with finite inputs returned a non-finite output that none of its arguments asked for."""
    groups: dict[str, list[StepTensor]] = {}
    for slot, tensor in call.slots:
        if tensor is not None:
            groups.setdefault(slot.partition(".")[0], []).append(tensor)
    before = [tensor for group in ("input", "kwargs", "parameters") for tensor in groups.get(group, [])]
    if all(_is_finite(tensor) for tensor in groups.get("output", [])) or not all(map(_is_finite, before)):
        return False
    return not holds_non_finite(call.arguments)


def _is_finite(tensor: StepTensor) -> bool:
    high, low, mean, _ = tensor.statistics()
    return all(value is None or math.isfinite(value) for value in (high, low, mean))
