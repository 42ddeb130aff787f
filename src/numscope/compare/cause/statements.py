"""A function as the statements that it runs: what two forms of it are held against each other by, and what feeds a line.

Docstrings, comments, annotations and line breaks are no part of that, nor is what only warns, logs or checks.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from numscope.compare.cause.expressions import dotted, names_in
from numscope.compare.cause.sources import Definition, Function

_SAYS = ("warn", "warning", "warning_once", "warn_once", "rank_zero_warn", "info", "debug", "error", "print", "log")
_SAYERS = ("logger", "logging", "warnings", "log")


@dataclass(frozen=True)
class Statement:
    """A statement that computes, or the head of one that holds others."""

    text: str  # in one form for all ways to write it
    code: str  # as it is written, in one line
    line: int  # in its file
    last: int
    writes: frozenset[str]
    reads: frozenset[str]
    tests: bool  # the head of an `if` or a loop


@cache
def statements(definition: Definition) -> tuple[Statement, ...]:
    """Return a function's parameters and statements, in order."""
    node = definition.node
    if not isinstance(node, Function):
        return ()
    return (*_parameters(definition, node), *_of_body(definition, node.body))


def feeding(definition: Definition, line: int) -> frozenset[str]:
    """Return the names that what runs on a line of a function depends on, by assignments and by the tests around it."""
    every = statements(definition)
    names = {name for one in every if one.line <= line <= one.last for name in one.reads | one.writes}
    for test in conditions_around(definition, line):
        names |= _roots(names_in(test))
    while True:
        more = {name for one in every if one.writes & names and one.line <= line for name in one.reads} - names
        if not more:
            return frozenset(names)
        names |= more


def conditions_around(definition: Definition, line: int) -> list[ast.expr]:
    """Return the conditions under which a line of a function runs, the innermost first."""
    own = line - definition.offset
    found: list[ast.expr] = []
    for node in ast.walk(definition.node):
        if not isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor)):
            continue
        if node.body[0].lineno <= own <= (node.end_lineno or 0):
            found.append(node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.test)
    return found[::-1]


def _of_body(definition: Definition, body: Sequence[ast.stmt]) -> Iterator[Statement]:
    for node in body:
        if _only_says(node):
            continue
        if isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try)):
            inner = [part for name in ("body", "handlers", "orelse", "finalbody") for part in getattr(node, name, [])]
            inner = [one for part in inner for one in (part.body if isinstance(part, ast.ExceptHandler) else [part])]
            if all(map(_only_says, inner)):
                continue
            if not isinstance(node, ast.Try):
                yield _compound(definition, node)
            yield from _of_body(definition, inner)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield _simple(definition, node)
        elif isinstance(node, Function):
            yield from _parameters(definition, node)
            yield from _of_body(definition, node.body)


def _simple(definition: Definition, node: ast.stmt) -> Statement:
    plain: ast.AST = node
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        plain = ast.Assign([node.target], node.value, lineno=node.lineno, col_offset=0)
    last = (node.end_lineno or node.lineno) + definition.offset
    writes = _roots(_written(node))
    return Statement(
        ast.unparse(plain),
        definition.code(node),
        definition.place(node).line,
        last,
        writes,
        _roots(names_in(node)),
        tests=False,
    )


def _compound(definition: Definition, node: ast.stmt) -> Statement:
    emptied = copy.copy(node)
    emptied.body = [ast.Pass()]  # type: ignore[attr-defined]
    if hasattr(emptied, "orelse"):
        emptied.orelse = []
    text = ast.unparse(emptied).removesuffix("pass").strip()
    first = definition.place(node).line
    last = max(first, node.body[0].lineno + definition.offset - 1)  # type: ignore[attr-defined]
    writes = _roots(dotted(one) for one in ast.walk(emptied) if isinstance(getattr(one, "ctx", None), ast.Store))
    return Statement(text, text, first, last, writes, _roots(names_in(emptied)), tests=True)


def _parameters(definition: Definition, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Statement]:
    """Yield a function's parameters as statements that give them their defaults."""
    arguments = node.args
    places = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(places) - len(arguments.defaults)), *arguments.defaults]
    pairs = [*zip(places, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    line = definition.place(node).line
    for parameter, default in pairs:
        name = parameter.arg
        text = name if default is None else f"{name}={ast.unparse(default)}"
        code = f"def {node.name}({text})"
        yield Statement(code, code, line, line, frozenset([name]), frozenset(), tests=False)


def _only_says(node: ast.stmt) -> bool:
    """Return whether a statement computes nothing: it documents, warns, logs, checks or passes."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.Pass, ast.Global, ast.Import, ast.ImportFrom)):
        return True
    if not isinstance(node, ast.Expr):
        return False
    if isinstance(node.value, ast.Constant):
        return True
    name = dotted(node.value.func) if isinstance(node.value, ast.Call) else ()
    return bool(name) and (name[-1] in _SAYS and (len(name) == 1 or name[0] in _SAYERS or "log" in name[-2]))


def _written(node: ast.stmt) -> Iterator[tuple[str, ...]]:
    """Yield the names that a statement assigns to, or changes in place."""
    for one in ast.walk(node):
        if isinstance(getattr(one, "ctx", None), ast.Store):
            inner = one
            while isinstance(inner, ast.Subscript):
                inner = inner.value
            yield dotted(inner)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr.endswith("_"):
            yield dotted(one.func.value)


def _roots(names: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> frozenset[str]:
    """Return local names, and attributes of self as `self.name`."""
    return frozenset(".".join(name[:2]) if name[0] == "self" else name[0] for name in names if name)
