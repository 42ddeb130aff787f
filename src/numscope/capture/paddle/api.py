"""The API level: Paddle's functions and tensor methods, replaced while capture is on.

Paddle has no point that all calls pass. So each function is replaced where users find it: in `paddle`, in
`paddle.nn.functional` and their kin, on `paddle.Tensor`, in modules that imported it by name, and in layers that hold it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import NamedTuple

import paddle

from numscope.capture.paddle.gradients import BackwardCall, Gradients
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Argument, Open, Slot, Undo, Watch
from numscope.capture.sites import is_user as is_user_file

Function = Callable[..., object]

# Python's operators by the names of their calls.
_ARITHMETIC = {
    f"__{method}__": op
    for op, methods in {
        "add": "add radd",
        "sub": "sub",
        "rsub": "rsub",
        "mul": "mul rmul",
        "div": "truediv div",
        "rdiv": "rtruediv rdiv",
        "floor_divide": "floordiv",
        "matmul": "matmul",
        "rmatmul": "rmatmul",
        "pow": "pow",
        "rpow": "rpow",
        "remainder": "mod",
        "bitwise_not": "invert",
        **{name: name for name in ("neg", "abs", "and", "or", "xor", "eq", "ne", "lt", "le", "gt", "ge")},
        "__getitem__": "getitem",
        "__setitem__": "setitem",
    }.items()
    for method in methods.split()
}

# Functions that compute no numbers, or only move data.
_SILENT_STARTS = ("is_", "get_", "set_", "enable_", "disable_", "in_", "register_", "_")
_SILENT = set(
    """
    to_tensor backward numpy item tolist detach detach_ clear_grad clear_gradient gradient
    dim ndimension rank numel shape element_size nbytes value pin_memory seed save load
    grad no_grad summary flops batch finfo iinfo broadcast_shape check_shape create_parameter
    data_ptr retain_grads stride nelement size type apply apply_ coalesce rows data
    print guard synchronize device_guard requires_grad_ contiguous strides offset
    zeros ones full empty zeros_like ones_like full_like empty_like new_empty new_zeros
    """.split()
)


class PaddleFunction(NamedTuple):
    """A function of Paddle's that is replaced."""

    prefix: str
    op: str
    owner: object  # the module or class that has it
    function: Function


class Replacement(NamedTuple):
    """An attribute that has a wrapper in place of a function."""

    owner: object
    name: str
    function: Function
    wrapper: Function


def namespaces() -> Iterator[tuple[str, object]]:
    """Yield the modules and classes that users call functions from, each with the prefix of its calls' names."""
    yield "Functional", paddle.nn.functional
    yield "Linalg", paddle.linalg
    yield "Fft", paddle.fft
    yield "Paddle", paddle
    yield "Tensor", paddle.Tensor


def functions() -> Iterator[PaddleFunction]:
    """Yield all functions that are replaced."""
    kinds = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
    for prefix, owner in namespaces():
        for name in dir(owner) if prefix == "Tensor" else vars(owner)["__all__"]:
            if prefix == "Tensor" and name in _ARITHMETIC:
                pass
            elif name.startswith(_SILENT_STARTS) or name in _SILENT:
                continue
            function = getattr(owner, name, None)
            if isinstance(function, kinds):
                op = _ARITHMETIC.get(name, name) if prefix == "Tensor" else name
                yield PaddleFunction(prefix, op, owner, function)


