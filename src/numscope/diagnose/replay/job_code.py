"""Finds the classes and functions of a recorded job again, without running the job.

A class of a package is imported, as by the job. A class of the script itself is taken from the script:

- A script with `if __name__ == "__main__":` is imported, under another name and with the run's arguments in `sys.argv`.
  The guard says that this is safe; `torch.multiprocessing` does the same.
- A script without a guard is never run. It is parsed, and of its top level only imports, `def`, `class`, and assignments
  whose right side calls nothing are executed. A statement that needs something else is left out.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from numscope.core.untrusted import is_own
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.replay.calls import first_line

_HARMLESS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)


@dataclass(frozen=True)
class CodeOrigin:
    """Where a class of the job comes from."""

    place: str  # a module, or the script's file
    is_imported: bool  # else only the definitions of the script were executed

    def __str__(self) -> str:
        return f"{'imported from' if self.is_imported else 'from the definitions of'} {self.place}"


class JobCode:
    """The code of one job: its script, its arguments, and what they import."""

    def __init__(self, script: str, argv: Sequence[str], run: Path | None = None) -> None:
        self._run = run
        self._check(script)
        self._script = script
        self._argv = tuple(argv)

    def find(self, name: str, file: str | None) -> object:
        """Return the class or function `package.module:Outer.Inner`, or raise CannotReplay."""
        module, _, path = name.partition(":")
        if "<locals>" in path:
            raise CannotReplay(f"{path} is defined inside a function: it can't be imported")
        found: object = self._main(file) if module in ("__main__", "__mp_main__") else self._imported(module, file)
        for part in path.split("."):
            if not hasattr(found, part):
                raise CannotReplay(f"{module if module != '__main__' else file} has no {path}{_left_out(found)}")
            found = getattr(found, part)
        return found

    def origin_of(self, name: str, file: str | None) -> CodeOrigin:
        """Return where a class comes from."""
        module = name.partition(":")[0]
        if module not in ("__main__", "__mp_main__"):
            return CodeOrigin(module, is_imported=True)
        path = file or self._script
        return CodeOrigin(Path(path).name, is_guarded(path))

    def _check(self, path: str) -> None:
        """Refuse code that came with the run, or that others can write: a stranger's run executes nothing of a stranger's."""
        if not path or not Path(path).exists():
            return
        if self._run is not None and self._run.resolve() in Path(path).resolve().parents:
            raise CannotReplay(f"{path} came with the run: its code is taken from where the job ran")
        if not is_own(path):
            raise CannotReplay(f"{path} can be written by others than you: it is not executed")

    def _main(self, file: str | None) -> ModuleType:
        path = file or self._script
        self._check(path)
        if not path or not Path(path).is_file():
            raise CannotReplay(f"the script {path or 'of the run'} is not here")
        return load_script(path, Path(path).stat().st_mtime_ns, self._argv)

    def _imported(self, module: str, file: str | None) -> ModuleType:
        try:
            with _as_script(self._script, self._argv):
                found = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise CannotReplay(f"{module} can't be imported: {type(error).__name__}: {first_line(error)}") from error
        here = getattr(found, "__file__", None)
        if file and here and Path(here).resolve() != Path(file).resolve() and _is_beside(file, self._script):
            raise CannotReplay(f"{module} is {here} here, in the run it was {file}")
        return found


def _is_beside(file: str, script: str) -> bool:
    """Tell whether a file belongs to the job, and not to a package that may be installed elsewhere."""
    return bool(script) and Path(script).resolve().parent in Path(file).resolve().parents


@cache
def load_script(path: str, changed: int, argv: tuple[str, ...]) -> ModuleType:
    """Return a script as a module: imported where it has a guard, else its definitions alone."""
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
    except (SyntaxError, ValueError, OSError) as error:
        raise CannotReplay(f"the script {path} can't be read: {first_line(error)}") from error
    key = hashlib.sha256(repr((path, changed, argv)).encode()).hexdigest()[:12]
    module = ModuleType(f"numscope_script_{key}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look their module up there
    try:
        with _as_script(path, argv):
            if _guard(tree):
                _execute(tree, path, vars(module))
            else:
                vars(module)["__left_out__"] = _define(tree, path, vars(module))
    except CannotReplay:
        del sys.modules[module.__name__]
        raise
    return module


def _execute(tree: ast.Module, path: str, namespace: dict[str, object]) -> None:
    """Execute code of the job, and turn any error of it into CannotReplay."""
    try:
        exec(compile(tree, path, "exec"), namespace)
    except (Exception, SystemExit) as error:
        raise CannotReplay(f"importing {path} raised {type(error).__name__}: {first_line(error)}") from error


def is_guarded(path: str) -> bool:
    """Tell whether a script has `if __name__ == "__main__":` at its top level."""
    try:
        return _guard(ast.parse(Path(path).read_text(encoding="utf-8"), path))
    except (SyntaxError, ValueError, OSError):
        return False


def _guard(tree: ast.Module) -> bool:
    return any(
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and {ast.unparse(node.test.left), *map(ast.unparse, node.test.comparators)} == {"__name__", "'__main__'"}
        and isinstance(node.test.ops[0], ast.Eq)
        for node in tree.body
    )


def _define(tree: ast.Module, path: str, namespace: dict[str, object]) -> list[str]:
    """Execute the definitions of a script without a guard; return the lines that were left out, in words."""
    left_out = []
    for node in tree.body:
        if not _defines(node):
            left_out.append(f"line {node.lineno}")
            continue
        try:
            _execute(ast.Module([node], []), path, namespace)
        except CannotReplay as error:
            if not isinstance(error.__cause__, (NameError, AttributeError, ImportError)):
                raise
            left_out.append(f"line {node.lineno} ({first_line(error.__cause__)})")  # it needs what was left out
    return left_out


def _defines(node: ast.stmt) -> bool:
    """Tell whether a statement only defines something."""
    if isinstance(node, _HARMLESS):
        return True
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        plain = all(isinstance(target, (ast.Name, ast.Tuple)) for target in targets)
        return plain and node.value is not None and not _calls(node.value)
    if isinstance(node, ast.Try):
        return all(map(_defines, [*node.body, *node.orelse, *node.finalbody])) and all(
            _defines(item) for handler in node.handlers for item in handler.body
        )
    if isinstance(node, ast.If):
        return not _calls(node.test) and all(map(_defines, [*node.body, *node.orelse]))
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _calls(node: ast.expr) -> bool:
    """Tell whether the evaluation of an expression calls something; the body of a lambda is not evaluated."""
    if isinstance(node, ast.Lambda):
        return False
    return isinstance(node, (ast.Call, ast.Await, ast.comprehension, ast.ListComp, ast.GeneratorExp)) or any(
        _calls(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
    )


def _left_out(module: object) -> str:
    lines = vars(module).get("__left_out__") if isinstance(module, ModuleType) else None
    if not lines:
        return ""
    return (
        f"; it has no `if __name__ == '__main__'`, so only its definitions are taken (left out: {', '.join(lines[:3])})"
    )


@contextlib.contextmanager
def _as_script(script: str, argv: Sequence[str]) -> Iterator[None]:
    """Import as the script would: with its folder in `sys.path` and its arguments; hide what the import prints."""
    before, path = sys.argv, list(sys.path)
    sys.argv = list(argv) or before
    if script:
        sys.path.insert(0, str(Path(script).parent))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        sys.argv = before
        sys.path[:] = path
