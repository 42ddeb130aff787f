"""hooktools' settings: a YAML file or a dict; keys that have no effect are warned of."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

from numscope.core.errors import MissingExtraError, SettingsError

Settings = Mapping[str, object]


def load(config: str | Path | Settings) -> dict[str, object]:
    """Return the settings of a file or a dict."""
    if isinstance(config, Mapping):
        return dict(config)
    path = Path(config)
    if not path.is_file():
        raise SettingsError(f"the settings file {path} does not exist: copy one from numscope/compat/hooktools/config")
    try:
        import yaml
    except ImportError:
        raise MissingExtraError("PyYAML", "reading a settings file") from None
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise SettingsError(f"{path} holds no settings: it must be a list of key: value")
    return content


def warn_unused_keys(settings: Settings, known: set[str], where: str) -> None:
    """Warn of keys that have no effect: settings files of the original, which has more keys, load as they are."""
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, 1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            warnings.warn(f"{where}: the key {key!r} is not used{hint}", stacklevel=3)


def section(settings: Settings, key: str) -> dict[str, object]:
    """Return a part of the settings, empty where it is not given."""
    value = settings.get(key) or {}
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key} must be a group of key: value")
    return dict(value)


def listed(value: object) -> list[object]:
    """Return a value of the settings as a list; a text is its only item, and None gives an empty list."""
    if isinstance(value, str):
        return [value]
    return list(value) if isinstance(value, Iterable) else []


def one_of(settings: Settings, key: str, valid: tuple[int, ...], default: int) -> int:
    """Return a number that must be one of a few."""
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value not in valid:
        raise SettingsError(f"{key}: {value!r} is not valid: give one of {', '.join(map(str, valid))}")
    return value


class NameFilter:
    """A test for names: `starts_with` or `regular_expression` must match, where either is given."""

    def __init__(self, settings: Settings) -> None:
        warn_unused_keys(settings, {"starts_with", "regular_expression"}, "hook_specifiy_modules")
        self._starts = tuple(map(str, listed(settings.get("starts_with"))))
        try:
            self._patterns = [re.compile(str(text)) for text in listed(settings.get("regular_expression"))]
        except re.error as error:
            raise SettingsError(f"regular_expression: {error.pattern!r} is not valid: {error}") from None

    def __call__(self, name: str) -> bool:
        if not self._starts and not self._patterns:
            return True
        return name.startswith(self._starts or ("\0",)) or any(pattern.search(name) for pattern in self._patterns)