class Functions:
    """Replaces the functions, and records their calls."""

    def __init__(self, watch: Watch, gradients: Gradients, records: bool) -> None:
        self._watch = watch
        self._gradients = gradients
        self._records = records  # false: uses are only counted, for the gradients of layers
        self._wrappers: dict[int, Function] = {}  # by the function's id
        self._replaced: list[Replacement] = []

    def install(self) -> Undo:
        """Replace the functions; return a function that puts them back."""
        replaced, by_function = self._replaced, self._wrappers
        for prefix, op, owner, function in functions():
            wrapper = self._wrapper(f"{prefix}.{op}", op, function)
            for name in _names(op, prefix):
                if getattr(owner, name, None) is function:
                    replaced.append(Replacement(owner, name, function, wrapper))
            by_function.setdefault(id(function), wrapper)
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and _holds_names(module):
                replaced += self._held_by(module)
        for owner in (paddle.Tensor, paddle.autograd):
            backward = owner.backward
            replaced.append(Replacement(owner, "backward", backward, self._inside_backward(backward)))
        for item in replaced:
            setattr(item.owner, item.name, item.wrapper)

        def undo() -> None:
            for item in reversed(replaced):
                if getattr(item.owner, item.name, None) is item.wrapper:
                    setattr(item.owner, item.name, item.function)
            replaced.clear()
            by_function.clear()

        return undo

    def in_layer(self, layer: paddle.nn.Layer) -> None:
        """Replace the functions that a layer holds, such as its activation."""
        held = self._held_by(layer)
        for item in held:
            setattr(item.owner, item.name, item.wrapper)
        self._replaced += held

    def _held_by(self, owner: object) -> list[Replacement]:
        by_function = self._wrappers
        return [
            Replacement(owner, name, value, by_function[id(value)])
            for name, value in vars(owner).items()
            if isinstance(value, FunctionType) and id(value) in by_function
        ]

    def _inside_backward(self, function: Function) -> Function:
        thread = self._watch.thread

        @functools.wraps(function)
        def backward(*args: object, **kwargs: object) -> object:
            thread.backward += 1
            try:
                return function(*args, **kwargs)
            finally:
                thread.backward -= 1

        return backward

    def _wrapper(self, head: str, op: str, function: Function) -> Function:
        watch = self._watch
        indices = _parameter_indices(function)

        def wrapper(*args: object, **kwargs: object) -> object:
            thread = watch.thread
            if thread.busy or thread.quiet or not (watch.on and watch.forward_on):
                return function(*args, **kwargs)
            stack = thread.stack
            if stack and stack[-1].op and stack[-1].op.strip("_") == op.strip("_"):
                return function(*args, **kwargs)  # the call itself, under its other name
            call = _Call(watch, self._gradients, head, op, indices, self._records)
            return self._record(call, function, args, kwargs, sys._getframe(1))

        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(wrapper, function)
        watch.recorder.sites.boundary(wrapper.__code__)
        return wrapper

    def _record(
        self,
        call: _Call,
        function: Function,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        frame: FrameType,
    ) -> object:
        watch, thread = self._watch, self._watch.thread
        opened = None
        with OwnCode(watch, call.head):
            if watch.begins():
                opened = call.before(args, kwargs, frame)
        if opened is None:
            return function(*args, **kwargs)
        thread.stack.append(opened)
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            call.raised(error)
            raise
        finally:
            thread.stack.pop()
        with OwnCode(watch, call.head):
            call.after(args[0] if call.op == "__setitem__" else result)
        return result


def _holds_names(module: ModuleType) -> bool:
    """Tell whether a module may have imported functions by name: the user's own, and Paddle's own layers."""
    if module.__name__.startswith("paddle.nn.layer.") or module.__name__ == "paddle.tensor":
        return True
    return is_user_file(getattr(module, "__file__", None) or "<none>")


def _names(op: str, prefix: str) -> list[str]:
    """Return the attributes under which a function of this name may stand."""
    if prefix != "Tensor":
        return [op]
    return [op, *(name for name, called in _ARITHMETIC.items() if called == op)]


def _parameter_indices(function: Function) -> dict[str, int]:
    """Return the index of each parameter that can be passed by position or by name."""
    if not isinstance(function, FunctionType):
        return {}
    code = function.__code__
    if code.co_flags & inspect.CO_VARARGS:  # a decorator's wrapper: ask what it wraps
        inner = getattr(function, "__wrapped__", None)
        return _parameter_indices(inner) if isinstance(inner, FunctionType) else {}
    return {name: index for index, name in enumerate(code.co_varnames[: code.co_argcount])}


