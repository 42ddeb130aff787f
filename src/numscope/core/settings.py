"""Settings of a capture and of a guard: a frozen dataclass each, the same keys in Python and on the command line.

ns.capture("runs/a", model, level="mix", steps="4-10:2")          arguments go first,
NUMSCOPE_LEVEL=module                                             then the environment,
ns.capture("runs/a", model, config="numscope.toml")               then the settings file,
                                                                  then the defaults below
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, get_args

from numscope.core.errors import InvalidSetting, SettingsError
from numscope.core.json_value import Json
from numscope.core.toml import read_toml
from numscope.core.words import Keep, Level

# Digits of which int makes a number: neither superscripts nor thousands of them.
_DIGITS = "[0-9]{1,18}"
_SIZE = re.compile(rf"\s*(?P<number>{_DIGITS}(\.{_DIGITS})?)\s*(?P<unit>[kmgt]?)i?b?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
Numbers = Callable[[int], bool]
Keywords: TypeAlias = dict[str, Any]  # settings as keyword arguments: CaptureSettings.of checks names and values
GUARD_RECORD = "numscope-guard"  # the run that a guard writes where nothing else is said

# Variables of the same prefix that are no settings: they connect processes of a job, say the language …
_NOT_SETTINGS = {"NUMSCOPE_LANG", "NUMSCOPE_RUN", "NUMSCOPE_PID", "NUMSCOPE_NATIVE", "NUMSCOPE_CACHE_BYTES"}


@dataclass(frozen=True)
class CaptureSettings:
    """The settings of a capture; every field is an argument of `ns.capture`."""

    level: Level = field(default="mix", metadata={"help": "module, api, mix (module + api) or aten"})
    keep: Keep = field(default="stats", metadata={"help": "structure, stats (fingerprints), sample or tensors"})
    tensors: tuple[object, ...] = field(
        default=(), metadata={"help": "names whose full tensors are kept, whatever keep says"}
    )
    scope: object = field(
        default=None, metadata={"help": "which calls: names, globs, /regex/, FIRST..LAST, module paths"}
    )
    exclude: tuple[object, ...] = field(
        default=(), metadata={"help": "calls to leave out, by the same patterns as scope"}
    )
    steps: object = field(default=None, metadata={"help": "which steps: 3, 0,4 or 4-10:2; all"})
    ranks: object = field(default=None, metadata={"help": "which ranks; all"})
    phase: str = field(default="both", metadata={"help": "forward, backward or both"})
    slots: str = field(default="both", metadata={"help": "input, output or both"})
    sample: tuple[int, int, int] = field(
        default=(256, 10, 256), metadata={"help": "with keep=sample: head, every k-th between, tail"}
    )
    max_tensors: int = field(default=0, metadata={"help": "at most so many tensors in forward; 0: no cap"})
    max_gradients: int = field(default=0, metadata={"help": "at most so many tensors in backward; 0: no cap"})
    caps: str = field(default="step", metadata={"help": "whether the caps hold per step or in all"})
    keep_last: int = field(default=0, metadata={"help": "so many of the last steps stay in the run; 0: all"})
    max_bytes: int = field(
        default=0,
        metadata={"help": "a rank's files stay below so much, such as 20GB: the oldest steps go; 0: no limit"},
    )
    control: str | None = field(default=None, metadata={"help": "a file: touching it records the next step"})
    backward: bool = field(default=True, metadata={"help": "gradients"})
    parameters: bool = field(default=True, metadata={"help": "parameters, buffers and their gradients"})
    optimizer: bool = field(default=True, metadata={"help": "optimizer steps"})
    stacks: bool = field(default=True, metadata={"help": "call stacks"})
    verify: bool | float | str = field(
        default=False,
        metadata={"help": "hold each call, or this SHARE of them, against float64; or replay: make each call twice"},
    )
    compiled: str = field(
        default="boundary",
        metadata={"help": "of compiled regions: boundary, or inside"},
    )
    on_error: str = field(default="warn", metadata={"help": "what a fault inside numscope does: warn or raise"})
    overwrite: bool = field(default=False, metadata={"help": "replace a run that is there"})

    def __post_init__(self) -> None:
        _check_types(self)
        _one_of("level", self.level, get_args(Level))
        _one_of("keep", self.keep, get_args(Keep))
        _one_of("on_error", self.on_error, ("warn", "raise"))
        _one_of("phase", self.phase, ("both", "forward", "backward"))
        _one_of("slots", self.slots, ("both", "input", "output"))
        _one_of("compiled", self.compiled, ("boundary", "inside"))
        _one_of("caps", self.caps, ("step", "all"))
        for name, number in (("keep_last", self.keep_last), ("max_bytes", self.max_bytes)):
            if not isinstance(number, int) or number < 0:
                raise InvalidSetting(name, number, ": give a number, 0 for no limit")
        _check_verify(self.verify)
        numbers(self.steps, "steps")
        numbers(self.ranks, "ranks")
        head, stride, tail = self.sample
        if not 1 <= stride <= 100 or head < 0 or tail < 0:
            raise InvalidSetting("sample", self.sample, ": give k from 1 to 100, or (head, k, tail)")

    @classmethod
    def of(cls, config: str | os.PathLike[str] | None = None, **values: object) -> CaptureSettings:
        """Return settings from arguments, environment and settings file; an unknown key is an error with the nearest one."""
        merged: Keywords = {**(read_file(config) if config else {}), **from_environment(os.environ), **values}
        valid = {item.name for item in fields(cls)}
        for key in merged:
            _check_key(key, valid, "capture setting")
        for key in ("tensors", "exclude"):
            if key in merged:
                value = merged[key] if merged[key] is not None else ()
                single = isinstance(value, (str, re.Pattern, type)) or callable(value)
                if not single and not isinstance(value, Iterable):
                    raise InvalidSetting(key, value, ": give a pattern, or a list of them")
                merged[key] = (value,) if single else tuple(value)
        if isinstance(merged.get("max_bytes"), str):
            merged["max_bytes"] = _most_bytes(merged["max_bytes"])
        if "sample" in merged:
            merged["sample"] = _sample(merged["sample"])
        return cls(**merged)

    def to_dict(self) -> dict[str, Json]:
        """Return the settings as JSON can hold them, for the manifest."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True)
