"""Maps a function over the leaves of nested lists, tuples, dictionaries and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, cast

import torch

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def tree_map_tensors(value: T, change: Callable[[torch.Tensor], torch.Tensor]) -> T:
    """Return a nested structure with its tensors changed; the structure itself where nothing changed."""
    return tree_map(value, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def tree_map(value: T, change: Callable[[object], object]) -> T:
    """Return a nested structure with its leaves changed; the structure itself where nothing changed."""
    mapped: object
    if isinstance(value, dict):
        items = {key: tree_map(item, change) for key, item in value.items()}
        is_same = all(items[key] is item for key, item in value.items())
        mapped = value if is_same else _with_items(value, items)
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        parts = [tree_map(item, change) for item in value]
        is_same = all(new is old for new, old in zip(parts, value))
        is_named_tuple = hasattr(value, "_fields")
        mapped = value if is_same else type(value)(*parts) if is_named_tuple else type(value)(parts)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        before = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        after = {name: tree_map(item, change) for name, item in before.items()}
        is_same = all(after[name] is item for name, item in before.items())
        mapped = value if is_same else dataclasses.replace(value, **after)
    else:
        mapped = change(value)
    return cast(T, mapped)  # a leaf is replaced by one that can stand in its place


def leaves(value: object) -> list[object]:
    """Return the leaves of a nested structure, in order."""
    found: list[object] = []

    def collect(leaf: object) -> object:
        found.append(leaf)
        return leaf

    tree_map(value, collect)
    return found


def _with_items(value: dict[K, V], items: dict[K, V]) -> object:
    """Return a dictionary of the class of `value` with other items."""
    if type(value) is dict:
        return items
    if dataclasses.is_dataclass(value):  # the outputs of transformers are both
        return value.__class__(**items)
    copy = value.copy()
    copy.update(items)
    return copy