class _Call:
    """One call of a function, from before to after."""

    def __init__(
        self, watch: Watch, gradients: Gradients, head: str, op: str, indices: dict[str, int], records: bool
    ) -> None:
        self._watch, self._gradients = watch, gradients
        self.head = head
        self.op = op
        self._indices = indices  # of the parameters, by name
        self._records = records

    def before(self, args: tuple[object, ...], kwargs: dict[str, object], frame: FrameType) -> Open | None:
        """Measure the inputs as they are before the call."""
        watch, indices = self._watch, self._indices
        positional: list[Argument] = []
        named: list[Argument] = []
        self._inputs: list[Slot] = watch.flatten("input", args, positional)
        for key, value in kwargs.items():
            # A layer passes its tensors by name: recorded by position, they line up with another framework's.
            group, label = ("input", str(indices[key])) if key in indices else ("kwargs", key)
            if key != "name":
                others: list[Argument] = []
                self._inputs += watch.flatten(group, {label: value}, others)
                named += [(key, value) for _ in others]
        stack = watch.thread.stack
        top = stack[-1] if stack else None
        self._tracks = watch.record_backward and paddle.is_grad_enabled()
        self._uses = self._gradients.used(self._inputs) if self._tracks else {}
        self._results_before = watch.results
        self._place = top.place if top else watch.no_place
        self._parent = top.order if top else -1
        self._outer = top.backward if top else None
        path = top.path if top else ""
        if not self._records:
            return Open(self._parent, self._place, path, -1, self.op, self._outer)
        self._site = watch.site(frame)
        self._order = watch.recorder.order()
        self._series = watch.series(self.head)
        self._number = self._series.next(watch.recorder.epoch)
        self._name = self._series.name(self._number)
        self._arguments = watch.arguments(positional, named)
        self._wanted = watch.in_scope(self._name, self._place, "api")
        self._rows = watch.measure(self._inputs, self._name) if self._wanted and watch.record_forward else []
        self._backward = _Lazy()
        return Open(self._order, self._place, path, self._site, self.op, self._backward)

    def after(self, result: object) -> None:
        """Record the call with its outputs, and watch for the gradients."""
        watch = self._watch
        outputs = watch.outputs(result)
        innermost = self._results_before == watch.results
        if not outputs:
            if self._records:
                self._series.give_back(self._number)
            return
        watch.results += 1
        if self._tracks and innermost:
            self._gradients.count(self._inputs)
        for _, tensor in outputs:
            if any(tensor is item.tensor for item in self._inputs):
                watch.tensors.forget_one(tensor)
        if not self._records or not self._wanted:
            return
        if watch.record_forward:
            self._row(-1)
            watch.slots(self._order, self._rows)
            watch.slots(self._order, watch.measure(outputs, self._name))
        watch.ended(self._name)
        if self._tracks and any(not tensor.stop_gradient for _, tensor in outputs):
            name = self._series.name(self._number, "backward")
            call = BackwardCall(watch, name, "api", self._place, self._order, self._site, self._outer)
            self._backward.become(call)
            self._gradients.attach(call, self._inputs, self._uses, outputs, makes=innermost)
        watch.flush_if_full()

    def _row(self, error: int) -> None:
        self._watch.call(
            self._order,
            self._name,
            "api",
            "forward",
            self._place,
            parent=self._parent,
            arguments=self._arguments,
            site=self._site,
            recompute=self._watch.thread.backward > 0,
            error=error,
        )

    def raised(self, error: Exception) -> None:
        """Record a call that raised; the user may catch it and go on."""
        if not self._records:
            return
        with OwnCode(self._watch, self.head):
            if self._wanted and self._watch.record_forward:
                self._row(self._watch.recorder.strings.id(f"{type(error).__name__}: {error}"[:300]))
                self._watch.slots(self._order, self._rows)


class _Lazy:
    """The backward call of a function that still runs: inner calls may have it as their parent."""

    def __init__(self) -> None:
        self._call: BackwardCall | None = None

    def become(self, call: BackwardCall) -> None:
        self._call = call

    def begin(self) -> int:
        return self._call.begin() if self._call is not None else -1
