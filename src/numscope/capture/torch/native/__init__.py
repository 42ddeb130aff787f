"""The compiled methods of capture: the work at each call, each gradient and each tensor of a job, in C++.

Each stands in for one Python method of a class, works on the same objects, and leaves to that method what is not usual. The
Python methods are the specification, and do all of the work where there is no compiler. A compiled method is put into its
class, so that whoever calls the method calls that one. They are compiled against the headers of the torch that runs, of
which c10's are enough, and Python's, when a capture first starts.
"""

from __future__ import annotations

import importlib.util
import itertools
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from typing import Any, NamedTuple

import torch

from numscope.capture.recording.columns import AGAIN
from numscope.capture.recording.interned import Numbering, Series
from numscope.capture.recording.recorder import Recorder
from numscope.capture.recording.rows import CallRow, MeasuredAt
from numscope.capture.sites import Sites
from numscope.capture.torch.autograd.backward import KEY, BackwardCall, Exit, Led, NodeHook, Sink
from numscope.capture.torch.autograd.bare_hooks import WithoutHandles
from numscope.capture.torch.autograd.graph import CallGraph, lead
from numscope.capture.torch.autograd.recompute import Executions
from numscope.capture.torch.identity.carried_over import CarriedOver, CarriedTensor
from numscope.capture.torch.identity.known_tensors import KnownTensor
from numscope.capture.torch.identity.layouts import Layout, View
from numscope.capture.torch.identity.tensors import Tensors
from numscope.capture.torch.inputs import LEAVES, Inputs, aim, aim_again
from numscope.capture.torch.levels.api import ApiMode, BegunCall, end_call, raised
from numscope.capture.torch.levels.aten import THREAD, AtenMode
from numscope.capture.torch.levels.compiled import flags, is_tracing
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.levels.module_state import GradientHook
from numscope.capture.torch.levels.modules import BegunModule, ModuleName, Modules
from numscope.capture.torch.levels.operator_schema import Names, Operator
from numscope.capture.torch.slots import EXACT, SIMPLE
from numscope.capture.torch.thread import Open, State
from numscope.capture.torch.watch import Watch
from numscope.core.compiling import compiled as library_of
from numscope.core.compiling import is_wanted, program
from numscope.fingerprint.columns import Unmeasured
from numscope.fingerprint.native import Way
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_form import TorchBatch

_NAME = "numscope_native"
_SOURCES = ("native.cpp", "records.h", "common.h", "tensors.h", "backward.h", "calls.h", "modules.h", "aten.h")
_STANDARDS = ("c++20", "c++17")  # the newer torch's headers want the first, an old compiler knows the second alone


class Method(NamedTuple):
    """A method that has a compiled form."""

    owner: type
    name: str
    compiled: str  # the name of that function in C++


_METHODS = (
    Method(Tensors, "look_up", "look_up"),
    Method(Tensors, "number", "number"),
    Method(Inputs, "take", "take"),
    Method(CallGraph, "attach_one", "attach_one"),
    Method(CallGraph, "walk", "walk"),
    Method(NodeHook, "__call__", "hook_call"),
    Method(GradientHook, "__call__", "gradient_call"),
    Method(WithoutHandles, "registered", "registered"),
    Method(ApiMode, "__torch_function__", "call_function"),
    Method(AtenMode, "__torch_dispatch__", "call_operator"),
    Method(Modules, "_begin", "begin_module"),
    Method(Modules, "_end", "end_module"),
)
_PYTHON = {method.compiled: vars(method.owner)[method.name] for method in _METHODS}  # as they are in Python


_switched_off = False


def adopt() -> bool:
    """Put the compiled methods into their classes, from here on; tell whether they are there."""
    native = None if _switched_off else load()
    if native is None:
        return False
    for owner, name, function in _METHODS:
        if vars(owner)[name] is _PYTHON[function]:
            setattr(owner, name, native.bound(getattr(native, function)))
    return True


@contextmanager
def without() -> Iterator[None]:
    """Do without compiled methods inside, as where there is no compiler."""
    global _switched_off
    now = [vars(owner)[name] for owner, name, _ in _METHODS]
    before, _switched_off = _switched_off, True
    try:
        for owner, name, function in _METHODS:
            setattr(owner, name, _PYTHON[function])
        yield
    finally:
        _switched_off = before
        for (owner, name, _), function in zip(_METHODS, now):
            setattr(owner, name, function)


@lru_cache(maxsize=1)
def load() -> Any:
    """Return the compiled functions, or None where they can't be had; the answer is the same for the whole process."""
    if not is_wanted() or sys.implementation.name != "cpython":
        return None
    if sysconfig.get_config_var("Py_GIL_DISABLED"):  # they rely on Python's lock
        if sys.stderr is not None:
            print("numscope: free-threaded Python: capture costs about twice as much as with the lock", file=sys.stderr)
        return None
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return None
    try:
        here = Path(__file__).parent
        sources = [here / name for name in _SOURCES]
        parts = torch.__version__, sys.version, str(torch._C._GLIBCXX_USE_CXX11_ABI)
        compiler = program("CXX", "c++", "g++", "clang++")
        return _module(library_of("capture", sources, compiler, _flags(), parts, lambda path: _try_out(_module(path))))
    except Exception:  # no compiler, no headers, a torch that is made in another way: slower, not wrong
        return None