class GuardSettings:
    """Every field is an argument of `ns.guard`."""

    max_hits: int = 1  # the origin at which the guard acts; those before it are warnings
    action: str = "raise"  # "raise", "warn": go on, "stop": take the guard away and go on
    level: Level = "mix"  # "module": looks at modules alone, and at less; "api" and "mix" at every call
    latency: int | None = None  # on a device: wait for the flags after so many calls; None: read them as they come
    allow: tuple[str, ...] = ()  # calls or modules whose non-finite results are meant, by name or pattern
    record: str | os.PathLike[str] | None = GUARD_RECORD  # the run to write when it strikes; None: write nothing
    calls: int = 64  # how many calls the record holds
    memory: int | None = None  # bytes that the record may keep alive; None: 256 MiB, on a device 5 % of it at most
    deferred: bool = False  # read the host's flags late too, as a device's
    verify: bool | float | str = False  # hold calls against float64 too: all, a share of them, or "replay"
    scaled: bool = False  # a loss scale of the user's own: gradients count when an optimizer takes them

    def __post_init__(self) -> None:
        _check_types(self)
        if self.action not in ("raise", "warn", "stop"):
            raise InvalidSetting("action", self.action, " is not valid: one of raise, warn, stop")
        if self.level not in ("module", "api", "mix"):
            raise InvalidSetting("level", self.level, " is not valid for a guard: one of module, api, mix")
        _check_verify(self.verify)
        if self.max_hits < 1 or self.calls < 1:
            raise SettingsError("max_hits and calls must be 1 or more")
        for name, number in (("latency", self.latency), ("memory", self.memory)):
            if number is not None and not hasattr(number, "__index__"):
                raise InvalidSetting(name, number, ": give a whole number")
        if self.latency is not None and self.latency < 0:
            raise InvalidSetting("latency", self.latency, ": give a number of calls, 0 or more, or None")

    @classmethod
    def of(cls, **values: object) -> GuardSettings:
        """Return settings from keyword values; an unknown key is an error that names the nearest valid one."""
        valid = {item.name for item in fields(cls)}
        for key in values:
            _check_key(key, valid, "guard setting")
        given: Keywords = dict(values)
        allow = given.get("allow", ())
        given["allow"] = (allow,) if isinstance(allow, str) else tuple(allow or ())
        return cls(**given)


def read_file(path: str | os.PathLike[str]) -> dict[str, object]:
    """Return the settings of a TOML file, at its top or in its table `capture`."""
    content = read_toml(path)
    chosen = content.get("capture", content)
    if not isinstance(chosen, dict):
        raise SettingsError(f"settings file {path}: [capture] must be a table")
    valid = {item.name for item in fields(CaptureSettings)}
    for key in chosen:
        _check_key(key, valid, f"setting in {path}:")
    return dict(chosen)


def _check_types(settings: CaptureSettings | GuardSettings) -> None:
    """Raise where a number or a flag is none: a settings file may say anything."""
    for item in fields(settings):
        value = getattr(settings, item.name)
        if item.type == "int" and not hasattr(value, "__index__"):
            raise InvalidSetting(item.name, value, ": give a whole number")
        if item.type == "bool" and not hasattr(value, "__index__"):
            raise InvalidSetting(item.name, value, ": give true or false")


