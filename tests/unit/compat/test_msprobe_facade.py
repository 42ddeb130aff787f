"""msprobe's document, its three examples run here on the CPU: folders, files, keys, levels, tasks, modes."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from numscope.compat.msprobe import PrecisionDebugger


class ModuleOP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(in_features=8, out_features=4)
        self.linear_2 = nn.Linear(in_features=4, out_features=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1 = self.linear_1(x)
        x2 = self.linear_2(x1)
        return F.relu(x2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(task: str = "statistics", level: str = "mix", part: dict[str, Any] | None = None, **more: Any) -> str:
    content = {
        "task": task,
        "dump_path": "./dump_path",
        "rank": [],
        "step": [],
        "level": level,
        task: part or {},
        **more,
    }
    Path("config.json").write_text(json.dumps(content))
    return "./config.json"


def run(debugger: PrecisionDebugger, module: nn.Module, steps: int = 1) -> None:
    for _ in range(steps):
        debugger.start()
        module(torch.randn(10, 8)).sum().backward()
        debugger.stop()
        debugger.step()


def load(step: int = 0, name: str = "dump") -> dict[str, Any]:
    return json.loads(Path(f"dump_path/step{step}/rank/{name}.json").read_text())


def test_the_first_example_a_model() -> None:
    module = ModuleOP()
    debugger = PrecisionDebugger(config("tensor"), model=module)
    debugger.start()
    x = torch.randn(10, 8)
    module(x).sum().backward()
    debugger.stop()
    assert sorted(p.name for p in Path("dump_path/step0/rank").iterdir()) == [
        "construct.json",
        "dump.json",
        "dump_tensor_data",
        "stack.json",
    ]
    content = load()
    assert {key: content[key] for key in ("task", "level", "framework")} == {
        "task": "tensor",
        "level": "mix",
        "framework": "pytorch",
    }
    first = content["data"]["Functional.linear.0.forward"]["input_args"][0]
    assert first["Max"] == float(x.max())
    assert first["Norm"] == pytest.approx(float(x.double().norm()), rel=1e-6)
    saved = torch.load(Path(content["dump_data_dir"]) / first["data_name"], weights_only=True)
    assert torch.equal(saved, x)
    assert first["data_name"] == "Functional.linear.0.forward.input.0.pt"
    assert "Module.linear_1.Linear.parameters_grad.0" in content["data"]
    construct = load(name="construct")
    assert construct["Functional.linear.1.forward"] == "Module.linear_2.Linear.forward.0"
    names, frames = load(name="stack")["0"]
    assert names
    assert "test_msprobe_facade.py" in frames[-1] or frames


def test_the_second_example_a_loop() -> None:
    model = ModuleOP()
    debugger = PrecisionDebugger(config_path=config(level="L1"), dump_path="./dump_path")
    run(debugger, model, steps=2)
    assert [p.name for p in sorted(Path("dump_path").iterdir())] == ["step0", "step1"]
    for step in (0, 1):
        names = list(load(step)["data"])
        assert "Functional.relu.0.forward" in names
        assert "Functional.relu.0.backward" in names
        assert not any(name.startswith("Module.") for name in names)
    assert not Path("dump_path/step0/rank/dump_tensor_data").exists()


def test_the_third_example_a_block_of_code() -> None:
    model = ModuleOP()
    debugger = PrecisionDebugger(config_path=config(level="L1"), dump_path="./dump_path")
    debugger.start()
    output = model(torch.randn(10, 8))
    debugger.forward_backward_dump_end()
    torch.exp(output).sum().backward()
    debugger.stop()
    debugger.step()
    names = list(load()["data"])
    assert "Functional.relu.0.backward" in names
    assert not any("exp" in name or "sum" in name for name in names)


def test_arguments_and_gradients_have_the_shape_that_msprobe_reads() -> None:
    debugger = PrecisionDebugger(config(level="L1"))
    debugger.start()
    x = torch.randn(2, 4, requires_grad=True)
    shown = nn.LayerNorm(4)(x).masked_fill(x.detach() > 9, float("-inf"))[0, 1:3]
    shown.sum().backward()
    debugger.stop()
    data = load()["data"]
    assert data["Functional.layer_norm.0.forward"]["input_args"][1] == [{"type": "int", "value": 4}]
    assert data["Tensor.masked_fill.0.forward"]["input_args"][2] == {"type": "float", "value": -math.inf}
    assert data["Tensor.__getitem__.0.forward"]["input_args"][1][1] == {"type": "slice", "value": [1, 3, None]}
    shapes = [gradient["shape"] for gradient in data["Functional.layer_norm.0.backward"]["output"]]
    assert shapes == [[2, 4], [4], [4]]


def test_arguments_go_before_the_file() -> None:
    debugger = PrecisionDebugger(
        config("tensor", step=[5]), task="statistics", level="L0", dump_path="./other", step=[1]
    )
    module = ModuleOP()
    for _ in range(3):
        debugger.start(model=module)
        module(torch.randn(10, 8)).sum().backward()
        debugger.stop()
        debugger.step()
    assert [p.name for p in Path("other").iterdir()] == ["step1"]
    content = json.loads(Path("other/step1/rank/dump.json").read_text())
    assert (content["task"], content["level"]) == ("statistics", "L0")
    assert all(name.startswith("Module.") for name in content["data"])


def test_steps_may_be_a_range() -> None:
    run(PrecisionDebugger(config(step=[0, "2-3"]), model=(module := ModuleOP())), module, 5)
    assert sorted(p.name for p in Path("dump_path").iterdir()) == ["step0", "step2", "step3"]


def test_md5_is_the_checksum_of_the_bytes() -> None:
    module = ModuleOP()
    debugger = PrecisionDebugger(config(part={"summary_mode": "md5"}), model=module)
    debugger.start()
    x = torch.randn(10, 8)
    module(x)
    debugger.stop()
    entry = load()["data"]["Functional.linear.0.forward"]["input_args"][0]
    assert entry["md5"] == f"{zlib.crc32(np.ascontiguousarray(x.numpy()).tobytes()):08x}"
    assert "data_name" not in entry


@pytest.mark.parametrize(
    ("part", "names"),
    [
        ({"list": ["relu"]}, {"Functional.relu.0.forward", "Functional.relu.0.backward"}),
        ({"list": [r"linear\.[01]\.forward"]}, {"Functional.linear.0.forward", "Functional.linear.1.forward"}),
        (
            {"scope": ["Functional.linear.1.forward", "Functional.relu.0.forward"], "data_mode": ["forward"]},
            {"Functional.linear.1.forward", "Functional.relu.0.forward"},
        ),
        ({"list": ["relu"], "data_mode": ["backward"]}, {"Functional.relu.0.backward"}),
    ],
)
def test_scope_list_and_data_mode(part: dict[str, Any], names: set[str]) -> None:
    run(PrecisionDebugger(config(level="L1", part=part)), ModuleOP())
    assert set(load()["data"]) == names


def test_data_mode_input_and_output() -> None:
    run(PrecisionDebugger(config("tensor", "L1", {"data_mode": ["forward", "output"], "list": ["relu"]})), ModuleOP())
    assert list(load()["data"]["Functional.relu.0.forward"]) == ["output"]
    assert [p.name for p in Path("dump_path/step0/rank/dump_tensor_data").iterdir()] == [
        "Functional.relu.0.forward.output.0.pt"
    ]


def test_a_list_that_matches_nothing_is_a_warning_with_the_nearest_names() -> None:
    debugger = PrecisionDebugger(config(level="L1", part={"list": ["Functional.relux.0.forward"]}))
    debugger.start()
    ModuleOP()(torch.randn(10, 8))
    with pytest.warns(UserWarning, match="Functional.relu.0.forward"):
        debugger.stop()


def test_only_listed_functions_are_dumped() -> None:
    Path("ops.yaml").write_text("functional:\n  - relu\n")
    run(PrecisionDebugger(config(level="L1", support_wrap_ops="ops.yaml")), ModuleOP())
    assert set(load()["data"]) == {"Functional.relu.0.forward", "Functional.relu.0.backward"}


def test_structure_has_no_values() -> None:
    run(PrecisionDebugger(config("structure"), model=(module := ModuleOP())), module)
    assert load()["data"] == {}
    assert load(name="construct")["Functional.linear.0.forward"] == "Module.linear_1.Linear.forward.0"


def test_overflow_check_dumps_the_overflowing_call_alone() -> None:
    debugger = PrecisionDebugger(config("overflow_check", "L1", {"overflow_nums": 1}))
    for _ in range(2):
        debugger.start()
        torch.exp(torch.ones(2) * 1000).sin()
        debugger.stop()
        debugger.step()
    assert list(load()["data"]) == ["Torch.exp.0.forward"]
    assert [p.name for p in Path("dump_path").iterdir()] == ["step0"]


def test_save_dumps_a_value_of_the_users_own() -> None:
    debugger = PrecisionDebugger(config("tensor", "L1"))
    debugger.start()
    x = torch.randn(3, requires_grad=True)
    y = x * 2
    debugger.save(y, "mine")
    y.sum().backward()
    debugger.stop()
    data = load()["data"]
    assert "Save.mine.0.forward" in data
    assert data["Save.mine.0.backward"]["input"][0]["Max"] == 1.0


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: PrecisionDebugger("nowhere.json"), "does not exist"),
        (lambda: PrecisionDebugger(task="words", dump_path="x"), "task"),
        (lambda: PrecisionDebugger(level="L7", dump_path="x"), "level"),
        (lambda: PrecisionDebugger(), "dump_path"),
        (lambda: PrecisionDebugger(level="L0", dump_path="x").start(), "needs the model"),
        (lambda: PrecisionDebugger(config(part={"scope": ["one"]})), "two names"),
        (lambda: PrecisionDebugger(config(part={"data_mode": ["sideways"]})), "data_mode"),
        (lambda: PrecisionDebugger(config(part={"summary_mode": "sha"})), "summary_mode"),
        (lambda: PrecisionDebugger(config(step=["x"])), "step"),
        (lambda: PrecisionDebugger(config("overflow_check", part={"overflow_nums": 0})), "overflow_nums"),
    ],
)
def test_bad_settings_say_what_is_wrong(act: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        act()


def test_a_hidden_run_leaves_nothing_behind() -> None:
    import glob
    import tempfile

    before = set(glob.glob(f"{tempfile.gettempdir()}/numscope-msprobe-*"))
    run(PrecisionDebugger(config(), model=(module := ModuleOP())), module, 2)
    assert set(glob.glob(f"{tempfile.gettempdir()}/numscope-msprobe-*")) == before
