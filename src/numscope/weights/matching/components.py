"""Components: tensors of both sides that belong together by their names, such as query, key and value with their fusion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from numscope.weights.matching.names import FUSED, Key, parts_of, plain, read
from numscope.weights.tensor import Tensor


@dataclass
class Component:
    """Tensors that belong together, in the order in which their names go; either side may have none."""

    a: list[Tensor] = field(default_factory=list)
    b: list[Tensor] = field(default_factory=list)
    why: str = ""
    is_turned: bool = False  # the suspect's axes were put into another order

    @property
    def role(self) -> str:
        """The role of its tensors: what they are in every layer."""
        return "+".join(sorted({read(tensor.name).role for tensor in self.b or self.a}))

    @property
    def has_same_name(self) -> bool:
        """Whether both sides call it the same: then the same code reads both, and they have to be the same."""
        return len(self.a) == len(self.b) == 1 and plain(self.a[0].name) == plain(self.b[0].name)


def by_name(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Component]:
    """Return the components that names alone say; tensors without a partner are components of one side."""
    ours, theirs = _by(a, lambda t: t.name), _by(b, lambda t: t.name)
    components = [Component(ours[name], theirs[name], "the same name") for name in ours if name in theirs]
    a = [tensor for tensor in a if tensor.name not in theirs]
    b = [tensor for tensor in b if tensor.name not in ours]
    ours, theirs = _by(a, lambda t: plain(t.name)), _by(b, lambda t: plain(t.name))
    same = [name for name in ours if name in theirs and len(theirs[name]) == 1]
    components += [
        Component(_sorted(ours[name]), theirs[name], "the same name, but for what wraps the model") for name in same
    ]
    a = [tensor for tensor in a if plain(tensor.name) not in same]
    b = [tensor for tensor in b if plain(tensor.name) not in same]
    return components + _by_key(a, b)


def _by(tensors: Iterable[Tensor], key: object) -> dict[str, list[Tensor]]:
    found: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        found[key(tensor)].append(tensor)  # type: ignore[operator]
    return dict(found)


def _by_key(a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Component]:
    """Join what names say by roles, layers and experts."""
    present = ({read(t.name) for t in a}, {read(t.name) for t in b})
    found: dict[Key, Component] = {}
    for side, tensors in enumerate((a, b)):
        for tensor in tensors:
            key = _joint(read(tensor.name), present[side], present[1 - side])
            component = found.setdefault(key, Component(why=f"both are {key.role} of {_numbers(key)}"))
            (component.b if side else component.a).append(tensor)
    for component in found.values():
        component.a, component.b = _sorted(component.a), _sorted(component.b)
    return list(found.values())


def _numbers(key: Key) -> str:
    return f"layer {', '.join(map(str, key.numbers))}" if key.numbers else "the model"


def _joint(key: Key, own: set[Key], other: set[Key]) -> Key:
    """Return the key under which a tensor meets the other side's: its own, a fused one, or one with fewer numbers."""
    if key in other:
        return key
    for role in (key.role, *_wider(key.role)):
        for numbers in _fewer(key.numbers):
            candidate = Key(role, numbers)
            if candidate != key and candidate in other:
                return candidate
    # This side has the wider one: the other side's parts come to it.
    for role in (key.role, *parts_of(key.role)):
        if any(_holds(key.numbers, one.numbers) for one in other if one.role == role):
            return key
    # Neither side has the whole: shards of both, or of nothing.
    return key


def _wider(role: str) -> list[str]:
    """Return the fused roles that a role is a part of."""
    stem, _, suffix = role.rpartition(".")
    return [f"{fused}.{suffix}" for fused, parts in FUSED.items() if stem in parts]


def _fewer(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the numbers themselves, then without the expert, then without any."""
    found = [numbers]
    if len(numbers) > 1:
        found += [numbers[:-1], numbers[1:]]
    return [*found, ()] if numbers else found


def _holds(few: tuple[int, ...], many: tuple[int, ...]) -> bool:
    return few in _fewer(many)


def _sorted(tensors: list[Tensor]) -> list[Tensor]:
    """Return tensors in the order of their names: by numbers, then by role as a fused name says it, then by rank."""

    def place(tensor: Tensor) -> tuple[object, ...]:
        key = read(tensor.name)
        stem = key.role.rpartition(".")[0]
        at = next((parts.index(stem) for parts in FUSED.values() if stem in parts), 0)
        return (len(key.numbers), key.numbers, at, tensor.name)

    return sorted(tensors, key=place)
