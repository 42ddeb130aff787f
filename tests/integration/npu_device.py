"""An `npu` device made of Python: torch's PrivateUse1 under that name, whose operators run on the CPU.

Run as a script it goes through the documents' examples as they are printed, with `.npu()` and torch.npu, and checks that
what is recorded on this device is what the CPU gives.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_memory: dict[
    int, tuple[Any, torch.Tensor]
] = {}  # storage → itself, so that its address stays its own, and its content
_libraries: list[Any] = []
_replaced: dict[str, Any] = {}  # kernels that are not the CPU's, by the operator's name


def on_device(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the device with this content; it shares memory that is contiguous, so that views stay views."""
    made: torch.Tensor = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
    storage = made.untyped_storage()
    _memory[storage._cdata] = (storage, value.detach().contiguous())
    return made


def on_cpu(value: Any) -> Any:
    """Return the content of the device's tensor, sharing its memory; anything else as it is."""
    if isinstance(value, torch.Tensor) and value.device.type == "npu":
        content = _memory[value.untyped_storage()._cdata][1]
        if content.dtype == value.dtype and content.shape == value.shape:
            return content
        flat = content.contiguous().reshape(-1).view(torch.uint8).view(value.dtype)  # torch made a view by itself
        return flat.as_strided(value.size(), value.stride(), value.storage_offset())
    if isinstance(value, torch.device) and value.type == "npu":
        return torch.device("cpu")
    return value


def run_on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run any operator of the device on the CPU; what it writes to is written, and resized where it must be."""
    with torch._C.DisableTorchFunction():
        return _run(op, args, kwargs)


def _run(op: Any, args: Any, kwargs: Any) -> Any:
    args_cpu, kwargs_cpu = tree_map(on_cpu, args), tree_map(on_cpu, kwargs)
    result = _replaced.get(op._schema.name, op)(*args_cpu, **kwargs_cpu)
    written = []
    for place, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        theirs = kwargs[argument.name] if argument.name in kwargs else args[place]
        ours = kwargs_cpu[argument.name] if argument.name in kwargs_cpu else args_cpu[place]
        if isinstance(theirs, torch.Tensor):
            if theirs.shape != ours.shape:
                theirs.data = on_device(ours)
            written.append(theirs)
    if written and op._schema.returns:
        return written[0] if len(written) == 1 else tuple(written)
    return tree_map(lambda item: on_device(item) if isinstance(item, torch.Tensor) else item, result)


def replace(name: str, kernel: Any) -> None:
    """Give the device a kernel of its own: `aten::gelu`."""
    _replaced[name] = kernel


def register() -> None:
    """Make torch know the device."""
    _setup_privateuseone_for_python_backend("npu")
    general, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _libraries.extend((general, aten))
    general.fallback(run_on_cpu, "PrivateUse1")

    def move(value: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            copy = on_cpu(value).to(dtype or value.dtype, copy=True)
            return copy if torch.device(device or value.device).type == "cpu" else on_device(copy)

    def copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            on_cpu(target).copy_(on_cpu(source))
        return target

    def empty(size: Any, *_: Any, dtype: Any = None, **__: Any) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return on_device(torch.zeros(size, dtype=dtype))

    def arange(*args: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return on_device(torch.arange(*args, dtype=dtype))

    for name, function in (
        ("_to_copy", move),
        ("_copy_from", copy_from),
        ("empty.memory_format", empty),
        ("empty_strided", empty),
        ("arange", arange),
        ("arange.start", arange),
        ("arange.start_step", arange),
    ):
        aten.impl(name, function, "PrivateUse1")


class ModuleOP(torch.nn.Module):
    """The documents' network."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = torch.nn.Linear(8, 4)
        self.linear_2 = torch.nn.Linear(4, 2)
        self.relu = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.linear_2(self.linear_1(x)))


def captured(where: Path) -> None:
    """The same step on both devices has the same fingerprints and values."""
    import numscope as ns
    from numscope.fingerprint import definition

    runs = {}
    for device in ("cpu", "npu"):
        torch.manual_seed(0)
        model, x = ModuleOP().to(device), torch.randn(10, 8).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with ns.capture(where / device, model, keep="tensors", on_error="raise") as cap:
            model(x).sum().backward()
            optimizer.step()
            cap.step()
        runs[device] = ns.open_run(where / device)
    assert runs["npu"].manifest["devices"] == ["npu:0"], runs["npu"].manifest["devices"]
    cpu, npu = ({row["name"]: row for row in run.tensors.to_pylist()} for run in runs.values())
    assert set(cpu) == set(npu)
    for name in ("Data.ModuleOP.0.input.output.0", "Module.linear_1.Linear.forward.0.parameters.weight"):
        assert npu[name]["hash"] == cpu[name]["hash"], name
        assert npu[name]["device"] == "npu:0"
    for name, row in npu.items():  # what the device's own operators measured is what its data says
        array = runs["npu"].tensor(name)
        assert row["hash"] == int(definition.fingerprint(array).hash[0]), name
    assert ns.compare(where / "npu", where / "cpu").verdict in ("identical", "equivalent")


def msprobe_example(where: Path) -> None:
    from numscope.compat.msprobe import PrecisionDebugger

    module = ModuleOP().npu()
    debugger = PrecisionDebugger(dump_path=where / "dump", task="tensor", level="mix", model=module)
    debugger.start()
    x = torch.randn(10, 8).npu()
    module(x).sum().backward()
    debugger.stop()
    data = json.loads((where / "dump/step0/rank/dump.json").read_text())["data"]
    assert data["Functional.linear.0.forward"]["input_args"][0]["Max"] == float(x.cpu().max())


def torch_npu_example(where: Path) -> None:
    from numscope.compat.torch_npu_hooks import register_hook, seed_all, set_dump_path, wrap_acc_cmp_hook
    from numscope.compat.torch_npu_hooks.tools import compare

    os.chdir(where)
    module = ModuleOP()
    register_hook(module, wrap_acc_cmp_hook)
    seed_all()
    x = torch.randn(2, 8)
    set_dump_path("./cpu_module_op.pkl")
    module(x).sum().backward()
    module.npu()
    x = x.npu()
    set_dump_path("./npu_module_op.pkl")
    module(x).sum().backward()
    compare("./npu_module_op.pkl", "./cpu_module_op.pkl", "./module_result.csv")
    lines = Path("module_result.csv").read_text().splitlines()
    assert len(lines) > 20
    assert all(float(line.split(",")[-2]) < 1e-5 for line in lines[1:]), lines


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    register()
    folder = Path(sys.argv[1])
    captured(folder)
    msprobe_example(folder)
    torch_npu_example(folder)
    print("npu works")
