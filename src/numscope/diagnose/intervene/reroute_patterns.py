"""The patterns of a reroute, which are those of a scope: operators and modules, by the names that a report prints.

    gelu, Functional.gelu, Functional.gelu.*, Functional.gelu.2.forward    an operator
    blocks.3.attn, blocks.*.attn, Module.blocks.3.attn.Attention.forward.0  modules, by path
    /linear|gelu/                                                          a regular expression, searched in the names

The number of a call is not looked at: all calls of an operator are rerouted.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Iterable

from numscope.core.errors import SettingsError
from numscope.core.names import parse_call, split_tensor

_MARKS = "*?["
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MOST_NEAR = 3


class Pattern:
    """A pattern that is known to match only when something is called."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._plain = _without_slot(text)
        self._glob: re.Pattern[str] | None = None
        self._search: re.Pattern[str] | None = None
        if len(text) > 2 and text.startswith("/") and text.endswith("/"):
            try:
                self._search = re.compile(text[1:-1])
            except re.error as error:
                raise SettingsError(f"to_cpu({text!r}) is no regular expression: {error}") from None
        elif any(mark in text for mark in _MARKS):
            self._glob = re.compile(fnmatch.translate(text))
        parts = parse_call(self._plain)
        self._path = parts.path if parts is not None and parts.prefix == "Module" else self._plain
        self._head = self._plain if parts is None else f"{parts.prefix}.{parts.op}"

    def matches_operator(self, head: str) -> bool:
        """Tell whether an operator is meant; `head` is the name of its calls without number and phase."""
        if self._search is not None:
            return self._search.search(f"{head}.0.forward") is not None
        _, _, op = head.partition(".")
        if self._glob is not None:
            numbered = re.compile(fnmatch.translate(_NUMBER.sub("0", self.text)))
            return any(numbered.match(name) for name in (head, op, f"{head}.0.forward", f"{head}.0.backward"))
        return self._head in (head, op)

    def matches_module(self, path: str, class_name: str) -> bool:
        """Tell whether a module is meant."""
        if self._search is None and self._glob is None:
            return bool(path) and path == self._path
        name = f"Module.{path}.{class_name}.forward.0" if path else f"Module.{class_name}.forward.0"
        if self._search is not None:
            return self._search.search(name) is not None
        assert self._glob is not None
        return bool(path) and bool(self._glob.match(path) or self._glob.match(name))


def nearest(text: str, names: Iterable[str]) -> str:
    """Return a hint at the names that are most like a pattern; empty where there are none."""
    wanted = text.strip("/" + _MARKS + "]").lower()
    by_word: dict[str, str] = {}
    for name in sorted(names):
        by_word.setdefault(name.lower(), name)
        by_word.setdefault(name.rpartition(".")[2].lower(), name)
    found = difflib.get_close_matches(wanted, by_word, _MOST_NEAR, 0.5)
    near = list(dict.fromkeys(by_word[word] for word in found))
    return f"; nearest are {', '.join(near)}" if near else ""


def _without_slot(text: str) -> str:
    """Return a call's name of a tensor's name: what is printed may be copied whole."""
    parts = split_tensor(text)
    return parts[0] if parts is not None else text
