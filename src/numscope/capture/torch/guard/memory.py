"""What the guard's judge remembers of tensors, and what the user allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numscope.capture.interned import Strings
from numscope.capture.scope import Call, Scope
from numscope.capture.torch.guard.calls import Item, Marks, Seen, resolve


class Memory:
    """The states of tensors that are not finite."""

    def __init__(self, strings: Strings, allow: Sequence[str], reference: Callable[[int], Any]) -> None:
        self.marks = Marks()
        self.strings = strings
        self._allow = Scope(allow) if allow else None
        self._reference = reference  # gives a weak reference to a storage whose tensor is gone

    def _state(self, item: Item) -> Any:
        known = item.look.state if item.look is not None else None
        return known or self.marks.get(item.key) or ("parameter" if item.parameter else "unknown")

    def _mark(self, item: Item, state: Any) -> None:
        if item.look is not None:
            item.look.state = state
        tensor = resolve(item.tensor)
        if tensor is None and item.look is not None:
            self.marks.adopt(item.key, state, self._reference(item.key))
        else:
            self.marks.set(tensor, item.key, state)

    def _mark_all(self, items: list[Item], state: Any) -> None:
        for item in items:
            if not item.found().clean:
                self._mark(item, state)

    def _is_allowed(self, name: str, seen: Seen) -> bool:
        if self._allow is None:
            return False
        parent = seen.parent
        path, kind = (self.strings[parent.module], self.strings[parent.module_class]) if parent else ("", "")
        return self._allow(Call(name, path, kind, seen.kind, "forward"))
