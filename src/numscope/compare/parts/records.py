"""Records as text: what is known of a place stands in a table as JSON, and is read again as the same record."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, TypeVar, Union, get_args, get_origin, get_type_hints

from numscope.core.json_value import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    _Record = TypeVar("_Record", bound=DataclassInstance)
else:
    _Record = TypeVar("_Record")


def to_text(record: DataclassInstance) -> str:
    """Return a record as JSON; NaN and infinity stand as Python writes them."""
    return json.dumps(asdict(record), ensure_ascii=False, default=_scalar)


def _scalar(value: object) -> object:
    """Return a number of numpy's as one of Python's."""
    if hasattr(value, "item"):
        number: object = value.item()
        return number
    raise TypeError(f"{type(value).__name__} is no JSON")


def from_text(kind: type[_Record], text: str) -> _Record:
    """Return the record of that type that a text holds."""
    found = _read(kind, json.loads(text))
    assert isinstance(found, kind)
    return found


@cache
def _fields(kind: type) -> dict[str, object]:
    return get_type_hints(kind)


def _read(kind: object, value: Json) -> object:
    """Return a value as its type says it was."""
    form, inner = get_origin(kind), get_args(kind)
    if value is None:
        return None
    if form in (Union, UnionType):
        (chosen,) = (one for one in inner if one is not type(None))
        return _read(chosen, value)
    if isinstance(kind, type) and is_dataclass(kind):
        assert isinstance(value, dict)
        fields = _fields(kind)
        return kind(**{name: _read(fields[name], one) for name, one in value.items()})
    if form in (tuple, list):
        assert isinstance(value, list)
        if form is list:
            return [_read(inner[0], one) for one in value]
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_read(inner[0], one) for one in value)
        return tuple(_read(one, part) for one, part in zip(inner, value, strict=True))
    if form is dict:
        assert isinstance(value, dict)
        return {name: _read(inner[1], one) for name, one in value.items()}
    return value
