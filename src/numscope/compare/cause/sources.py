"""The recorded program of a run: its source texts as syntax trees, and the plain attributes of its modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

from numscope.core.job_files.program import FILE, FORMAT, Program, SourceText, Value
from numscope.store.reader import Run
from numscope.store.rundir import read_document

Function = ast.FunctionDef | ast.AsyncFunctionDef
UNKNOWN = object()


class Place(NamedTuple):
    """A line of a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        name = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{name}:{self.line}"


@dataclass(frozen=True)
class Definition:
    """A class or function in a recorded source text."""

    file: str
    offset: int  # what is added to the tree's line numbers
    node: ast.ClassDef | Function
    text: str
    name: str  # with the classes and functions around it: `Attention.forward`

    @property
    def file_name(self) -> str:
        """The file without its folders, which are two where two releases lie side by side."""
        return self.file.replace("\\", "/").rpartition("/")[2]

    def place(self, node: ast.AST | None = None) -> Place:
        """Return where a node of this definition stands, or the definition itself."""
        return Place(self.file, (getattr(node, "lineno", 0) or self.node.lineno) + self.offset)

    def code(self, node: ast.AST) -> str:
        """Return the source of a node in one line."""
        return " ".join((ast.get_source_segment(self.text, node) or ast.unparse(node)).split())

    def lines(self) -> list[str]:
        """Return the definition's own lines, that of a docstring or of a comment empty: their places count."""
        lines = self.text.splitlines()[self.node.lineno - 1 : self.node.end_lineno]
        for node in ast.walk(self.node):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    lines[number - self.node.lineno] = ""
        return ["" if line.lstrip().startswith("#") else line for line in lines]


class NamesOfBoth(NamedTuple):
    """A name in each run: the path of a module, or its class."""

    target: str
    reference: str


class Constant(NamedTuple):
    """A number that a file names at its top."""

    value: object
    place: Place


class ProgramSources:
    """The recorded program of one rank of a run; empty where none was recorded."""

    def __init__(self, program: Program | None) -> None:
        self._program = program
        self.packages = program["packages"] if program else {}

    @staticmethod
    def of(run: Run, rank: int) -> ProgramSources:
        """Return the program that a run recorded."""
        document = read_document(run.path / f"rank{rank}", FILE)
        known = document is not None and document.get("format") == FORMAT
        return ProgramSources(cast(Program, document) if known else None)

    # Values -------------------------------------------------------------------------------------------------------

    def class_of(self, path: str) -> str:
        """Return the class of a module, "" where it is not known."""
        module = self._program["modules"].get(path) if self._program else None
        return module["class_name"].rpartition(":")[2].rpartition(".")[2] if module else ""

    def value(self, path: str, names: tuple[str, ...]) -> object:
        """Return what `self.a` or `self.config.a` is in a module, UNKNOWN where it was not recorded."""
        module = self._program["modules"].get(path) if self._program else None
        if module is None or not names:
            return UNKNOWN
        if len(names) == 1:
            return module["values"].get(names[0], UNKNOWN)
        number = module["objects"].get(names[0])
        if number is None or len(names) > 2:
            return UNKNOWN
        return self._objects[number].get(names[1], UNKNOWN)

    def configured(self, path: str, name: str) -> object:
        """Return the value of a field of the configuration nearest to a module: its own, or of a module around it."""
        modules = self._program["modules"] if self._program else {}
        for around in [*_around(path), *modules]:
            module = modules.get(around)
            for number in module["objects"].values() if module else ():
                if name in self._objects[number]:
                    return self._objects[number][name]
        return UNKNOWN

    def optimizer_values(self, class_name: str) -> Mapping[str, Value]:
        """Return the attributes of an optimizer that is not torch's, none where they were not recorded."""
        return self._program.get("optimizer_values", {}).get(class_name, {}) if self._program else {}

    @cached_property
    def _objects(self) -> list[Mapping[str, Value]]:
        return [one["values"] for one in self._program["objects"]] if self._program else []

    # Definitions --------------------------------------------------------------------------------------------------

    def class_named(self, name: str) -> Definition | None:
        """Return the definition of a class."""
        return next((one for one in self.definitions if one.node.name == name and _is_class(one)), None)

    def methods(self, class_name: str) -> Iterator[Definition]:
        """Yield the methods of a class and of those that it extends, the class's own first."""
        found = self.class_named(class_name)
        if found is None or not isinstance(found.node, ast.ClassDef):
            return
        for node in found.node.body:
            if isinstance(node, Function):
                yield Definition(found.file, found.offset, node, found.text, f"{found.name}.{node.name}")
        for base in found.node.bases:
            name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
            if name and name != class_name:
                yield from self.methods(name)

    def around(self, place: Place) -> Definition | None:
        """Return the innermost function that a line stands in."""
        spans = [
            one for one in self.definitions if one.file == place.file and not _is_class(one) and _holds(one, place)
        ]
        return min(spans, key=lambda one: (one.node.end_lineno or 0) - one.node.lineno, default=None)

    def functions(self) -> Iterator[Definition]:
        """Yield all recorded functions and methods."""
        return (one for one in self.definitions if not _is_class(one))

    def lines_of(self, function: Definition, code: str) -> list[Place]:
        """Return the places in a function of a line of code."""
        first = function.place().line
        lines = function.text.splitlines()[function.node.lineno - 1 : function.node.end_lineno]
        return [Place(function.file, first + count) for count, line in enumerate(lines) if line.strip() == code.strip()]

    def like(self, other: Definition) -> Definition | None:
        """Return the function that another run has under the same name in a file of the same name."""
        same = [one for one in self.functions() if one.node.name == other.node.name]
        same = [one for one in same if one.file_name == other.file_name]
        named = [one for one in same if one.name == other.name]
        return named[0] if len(named) == 1 else same[0] if len(same) == 1 else None

    @cached_property
    def definitions(self) -> list[Definition]:
        found: list[Definition] = []
        for part in self._program["sources"] if self._program else ():
            found += _definitions(part)
        return found

    @cached_property
    def constants(self) -> dict[tuple[str, str], Constant]:
        """The numbers that files name at their top, by file and name."""
        found: dict[tuple[str, str], Constant] = {}
        for part in self._program["sources"] if self._program else ():
            tree = _parsed(part["text"])
            for node in tree.body if tree else ():
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                    for name in node.targets:
                        if isinstance(name, ast.Name):
                            place = Place(part["file"], part["line"] + node.lineno - 1)
                            found[part["file"], name.id] = Constant(node.value.value, place)
        return found


def _definitions(part: SourceText) -> Iterator[Definition]:
    tree = _parsed(part["text"])
    inside: list[tuple[ast.AST, str]] = [(tree, "")] if tree else []
    while inside:
        around, prefix = inside.pop()
        for node in ast.iter_child_nodes(around):
            name = prefix
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{prefix}.{node.name}" if prefix else node.name
                yield Definition(part["file"], part["line"] - 1, node, part["text"], name)
            inside.append((node, name))


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _is_class(one: Definition) -> bool:
    return isinstance(one.node, ast.ClassDef)


def _holds(one: Definition, place: Place) -> bool:
    return one.node.lineno <= place.line - one.offset <= (one.node.end_lineno or one.node.lineno)


def _around(path: str) -> list[str]:
    """Return a module's path and those of the modules around it, the nearest first."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]
