"""JSON as a type, the result of `json.loads`, and checked access to its parts."""

from __future__ import annotations

from typing import Any, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

# An object that numscope itself wrote, as a manifest or a report: the keys say the types of their values.
JsonObject: TypeAlias = dict[str, Any]


def members(value: Json) -> dict[str, Json]:
    """Return the members of an object; of anything else, none."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return the items of an array; of anything else, none."""
    return value if isinstance(value, list) else []


def sizes(value: Json) -> tuple[int, ...]:
    """Return the whole numbers of an array, as the shape of a tensor is written."""
    return tuple(item for item in items(value) if isinstance(item, int))


def holds_non_finite(value: object) -> bool:
    """Tell whether a value is, or holds, a number that is NaN or infinite: such a number is written as text."""
    if isinstance(value, dict):
        return any(map(holds_non_finite, value.values()))
    if isinstance(value, list):
        return any(map(holds_non_finite, value))
    return value in ("nan", "inf", "-inf")


def number(value: Json) -> float | None:
    """Return a number, also one that stands as text ("nan", "inf"); None for anything else."""
    try:
        return None if value is None or isinstance(value, (list, dict)) else float(value)
    except ValueError:
        return None
