"""Reroute: run a function, a module or a name on the CPU, or in another dtype, inside the live job.

    with ns.to_cpu("torch.nn.functional.softmax"):          # every call of it, wherever it is called from
        train_step(batch)

    with ns.to_cpu(model.blocks[3].attn, dtype=torch.float64):
        train_step(batch)

    logits_warper = ns.to_cpu(logits_warper)                 # a third-party callable between modules

    @ns.to_cpu                                               # or on a function of your own
    def warp(input_ids, scores): ...

If the fault goes away, it is proven where it was. Results come back on the source device, in the source dtype; autograd
goes through; everything is undone on leaving.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from numscope.core.errors import CaptureError, SettingsError
from numscope.diagnose.intervene.path_patterns import path_matcher
from numscope.diagnose.intervene.reroute_targets import Binding, Places, find
from numscope.diagnose.intervene.run_elsewhere import run_on_cpu

Undo = Callable[[], None]


def to_cpu(what: Any = None, dtype: Any = None) -> Any:
    """Return a reroute of a function, a module, a name or a pattern: call it, decorate with it, or enter it."""
    chosen = _dtype(dtype)
    if what is None:
        return functools.partial(to_cpu, dtype=chosen)
    return Reroute(what, chosen)


class Reroute:
    """Runs something on the CPU: called itself, or everywhere while it is entered."""

    def __init__(self, what: Any, dtype: torch.dtype | None) -> None:
        self._what = what
        self._dtype = dtype
        self._undo: list[Undo] = []
        self._names = isinstance(what, str) or (isinstance(what, (list, tuple)) and not callable(what))
        if (not self._names and not callable(what)) or (self._names and not what):
            raise SettingsError(
                f"to_cpu({what!r}): give a function, a module, or a name: 'torch.nn.functional.softmax', 'blocks.*.attn'"
            )
        self.used = 0  # how often something was rerouted
        if not self._names and not isinstance(what, torch.nn.Module):
            functools.update_wrapper(self, what, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what is rerouted; a reroute of names decorates a function, inside which they are rerouted."""
        if self._names:
            if len(args) != 1 or kwargs or not callable(args[0]):
                raise SettingsError("to_cpu of a name is a decorator or a context manager: `with ns.to_cpu(name): …`")
            return self._around(args[0])
        if self._undo:  # entered: the callable reroutes by itself
            return self._what(*args, **kwargs)
        return self.run(self._what, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Bind as a function does, so that methods can be decorated."""
        return self if instance is None else functools.partial(self.run_method, self._what, instance)

    def __enter__(self) -> Reroute:
        if self._undo:
            raise CaptureError("this reroute is entered already: make another with ns.to_cpu")
        places = find(self._what)
        if places.functions or places.pending:
            self._undo.append(push(FunctionReroute(self, places)))
        if places.modules or places.paths:
            self._undo.append(_replace_module_call(self, places))
        for binding in places.bindings:
            self.bind(binding)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()
        if self._names and not self.used and kind is None:
            named = self._what if isinstance(self._what, str) else ", ".join(map(str, self._what))
            warnings.warn(f"numscope: to_cpu({named}): nothing of that name was called", RuntimeWarning, stacklevel=2)

    def run_method(self, function: Callable[..., Any], instance: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a method rerouted: its object stays the one it is, and what it holds is moved where it is used."""
        return self.run(functools.partial(function, instance), args, kwargs)

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a callable rerouted."""
        self.used += 1
        return run_on_cpu(function, args, kwargs, self._dtype)

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with Reroute(self._what, self._dtype):
                return function(*args, **kwargs)

        return inside

    def bind(self, binding: Binding) -> None:
        """Put a rerouted function where a Python function is bound."""
        original = binding.value
        function = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original

        is_method = isinstance(binding.owner, type) and function is original

        @functools.wraps(function)
        def rerouted(*args: Any, **kwargs: Any) -> Any:
            if is_method and args:
                return self.run_method(function, *args, **kwargs)
            return self.run(function, args, kwargs)

        replacement: Any = type(original)(rerouted) if function is not original else rerouted
        setattr(binding.owner, binding.name, replacement)

        def undo() -> None:
            if vars(binding.owner).get(binding.name) is replacement:
                setattr(binding.owner, binding.name, original)

        self._undo.append(undo)


class FunctionReroute(TorchFunctionMode):
    """Reroutes chosen torch functions, also where they were imported by name before."""

    def __init__(self, reroute: Reroute, places: Places) -> None:
        super().__init__()
        self._reroute = reroute
        self._functions = places.functions
        self._pending = places.pending

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._pending:
            self._find_pending()
        if func in self._functions:
            return self._reroute.run(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _find_pending(self) -> None:
        """Reroute functions of the script that runs, as soon as it has defined them."""
        for name in list(self._pending):
            function = vars(sys.modules["__main__"]).get(name.partition(".")[2])
            if callable(function):
                self._pending.remove(name)
                for binding in find(function).bindings:
                    self._reroute.bind(binding)


def install(order: dict[str, Any]) -> None:
    """Reroute in this process until it ends: what `numscope run --to-cpu` asks for."""
    try:
        reroute = to_cpu(list(order["names"]), dtype=order["dtype"])
        reroute.__enter__()
    except SettingsError as error:  # the job has not begun: torch is just being imported
        print(f"numscope: {error}", file=sys.stderr)
        sys.exit(2)

    def tell() -> None:
        if not reroute.used:
            names = ", ".join(order["names"])
            print(f"numscope: --to-cpu {names}: nothing of that name was called in this process", file=sys.stderr)

    atexit.register(tell)


def push(mode: TorchFunctionMode) -> Undo:
    """Put a mode on top of the stack; return what takes it off."""
    _push_mode(mode)

    def undo() -> None:
        """Take our mode off the stack, wherever on it others have put it."""
        above = []
        for found in reversed(_get_current_function_mode_stack()):
            _pop_mode()
            if found is mode:
                break
            above.append(found)
        for other in reversed(above):
            _push_mode(other)

    return undo


class _Inside(threading.local):
    """What this thread is inside of: a rerouted module's own calls are not rerouted again."""

    def __init__(self) -> None:
        self.depth = 0
        self.rerouted = False


def _replace_module_call(reroute: Reroute, places: Places) -> Undo:
    """Reroute chosen modules: by identity, or by path below the outermost module that is called."""
    original = torch.nn.Module.__call__
    wanted = {id(module) for module in places.modules}
    matches = path_matcher(places.paths) if places.paths else None
    learned: set[int] = set()
    inside = _Inside()
    active = True

    def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not active or inside.rerouted:
            return original(module, *args, **kwargs)
        if matches is not None and inside.depth == 0 and id(module) not in learned:
            learned.add(id(module))
            wanted.update(id(child) for path, child in module.named_modules() if matches(path))
        if id(module) not in wanted:
            inside.depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                inside.depth -= 1
        inside.rerouted = True
        try:
            return reroute.run(functools.partial(original, module), args, kwargs)
        finally:
            inside.rerouted = False

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def undo() -> None:
        nonlocal active
        active = False  # where something else has replaced it since, ours stays in the chain and does nothing
        if torch.nn.Module.__call__ is __call__:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    return undo


def _dtype(dtype: Any) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise SettingsError(f"dtype={dtype!r} is no torch dtype: try 'float64' or 'float32'")
    return found