def _flags() -> list[list[str]]:
    root = Path(torch.__file__).parent
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    flags = [
        "-O2",
        "-fPIC",
        "-shared",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        *("-isystem", sysconfig.get_paths()["include"]),  # no warnings about others' headers
        *("-isystem", str(root / "include")),
    ]
    flags += [f"-L{root / 'lib'}", "-lc10"]
    return [[f"-std={standard}", *flags] for standard in _STANDARDS]


def _module(path: Path) -> Any:
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    some = [torch.empty(2), torch.nn.Parameter(torch.empty(3, 4)), torch.empty(2, requires_grad=True)]
    classes = {kind.__name__: kind for kind in _CLASSES}
    module.prepare(classes, _given(), [(tensor, tensor._cdata) for tensor in some])
    return module


# The classes whose slots the compiled functions read.
_CLASSES: tuple[type, ...] = (
    Api,
    ApiMode,
    AtenMode,
    BackwardCall,
    CallGraph,
    CarriedOver,
    CarriedTensor,
    Executions,
    GradientHook,
    Inputs,
    KnownTensor,
    Layout,
    Modules,
    Names,
    NodeHook,
    Open,
    Operator,
    Recorder,
    Rows,
    Series,
    Sites,
    State,
    Tensors,
    TorchBatch,
    Watch,
)
# The records that they read and make, by the fields that `headers.py` names for them.
_RECORDS: tuple[type, ...] = (BegunCall, BegunModule, CallRow, Exit, Led, MeasuredAt, ModuleName, Numbering, View, Way)


def _given() -> dict[str, object]:
    """Return what the compiled functions are handed over: classes, functions of torch's, and ours for what is rare."""
    core: Any = torch._C
    return {
        **{kind.__name__: kind for kind in (*_CLASSES, *_RECORDS, Sink, Unmeasured)},
        **_PYTHON,
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "Buffer": getattr(torch.nn, "Buffer", torch.Tensor),
        "AccumulateGrad": core._functions.AccumulateGrad,
        "AGAIN": AGAIN,
        "EXACT": EXACT,
        "KEY": KEY,
        "LEAVES": LEAVES,
        "SIMPLE": SIMPLE,
        "THREAD": THREAD,
        "aim": aim,
        "aim_again": aim_again,
        "compiler": flags,
        "count": itertools.count,
        "end_call": end_call,
        "is_tracing": is_tracing,
        "lead": lead,
        "raised": raised,
        "task": core._current_graph_task_id,
        "current_node": core._current_autograd_node,
        "functions": core._len_torch_function_stack,
        "modes": core._len_torch_dispatch_stack,
        "traced": core._is_tracing,
        "sequence": core._autograd._get_sequence_nr,
        "capturing": getattr(core, "_cuda_isCurrentStreamCapturing", None),
        "raw_stream": getattr(core, "_cuda_getCurrentRawStream", None),
        "current_device": getattr(core, "_cuda_getDevice", None),
    }


def _try_out(native: Any) -> None:
    """Raise where the compiled functions do not see a tensor as torch does."""
    base = torch.arange(60, dtype=torch.float64).reshape(3, 4, 5)
    base += 1
    some = [base, base[1:, ::2], base.permute(2, 0, 1), torch.empty(0, 3), torch.ones((), dtype=torch.bool)]
    some += [
        torch.nn.Parameter(torch.ones(2, 3)),
        torch.ones(7, dtype=torch.bfloat16)[1:],
        torch.ones(3, requires_grad=True),
    ]
    for tensor in some:
        told = (
            tensor.untyped_storage()._cdata,
            tensor._version,
            tensor.data_ptr(),
            tensor.storage_offset(),
            list(tensor.shape),
            list(tensor.stride()),
            tensor.is_contiguous(),
            tensor.requires_grad,
            tensor.element_size(),
        )
        if native.facts(tensor) != told:
            raise RuntimeError("the compiled functions see another tensor than torch does")
    odd = [torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex64).conj(), torch.eye(2).to_sparse()]
    odd += [torch.ones(2).as_subclass(type("Tagged", (torch.Tensor,), {})), torch._to_functional_tensor(torch.ones(2))]
    with torch.inference_mode():
        odd.append(torch.ones(2))
    with importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode():
        odd.append(torch.ones(2))

    def is_usual(tensor: torch.Tensor) -> torch.Tensor:
        return torch.tensor(native.facts(tensor) is not None)

    odd_inside = torch.func.vmap(is_usual)(torch.ones(2, 2))
    if odd_inside.any() or any(native.facts(tensor) is not None for tensor in odd):
        raise RuntimeError("the compiled functions take an unusual tensor for a usual one")
