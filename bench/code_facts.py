"""Measure a source tree: how large its folders are, how its modules depend on each other, how far it is typed.

python -m bench.code_facts 0.1.0=../before/src now=src

prints a table in Markdown with a column for each tree. Imports count wherever they stand: at the top of a module, in a
function, or under `TYPE_CHECKING`. Nothing of the tree is executed.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CROWDED = 15  # modules: a folder with more is hard to take in
Graph = dict[str, set[str]]  # module → the modules of the tree that it imports


@dataclass(frozen=True)
class Module:
    """A parsed module of a source tree."""

    name: str
    path: Path
    tree: ast.Module
    text: str


@dataclass(frozen=True)
class Tree:
    """A source tree."""

    modules: tuple[Module, ...]
    native: tuple[Path, ...]  # sources in C and C++
    imports: Graph

    @property
    def sizes(self) -> Counter[Path]:
        """The number of modules in each folder, without `__init__`."""
        return Counter(module.path.parent for module in self.modules if module.path.stem != "__init__")

    def nodes(self) -> Iterator[ast.AST]:
        """Yield the syntax nodes of all modules."""
        for module in self.modules:
            yield from ast.walk(module.tree)


def read(root: Path) -> Tree:
    """Return the source tree below a folder that holds packages."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(text, str(path)), text))
    names = {module.name for module in found}
    native = tuple(path for path in sorted(root.rglob("*")) if path.suffix in (".c", ".cpp", ".h", ".hpp"))
    return Tree(tuple(found), native, {module.name: imported(module, names) for module in found})


def imported(module: Module, names: set[str]) -> set[str]:
    """Return the modules, of those named, that a module imports."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
    return (found & names) - {module.name}


def cycles(graph: Graph) -> list[set[str]]:
    """Return the sets of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], index[other])
        if lowest[name] == index[name]:
            members = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
            if len(members) > 1:
                found.append(members)

    for name in graph:
        if name not in index:
            visit(name)
    return found


def longest_chain(graph: Graph) -> int:
    """Return the number of modules on the longest chain of imports; imports within a cycle do not count."""
    home = {name: number for number, members in enumerate(cycles(graph)) for name in members}
    lengths: dict[str, int] = {}

    def length(name: str) -> int:
        if name not in lengths:
            own = home.get(name, -1)
            outside = [other for other in graph[name] if own < 0 or home.get(other, -1) != own]
            lengths[name] = 1 + max(map(length, outside), default=0)
        return lengths[name]

    return max(map(length, graph), default=0)


def lines(paths: Iterator[Path]) -> int:
    """Return the number of lines of files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def is_any(annotation: ast.expr | None) -> bool:
    """Tell whether `Any` is part of an annotation."""
    return annotation is not None and any(
        isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation)
    )


def any_parameters(tree: Tree) -> int:
    """Return how many parameters are typed with `Any`."""
    found = 0
    for node in tree.nodes():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            several = [one for one in (given.vararg, given.kwarg) if one is not None]
            listed = [*given.posonlyargs, *given.args, *given.kwonlyargs, *several]
            found += sum(is_any(parameter.annotation) for parameter in listed)
    return found


def numeric_subscripts(tree: Tree) -> int:
    """Return how many subscripts are a number from 1 on: most of them read a record by position.

    Those of a shape and of a text's parts (`partition`, `split`) do not: these have no names.
    """
    return sum(
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
        and node.slice.value >= 1
        and not _has_no_names(node.value)
        for node in tree.nodes()
    )


def _has_no_names(value: ast.expr) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in ("partition", "rpartition", "split", "rsplit")
    return isinstance(value, ast.Attribute) and value.attr == "shape"


def largest_folder(tree: Tree) -> str:
    """Return the folder with the most modules, and their number."""
    ((folder, count),) = tree.sizes.most_common(1)
    return f"{count} ({folder.name})"


FACTS: Mapping[str, Callable[[Tree], int | str]] = {
    "modules": lambda tree: len(tree.modules),
    "lines of Python": lambda tree: lines(module.path for module in tree.modules),
    "lines of C and C++": lambda tree: lines(iter(tree.native)),
    "modules in the largest folder": largest_folder,
    f"folders of more than {CROWDED} modules": lambda tree: sum(count > CROWDED for count in tree.sizes.values()),
    "longest chain of imports": lambda tree: longest_chain(tree.imports),
    "modules in an import cycle": lambda tree: sum(map(len, cycles(tree.imports))),
    "parameters typed `Any`": any_parameters,
    "subscripts by a number from 1 on": numeric_subscripts,
    "`# fmt: skip`": lambda tree: sum(module.text.count("# fmt: skip") for module in tree.modules),
}


def table(trees: Mapping[str, Tree]) -> str:
    """Return the facts of source trees as a table in Markdown, a column for each."""
    rows = [["", *trees], ["---"] * (len(trees) + 1)]
    for name, fact in FACTS.items():
        values = [fact(tree) for tree in trees.values()]
        rows.append([name, *(f"{value:,}" if isinstance(value, int) else value for value in values)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)  # a chain of imports is followed by recursion
    given = [argument.rpartition("=") for argument in sys.argv[1:] or ["src"]]
    print(table({label or folder: read(Path(folder)) for label, _, folder in given}), end="")
