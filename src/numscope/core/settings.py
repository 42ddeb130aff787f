"""Settings of a capture, as one frozen dataclass; the same keys in Python, on the command line and in a settings file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, get_args

from numscope.core.errors import SettingsError
from numscope.core.words import Keep, Level

Numbers = Callable[[int], bool]


@dataclass(frozen=True)
class CaptureSettings:
    """What to record, and how much of it; every field is an argument of `ns.capture`."""

    level: Level = "mix"
    keep: Keep = "stats"
    tensors: tuple[str, ...] = ()
    scope: Any = None
    steps: Any = None
    ranks: Any = None
    backward: bool = True
    parameters: bool = True
    optimizer: bool = True
    stacks: bool = True
    on_error: str = "warn"
    overwrite: bool = False

    def __post_init__(self) -> None:
        _one_of("level", self.level, get_args(Level))
        _one_of("keep", self.keep, get_args(Keep))
        _one_of("on_error", self.on_error, ("warn", "raise"))
        numbers(self.steps, "steps")
        numbers(self.ranks, "ranks")

    @classmethod
    def of(cls, **values: Any) -> CaptureSettings:
        """Return settings from keyword values; an unknown key is an error that names the nearest valid one."""
        known = {field.name for field in fields(cls)}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f": did you mean {near[0]!r}?" if near else f": valid are {', '.join(sorted(known))}"
                raise SettingsError(f"unknown capture setting {key!r}{hint}")
        if "tensors" in values:
            tensors = values["tensors"] or ()
            values["tensors"] = (tensors,) if isinstance(tensors, str) else tuple(tensors)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them, for the manifest."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def numbers(spec: Any, what: str) -> Numbers:
    """Return a test for a set of step or rank numbers: None (all), 3, [0, 4], "4-10:2", or a callable."""
    if spec is None:
        return lambda number: True
    if callable(spec):
        return lambda number: bool(spec(number))
    if isinstance(spec, bool):
        raise SettingsError(f"{what}={spec!r}: give a number, a list of numbers, or a range such as '4-10:2'")
    if isinstance(spec, int):
        return lambda number: number == spec
    if isinstance(spec, str):
        tests = [_range(part, what) for part in spec.split(",")]
    elif isinstance(spec, range):
        chosen_range = spec
        return lambda number: number in chosen_range
    elif isinstance(spec, Iterable):
        tests = [numbers(part, what) for part in spec]
    else:
        raise SettingsError(f"{what}={spec!r}: give a number, a list of numbers, or a range such as '4-10:2'")
    return lambda number: any(test(number) for test in tests)


def _range(text: str, what: str) -> Numbers:
    match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+)?(?:\s*:\s*(\d+))?)?\s*", text)
    if not match:
        raise SettingsError(f"{what}={text!r}: give a number, or a range such as '4-10' or '4-10:2'")
    first, last, stride = match[1], match[2], int(match[3] or 1)
    start = int(first)
    if "-" not in text:
        return lambda number: number == start
    stop = int(last) if last is not None else None
    if stride < 1 or (stop is not None and stop < start):
        raise SettingsError(f"{what}={text!r}: the range is empty; write first-last or first-last:stride, first ≤ last")
    return lambda number: number >= start and (stop is None or number <= stop) and (number - start) % stride == 0


def _one_of(name: str, value: str, valid: Iterable[str]) -> None:
    choices = tuple(valid)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f"did you mean {near[0]!r}?" if near else "one of " + ", ".join(choices)
        raise SettingsError(f"{name}={value!r} is not valid: {hint}")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    return repr(value)
