"""The compiled functions of capture: what is done at each call, each gradient and each tensor of a job, in C++.

Each stands in for one Python function, works on the same objects, and leaves to that function what is not usual; the Python
functions say what is to be done, and do all of it where there is no compiler. So either may be used at any time. They are
compiled against the headers of the torch that runs, of which c10's are enough, and Python's, when a capture first starts.
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
from typing import Any

import torch

from numscope.capture.torch import inputs, slots
from numscope.capture.torch.autograd import backward, bare_hooks, graph
from numscope.capture.torch.identity import tensors
from numscope.capture.torch.levels import api, api_results, aten, aten_rows, compiled, module_state, modules
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.levels.operator_schema import ABSENT, Names, Operator
from numscope.core.compiling import compiled as library_of
from numscope.core.compiling import is_wanted, program

_NAME = "numscope_native"
_SOURCES = ("native.cpp", "common.h", "tensors.h", "backward.h", "calls.h", "modules.h", "aten.h")
_STANDARDS = ("c++20", "c++17")  # the newer torch's headers want the first, an old compiler knows the second alone
_METHODS: tuple[tuple[type, str, str], ...] = (
    (tensors.Tensors, "look_up", "look_up"),
    (tensors.Tensors, "number", "number"),
    (backward.NodeHook, "__call__", "hook_call"),
    (module_state.GradientHook, "__call__", "gradient_call"),
    (api.ApiMode, "__torch_function__", "call_function"),
    (aten.AtenMode, "__torch_dispatch__", "call_operator"),
    (modules.Modules, "_begin", "begin_module"),
)
_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    (inputs, "take"),
    (api, "take"),
    (modules, "take"),
    (graph, "attach_one"),
    (api, "attach_one"),
    (modules, "attach_one"),
    (graph, "walk"),
    (bare_hooks, "registered"),
    (modules, "end_module"),
)
# As they are in Python
_PYTHONS: dict[tuple[Any, str], Any] = {
    **{(owner, name): vars(owner)[name] for owner, name, _ in _METHODS},
    **{(owner, name): getattr(owner, name) for owner, name in _FUNCTIONS},
}


_switched_off = False


def adopt() -> bool:
    """Put the compiled functions in the place of Python's, from here on; tell whether they are there."""
    native = None if _switched_off else load()
    if native is None:
        return False
    for owner, name, function in _METHODS:
        if vars(owner)[name] is _PYTHONS[owner, name]:
            setattr(owner, name, native.bound(getattr(native, function)))
    for owner, name in _FUNCTIONS:
        setattr(owner, name, getattr(native, name))
    return True


@contextmanager
def without() -> Iterator[None]:
    """Do without compiled functions inside, as where there is no compiler."""
    global _switched_off
    now = {place: vars(place[0])[place[1]] for place in _PYTHONS}
    before, _switched_off = _switched_off, True
    try:
        for (owner, name), function in _PYTHONS.items():
            setattr(owner, name, function)
        yield
    finally:
        _switched_off = before
        for (owner, name), function in now.items():
            setattr(owner, name, function)


@lru_cache(maxsize=1)
def load() -> Any:
    """Return the compiled functions, or None where they can't be had; the answer is the same for the whole process."""
    if not is_wanted() or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
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
    module.prepare(_classes(), _given(), [(tensor, tensor._cdata) for tensor in some])
    return module


def _classes() -> dict[str, type]:
    from numscope.capture.interned import Series
    from numscope.capture.recorder import Recorder
    from numscope.capture.sites import Sites
    from numscope.capture.torch.autograd.recompute import Executions
    from numscope.capture.torch.identity.carried_over import CarriedOver, CarriedTensor
    from numscope.capture.torch.identity.known_tensors import KnownTensor
    from numscope.capture.torch.identity.layouts import Layout
    from numscope.capture.torch.thread import Open, State
    from numscope.capture.torch.watch import Watch
    from numscope.fingerprint.rows import Rows
    from numscope.fingerprint.torch_form import TorchBatch

    ours = [Api, api.ApiMode, aten.AtenMode, Operator, Names, modules.Modules, module_state.GradientHook]
    ours += [tensors.Tensors, KnownTensor, Layout, CarriedOver, CarriedTensor]
    ours += [Watch, State, Open, Executions, backward.BackwardCall, backward.NodeHook]
    ours += [Recorder, Series, Sites, Rows, TorchBatch]
    return {kind.__name__: kind for kind in ours}