def from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    """Return the settings among environment variables: NUMSCOPE_LEVEL, NUMSCOPE_STEPS, NUMSCOPE_BACKWARD …"""
    by_name = {f"NUMSCOPE_{item.name.upper()}": item for item in fields(CaptureSettings)}
    settings: dict[str, object] = {}
    for name, text in environment.items():
        if not name.startswith("NUMSCOPE_") or name in _NOT_SETTINGS:
            continue
        _check_key(name, set(by_name), "environment variable")
        item = by_name[name]
        settings[item.name] = from_text(item.name, text)
    return settings


def from_text(name: str, text: str) -> object:
    """Return a setting's value from the text of an environment variable or of the command line."""
    default = next(item.default for item in fields(CaptureSettings) if item.name == name)
    if name == "verify":
        return _share(text)
    if isinstance(default, bool):
        if text.lower() not in {"0", "1", "true", "false", "yes", "no", "on", "off"}:
            raise InvalidSetting(name, text, ": say 1 or 0")
        return text.lower() in {"1", "true", "yes", "on"}
    if name == "max_bytes":
        return _most_bytes(text)
    if isinstance(default, int):
        if not re.fullmatch(_DIGITS, text):
            raise InvalidSetting(name, text, ": give a number")
        return int(text)
    if name in {"tensors", "exclude", "scope"}:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def numbers(spec: object, what: str) -> Numbers:
    """Return a test for a set of step or rank numbers: None (all), 3, [0, 4], "4-10:2", or a callable."""
    if spec is None:
        return lambda number: True
    if callable(spec):
        test = spec
        return lambda number: bool(test(number))
    if isinstance(spec, bool):
        raise InvalidSetting(what, spec, ": give a number, a list of numbers, or a range such as '4-10:2'")
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
        raise InvalidSetting(what, spec, ": give a number, a list of numbers, or a range such as '4-10:2'")
    return lambda number: any(test(number) for test in tests)


def _range(text: str, what: str) -> Numbers:
    match = re.fullmatch(rf"\s*({_DIGITS})(?:\s*-\s*({_DIGITS})?(?:\s*:\s*({_DIGITS}))?)?\s*", text)
    if not match:
        raise InvalidSetting(what, text, ": give a number, or a range such as '4-10' or '4-10:2'")
    first, last, step = match.groups()
    start, stride = int(first), int(step or 1)
    if "-" not in text:
        return lambda number: number == start
    stop = int(last) if last is not None else None
    if stride < 1 or (stop is not None and stop < start):
        raise InvalidSetting(what, text, ": the range is empty; write first-last or first-last:stride, first ≤ last")
    return lambda number: number >= start and (stop is None or number <= stop) and (number - start) % stride == 0


def bytes_of(text: str) -> int | None:
    """Return the number of bytes that a text says, as 500MB, 20 GB, 1048576; None where it says none."""
    match = _SIZE.fullmatch(text)
    return int(float(match["number"]) * _UNITS[match["unit"].lower()]) if match else None


def _most_bytes(text: str) -> int:
    size = bytes_of(text)
    if size is None:
        raise InvalidSetting("max_bytes", text, ": write 50GB, for example")
    return size


def _check_verify(verify: bool | float | str) -> None:
    if verify != "replay" and (isinstance(verify, str) or not 0 <= verify <= 1):
        raise InvalidSetting("verify", verify, ": give True, a share of the calls from 0 to 1, or 'replay'")


def _share(text: str) -> bool | float | str:
    """Return a share of calls from its text: all of them, none, a number, or replay."""
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text


def _sample(value: object) -> tuple[int, int, int]:
    if isinstance(value, str):
        numbers = [int(part) if re.fullmatch(_DIGITS, part.strip()) else -1 for part in value.split(",")]
        value = numbers[0] if len(numbers) == 1 else numbers
    if isinstance(value, int):
        return 256, value, 256
    parts = tuple(value) if isinstance(value, Iterable) else ()
    if len(parts) != 3 or not all(isinstance(part, int) for part in parts):
        raise InvalidSetting("sample", value, ": give k from 1 to 100, or (head, k, tail)")
    head, stride, tail = parts
    return head, stride, tail


def _check_key(key: str, valid: set[str], what: str) -> None:
    if key not in valid:
        near = difflib.get_close_matches(key, valid, 1)
        hint = f": did you mean {near[0]!r}?" if near else f": valid are {', '.join(sorted(valid))}"
        raise SettingsError(f"unknown {what} {key!r}{hint}")


def _one_of(name: str, value: str, valid: Iterable[str]) -> None:
    choices = tuple(valid)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, 1)
        hint = f"did you mean {near[0]!r}?" if near else "one of " + ", ".join(choices)
        raise InvalidSetting(name, value, f" is not valid: {hint}")


def _plain(value: object) -> Json:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    return repr(value)
