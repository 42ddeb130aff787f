"""What each torch function is called: `Functional.linear`, `Tensor.permute`, `Torch.exp`, `Linalg.norm`, `Ops.ns.op`."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from numscope.capture.interned import Series

Function = Callable[..., Any]
_FUNCTIONAL = torch.nn.functional.__name__

# Attributes whose getters compute a tensor; all other attributes are no calls.
_TENSOR_PROPERTIES = {"T", "H", "mT", "mH", "real", "imag"}

# Functions that compute no numbers, or whose result is the input itself.
_SILENT = {
    "size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "storage_offset", "data_ptr",
    "is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_pinned", "is_shared", "is_set_to", "is_tensor",
    "is_storage", "is_nonzero", "is_inference", "is_conj", "is_neg", "is_same_size", "is_coalesced", "is_distributed",
    "get_device", "type", "storage", "untyped_storage", "__len__", "__hash__", "__repr__", "__format__", "__str__",
    "__bool__", "__int__", "__float__", "__index__", "__contains__", "__reduce_ex__", "__reduce__", "__deepcopy__",
    "__dir__", "__iter__", "__array__", "__dlpack__", "__dlpack_device__", "__cuda_array_interface__",
    "requires_grad_", "retain_grad", "register_hook", "register_post_accumulate_grad_hook", "detach", "detach_",
    "tolist", "item", "numpy", "equal", "allclose", "is_same", "apply_", "map_", "share_memory_", "pin_memory",
    "record_stream", "refine_names", "rename", "rename_", "align_to", "has_names", "dim_order", "result_type",
    "can_cast", "promote_types", "get_default_dtype", "broadcast_shapes", "manual_seed", "seed", "_assert", "_assert_async",
    "is_grad_enabled", "is_inference_mode_enabled", "set_grad_enabled", "get_rng_state", "set_rng_state",
    "_has_compatible_shallow_copy_type", "_is_view", "_make_subclass", "as_subclass", "_nested_tensor_size",
    "_dimI", "_dimV", "_nnz", "_indices", "_values", "sparse_dim", "dense_dim", "has_torch_function", "data",
    "_wrap_tensor_autograd",
}  # fmt: skip

# The memory these give is not written yet: there is nothing to measure.
# Names under which torch has the same function twice.
_ALIASES = {"dsmm": "mm", "hsmm": "mm", "spmm": "mm"}

UNINITIALIZED = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "new"}

# These look at memory in another way, and compute nothing.
_VIEWS = {
    "view", "view_as", "reshape", "reshape_as", "narrow", "split", "split_with_sizes", "tensor_split", "chunk", "unbind",
    "select", "as_strided", "__getitem__", "t", "T", "mT", "transpose", "swapaxes", "permute", "movedim", "expand",
    "expand_as", "squeeze", "unsqueeze", "flatten", "unflatten", "ravel", "contiguous", "detach", "unfold", "diagonal",
    "_unsafe_view",
}  # fmt: skip

# This fills a rank's own part of the memory that it returns; a collective will fill the rest.
FILLS_A_PART = {"all_gather_copy_in"}

# These give away the memory itself, or a tensor whose version is another, or write without a new version: what lies there
# may be written to unseen.
EXPOSES = {
    "apply_",
    "map_",
    "map2_",
    "data",
    "data_ptr",
    "numpy",
    "__array__",
    "__dlpack__",
    "__cuda_array_interface__",
    "storage",
    "untyped_storage",
}
STORAGES = {"storage", "untyped_storage"}  # of these, those that give away the storage object alone

# These write to some of their arguments without telling the version counter: running statistics, gradients, parameters.
_WRITES_UNTOLD = {"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"}

# Functions of nn.functional that are written in Python and call nothing but the operator of their own name.
_SINGLE = {
    "dropout", "elu", "group_norm", "layer_norm", "leaky_relu", "log_softmax", "relu", "relu6", "rms_norm", "selu", "silu",
    "softmax",
}  # fmt: skip

# The engine runs inside these; they are no calls, but what happens within is seen.
TRANSPARENT = {"backward"}


class Api:
    """What numscope knows of one torch function."""

    __slots__ = (
        "aside",
        "asks_versions",
        "casts",
        "composite",
        "computes",
        "cuts",
        "exposes",
        "fills_a_part",
        "foreign",
        "head",
        "may_write",
        "op",
        "overwrites",
        "pending",
        "plain",
        "series",
        "silent",
        "transparent",
        "twin",
        "uninitialized",
        "usual",
        "views",
        "writes_untold",
    )

    def __init__(self, prefix: str, op: str, function: Function, silent: bool) -> None:
        self.head = f"{prefix}.{op}"
        self.op = op
        self.silent = silent
        self.uninitialized = op in UNINITIALIZED
        self.pending = prefix == "Distributed" and op != "wait_tensor"  # its result is not there when it returns
        self.views = op in _VIEWS
        self.fills_a_part = op.rpartition(".")[2] in FILLS_A_PART
        self.overwrites = is_in_place(op)
        self.transparent = op in TRANSPARENT
        self.exposes = op in EXPOSES
        self.writes_untold = op in _WRITES_UNTOLD or op.startswith(("_amp_", "_fused_"))
        self.foreign = prefix in ("Function", "Ops", "Custom")  # not torch's own: it may write wherever it likes
        self.may_write = self.overwrites or self.foreign
        self.cuts = op in {"detach", "detach_"}  # a call where it cuts the graph
        self.casts = op == "type"  # a call where it is told a dtype; else it asks for one
        inner = not (op in _SINGLE and getattr(function, "__module__", "") == _FUNCTIONAL)
        self.twin = _twin(function) if inner and isinstance(function, FunctionType) else None
        self.computes = False  # it has returned a tensor before: what it writes to is then no result
        self.asks_versions = True  # … so that nobody asks what it wrote to
        self.composite = self.twin is not None  # its inner calls are seen
        self.usual = False  # nothing of this is to be asked at its calls
        self.plain = silent and not (
            self.exposes or self.cuts or self.casts or self.transparent
        )  # nothing is to be done about it
        self.aside = silent or self.transparent  # no call, or one only in some cases
        self.series: Series | None = None  # the names of its calls, once there is one

    def has_computed(self) -> None:
        """Know that it returns tensors."""
        self.computes = True
        self.asks_versions = self.may_write or self.writes_untold or self.uninitialized or self.pending
        self.usual = not (self.asks_versions or self.composite or self.aside)


def is_in_place(op: str) -> bool:
    """Tell whether an operator of this name writes to its first argument."""
    return (op.endswith("_") and not op.endswith("__")) or op == "__setitem__"


def is_cast(api: Api, args: Any, kwargs: Any) -> bool:
    """Tell whether a call of `type` gives a tensor of another dtype, instead of saying which it is."""
    return api.casts and (len(args) > 1 or bool(kwargs))


class _LiveGlobals(dict[str, Any]):
    """The globals of a module with a few names replaced; all others are looked up live."""

    def __init__(self, module: dict[str, Any], replaced: dict[str, Any]) -> None:
        super().__init__(replaced)
        self._module = module

    def __missing__(self, name: str) -> Any:
        return self._module[name]


def _never(*_: Any, **__: Any) -> bool:
    return False


def _twin(function: FunctionType) -> Function | None:
    """Return the same Python function without its own override check, or None where it has none.

    A torch function written in Python asks first whether a mode wants it, and hands itself to the mode. Calling it
    again from there with the mode on would ask for ever; calling it with the mode off hides its inner calls. The twin
    has the same code and live globals, but its question is answered with no: its inner calls are seen.
    """
    asked = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    if not asked:
        return None
    replaced = dict.fromkeys(asked, _never)
    replaced["__builtins__"] = function.__globals__["__builtins__"]
    scope = _LiveGlobals(function.__globals__, replaced)
    twin = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


class ApiTable:
    """Looks a function up by identity, once."""

    def __init__(self) -> None:
        self.known: dict[Function, Api] = {}
        self._places: dict[Any, tuple[str, str]] | None = None

    def __getitem__(self, function: Function) -> Api:
        found = self.known.get(function)
        return found if found is not None else self._learn(function)

    def _learn(self, function: Function) -> Api:
        if self._places is None:
            self._places = _places()
        owner = getattr(function, "__self__", None)
        kind = getattr(function, "__name__", "")
        if kind in {"__get__", "__set__", "__delete__"} and owner is not None:
            name = getattr(owner, "__name__", "")
            api = Api("Tensor", name, function, kind != "__get__" or name not in _TENSOR_PROPERTIES)
        else:
            prefix, op = self._place(function)
            api = Api(prefix, op, function, op in _SILENT or op.startswith("profiler.") or _is_collective(function))
        self.known[function] = api
        return api

    def _place(self, function: Function) -> tuple[str, str]:
        assert self._places is not None
        try:
            if function in self._places:
                return self._places[function]
        except TypeError:
            pass
        if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            packet = function.overloadpacket if isinstance(function, torch._ops.OpOverload) else function
            namespace, _, op = packet._qualified_op_name.partition("::")
            if namespace.startswith("_c10d_functional"):
                return "Distributed", op
            return ("Aten", op) if namespace == "aten" else ("Ops", f"{namespace}.{op}")
        name = getattr(function, "__name__", type(function).__name__)
        if getattr(function, "__objclass__", None) is not None:
            return "Tensor", name
        module = str(getattr(function, "__module__", "") or "")
        if module.startswith("torch") or module == "":
            return "Torch", name
        return "Custom", f"{module.replace('.', '_')}.{name}"


def _is_collective(function: Function) -> bool:
    """Tell whether a function is recorded as a collective: what it is given to write to holds nothing yet."""
    return getattr(function, "__module__", "") == "torch.distributed.distributed_c10d"


def _places() -> dict[Any, tuple[str, str]]:
    """Map every torch function to the name its users know; the more specific namespace wins."""
    places: dict[Any, tuple[str, str]] = {}
    namespaces: list[tuple[str, Any]] = [
        ("Functional", torch.nn.functional),
        ("Functional", torch._C._nn),
        ("Linalg", torch.linalg),
        ("Fft", torch.fft),
        ("Special", torch.special),
        ("Sparse", torch.sparse),
        ("Torch", torch),
        ("Torch", torch.functional),
        ("Tensor", torch.Tensor),
        ("Tensor", torch._C.TensorBase),
        ("VF", torch._C._VariableFunctions),
    ]
    for prefix, namespace in namespaces:
        for name in sorted(dir(namespace), key=lambda name: name.startswith("__")):  # `abs`, which `__abs__` is too
            if prefix not in {"Tensor"} and name.startswith("__"):
                continue
            value = getattr(namespace, name, None)
            if not callable(value) or isinstance(value, type):
                continue
            try:
                known = places.setdefault(value, (prefix, name))
            except TypeError:
                continue
            if known[0] == prefix and name == _ALIASES.get(known[1]):
                places[value] = (prefix, name)
    return places
