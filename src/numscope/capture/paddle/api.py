"""The API level: Paddle's functions and tensor methods, replaced while capture is on.

Paddle has no point at which all calls pass. So each function is replaced where users find it: in `paddle`, in
`paddle.nn.functional` and their kin, on `paddle.Tensor`, in modules that imported it by name, and in layers that hold it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import paddle

from numscope.capture.paddle.gradients import BackwardCall, Gradients
from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Open, Slot, Undo, Watch
from numscope.capture.sites import is_user as is_user_file

Function = Callable[..., Any]

_ARITHMETIC = {
    "__add__": "add", "__radd__": "add", "__sub__": "sub", "__rsub__": "rsub", "__mul__": "mul", "__rmul__": "mul",
    "__truediv__": "div", "__div__": "div", "__rtruediv__": "rdiv", "__rdiv__": "rdiv", "__floordiv__": "floor_divide",
    "__matmul__": "matmul", "__rmatmul__": "rmatmul", "__pow__": "pow", "__rpow__": "rpow", "__mod__": "remainder",
    "__neg__": "neg", "__abs__": "abs", "__invert__": "bitwise_not", "__and__": "and", "__or__": "or", "__xor__": "xor",
    "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
    "__getitem__": "__getitem__", "__setitem__": "__setitem__",
}  # fmt: skip

# Functions that compute no numbers, or move data without a change that counts.
_SILENT_STARTS = ("is_", "get_", "set_", "enable_", "disable_", "in_", "register_", "_")
_SILENT = {
    "to_tensor", "backward", "numpy", "item", "tolist", "detach", "detach_", "clear_grad", "clear_gradient", "gradient",
    "dim", "ndimension", "rank", "numel", "shape", "element_size", "nbytes", "value", "pin_memory", "seed", "save", "load",
    "grad", "no_grad", "summary", "flops", "batch", "finfo", "iinfo", "broadcast_shape", "check_shape", "create_parameter",
    "data_ptr", "retain_grads", "stride", "nelement", "size", "type", "apply", "apply_", "coalesce", "rows", "data",
    "print", "guard", "synchronize", "device_guard", "requires_grad_", "contiguous", "strides", "offset",
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_empty", "new_zeros",
}  # fmt: skip


def namespaces() -> Iterator[tuple[str, Any]]:
    """Return (prefix, where) of the places that users call functions from."""
    yield "Functional", paddle.nn.functional
    yield "Linalg", paddle.linalg
    yield "Fft", paddle.fft
    yield "Paddle", paddle
    yield "Tensor", paddle.Tensor


def functions() -> Iterator[tuple[str, str, Any, Function]]:
    """Return (prefix, name, where, function) of all that is replaced."""
    kinds = (FunctionType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
    for prefix, place in namespaces():
        for name in dir(place) if prefix == "Tensor" else place.__all__:
            if prefix == "Tensor" and name in _ARITHMETIC:
                pass
            elif name.startswith(_SILENT_STARTS) or name in _SILENT:
                continue
            function = getattr(place, name, None)
            if isinstance(function, kinds):
                yield prefix, _ARITHMETIC.get(name, name) if prefix == "Tensor" else name, place, function


class Functions:
    """Replaces the functions, and records their calls."""

    def __init__(self, watch: Watch, gradients: Gradients, records: bool) -> None:
        self._watch = watch
        self._gradients = gradients
        self._records = records  # else uses are only counted, for the gradients of layers
        self._wrappers: dict[int, Any] = {}  # by the function's id
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # where, the name, the function, what stands in its place

    def install(self) -> Undo:
        """Replace; return what puts everything back."""
        replaced, by_function = self._replaced, self._wrappers
        for prefix, op, place, function in functions():
            wrapper = self._wrapper(f"{prefix}.{op}", op, function)
            for name in [n for n in _names(place, op, prefix) if getattr(place, n, None) is function]:
                replaced.append((place, name, function, wrapper))
            by_function.setdefault(id(function), wrapper)
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType) and _holds_names(module):
                replaced += self._held_by(module)
        for place in (paddle.Tensor, paddle.autograd):
            backward = place.backward
            replaced.append((place, "backward", backward, self._inside_backward(backward)))
        for place, name, _, wrapper in replaced:
            setattr(place, name, wrapper)

        def undo() -> None:
            for place, name, function, wrapper in reversed(replaced):
                if getattr(place, name, None) is wrapper:
                    setattr(place, name, function)
            replaced.clear()
            by_function.clear()

        return undo

    def in_layer(self, layer: Any) -> None:
        """Replace the functions that a layer holds, such as its activation."""
        held = self._held_by(layer)
        for place, name, _, wrapper in held:
            setattr(place, name, wrapper)
        self._replaced += held

    def _held_by(self, place: Any) -> list[tuple[Any, str, Any, Any]]:
        by_function = self._wrappers
        return [
            (place, name, value, by_function[id(value)])
            for name, value in vars(place).items()
            if isinstance(value, FunctionType) and id(value) in by_function
        ]

    def _inside_backward(self, function: Function) -> Function:
        thread = self._watch.thread

        @functools.wraps(function)
        def backward(*args: Any, **kwargs: Any) -> Any:
            thread.backward += 1
            try:
                return function(*args, **kwargs)
            finally:
                thread.backward -= 1

        return backward

    def _wrapper(self, head: str, op: str, function: Function) -> Function:
        watch = self._watch
        places = _places(function)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            thread = watch.thread
            if thread.busy or thread.quiet or not (watch.on and watch.forward_on):
                return function(*args, **kwargs)
            stack = thread.stack
            if stack and stack[-1].op and stack[-1].op.strip("_") == op.strip("_"):
                return function(*args, **kwargs)  # the call itself, under its other name
            return self._record(head, op, function, args, kwargs, sys._getframe(1), places)

        with contextlib.suppress(AttributeError, TypeError):
            functools.update_wrapper(wrapper, function)
        watch.recorder.sites.boundary(wrapper.__code__)
        return wrapper

    def _record(self, head: str, op: str, function: Function, args: Any, kwargs: Any, frame: Any, places: Any) -> Any:
        watch, thread = self._watch, self._watch.thread
        call = _Call(watch, self._gradients, head, op, self._records)
        opened = None
        with OwnCode(watch, head):
            if watch.begins():
                opened = call.before(args, kwargs, frame, places)
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
        with OwnCode(watch, head):
            call.after(args[0] if op == "__setitem__" else result)
        return result


def _holds_names(module: ModuleType) -> bool:
    """Tell whether a module may have imported functions by name: the user's own, Paddle's own layers, and what these use."""
    if module.__name__.startswith("paddle.nn.layer.") or module.__name__ == "paddle.tensor":
        return True
    return is_user_file(getattr(module, "__file__", None) or "<none>")


def _names(place: Any, op: str, prefix: str) -> list[str]:
    if prefix != "Tensor":
        return [op]
    return [op, *(name for name, spoken in _ARITHMETIC.items() if spoken == op)]


def _places(function: Function) -> dict[str, int]:
    """Return the place of each parameter that may be given by place or by name."""
    if not isinstance(function, FunctionType):
        return {}
    code = function.__code__
    if code.co_flags & inspect.CO_VARARGS:  # a decorator's wrapper: ask what it wraps
        inner = getattr(function, "__wrapped__", None)
        return _places(inner) if isinstance(inner, FunctionType) else {}
    return {name: index for index, name in enumerate(code.co_varnames[: code.co_argcount])}


class _Call:
    """One call of a function, from before to after."""

    def __init__(self, watch: Watch, gradients: Gradients, head: str, op: str, records: bool) -> None:
        self._watch, self._gradients = watch, gradients
        self._head, self._op, self._records = head, op, records

    def before(self, args: Any, kwargs: Any, frame: Any, places: dict[str, int]) -> Open | None:
        """Measure the inputs as they are before the call."""
        watch = self._watch
        positional: list[tuple[str, Any]] = []
        named: list[tuple[str, Any]] = []
        self._inputs: list[Slot] = watch.flatten("input", args, positional)
        for key, value in kwargs.items():
            # A layer passes its tensors by name; under their place they are where another framework's are.
            group, label = ("input", str(places[key])) if key in places else ("kwargs", key)
            if key != "name":
                others: list[tuple[str, Any]] = []
                self._inputs += watch.flatten(group, {label: value}, others)
                named += [(key, value) for _ in others]
        stack = watch.thread.stack
        top = stack[-1] if stack else None
        self._tracks = watch.record_backward and paddle.is_grad_enabled()
        self._uses = self._gradients.used(self._inputs) if self._tracks else {}
        self._calls_before = _COUNT[0]
        module, module_class, path = (
            (top.module, top.module_class, top.path) if top else (watch.no_text, watch.no_text, "")
        )
        if not self._records:
            return Open(
                top.order if top else -1, module, module_class, path, -1, self._op, top.backward if top else None
            )
        self._site = watch.site(frame)
        self._order = watch.recorder.order()
        self._series = watch.series(self._head)
        self._number = self._series.next(watch.recorder.epoch)
        self._name = self._series.name(self._number)
        self._arguments = watch.arguments(positional, named)
        self._place = (module, module_class)
        self._parent = top.order if top else -1
        self._outer = top.backward if top else None
        self._wanted = watch.in_scope(self._name, module, module_class, "api")
        self._rows = watch.measure(self._inputs, self._name) if self._wanted and watch.record_forward else []
        self._backward = _Lazy()
        return Open(self._order, module, module_class, path, self._site, self._op, self._backward)

    def after(self, result: Any) -> None:
        """Record the call with its outputs, and watch for the gradients."""
        watch = self._watch
        outputs = watch.outputs(result)
        innermost = self._calls_before == _COUNT[0]
        if not outputs:
            if self._records:
                self._series.give_back(self._number)
            return
        _COUNT[0] += 1
        if self._tracks and innermost:
            self._gradients.count(self._inputs)
        for _, tensor in outputs:
            if any(tensor is given for _, given in self._inputs):
                watch.tensors.forget_one(tensor)
        if not self._records or not self._wanted:
            return
        if watch.record_forward:
            self._row(-1)
            watch.slots(self._order, self._rows)
            watch.slots(self._order, watch.measure(outputs, self._name))
        watch.ended(self._name)
        if self._tracks and any(not tensor.stop_gradient for _, tensor in outputs):
            call = BackwardCall(
                watch, self._series.name(self._number, "backward"), watch.kinds["api"], *self._place, self._order,
                self._site, self._outer,
            )  # fmt: skip
            self._backward.become(call)
            self._gradients.attach(call, self._inputs, self._uses, outputs, makes=innermost)
        watch.flush_if_full()

    def _row(self, error: int) -> None:
        watch = self._watch
        watch.recorder.call(
            self._order, self._name, watch.kinds["api"], *self._place, watch.phases["forward"], self._parent, -1,
            self._arguments, self._site, watch.thread.backward > 0, error, watch.thread_number(),
        )  # fmt: skip

    def raised(self, error: Exception) -> None:
        """Record a call that raised; the user may catch it and go on."""
        if not self._records:
            return
        with OwnCode(self._watch, self._head):
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


_COUNT = [0]  # functions that have made a tensor so far: tells whether one ran inside another
