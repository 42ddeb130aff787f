"""Reads the settings of a PrecisionDebugger from config.json and the constructor's arguments, which take precedence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from numscope.core.errors import MissingExtraError, SettingsError
from numscope.core.json_value import Json, items
from numscope.core.settings import numbers

TASKS = ("statistics", "tensor", "overflow_check", "structure")
LEVELS = {"L0": "module", "L1": "api", "mix": "mix"}
MODES = ("all", "input", "output", "forward", "backward")
OPS = Path(__file__).with_name("support_wrap_ops.yaml")


@dataclass(frozen=True)
class Options:
    """The settings of a PrecisionDebugger."""

    task: str
    dump_path: Path
    level: str
    steps: object  # as capture takes a set of numbers
    ranks: object
    scope: tuple[str, ...]
    names: tuple[str, ...]
    data_mode: frozenset[str]
    md5: bool
    overflow_nums: int
    operators: Mapping[str, set[str] | Literal["all"]]  # by group, the names of its functions

    @property
    def keep(self) -> str:
        """The setting `keep` of capture."""
        if self.task == "structure":
            return "structure"
        return "tensors" if self.md5 or self.task in ("tensor", "overflow_check") else "stats"


def read(
    config_path: str | Path | None, task: str | None, dump_path: str | Path | None, level: str | None, step: object
) -> Options:
    """Return the settings; raise where one is not valid."""
    config = _json(Path(config_path)) if config_path is not None else {}
    task = task or _text(config, "task") or "statistics"
    if task not in TASKS:
        raise SettingsError(f"task {task!r} is not known here: give one of {', '.join(TASKS)}")
    level = level or _text(config, "level") or "L1"
    if level not in LEVELS:
        raise SettingsError(f"level {level!r} is not known here: give L0 (modules), L1 (API) or mix")
    folder = dump_path or _text(config, "dump_path")
    if not folder:
        raise SettingsError('there is no dump_path: pass dump_path="./dump" or write it in config.json')
    part = config.get(task) or {}
    if not isinstance(part, dict):
        raise SettingsError(f"config.json: {task} must be an object")
    return Options(
        task=task,
        dump_path=Path(folder),
        level=level,
        steps=_numbers(step if step is not None else config.get("step"), "step"),
        ranks=_numbers(config.get("rank"), "rank"),
        scope=_scope(part.get("scope")),
        names=tuple(str(name) for name in items(part.get("list"))),
        data_mode=_data_mode(part.get("data_mode")),
        md5=_summary(part.get("summary_mode")),
        overflow_nums=_overflow_nums(part.get("overflow_nums", 1)),
        operators=_operators(_text(config, "support_wrap_ops")),
    )


def _text(config: dict[str, Json], key: str) -> str:
    value = config.get(key)
    return str(value) if value else ""


def _json(path: Path) -> dict[str, Json]:
    if not path.is_file():
        raise SettingsError(f"the settings file {path} does not exist")
    try:
        content: Json = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold an object")
    return content


def _numbers(spec: object, what: str) -> object:
    """Return a set of numbers as capture takes it; an empty list is all."""
    if spec is None or spec == []:
        return None
    numbers(spec, what)
    return spec


def _scope(value: Json) -> tuple[str, ...]:
    scope = (value,) if isinstance(value, str) else tuple(str(name) for name in items(value))
    if len(scope) not in (0, 2):
        raise SettingsError(f"scope={list(scope)}: give two names, the first and the last")
    return scope


def _data_mode(value: Json) -> frozenset[str]:
    modes = frozenset([value] if isinstance(value, str) else map(str, items(value) or ["all"]))
    for mode in modes:
        if mode not in MODES:
            raise SettingsError(f"data_mode {mode!r} is not known: give some of {', '.join(MODES)}")
    return frozenset() if "all" in modes else modes


def _summary(value: Json) -> bool:
    if value in (None, "statistics", "md5"):
        return value == "md5"
    if isinstance(value, list) and set(map(str, value)) <= {"max", "min", "mean", "l2norm"}:
        return False
    raise SettingsError(f"summary_mode {value!r} is not known: give statistics or md5")


def _overflow_nums(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise SettingsError(f"overflow_nums={value!r}: give a whole number from 1 on, or -1 for all")
    return value


def _operators(path: str) -> Mapping[str, set[str] | Literal["all"]]:
    file = Path(path) if path else OPS
    if not path and file.read_text(encoding="utf-8").count(": all") == 10:
        return {}  # as it was delivered: every function
    if not file.is_file():
        raise SettingsError(f"support_wrap_ops: {file} does not exist")
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("PyYAML", "reading support_wrap_ops.yaml") from None
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(groups, dict):
        raise SettingsError(f"{file} must list functions by group, such as functional: [conv2d]")
    return {str(group).lower(): names if names == "all" else set(names or ()) for group, names in groups.items()}
