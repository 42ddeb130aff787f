"""Reroute: run a function, a module or a name on the CPU, or in another dtype, inside the live job.

    with ns.to_cpu("torch.nn.functional.softmax"):          # every call of it, wherever it is called from
        train_step(batch)

    with ns.to_cpu(model.blocks[3].attn, dtype=torch.float64):
        train_step(batch)

    logits_warper = ns.to_cpu(logits_warper)                 # a third-party callable between modules

    @ns.to_cpu                                               # or on a function of your own
    def warp(input_ids, scores): ...

If the fault goes away, its place is proven. Results come back on the original device and in the original dtype, autograd
goes through, and everything is undone on exit.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypedDict, TypeVar

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from numscope.capture.torch.levels.function_names import ApiTable
from numscope.core.errors import CaptureError, InvalidSetting, SettingsError
from numscope.diagnose.intervene.reroute_patterns import nearest
from numscope.diagnose.intervene.reroute_targets import Binding, Targets, find
from numscope.diagnose.intervene.run_on_cpu import run_on_cpu

T = TypeVar("T")
Undo = Callable[[], None]
_MOST_SEEN = 4000  # names that are remembered as hints


def to_cpu(what: object = None, dtype: torch.dtype | str | None = None) -> Any:
    """Return a reroute of a function, a module, a name or a pattern: call it, decorate with it, or enter it.

    Typed as `Any`, because a decorated function keeps the type that its caller knows.
    """
    chosen = _dtype(dtype)
    if what is None:
        return functools.partial(to_cpu, dtype=chosen)
    return Reroute(what, chosen)


class Reroute:
    """Runs a callable on the CPU when it is called, or everywhere while it is entered."""

    def __init__(
        self,
        what: object,
        dtype: torch.dtype | None,
        say: Callable[[str], None] | None = None,
        in_place: bool = False,
    ) -> None:
        self._what = what
        self._dtype = dtype
        self._in_place = in_place  # on the tensors' own device: only the dtype is another
        self._undo: list[Undo] = []
        self._callable = what if callable(what) else None
        names = [what] if isinstance(what, str) else list(what) if isinstance(what, (list, tuple)) else []
        if self._callable is None and not (what and names):
            raise SettingsError(
                f"to_cpu({what!r}): give a function, a module, or a name: 'torch.nn.functional.softmax', 'blocks.*.attn'"
            )
        self._names = ", ".join(map(str, names)) if self._callable is None else ""
        self.used = 0  # how many calls were rerouted
        self._waiting: set[str] = set(map(str, names)) if self._callable is None else set()  # matched nothing yet
        self._say = say or _warn
        self._seen: set[str] = set()  # operators and module paths, while a name waits
        if self._callable is not None and not isinstance(what, torch.nn.Module):
            functools.update_wrapper(self, self._callable, updated=())

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call the callable on the CPU; a reroute of names decorates a function, inside which they are rerouted."""
        if self._callable is None:
            function = args[0] if len(args) == 1 and not kwargs else None
            if not callable(function):
                raise SettingsError("to_cpu of a name is a decorator or a context manager: `with ns.to_cpu(name): …`")
            return self._around(function)
        if self._undo:  # entered: the callable is rerouted wherever it is called
            return self._callable(*args, **kwargs)
        return self.run(self._callable, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> object:
        """Bind to an instance as a function does, so that methods can be decorated."""
        if instance is None or self._callable is None:
            return self
        return functools.partial(self.run_method, self._callable, instance)

    def __enter__(self) -> Reroute:
        if self._undo:
            raise CaptureError("this reroute is entered already: make another with ns.to_cpu")
        targets = find(self._what)
        if targets.functions or targets.pending or targets.patterns:
            self._undo.append(push(FunctionReroute(self, targets)))
        if targets.modules or targets.patterns:
            self._undo.append(_replace_module_call(self, targets))
        if self._waiting:
            self._undo.append(register_optimizer_step_post_hook(lambda *_: self.step_ended()).remove)
        for binding in targets.bindings:
            self.bind(binding)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()
        if kind is None:
            self.tell("nothing of that name was called")

    def step_ended(self) -> None:
        """Say of what has matched nothing in a whole step: a wrong name is told now, not when the job ends."""
        if self._waiting:
            self.tell("nothing of that name was called in the first step")

    def tell(self, what: str) -> None:
        """Warn of each name that has matched nothing, once, with the nearest names."""
        for name in sorted(self._waiting):
            self._say(f"numscope: to_cpu({name}): {what}{nearest(name, self._seen)}")
        self._waiting.clear()

    def saw(self, name: str) -> None:
        """Remember an operator or a module, as a hint for a name that matches nothing."""
        if self._waiting and len(self._seen) < _MOST_SEEN:
            self._seen.add(name)

    def run_method(self, function: Callable[..., T], instance: object, *args: object, **kwargs: object) -> T:
        """Run a method on the CPU: its object stays as it is, and the object's tensors are copied when they are used."""
        return self.run(functools.partial(function, instance), args, kwargs)

    def run(
        self, function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object], names: Iterable[str] = ()
    ) -> T:
        """Run a callable on the CPU; `names` are those that it was found by."""
        self.used += 1
        self._waiting.difference_update(names)
        return run_on_cpu(function, args, kwargs, self._dtype, self._in_place)

    def _around(self, function: Callable[..., T]) -> Callable[..., T]:
        @functools.wraps(function)
        def inside(*args: object, **kwargs: object) -> T:
            with Reroute(self._what, self._dtype):
                return function(*args, **kwargs)

        return inside

    def bind(self, binding: Binding) -> None:
        """Replace a binding of a Python function by the rerouted function."""
        original = binding.value
        is_wrapped = isinstance(original, (staticmethod, classmethod))
        function: object = original.__func__ if isinstance(original, (staticmethod, classmethod)) else original
        assert callable(function)
        is_method = isinstance(binding.owner, type) and not is_wrapped

        @functools.wraps(function)
        def rerouted(*args: object, **kwargs: object) -> object:
            self._waiting.discard(binding.wanted)
            if is_method and args:
                return self.run_method(function, *args, **kwargs)
            return self.run(function, args, kwargs)

        wrap: Callable[..., object] = type(original)
        replacement = wrap(rerouted) if is_wrapped else rerouted
        setattr(binding.owner, binding.name, replacement)

        def undo() -> None:
            if vars(binding.owner).get(binding.name) is replacement:
                setattr(binding.owner, binding.name, original)

        self._undo.append(undo)


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


