"""Reads expressions of recorded source: what they name, what they are worth, and which arguments a call is given."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator

from numscope.compare.cause.sources import UNKNOWN, Definition, Function

Lookup = Callable[[tuple[str, ...]], object]
_BINARY: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def statement_at(function: Definition, line: int) -> ast.stmt | None:
    """Return the innermost statement of a function on a line of its file."""
    own = line - function.offset
    found = [
        node
        for node in ast.walk(function.node)
        if isinstance(node, ast.stmt) and node is not function.node and node.lineno <= own <= (node.end_lineno or 0)
    ]
    return min(found, key=lambda node: ((node.end_lineno or 0) - node.lineno, -node.lineno), default=None)


def dotted(node: ast.AST) -> tuple[str, ...]:
    """Return `self.config.eps` as its names, () for anything but a dotted name."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return (*inner, node.attr) if inner else ()
    return ()


def names_in(node: ast.AST) -> list[tuple[str, ...]]:
    """Return the dotted names that an expression or statement reads, but for the functions that it calls."""
    found: list[tuple[str, ...]] = []

    def visit(one: ast.AST) -> None:
        name = dotted(one)
        if name:
            if isinstance(getattr(one, "ctx", None), ast.Load):
                found.append(name)
            return
        for child in ast.iter_child_nodes(one):
            if isinstance(one, ast.Call) and child is one.func and dotted(child):
                if isinstance(child, ast.Attribute):
                    visit(child.value)
                continue
            visit(child)

    visit(node)
    return list(dict.fromkeys(found))


def calls_in(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a function or class by its last name."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and (dotted(one.func) or ("",))[-1] == name:
            yield one


def parameters(function: Function, bound: bool) -> list[str]:
    """Return the names of a function's parameters, without `self` of a bound one."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    return [*(names[1:] if bound else names), *(one.arg for one in function.args.kwonlyargs)]


def may_call(call: ast.Call, function: Function) -> bool:
    """Return whether a function can take what a call passes."""
    named = parameters(function, bound=False)
    takes_more = function.args.kwarg is not None
    fits = all(keyword.arg is None or keyword.arg in named or takes_more for keyword in call.keywords)
    return fits and (
        len(call.args) <= len(parameters(function, is_bound(function))) or function.args.vararg is not None
    )


def argument(call: ast.Call, function: Function, name: str, bound: bool) -> ast.expr | None:
    """Return the expression that a call passes for a parameter, None where it passes none."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    places = [one.arg for one in (*function.args.posonlyargs, *function.args.args)][int(bound) :]
    place = places.index(name) if name in places else len(call.args)
    return call.args[place] if place < len(call.args) and not isinstance(call.args[place], ast.Starred) else None


def default_of(function: Function, name: str) -> ast.expr | None:
    """Return a parameter's default, None where it has none."""
    places = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    defaults = dict(zip(places[::-1], function.args.defaults[::-1], strict=False))
    defaults |= {
        one.arg: value for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if value
    }
    return defaults.get(name)


def is_bound(function: Function) -> bool:
    """Return whether a function takes `self`."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    return bool(names) and names[0] in ("self", "cls")


def worth(node: ast.AST, lookup: Lookup) -> object:
    """Return the value of an expression of numbers and known names, UNKNOWN for any other."""
    try:
        return _worth(node, lookup)
    except (ArithmeticError, ValueError, TypeError):
        return UNKNOWN


def _worth(node: ast.AST, lookup: Lookup) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict) and not node.keys:
        return {}
    if name := dotted(node):
        return lookup(name)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _worth(node.operand, lookup)
        return -value if isinstance(value, (int, float)) else UNKNOWN
    if isinstance(node, ast.BinOp):
        left, right = _worth(node.left, lookup), _worth(node.right, lookup)
        if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
            return UNKNOWN
        if isinstance(node.op, ast.Pow):
            return UNKNOWN if abs(right) > 64 or abs(left) > 1e9 else left**right
        return _BINARY[type(node.op)](left, right) if type(node.op) in _BINARY else UNKNOWN
    if isinstance(node, ast.Call) and dotted(node.func) == ("math", "sqrt") and len(node.args) == 1:
        value = _worth(node.args[0], lookup)
        return math.sqrt(value) if isinstance(value, (int, float)) else UNKNOWN
    return UNKNOWN
