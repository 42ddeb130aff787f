"""Interprets a pickle program without importing or running anything that it names.

Pickle is a stack machine. Its instructions that build containers and plain values are done here; a name that the program
gives is looked up in a closed table of functions of ours, or stands for a record without behaviour. Anything else is an
error. A long string of bytes can be left in its file: `Span` says where it lies.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from numscope.core.errors import RunError
from numscope.core.untrusted import shown

Callables = Mapping[tuple[str, str], Callable[..., object]]


@dataclass(frozen=True)
class Name:
    """A global that a pickle program names: looked up in a table, never imported."""

    module: str
    name: str

    def __repr__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Record:
    """An object of a class that a program names: its arguments and its state, without behaviour."""

    kind: Name
    arguments: tuple[object, ...] = ()
    state: object = None

    def get(self, name: str, default: object = None) -> Any:  # a foreign object's attribute
        """Return an attribute that the program gives the object."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default


@dataclass(frozen=True)
class Span:
    """A string of bytes that was left in its file."""

    offset: int
    length: int

    def __len__(self) -> int:
        return self.length


class SpanReader(io.RawIOBase):
    """A file to interpret, whose strings of more than a megabyte are left where they lie."""

    _LONG = 1 << 20

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._size = file, size

    def read(self, size: int = -1) -> Any:  # bytes, or where they are
        """Return bytes, or the place of a long string of them."""
        if size <= self._LONG:
            return self._file.read(size)
        offset = self._file.tell()
        self._file.seek(min(size, self._size - offset), io.SEEK_CUR)
        return Span(offset, min(size, self._size - offset))

    def readline(self, size: int | None = -1) -> bytes:
        """Return a line."""
        return self._file.readline(self._LONG)

    def tell(self) -> int:
        """Return the position."""
        return self._file.tell()


class Forbidden(Exception):
    """A program names something that is no tensor, container or plain value."""


@dataclass
class Rules:
    """Permitted names, and their meaning."""

    callables: Callables
    is_value: Callable[[str, str], bool]  # a name that stands for itself, such as a dtype
    is_record: Callable[[str, str], bool] = field(default=lambda module, name: False)
    persistent: Callable[[object], object] | None = None  # the meaning of a persistent id
    cure: str = "if you trust whoever made it, pass --trust-pickle"


def interpret(program: bytes | IO[bytes], rules: Rules, path: Path | str) -> object:
    """Run a pickle program over the closed list of allowed instructions and names."""
    machine = _Machine(rules)
    try:
        for operation, argument, _ in pickletools.genops(program):
            if operation.name == "STOP":
                return machine.stack.pop()
            machine.step(operation.name, argument)
    except Forbidden as word:
        raise RunError(f"{path} names {shown(str(word))}, which is no tensor or plain value: {rules.cure}") from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}): copy it again from where it was made") from error
    raise RunError(f"{path} is cut off: copy it again from where it was made")


_MARK = object()
_CONSTANTS: dict[str, object] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_LITERALS = set(
    """
    BININT BININT1 BININT2 LONG1 LONG4 INT LONG BINFLOAT FLOAT BINUNICODE SHORT_BINUNICODE BINUNICODE8 UNICODE
    BINBYTES SHORT_BINBYTES BINBYTES8 BINSTRING SHORT_BINSTRING
    """.split()
)


class _Machine:
    """The stack machine of pickle, without the instructions that import or run."""

    def __init__(self, rules: Rules) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._rules = rules

    def step(self, name: str, argument: object) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_SET":
            stack.append(set())
        elif name == "ADDITEMS":
            items = self._to_mark()
            stack[-1].update(map(_key, items))
        elif name == "POP":
            stack.pop()
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._to_mark()
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _dictionary(items))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            items = stack[-count:]
            del stack[-count:]
            stack.append(tuple(items))
        elif name in ("APPEND", "APPENDS"):
            items = self._to_mark() if name == "APPENDS" else [stack.pop()]
            stack[-1].extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._to_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            stack[-1].update(_dictionary(items))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(str(argument))] = stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self._memo[int(str(argument))])
        elif name == "BINPERSID":
            if self._rules.persistent is None:
                raise Forbidden("an object of another file")
            stack.append(self._rules.persistent(stack.pop()))
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            parts = str(argument).split(" ", 1) if name == "GLOBAL" else [stack.pop(-2), stack.pop()]
            stack.append(self._named(*parts))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._call(function, tuple(arguments)))
        elif name == "BUILD":
            state = stack.pop()
            if isinstance(stack[-1], Record):
                stack[-1].state = state
        else:
            raise Forbidden(f"the instruction {name}")

    def _call(self, function: object, arguments: tuple[object, ...]) -> object:
        if not isinstance(function, Name):
            raise Forbidden(repr(function))
        call = self._rules.callables.get((function.module, function.name))
        if call is not None:
            return call(*arguments)
        if self._rules.is_record(function.module, function.name):
            return Record(function, arguments)
        raise Forbidden(repr(function))

    def _named(self, module: str, name: str) -> Name:
        rules = self._rules
        if (module, name) in rules.callables or rules.is_value(module, name) or rules.is_record(module, name):
            return Name(module, name)
        raise Forbidden(f"{module}.{name}")

    def _to_mark(self) -> list[object]:
        """Pop the values above the last mark, and the mark."""
        mark = next(i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK)
        items = self.stack[mark + 1 :]
        del self.stack[mark:]
        return items


def _dictionary(items: list[object]) -> dict[object, object]:
    return dict(zip(map(_key, items[::2]), items[1::2]))


def _key(value: object) -> object:
    """Return a key after making sure that to hash it takes no time: tuples in tuples may stand for a great many."""
    if isinstance(value, tuple) and any(isinstance(part, tuple) for part in value):
        raise ValueError("a key is nested")
    return value
