"""Non-tensor arguments of a call, as JSON that two runs can compare."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable

from numscope.capture.recording.interned import PASSING
from numscope.core.json_value import Json
from numscope.core.report import plain

_SIMPLE = (int, float, bool, str, type(None))
_INTEGERS = frozenset({int})
_REMEMBERED = 10_000  # arguments with their texts: of one step there are hundreds
LONGEST = 64  # items of a list or dictionary that are described
_DEEPEST = 3  # levels of nested lists that are compared item by item


def key_of(value: object, depth: int = 0) -> Hashable:
    """Return a hashable stand-in for a non-tensor value, equal only for values of its type that are described alike."""
    kind = type(value)
    if kind in (int, bool, str):
        return (kind, value)
    if type(value) is float:
        return (kind, "nan") if math.isnan(value) else (kind, value, math.copysign(1.0, value))
    if value is None:
        return None
    if isinstance(value, (tuple, list)):
        if _INTEGERS.issuperset(map(type, value)):
            return tuple(value)
        if depth < _DEEPEST:
            return tuple([(type(item), key_of(item, depth + 1)) for item in value])
    if isinstance(value, slice):  # of an index: there are many of them
        return (slice, key_of(value.start), key_of(value.stop), key_of(value.step))
    return describe_text(value)


def remember(known: dict[Hashable, int], arguments: Hashable, text: int) -> None:
    """Remember the number of the text that describes arguments, unless it passes."""
    if text < PASSING:
        if len(known) >= _REMEMBERED:
            known.clear()
        known[arguments] = text


def describe_text(value: object) -> str:
    """Return the JSON text of one value."""
    return json.dumps(describe(value), sort_keys=True)


def describe(value: object, depth: int = 0) -> Json:
    """Return a value as JSON; an object that is no number, text or container is described by its type."""
    if isinstance(value, _SIMPLE):
        return plain(value)
    if depth > 4:
        return f"<{type(value).__name__}>"
    if isinstance(value, (list, tuple)):
        return [describe(item, depth + 1) for item in value[:LONGEST]]
    if isinstance(value, dict):
        return {str(key): describe(item, depth + 1) for key, item in list(value.items())[:LONGEST]}
    if isinstance(value, slice):
        return {"slice": [describe(part, depth + 1) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return "..."
    name = type(value).__name__
    module = type(value).__module__.partition(".")[0]
    if name in {"dtype", "device", "layout", "memory_format"} and module == "torch":
        return str(value).removeprefix("torch.")
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if module == "numpy" and hasattr(value, "item") and getattr(value, "size", 2) == 1:
        scalar: object = value.item()
        return plain(scalar)
    if callable(value):
        return f"<{getattr(value, '__qualname__', name)}>"
    return f"<{name}>"
