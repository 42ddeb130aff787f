"""Follows the names in the line of a call to a value that the two runs have in two forms.

A name is an attribute of a module, then who wrote it; a field of a configuration; a parameter, then what the caller
passes or the default; or a local variable, then what was assigned to it. Nothing is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from numscope.compare.cause.changes import Change, RunningLine, change_of
from numscope.compare.cause.expressions import (
    argument,
    calls_in,
    default_of,
    dotted,
    is_bound,
    may_call,
    names_in,
    parameters,
    statement_at,
    worth,
)
from numscope.compare.cause.recorded import Frame, RecordedCall
from numscope.compare.cause.sources import UNKNOWN, Definition, Function, NamesOfBoth, Place, ProgramSources
from numscope.compare.cause.statements import conditions_around

_DEEPEST = 12  # links that are followed
_MOST_NAMES = 64  # that are followed
_NEAR = 1e-6  # relative: two numbers this near are one


def followed(target: ProgramSources, reference: ProgramSources, call: RecordedCall, other: RecordedCall) -> list[str]:
    """Return the links from a call's line to a value that differs, for the first name that leads to one."""
    return _Follow(target, reference, call, other).links()


def conditions_followed(target: ProgramSources, reference: ProgramSources, lone: RecordedCall, who: str) -> list[str]:
    """Return the links from the conditions under which a call of one side alone runs to a value that differs."""
    if who == "target":
        return _Follow(target, reference, lone, _twin(lone, target, reference)).links_of_conditions()
    return _Follow(target, reference, _twin(lone, reference, target), lone).links_of_conditions()


def module_followed(target: ProgramSources, reference: ProgramSources, modules: Sequence[str]) -> list[str]:
    """Return the links of the first module, of some paths, that is of another class: who made it, and from what."""
    for path in modules:
        kinds = NamesOfBoth(target.class_of(path), reference.class_of(path))
        if path and all(kinds) and kinds.target != kinds.reference:
            empty = RecordedCall("", None, (), tuple(modules))
            return _Follow(target, reference, empty, empty).links_of_module(path, kinds)
    return []


def optimizer_followed(target: ProgramSources, reference: ProgramSources, name: str) -> Iterator[str]:
    """Yield the links from an optimizer's step to an attribute that the two runs have in two forms, and what reads it."""
    own, other = target.optimizer_values(name), reference.optimizer_values(name)
    step = next((method for method in target.methods(name) if method.node.name == "step"), None)
    if step is None:
        return
    for attribute in own.keys() & other.keys():
        if _equal(own[attribute], other[attribute]):
            continue
        readers = [
            node
            for node in ast.walk(step.node)
            if isinstance(node, ast.stmt) and ("self", attribute) in names_in(getattr(node, "test", node))
        ]
        if not readers:
            continue
        reader = readers[-1]  # the innermost
        if isinstance(reader, ast.If):
            told = f"{step.place(reader)} `if {step.code(reader.test)}`"
            ways = [_way(reader, attribute, values[attribute]) for values in (own, other)]
            if ways[0] and ways[1] and ways[0] is not ways[1]:
                first, second = ways[0][0], ways[1][0]
                told = f"{step.place(first)} `{step.code(first)}` (`{step.code(second)}` in the reference)"
        else:
            told = f"{step.place(reader)} `{step.code(reader)}`"
        values = f"self.{attribute}={value_text(own[attribute])} ({value_text(other[attribute])} in the reference)"
        yield told
        yield values
        return