class FunctionReroute(TorchFunctionMode):
    """Reroutes chosen torch functions, including those that were imported by name before."""

    def __init__(self, reroute: Reroute, targets: Targets) -> None:
        super().__init__()
        self._reroute = reroute
        self._functions = targets.functions
        self._known: dict[Callable[..., object], tuple[str, ...]] = {}  # by which names each function is rerouted
        self._patterns = targets.patterns
        self._names = ApiTable()
        self._pending = targets.pending

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        if self._pending:
            self._find_pending()
        names = self._known[func] if func in self._known else self._learn(func)
        if names:
            return self._reroute.run(func, args, kwargs or {}, names)
        return func(*args, **(kwargs or {}))

    def _learn(self, func: Callable[..., object]) -> tuple[str, ...]:
        """Find the names by which a function is rerouted, once."""
        names = [self._functions[func]] if func in self._functions else []
        api = self._names[func]
        if not api.aside:
            self._reroute.saw(api.head)
            names += [pattern.text for pattern in self._patterns if pattern.matches_operator(api.head)]
        self._known[func] = tuple(names)
        return self._known[func]

    def _find_pending(self) -> None:
        """Reroute functions of the running script as soon as it has defined them."""
        for name in list(self._pending):
            function = vars(sys.modules["__main__"]).get(name.removeprefix("__main__."))
            if callable(function):
                self._pending.remove(name)
                for binding in find(function).bindings:
                    self._reroute.bind(replace(binding, wanted=name))


class RerouteOrder(TypedDict):
    """The order of `numscope run --to-cpu` to the processes of the job, as JSON carries it."""

    names: list[str]
    dtype: str | None


def install_float64(order: dict[str, str]) -> None:
    """Run a name in float64 on its own device in this process until it ends, for a proof."""
    _enter([order["install"]], "float64", in_place=True)


def install(order: RerouteOrder) -> None:
    """Reroute in this process until it ends, for `numscope run --to-cpu`."""
    _enter(order["names"], order["dtype"])


def _enter(names: list[str], dtype: str | None, in_place: bool = False) -> None:
    """Enter a reroute of names until this process ends."""
    try:
        reroute = Reroute(names, _dtype(dtype), _print, in_place)
        reroute.__enter__()
    except SettingsError as error:  # torch is being imported: the job has not started
        print(f"numscope: {error}", file=sys.stderr)
        sys.exit(2)
    atexit.register(reroute.tell, "nothing of that name was called in this process")


def _print(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def push(mode: TorchFunctionMode) -> Undo:
    """Put a mode on top of the stack; return the function that takes it off."""
    _push_mode(mode)

    def undo() -> None:
        """Take the mode off the stack, whatever was pushed above it."""
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
    """The modules that this thread is in: the calls in a rerouted module are not rerouted again."""

    def __init__(self) -> None:
        self.depth = 0
        self.rerouted = False


def _replace_module_call(reroute: Reroute, targets: Targets) -> Undo:
    """Reroute chosen modules: by identity, or by path below the outermost module that is called."""
    original = torch.nn.Module.__call__
    # By which names each module is rerouted.
    wanted: dict[int, tuple[str, ...]] = {id(module): ("",) for module in targets.modules}
    learned: set[int] = set()
    inside = _Inside()
    active = True

    def learn(outermost: torch.nn.Module) -> None:
        learned.add(id(outermost))
        for path, module in outermost.named_modules():
            reroute.saw(path)
            kind = type(module).__name__
            names = tuple(pattern.text for pattern in targets.patterns if pattern.matches_module(path, kind))
            if names:
                wanted[id(module)] = names

    def __call__(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if not active or inside.rerouted:
            return original(module, *args, **kwargs)
        if inside.depth == 0:
            if id(module) not in learned:
                learn(module)
            elif not module.training:  # without an optimizer a step is a call of the model
                reroute.step_ended()
        if id(module) not in wanted:
            inside.depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                inside.depth -= 1
        inside.rerouted = True
        try:
            return reroute.run(functools.partial(original, module), args, kwargs, wanted[id(module)])
        finally:
            inside.rerouted = False

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def undo() -> None:
        nonlocal active
        active = False  # where another patch was put on top since, ours stays below it and does nothing
        if torch.nn.Module.__call__ is __call__:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]

    return undo


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, str(dtype).removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise InvalidSetting("dtype", dtype, " is no torch dtype: try float64 or float32")
    return found
