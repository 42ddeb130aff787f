"""torch_npu.hooks' document, its examples run here on the CPU: files, columns, schedule, overflow, async."""

from __future__ import annotations

import copy
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.compat.torch_npu_hooks import (
    hooks as implementation,
)
from numscope.compat.torch_npu_hooks import (
    register_hook,
    schedule,
    seed_all,
    set_dump_path,
    step_schedule,
    wrap_acc_cmp_hook,
    wrap_async_datadump_hook,
    wrap_checkoverflow_hook,
)
from numscope.compat.torch_npu_hooks.tools import compare


class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features=2, out_features=2)
        self.linear_2 = nn.Linear(in_features=2, out_features=1)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1 = self.linear_1(x)
        x2 = self.linear_2(x1)
        return self.relu(x2)


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    implementation._at_exit()
    monkeypatch.undo()
    implementation._state = implementation._State()
    step_schedule.reset_step()


def lines(path: str) -> list[list[Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def test_the_first_example_one_registration_serves_two_dumps() -> None:
    module = ModuleOP()
    register_hook(module, wrap_acc_cmp_hook)
    seed_all()
    x = torch.randn(2, 2)
    set_dump_path("./cpu_module_op.pkl")
    module(x).sum().backward()
    tensor_line = lines("./cpu_module_op.pkl")[0]
    set_dump_path("./npu_module_op.pkl")
    module(x).sum().backward()
    compare("./npu_module_op.pkl", "./cpu_module_op.pkl", "./module_result.csv")

    name, values, dtype, shape = tensor_line
    assert (name, dtype, shape) == ("0_Functional_linear_forward_input.0", "torch.float32", [2, 2])
    flat = x.numpy().reshape(-1)
    assert values[:4] == [float(v) for v in flat]
    assert values[4:] == pytest.approx([flat.max(), flat.min(), flat.astype(np.float64).mean()])
    names = [line[0] for line in lines("./npu_module_op.pkl")]
    assert [int(name.partition("_")[0]) for name in names] == list(range(len(names)))
    assert names[1:4] == [  # what is in a tuple has its place, a lone tensor has none
        "1_Functional_linear_forward_input.1",
        "2_Functional_linear_forward_input.2",
        "3_Functional_linear_forward_output",
    ]
    assert any("Tensor_sum_forward_output" in name for name in names)  # 0-d outputs too
    assert sum("relu_forward_output" in name for name in names) == 1  # and no double dump inside
    assert any("Functional_linear_backward_input" in name for name in names)
    with open("module_result.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert ", ".join(rows[0]) == (
        "NPU Name, Bench Name, NPU Tensor Dtype, Bench Tensor Dtype, NPU Tensor Shape, Bench Tensor Shape, "
        "Cosine, RMSE, MAPE"
    )
    assert len(rows) == len(names)
    assert {float(row["RMSE"]) for row in rows} == {0.0}


class Residual(nn.Module):
    """Stands for the document's resnet50: convolution, norm, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.classifier(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def test_the_second_example_two_models_and_a_loss() -> None:
    model_cpu = Residual()
    model_cpu.eval()
    model_npu = copy.deepcopy(model_cpu)
    model_npu.eval()
    seed_all()
    register_hook(model_cpu, wrap_acc_cmp_hook, sample=False)
    register_hook(model_npu, wrap_acc_cmp_hook, sample=False)
    inputs = torch.randn(1, 3, 12, 12)
    labels = torch.randint(0, 5, (1,))
    criterion = nn.CrossEntropyLoss()
    set_dump_path("./cpu_resnet50_op.pkl")
    criterion(model_cpu(inputs), labels).backward()
    set_dump_path("./npu_resnet50_op.pkl")
    with torch.no_grad():
        model_npu.classifier.bias[0] += 1.0  # the planted difference
    criterion(model_npu(inputs), labels).backward()
    compare("./npu_resnet50_op.pkl", "./cpu_resnet50_op.pkl", "./resnet50_result.csv", shape_flag=True)
    conv = lines("./cpu_resnet50_op.pkl")[0]
    assert conv[3] == [1, 3, 12, 12]
    assert len(conv[1]) == 3 * 12 * 12
    with open("resnet50_result.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    wrong = [row["NPU Name"] for row in rows if float(row["RMSE"] or 0) > 0]
    assert re.search(r"Functional_linear_forward_input\.2$", wrong[0])  # the bias itself
    bias = next(row for row in rows if row["NPU Name"] == wrong[0])
    a, b = (
        np.array(next(line[1] for line in lines(f"./{side}_resnet50_op.pkl") if line[0] == bias[column]))
        for side, column in (("npu", "NPU Name"), ("cpu", "Bench Name"))
    )
    assert float(bias["Cosine"]) == pytest.approx(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))
    assert float(bias["MAPE"]) == pytest.approx(np.mean(np.abs((a - b) / b)))


@pytest.mark.parametrize(
    ("made", "steps"),
    [
        (schedule(), list(range(16))),
        (schedule(4, 10, 2), [4, 6, 8, 10]),
        (schedule(begin=5, stride=3), [5, 8, 11, 14]),
        (schedule(end=10, stride=3), [0, 3, 6, 9]),
    ],
)
def test_schedule_chooses_the_documented_steps(made: schedule, steps: list[int]) -> None:
    assert [step for step in range(16) if made.wants(step)] == steps


@pytest.mark.parametrize("bad", [{"begin": -1}, {"end": -1}, {"stride": 0}, {"begin": 3, "end": 2}])
def test_a_bad_schedule_is_a_runtime_error(bad: dict[str, int]) -> None:
    with pytest.raises(RuntimeError, match="schedule"):
        schedule(**bad)


def test_steps_outside_the_schedule_are_not_dumped() -> None:
    model = ModuleOP()
    register_hook(model, wrap_acc_cmp_hook, schedule=schedule(1, 3, 2))
    set_dump_path("./steps.pkl")
    for _ in range(2):
        step_schedule.reset_step()
        for _ in range(4):
            model(torch.randn(2, 2)).sum().backward()
            step_schedule.step()
    implementation.flush()
    assert sum("relu_forward_output" in line[0] for line in lines("./steps.pkl")) == 4


def test_async_files_carry_their_layout_in_their_names() -> None:
    module = ModuleOP()
    register_hook(module, wrap_async_datadump_hook, path="./output", schedule=schedule(1, 2))
    for _ in range(3):
        module(torch.randn(2, 2)).sum().backward()
        step_schedule.step()
    implementation.flush()
    names = [file.name for file in Path("output").iterdir()]
    relu = [
        n
        for n in names
        if re.fullmatch(r"\d+_\w+_relu_backward_input0_shape\[2,1\]_stride\[1,1\]_offset\[0\]_format\[2\]\.npy", n)
    ]
    assert len(relu) == 2
    assert np.load(f"output/{relu[0]}").shape == (2, 1)
    assert len({int(name.partition("_")[0]) for name in names}) == len(names)


def test_overflow_names_the_layer() -> None:
    class Big(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(torch.exp(x * 1000))

    model = Big()
    register_hook(model, wrap_checkoverflow_hook)
    with pytest.raises(ValueError, match="Torch_exp_forward"):
        model(torch.ones(2))
    (file,) = Path().glob("Overflow_info_*.pkl")
    assert lines(str(file))[-1][1] == [float("inf")] * 2


def test_overflow_in_backward_is_raised_by_backward() -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sqrt(x)

    register_hook(Root(), wrap_checkoverflow_hook)
    x = torch.zeros(2, requires_grad=True)
    loss = Root()(x).sum()
    with pytest.raises(ValueError, match="Torch_sqrt_backward"):
        loss.backward()


def test_nothing_is_seeded_unless_asked() -> None:
    torch.manual_seed(7)
    expected = torch.randn(3)
    torch.manual_seed(7)
    register_hook(ModuleOP().eval(), wrap_acc_cmp_hook)
    torch.manual_seed(7)
    assert torch.equal(torch.randn(3), expected)
    register_hook(ModuleOP(), wrap_acc_cmp_hook, seed=7)
    assert torch.equal(torch.randn(3), expected)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: set_dump_path(), "file name"),
        (lambda: set_dump_path("./nowhere/x.pkl"), "does not exist"),
        (lambda: register_hook(ModuleOP(), len), "wrap_acc_cmp_hook"),
        (lambda: register_hook(ModuleOP(), wrap_acc_cmp_hook, samples=True), "no option"),
        (lambda: register_hook(ModuleOP(), wrap_acc_cmp_hook, schedule=3), "schedule"),
        (lambda: compare("a.pkl", "b.pkl", "c.csv"), "does not exist"),
    ],
)
def test_bad_input_says_what_is_wrong(act: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        act()


def test_a_file_that_two_registrations_wrote_is_imported() -> None:
    model = nn.Linear(20, 2)
    set_dump_path("./cpu_op.pkl")
    for sample in (True, False):
        register_hook(model, wrap_acc_cmp_hook, sample=sample)
        model(torch.ones(1, 20))
    implementation.flush()
    assert main(["import", "cpu_op.pkl", "run"]) == 0
    kept = dict(zip(*(ns.open_run("run").tensors[column].to_pylist() for column in ("name", "kept"))))
    assert kept["Functional.linear.0.forward.input.0"] is False
    assert kept["Functional.linear.1.forward.input.0"] is True