def _way(branch: ast.If, attribute: str, value: object) -> list[ast.stmt]:
    """Return the statements of an `if` that run where it asks for an attribute's value, none where that is not known."""
    test, way = branch.test, None
    if dotted(test) == ("self", attribute):
        way = bool(value)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and dotted(test.left) == ("self", attribute):
        asked = worth(test.comparators[0], lambda _: UNKNOWN)
        if asked is not UNKNOWN and isinstance(test.ops[0], (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
            way = _equal(value, asked) == isinstance(test.ops[0], (ast.Eq, ast.Is))
    return [] if way is None else branch.body if way else branch.orelse


def _twin(call: RecordedCall, own: ProgramSources, others: ProgramSources) -> RecordedCall:
    """Return a call that one side alone has as if the other had it: each frame in the other's form of its function."""
    frames = []
    for frame in call.frames:
        mine = own.around(frame.place)
        theirs = others.like(mine) if mine is not None else None
        if theirs is None:
            continue
        same = [one for one in ast.walk(theirs.node) if isinstance(one, ast.stmt) and theirs.code(one) == frame.code]
        frames.append(Frame(theirs.place(same[0] if same else None), frame.function, frame.code))
    return RecordedCall(call.name, None, tuple(frames), call.modules)


def value_text(value: object) -> str:
    """Return a value as a chain shows it."""
    if isinstance(value, float):
        return f"{value:.8g}"
    return repr(value) if isinstance(value, (str, int, bool, list, dict, type(None))) else "not given"


@dataclass(frozen=True)
class _Scope:
    """A function of the target that an expression stands in, with the reference's counterpart."""

    depth: int  # frames from the innermost one; -1 in a constructor, which is on no stack
    target: Definition
    reference: Definition | None
    modules: NamesOfBoth  # the paths of `self`


class _Follow:
    """Follows the names in the line of a call to a value that the two runs have in two forms."""

    def __init__(
        self, target: ProgramSources, reference: ProgramSources, call: RecordedCall, other: RecordedCall
    ) -> None:
        self.target, self.reference = target, reference
        self.call, self.other = call, other
        self.followed: set[tuple[int, tuple[str, ...], str]] = set()
        self.unresolved: list[str] = []  # the first call that passes what could not be followed further

    def links(self) -> list[str]:
        """Return the links of the first name that leads to a difference."""
        scope = self._scope(0)
        if scope is None:
            return []
        statement = statement_at(scope.target, self.call.frames[-1].place.line)
        found = self._explore(statement, scope) if statement is not None else None
        asked = self.call.arguments != self.other.arguments
        return found or (self.unresolved if asked else [])

    def links_of_conditions(self) -> list[str]:
        """Return the links of the first name, in the conditions around the call's lines, that leads to a difference.

        `call` and `other` are one call and its twin; outside of the functions that both runs were in, nothing is asked.
        """
        for depth in range(min(len(self.call.frames), len(self.other.frames))):
            scope = self._scope(depth)
            if scope is None or scope.reference is None:
                continue
            places = (one.frames[-1 - depth].place for one in (self.call, self.other))
            for definition, place in zip((scope.target, scope.reference), places):
                for test in conditions_around(definition, place.line):
                    if found := self._explore(test, scope):
                        return [f"{definition.place(test)} `{definition.code(test)}`", *found]
        return []

    def links_of_module(self, path: str, kinds: NamesOfBoth) -> list[str]:
        """Return the links from a module that is of another class to what the constructor around it was given."""
        link = f"{path} is a {kinds.target} (a {kinds.reference} in the reference)"
        around, _, name = path.rpartition(".")
        while name.isdecimal():  # of a list or a sequence: that is what the attribute names
            around, _, name = around.rpartition(".")
        own = _making(self.target, around, name, kinds.target)
        other = _making(self.reference, around, name, kinds.reference)
        if own is None:
            return [link]
        method, statement, right = own
        told = f"{method.place(statement)} `{method.code(statement)}`"
        if other is not None and other.method.code(other.statement) != method.code(statement):
            there = other.method.place(other.statement)
            told += f" (`{other.method.code(other.statement)}`, {there}, in the reference)"
        scope = _Scope(-1, method, other.method if other is not None else None, NamesOfBoth(around, around))
        classes = NamesOfBoth(self.target.class_of(around), self.reference.class_of(around))
        tests = conditions_around(method, method.place(statement).line)
        further = next((found for one in (right, *tests) if (found := self._of_constructor(one, scope, classes))), [])
        return [link, told, *further]

    def _scope(self, depth: int) -> _Scope | None:
        """Return the scope of a frame, counted from the innermost one."""
        frames, others = self.call.frames, self.other.frames
        if depth >= len(frames):
            return None
        own = self.target.around(frames[-1 - depth].place)
        if own is None:
            return None
        # At the use itself the reference may run another function; further out, only the same one says the same.
        same = depth < len(others) and (depth == 0 or others[-1 - depth].function == frames[-1 - depth].function)
        theirs = self.reference.around(others[-1 - depth].place) if same else None
        modules = NamesOfBoth(self._module_of(self.call, depth), self._module_of(self.other, depth))
        return _Scope(depth, own, theirs, modules)

    @staticmethod
    def _module_of(call: RecordedCall, depth: int) -> str:
        """Return the module whose method a frame is in: one module further out for each `forward` on the way."""
        inner = sum(frame.function == "forward" for frame in call.frames[len(call.frames) - depth :])
        return call.modules[min(inner, len(call.modules) - 1)] if call.modules else ""

    # Names --------------------------------------------------------------------------------------------------------------

    def _explore(self, node: ast.AST, scope: _Scope) -> list[str] | None:
        for name in names_in(node):
            key = (scope.depth, name, scope.target.node.name)
            if key in self.followed or len(self.followed) > _MOST_NAMES:
                continue
            self.followed.add(key)
            found = self._name(name, scope)
            if found:
                return found[:_DEEPEST]
        return None

    def _name(self, name: tuple[str, ...], scope: _Scope) -> list[str] | None:
        function = scope.target.node
        if name[0] == "self" and len(name) > 1:
            return self._attribute(name[1:], scope)
        if isinstance(function, Function) and name[0] in parameters(function, bound=False):
            if len(name) == 2:
                return self._configured(name, scope)
            return self._parameter(name[0], scope) if len(name) == 1 else None
        if len(name) == 1:
            for value in _assigned(function, name):
                if found := self._explore(value, scope):
                    return found
            return self._constant(name[0], scope)
        return self._configured(name, scope) if len(name) == 2 else None

    def _attribute(self, names: tuple[str, ...], scope: _Scope) -> list[str] | None:
        own = self.target.value(scope.modules.target, names)
        other = self.reference.value(scope.modules.reference, names)
        if own is UNKNOWN or other is UNKNOWN or _equal(own, other):
            return None
        text = ".".join(("self", *names))
        link = f"{text}={value_text(own)} ({value_text(other)} in the reference)"
        return [link, *self._written(names[0], own, scope.modules)] if len(names) == 1 else [link]

    def _configured(self, name: tuple[str, ...], scope: _Scope) -> list[str] | None:
        own = self.target.configured(scope.modules.target, name[-1])
        other = self.reference.configured(scope.modules.reference, name[-1])
        if own is UNKNOWN or other is UNKNOWN or _equal(own, other):
            return None
        return [f"{'.'.join(name)}={value_text(own)} ({value_text(other)} in the reference)"]

    def _constant(self, name: str, scope: _Scope) -> list[str] | None:
        own = self.target.constants.get((scope.target.file, name))
        other = self.reference.constants.get((scope.reference.file, name)) if scope.reference is not None else None
        if own is None or other is None or _equal(own.value, other.value):
            return None
        return [f"{name}={value_text(own.value)} ({value_text(other.value)} in the reference), {own.place}"]

    # Parameters of functions on the stack ---------------------------------------------------------------------------------

    def _parameter(self, name: str, scope: _Scope) -> list[str] | None:
        outer = self._scope(scope.depth + 1) if scope.depth >= 0 else None
        if outer is None or scope.reference is None or not isinstance(scope.reference.node, Function):
            return None
        if name not in parameters(scope.reference.node, bound=False):
            return None
        caller = scope.depth + 2  # counted from the innermost frame
        if outer.reference is None or caller > min(len(self.call.frames), len(self.other.frames)):
            return None  # the two calls need not be as deep
        place, place_r = self.call.frames[-caller].place, self.other.frames[-caller].place
        given = _given(outer.target, place.line, scope.target, name)
        given_r = _given(outer.reference, place_r.line, scope.reference, name)
        if given is None or given_r is None:
            return None
        return self._bound(name, scope, (given, given_r), outer)

    def _bound(self, name: str, scope: _Scope, given: tuple[_Given, _Given], outer: _Scope | None) -> list[str] | None:
        """Return the links of an argument that two calls pass, or do not."""
        own, other = given
        if own.value is None and other.value is None:
            return _defaults(name, scope)
        if own.value is None or other.value is None:
            passes, fails = (other, own) if own.value is None else (own, other)
            side = "" if own.value is None else " of the reference"
            return [f"{fails.place} `{fails.code}`{side} does not pass {name}; {passes.place} `{passes.code}` does"]
        value, value_r = worth(own.value, lambda _: UNKNOWN), worth(other.value, lambda _: UNKNOWN)
        if value is not UNKNOWN and value_r is not UNKNOWN:
            if _equal(value, value_r):
                return None
            return [
                f"{name}={value_text(value)} ({value_text(value_r)} in the reference)",
                f"{own.place} `{own.code}`",
            ]
        text, text_r = ast.unparse(own.value), ast.unparse(other.value)
        if text == text_r and not self.unresolved:
            self.unresolved = [f"{own.place} `{own.code}`"]
        further = self._explore(own.value, outer) if outer is not None else None
        if further:
            return [f"{own.place} `{own.code}`", *further]
        return [f"{name}={text} ({text_r} in the reference), {own.place}"] if text != text_r else None

    # Attributes: who wrote them -------------------------------------------------------------------------------------------

    def _written(self, name: str, value: object, modules: NamesOfBoth) -> list[str]:
        kinds = NamesOfBoth(self.target.class_of(modules.target), self.reference.class_of(modules.reference))

        def lookup(names: tuple[str, ...]) -> object:
            if names[0] == "self":
                return self.target.value(modules.target, names[1:])
            return self.target.configured(modules.target, names[-1]) if len(names) == 2 else UNKNOWN

        others = {
            method.name.rpartition(".")[2]: method for method in list(self.reference.methods(kinds.reference))[::-1]
        }
        writers = [
            _Writer(method, others.get(method.node.name), statement, right, worth(right, lookup))
            for method in self.target.methods(kinds.target)
            for statement, right in _assignments(method.node, ("self", name))
        ]
        writers = [one for one in writers if one.value is UNKNOWN or _holds(value, one.value)]
        # The one that gives the value, or that does not do what the reference's does; else the first.
        for writer in sorted(writers, key=lambda one: (one.value is UNKNOWN, one.change is None)):
            link = f"{writer.method.place(writer.statement)} `{writer.method.code(writer.statement)}`"
            scope = _Scope(-1, writer.method, writer.other, modules)
            further = self._of_constructor(writer.right, scope, kinds)
            if writer.value is UNKNOWN and writer.change is not None and not further:
                return [link, writer.change.link]
            return [link, *further]
        for function in self.target.functions():  # set by the script, after the module was made
            for statement, right in _assignments(function.node, ("*", name)):
                if _equal(worth(right, lambda _: UNKNOWN), value):
                    return [f"{function.place(statement)} `{function.code(statement)}`"]
        return []

    def _of_constructor(self, right: ast.expr, scope: _Scope, kinds: NamesOfBoth) -> list[str]:
        """Return the links from an expression in a constructor to what the constructor was given."""
        for name in names_in(right):
            key = (-2, name, scope.target.node.name)
            if key in self.followed:
                continue
            self.followed.add(key)
            if name[0] == "self" and len(name) > 1:
                if found := self._attribute(name[1:], scope):
                    return found
            elif len(name) == 2 and (found := self._configured(name, scope)):
                return found
            elif len(name) == 1 and isinstance(scope.target.node, Function):
                is_given = name[0] in parameters(scope.target.node, bound=True)
                if is_given and (found := self._constructed(name[0], scope, kinds)):
                    return found
                for value in _assigned(scope.target.node, name):
                    if found := self._of_constructor(value, scope, kinds):
                        return found
        return []

    def _constructed(self, name: str, scope: _Scope, kinds: NamesOfBoth) -> list[str] | None:
        """Return the links from a constructor's parameter to the call that made the module."""
        if scope.reference is None or len(self.followed) > _MOST_NAMES:
            return None
        self.followed.add((-1, (name,), ".".join(kinds)))
        own = _constructing(self.target, kinds.target, scope.modules.target)
        other = _constructing(self.reference, kinds.reference, scope.modules.reference)
        if own is None or other is None:
            return _defaults(name, scope)
        given = _Given.of(own.definition, own.call, scope.target, name)
        given_r = _Given.of(other.definition, other.call, scope.reference, name)
        outer = _Scope(-1, own.definition, other.definition, NamesOfBoth(own.module, other.module))
        found = self._bound(name, scope, (given, given_r), None)
        if found is not None or given.value is None:
            return found
        around = NamesOfBoth(self.target.class_of(own.module), self.reference.class_of(other.module))
        further = self._of_constructor(given.value, outer, around)
        return [f"{given.place} `{given.code}`", *further] if further else None


@dataclass(frozen=True)
class _Given:
    """The expression that a call passes for a parameter."""

    value: ast.expr | None
    place: Place
    code: str

    @staticmethod
    def of(caller: Definition, call: ast.Call, callee: Definition, name: str) -> _Given:
        assert isinstance(callee.node, Function)
        bound = is_bound(callee.node)
        return _Given(argument(call, callee.node, name, bound), caller.place(call), caller.code(call))


def _given(caller: Definition, line: int, callee: Definition, name: str) -> _Given | None:
    """Return what the call of a function, in a line of its caller, passes for a parameter."""
    statement = statement_at(caller, line)
    if not isinstance(callee.node, Function):
        return None
    if statement is None:  # a twin, whose line is not known
        calls = list(calls_in(caller.node, callee.node.name))
        return _Given.of(caller, calls[0], callee, name) if len(calls) == 1 else None
    calls = list(calls_in(statement, callee.node.name))
    if not calls:  # called by another name: a module, a constructor, a function that is held under a name
        calls = [one for one in ast.walk(statement) if isinstance(one, ast.Call) and may_call(one, callee.node)]
    passing = [one for one in calls if any(keyword.arg == name for keyword in one.keywords)]
    calls = sorted(
        passing or calls, key=lambda one: (line != one.lineno + caller.offset, -len(one.args) - len(one.keywords))
    )
    if not calls or (not passing and any(keyword.arg is None for keyword in calls[0].keywords)):
        return None
    return _Given.of(caller, calls[0], callee, name)


def _defaults(name: str, scope: _Scope) -> list[str] | None:
    """Return the link of a parameter that nobody passes, where its two defaults differ."""
    own, other = scope.target, scope.reference
    value, value_r = _default(own, name), _default(other, name)
    if other is None or value is UNKNOWN or value_r is UNKNOWN or _equal(value, value_r):
        return None
    return [
        f"{name}={value_text(value)}, the default of {own.node.name}, {own.place()} "
        f"({value_text(value_r)} of {other.node.name}, {other.place()}, in the reference)"
    ]


def _default(definition: Definition | None, name: str) -> object:
    """Return the value of a parameter's default, where it has one that can be told."""
    found = default_of(definition.node, name) if definition and isinstance(definition.node, Function) else None
    return worth(found, lambda _: UNKNOWN) if found is not None else UNKNOWN


@dataclass(frozen=True)
class _Constructing:
    """A call that makes a module, in a function of the module around it or of the script."""

    definition: Definition
    call: ast.Call
    module: str


class _Assignment(NamedTuple):
    """An assignment to an attribute, in a method."""

    method: Definition
    statement: ast.stmt
    value: ast.expr


def _making(sources: ProgramSources, around: str, attribute: str, kind: str) -> _Assignment | None:
    """Return the assignment that gave a module to the one around it: one that names its class, or the last."""
    every = [
        _Assignment(method, statement, right)
        for method in sources.methods(sources.class_of(around))
        for statement, right in _assignments(method.node, ("self", attribute))
    ]
    named = [one for one in every if next(calls_in(one.value, kind), None) is not None]
    return named[-1] if named else every[-1] if every else None


def _constructing(sources: ProgramSources, name: str, path: str) -> _Constructing | None:
    parts = path.split(".") if path else []
    for count in range(len(parts) - 1, -1, -1):
        around = ".".join(parts[:count])
        for method in sources.methods(sources.class_of(around)):
            for call in calls_in(method.node, name):
                return _Constructing(method, call, around)
    for function in sources.functions():
        for call in calls_in(function.node, name):
            return _Constructing(function, call, "")
    return None


def _assigned(function: ast.AST, name: tuple[str, ...]) -> list[ast.expr]:
    """Return the expressions that a function assigns to a name, the last first."""
    return [right for _, right in _assignments(function, name)][::-1]


class _Writer(NamedTuple):
    """A statement, in a method of a module's class, that writes an attribute."""

    method: Definition
    other: Definition | None  # the reference's form of the method
    statement: ast.stmt
    right: ast.expr
    value: object

    @property
    def change(self) -> Change | None:
        """How the reference's method differs, where that matters for the statement."""
        if self.other is None:
            return None
        change = change_of(
            self.method, self.other, RunningLine(self.method, self.method.place(self.statement).line, True)
        )
        return change if change is not None and change.feeds else None


def _assignments(function: ast.AST, name: tuple[str, ...]) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """Yield the statements that assign to a dotted name; `*` stands for whatever is before an attribute."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            targets: Sequence[ast.expr] = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            targets = [node.target]
        else:
            continue
        for target in targets:
            for one, right in _parts(target, node.value):
                holder = one.value if isinstance(one, ast.Subscript) else one  # `self.scaling[name] = …`
                fits = (
                    dotted(holder)[1:] and dotted(holder)[-1:] == name[1:] if name[0] == "*" else dotted(holder) == name
                )
                if fits and right is not None:
                    yield node, right


def _parts(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield each target of an assignment with its value: `a, b = 1, 2` has two."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
        return
    values: Sequence[ast.expr | None] = [value] * len(target.elts)
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        values = value.elts
    yield from zip(target.elts, values, strict=True)


def _holds(value: object, part: object) -> bool:
    """Return whether an attribute that has a value may have got it from a part of it."""
    return _equal(value, part) or (isinstance(value, dict) and any(_equal(one, part) for one in value.values()))


def _equal(one: object, other: object) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) <= _NEAR * max(abs(one), abs(other))
    return one == other