def _given() -> dict[str, Any]:
    """Return what the compiled functions are handed over: classes, functions of torch's, and ours for what is rare."""
    from numscope.capture.columns import AGAIN
    from numscope.capture.torch.identity.carried_over import CarriedTensor
    from numscope.capture.torch.identity.known_tensors import KnownTensor
    from numscope.capture.torch.identity.layouts import Layout
    from numscope.capture.torch.thread import Open, State
    from numscope.capture.torch.watch import Watch
    from numscope.fingerprint.columns import Unmeasured
    from numscope.fingerprint.native import Way
    from numscope.fingerprint.torch_form import TorchBatch

    core: Any = torch._C
    return {
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "Buffer": getattr(torch.nn, "Buffer", torch.Tensor),
        "BackwardCall": backward.BackwardCall,
        "NodeHook": backward.NodeHook,
        "TorchBatch": TorchBatch,
        "Way": Way,
        "AccumulateGrad": core._functions.AccumulateGrad,
        "SIMPLE": slots.SIMPLE,
        "EXACT": slots.EXACT,
        "LEAVES": inputs.LEAVES,
        "KEY": backward.KEY,
        "Api": Api,
        "ApiMode": api.ApiMode,
        "AtenMode": aten.AtenMode,
        "CarriedTensor": CarriedTensor,
        "GradientHook": module_state.GradientHook,
        "KnownTensor": KnownTensor,
        "Layout": Layout,
        "Operator": Operator,
        "AGAIN": AGAIN,
        "Open": Open,
        "State": State,
        "Tensors": tensors.Tensors,
        "Watch": Watch,
        "Modules": modules.Modules,
        "Unmeasured": Unmeasured,
        "compiler": compiled.flags,
        "is_tracing": compiled.is_tracing,
        "task": core._current_graph_task_id,
        "functions": core._len_torch_function_stack,
        "modes": core._len_torch_dispatch_stack,
        "traced": core._is_tracing,
        "sequence": core._autograd._get_sequence_nr,
        "capturing": getattr(core, "_cuda_isCurrentStreamCapturing", None),
        "raw_stream": getattr(core, "_cuda_getCurrentRawStream", None),
        "current_device": getattr(core, "_cuda_getDevice", None),
        "look_up": _PYTHONS[tensors.Tensors, "look_up"],
        "hook_call": _PYTHONS[backward.NodeHook, "__call__"],
        "gradient_call": _PYTHONS[module_state.GradientHook, "__call__"],
        "call_function": _PYTHONS[api.ApiMode, "__torch_function__"],
        "begin_module": _PYTHONS[modules.Modules, "_begin"],
        "end_module": modules.end_module,
        "end_call": api.end_call,
        "raised": api_results.raised,
        "ABSENT": ABSENT,
        "NUMBERS": slots.NUMBERS,
        "THREAD": aten.THREAD,
        "current_node": core._current_autograd_node,
        "look_up_view": tensors.Tensors.look_up_view,
        "nested_rows": aten_rows.nested_rows,
        "named_rows": aten_rows.named_rows,
        "result_rows": aten_rows.result_rows,
        "call_operator": _PYTHONS[aten.AtenMode, "__torch_dispatch__"],
        "take_state": inputs.take_state,
        "aim": inputs.aim,
        "aim_again": inputs.aim_again,
        "lead": graph.lead,
        "Sink": backward.Sink,
        "count": itertools.count,
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
            tensor.untyped_storage()._cdata, tensor._version, tensor.data_ptr(), tensor.storage_offset(), list(tensor.shape),
            list(tensor.stride()), tensor.is_contiguous(), tensor.requires_grad, tensor.element_size(),
        )  # fmt: skip
        if native.facts(tensor) != told:
            raise RuntimeError("the compiled functions see another tensor than torch does")
    odd = [torch.ones(2, device="meta"), torch.ones(2, dtype=torch.complex64).conj(), torch.eye(2).to_sparse()]
    with torch.inference_mode():
        odd.append(torch.ones(2))
    if any(native.facts(tensor) is not None for tensor in odd):
        raise RuntimeError("the compiled functions take an unusual tensor for a usual one")
