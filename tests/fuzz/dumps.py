"""Other tools' dumps: a file of each kind in one of its folders."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from numscope.store.formats.detect import open_dump
from numscope.store.formats.foreign import write_run
from tests.fuzz.target import Target, texts, written

_TENSOR = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2, 3],
    "Max": 1.0,
    "Min": 0.0,
    "Mean": 0.5,
    "Norm": 2.0,
}
MSPROBE = {
    "task": "tensor",
    "level": "L1",
    "framework": "pytorch",
    "dump_data_dir": None,
    "data": {
        "Functional.linear.0.forward": {
            "input_args": [{**_TENSOR, "requires_grad": False}, {"type": "int", "value": 3}],
            "input_kwargs": {},
            "output": [_TENSOR],
        }
    },
}
_CALL = "Functional.linear.0.forward"
_STACK = {"0": [[_CALL], ["File a.py, line 3, in f, \n x = y"]]}
_PTDBG = (
    '["21_Torch_norm_forward_input.0", 1, [], "torch.float32", [2, 3], [3.0, 1.0, 2.0]]\n'
    '["21_Torch_norm_forward_stack_info", [["a.py", "3", "f", "x = y"]]]\n'
    '["21_Torch_norm_forward_output", 1, [], "torch.float32", [], [3.0, 3.0, 3.0]]\n'
)
_TORCH_NPU = '["21_Torch_norm_forward_input", [1.0, 2.0], "torch.float32", [2]]\n'


def dumped(name: str, form: str, beside: dict[str, bytes] | None = None) -> Callable[[bytes, Path], object]:
    """Return what imports a dump that has this file, and good ones beside it."""

    def read(content: bytes, folder: Path) -> object:
        for other, good in (beside or {}).items():
            written(folder / "dump", other, good)
        written(folder / "dump", name, content)
        return write_run(folder / "run", open_dump(folder / "dump", form))

    return read


def torch_files(folder: Path) -> list[bytes]:
    value = {"a": torch.ones(3, 4), "b": [torch.arange(5), {"c": torch.zeros(2, dtype=torch.bfloat16)}], "d": "text"}
    return [saved(value, new) for new in (True, False)]


def saved(value: object, new: bool = True) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=new)
    return stream.getvalue()


def hooktools_record(folder: Path) -> list[bytes]:
    return [saved({"module_name": "a.Linear", "input": (torch.ones(2, 3),), "output": torch.ones(2), "args": {}})]


def array(folder: Path) -> list[bytes]:
    stream = io.BytesIO()
    np.save(stream, np.arange(12, dtype=np.float32).reshape(3, 4))
    return [stream.getvalue()]


def archives(folder: Path) -> list[bytes]:
    stream = io.BytesIO()
    np.savez(stream, a=np.ones(3), b=np.arange(4))
    return [stream.getvalue()]


_GOOD = json.dumps(MSPROBE).encode()
_STEP = "step0/rank0"
DUMPS = [
    Target("plain .pt", torch_files, dumped("a.pt", "plain")),
    Target("plain .npy", array, dumped("a.npy", "plain")),
    Target("plain .npz", archives, dumped("a.npz", "plain")),
    Target("msprobe", texts(json.dumps(MSPROBE)), dumped("dump.json", "msprobe")),
    Target(
        "msprobe stacks",
        texts(json.dumps(_STACK)),
        dumped(f"{_STEP}/stack.json", "msprobe", {f"{_STEP}/dump.json": _GOOD}),
    ),
    Target(
        "msprobe structure",
        texts(json.dumps({_CALL: "Module.a.Linear.forward.0", "Module.a.Linear.forward.0": None})),
        dumped(f"{_STEP}/construct.json", "msprobe", {f"{_STEP}/dump.json": _GOOD}),
    ),
    Target("ptdbg lines", texts(_PTDBG), dumped("rank0/dump.pkl", "ptdbg")),
    Target("torch_npu lines", texts(_TORCH_NPU), dumped("dump.pkl", "torch_npu")),
    Target("hooktools record", hooktools_record, dumped("forward/epoch0/step0/forward_0.pt", "hooktools")),
    Target(
        "saving hook",
        array,
        dumped("tensors/rank_0/tensor_idx_0_layer_class_Linear_layer_name_a_micro_step_0.npy", "saving_hook"),
    ),
]
