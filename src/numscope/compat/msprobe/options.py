"""What config.json and the constructor's arguments say; an argument goes before the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numscope.core.errors import MissingExtraError, SettingsError
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
    steps: Any
    ranks: Any
    scope: tuple[str, ...]
    names: tuple[str, ...]
    data_mode: frozenset[str]
    md5: bool
    overflow_nums: int
    operators: Mapping[str, Any]  # group → "all" or the names of its functions

    @property
    def keep(self) -> str:
        """How much numscope has to keep for it."""
        if self.task == "structure":
            return "structure"
        return "tensors" if self.md5 or self.task in ("tensor", "overflow_check") else "stats"


def read(
    config_path: str | Path | None, task: str | None, dump_path: str | Path | None, level: str | None, step: Any
) -> Options:
    """Return the settings, or say what is wrong with them."""
    config = _json(Path(config_path)) if config_path is not None else {}
    task = task or config.get("task") or "statistics"
    if task not in TASKS:
        raise SettingsError(f"task {task!r} is not known here: give one of {', '.join(TASKS)}")
    level = level or config.get("level") or "L1"
    if level not in LEVELS:
        raise SettingsError(f"level {level!r} is not known here: give L0 (modules), L1 (API) or mix")
    place = dump_path or config.get("dump_path")
    if not place:
        raise SettingsError('there is no dump_path: pass dump_path="./dump" or write it in config.json')
    part = config.get(task) or {}
    if not isinstance(part, Mapping):
        raise SettingsError(f"config.json: {task} must be an object")
    steps = step if step is not None else config.get("step")
    return Options(
        task=task,
        dump_path=Path(place),
        level=level,
        steps=_numbers(steps, "step"),
        ranks=_numbers(config.get("rank"), "rank"),
        scope=_scope(part.get("scope") or ()),
        names=tuple(str(name) for name in part.get("list") or ()),
        data_mode=_data_mode(part.get("data_mode")),
        md5=_summary(part.get("summary_mode")),
        overflow_nums=_overflow_nums(part.get("overflow_nums", 1)),
        operators=_operators(config.get("support_wrap_ops")),
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SettingsError(f"the settings file {path} does not exist")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SettingsError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold an object")
    return content


def _numbers(given: Any, what: str) -> Any:
    """Return a set of numbers as capture takes it; an empty list is all."""
    if given is None or given == []:
        return None
    numbers(given, what)
    return given


def _scope(given: Any) -> tuple[str, ...]:
    scope = (given,) if isinstance(given, str) else tuple(str(name) for name in given)
    if len(scope) not in (0, 2):
        raise SettingsError(f"scope={list(scope)}: give two names, the first and the last")
    return scope


def _data_mode(given: Any) -> frozenset[str]:
    modes = frozenset([given] if isinstance(given, str) else given or ["all"])
    for mode in modes:
        if mode not in MODES:
            raise SettingsError(f"data_mode {mode!r} is not known: give some of {', '.join(MODES)}")
    return frozenset() if "all" in modes else modes


def _summary(given: Any) -> bool:
    if given in (None, "statistics", "md5"):
        return bool(given == "md5")
    if isinstance(given, list) and set(given) <= {"max", "min", "mean", "l2norm"}:
        return False
    raise SettingsError(f"summary_mode {given!r} is not known: give statistics or md5")


def _overflow_nums(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or (given < 1 and given != -1):
        raise SettingsError(f"overflow_nums={given!r}: give a whole number from 1 on, or -1 for all")
    return given


def _operators(path: Any) -> Mapping[str, Any]:
    file = Path(path) if path else OPS
    if not path and file.read_text(encoding="utf-8").count(": all") == 10:
        return {}  # as it was delivered: every function
    if not file.is_file():
        raise SettingsError(f"support_wrap_ops: {file} does not exist")
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("PyYAML", "compat", "reading support_wrap_ops.yaml") from None
    groups = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(groups, dict):
        raise SettingsError(f"{file} must list functions by group, such as functional: [conv2d]")
    return {str(group).lower(): names if names == "all" else set(names or ()) for group, names in groups.items()}
