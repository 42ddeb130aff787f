"""The limits that a user may set, by flag or in a TOML file for CI."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from numscope.core.errors import InvalidSetting, SettingsError
from numscope.core.toml import read_toml


@dataclass(frozen=True)
class Thresholds:
    """Limits of a comparison."""

    scale: float = 1.0  # factor on what rounding is taken to explain
    max_relative: float | None = None  # any pair with a larger relative L2 error makes the verdict "diverged"
    max_unmatched: int | None = None  # more unmatched calls than this make the verdict "diverged"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value >= 0:
                raise InvalidSetting(field.name, value, ": give a number of at least 0")


def load_thresholds(path: str | os.PathLike[str]) -> Thresholds:
    """Return the thresholds of a TOML file: `[compare]` with the names of the fields above."""
    content = read_toml(path)
    given = content.get("compare", content)
    names = {field.name for field in fields(Thresholds)}
    for name, value in given.items():
        if name not in names:
            raise SettingsError(f"{path}: there is no threshold {name!r}; there are {', '.join(sorted(names))}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise SettingsError(f"{path}: {name} must be a number of at least 0, not {value!r}")
    return Thresholds(**given)
