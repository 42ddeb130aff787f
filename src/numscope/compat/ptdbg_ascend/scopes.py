"""Selects the calls that are dumped: the modes of set_dump_switch, by number or by the word of later releases.

1 all                 every call, no stacks
2 list                calls whose names begin with an entry of scope, and their stacks
3 range               calls from the first entry to the second, both included, and their stacks
4 stack               stacks alone: of all calls, of one, or of a range
  api_list            calls of the operators that scope names, whatever their number
  api_stack           stacks alone, of all calls
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from numscope.core.errors import SettingsError

_WORDS = {1: "all", 2: "list", 3: "range", 4: "stack"}


@dataclass
class Scope:
    """A test for names such as `21_Torch_norm_forward`."""

    mode: str = "all"
    entries: tuple[str, ...] = ()
    _matched: set[str] = field(default_factory=set)

    @property
    def stacks(self) -> bool:
        """Whether stacks are written."""
        return self.mode != "all"

    @property
    def stacks_only(self) -> bool:
        """Whether nothing but stacks is written."""
        return self.mode in ("stack", "api_stack")

    def wants(self, name: str) -> bool:
        """Tell whether a call of this name is dumped."""
        hits = [entry for entry in self.entries if self._hit(name, entry)]
        self._matched.update(hits)
        if self.mode in ("all", "api_stack") or not self.entries:
            return True
        if self.mode == "range" or (self.mode == "stack" and len(self.entries) == 2):
            first, last = (_number(entry) for entry in self.entries)
            return first <= _number(name) <= last
        return bool(hits)

    def _hit(self, name: str, entry: str) -> bool:
        if self.mode == "api_list":
            _, _, operator = name.partition("_")
            return entry.lower() in operator.lower()
        return name.startswith(entry) and not name[len(entry) : len(entry) + 1].isdecimal()

    def unmatched(self) -> list[str]:
        """Return the entries that no call has matched so far."""
        return [entry for entry in self.entries if entry not in self._matched]


def _number(name: str) -> int:
    number = name.partition("_")[0]
    if not number.isdecimal():
        raise SettingsError(f"scope entry {name!r}: a range needs names with their number, such as 1000_Tensor_abs")
    return int(number)


def scope_of(mode: int | str, scope: str | Iterable[str] | None) -> Scope:
    """Return the scope of a mode and its entries; raise where they are not valid."""
    word = _WORDS.get(mode) if isinstance(mode, int) and not isinstance(mode, bool) else mode
    if word == "acl":
        raise SettingsError("mode 'acl' is a dump by Ascend's own runtime: use 'list' with the same names here")
    if word not in (*_WORDS.values(), "api_list", "api_stack"):
        raise SettingsError(f"mode={mode!r}: give 1 (all), 2 (list), 3 (range), 4 (stack), 'api_list' or 'api_stack'")
    entries = () if scope is None else (scope,) if isinstance(scope, str) else tuple(scope)
    if not all(isinstance(entry, str) for entry in entries):
        raise SettingsError(f"scope={scope!r}: give a list of names")
    if word in ("list", "api_list") and not entries:
        raise SettingsError(f"mode={mode!r} needs a scope: a list with at least one name")
    if word == "range" and len(entries) != 2:
        raise SettingsError(
            f"mode={mode!r} needs a scope of exactly two names, the first and the last: {list(entries)}"
        )
    if word == "stack" and len(entries) > 2:
        raise SettingsError(f"mode={mode!r} takes a scope of none, one or two names: {list(entries)}")
    if word == "range" or (word == "stack" and len(entries) == 2):
        first, last = (_number(entry) for entry in entries)
        if first > last:
            raise SettingsError(f"scope={list(entries)}: the first name's number is greater than the last's")
    return Scope(str(word), entries)
