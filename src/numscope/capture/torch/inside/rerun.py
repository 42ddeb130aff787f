"""A region's generated code run again, with a look at each buffer when a kernel has written it.

Inductor's wrapper allocates a buffer, gives it to a kernel, and may give its memory to another buffer later. The wrapper's
functions are compiled again from their source with a look after each kernel, at the buffers that it is the first to be
given; the kernels themselves are those that the job has.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

_ALLOCATES = ("empty_strided", "empty", "alloc_from_pool")
_LOOK = "_numscope_look"


class Seen(NamedTuple):
    """A buffer as a kernel left it."""

    name: str
    kernel: str
    number: int
    tensor: torch.Tensor


class NoRerun(Exception):
    """The region's code has another form than that which is known."""


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, overlapping ones too."""
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride())) + 1
    flat = tensor.detach().as_strided((reach,), (1,), tensor.storage_offset()).clone()
    return flat.as_strided(tensor.shape, tensor.stride())


class Rerun:
    """The code of a region, with looks at its buffers."""

    def __init__(self, compiled: Any) -> None:
        runner = getattr(compiled, "compiled_fn_runner", None)
        call: Any = runner.call if runner is not None else compiled.current_callable
        function = getattr(call, "__func__", call)
        source = getattr(compiled, "source_code", None)
        if not isinstance(source, str) or not hasattr(function, "__globals__"):
            raise NoRerun("it is not Python that runs its kernels")
        parts = [part for part in ast.parse(source).body if _runs_kernels(part)]
        for part in parts:
            for function_part in _functions(part):
                function_part.body = list(_Looks().over(function_part.body))
        if not parts:
            raise NoRerun("its code has another form")
        self._seen: list[Seen] = []
        self._namespace = {**function.__globals__, _LOOK: self._look}
        code = ast.fix_missing_locations(ast.Module(parts, []))
        exec(compile(code, function.__code__.co_filename, "exec"), self._namespace)  # torch's own code, of this job

    def __call__(self, inputs: list[Any]) -> tuple[list[Any], list[Seen]]:
        """Run it on inputs, which it may write to; return the outputs and what its kernels left."""
        self._seen = []
        try:
            return list(self._namespace["call"](list(inputs))), self._seen
        finally:
            self._seen = []

    def _look(self, name: str, kernel: str, number: int, value: object) -> None:
        if isinstance(value, torch.Tensor):
            self._seen.append(Seen(name, kernel, number, clone(value)))


def _runs_kernels(part: ast.stmt) -> bool:
    if isinstance(part, ast.FunctionDef):
        return part.name == "call" or part.name.startswith("partition_")
    if isinstance(part, ast.ClassDef):
        return part.name == "Runner"
    return isinstance(part, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id in ("runner", "call") for target in part.targets
    )


def _functions(part: ast.stmt) -> Iterator[ast.FunctionDef]:
    yield from (node for node in ast.walk(part) if isinstance(node, ast.FunctionDef))


class _Looks:
    """Adds the looks to the statements of one function."""

    def __init__(self) -> None:
        self._waiting: dict[str, None] = {}  # buffers that no kernel was given yet
        self._kernels = 0

    def over(self, statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
        """Yield the statements with looks between them."""
        for statement in statements:
            if isinstance(statement, (ast.With, ast.If)):
                statement.body = list(self.over(statement.body))
                if isinstance(statement, ast.If):
                    statement.orelse = list(self.over(statement.orelse))
                yield statement
                continue
            yield statement
            yield from self._after(statement)

    def _after(self, statement: ast.stmt) -> Iterator[ast.stmt]:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
            if not name.startswith("buf"):
                return
            if _is_memory(statement.value):
                self._waiting[name] = None
            else:
                self._kernels += 1
                yield _look(name, _called(statement.value), self._kernels)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            kernel = _called(statement.value)
            if kernel.startswith("assert_"):
                return
            self._kernels += 1
            for name in dict.fromkeys(node.id for node in ast.walk(statement) if isinstance(node, ast.Name)):
                if name in self._waiting:
                    del self._waiting[name]
                    yield _look(name, kernel, self._kernels)


def _is_memory(value: ast.expr) -> bool:
    """Tell whether an expression gives memory that is to be written: new, or another buffer's."""
    if isinstance(value, ast.Name):
        return True
    called = _called(value)
    return called.startswith(_ALLOCATES) or called == "reinterpret_tensor"


def _called(value: ast.expr) -> str:
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def _look(name: str, kernel: str, number: int) -> ast.stmt:
    arguments: list[ast.expr] = [
        ast.Constant(name),
        ast.Constant(kernel),
        ast.Constant(number),
        ast.Name(name, ast.Load()),
    ]
    return ast.Expr(ast.Call(ast.Name(_LOOK, ast.Load()), arguments, []))
