"""A module is built again from the run and the job's code, and replayed as a unit."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.diagnose.recorded.invocation import CannotReplay
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.diagnose.replay.measures import relative_error
from numscope.diagnose.replay.module_replay import module_replay


class Form(enum.Enum):
    ERF = "none"
    TANH = "tanh"


@dataclass
class Config:
    form: Form
    width: int = 8
    api_key: str = "hidden"


class Mlp(nn.Module):
    """Has a configuration, a function, a tied weight, a buffer, a dtype, a list of modules, an absent bias."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config, self.activation, self.dtype = config, F.relu, torch.float32
        self.up = nn.Linear(config.width, config.width, bias=False)
        self.layers = [self.up]  # a plain list: no child
        self.tied = self.up.weight
        self.register_buffer("shift", torch.randn(config.width))
        self.norm = nn.BatchNorm1d(config.width)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        h = F.gelu(self.layers[0](x).to(self.dtype), approximate=self.config.form.value)
        h = self.norm(h @ self.tied.to(h.dtype)) + self.activation(self.shift)
        return {"out": h * scale, "sum": h.sum()}


class Net(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.first, self.second = Mlp(config), Mlp(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)["out"], scale=0.5)["out"]


def captured(path: Path, model: nn.Module, x: torch.Tensor, backward: bool = True, **settings: Any) -> StepGraph:
    with ns.capture(path, model, **{"keep": "tensors", "level": "module", "on_error": "raise", **settings}):
        loss = model(x).square().mean()
        if backward:
            loss.backward()
    return StepGraph(ns.open_run(path), 0, 0)


def net(form: Form = Form.ERF) -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net(Config(form)), torch.randn(6, 8)


def outputs(graph: StepGraph, name: str) -> list[tuple[int, int]]:
    call = graph.by_name[name]
    slots = graph.slots(call.order, "output", "parameters_grad")
    return [(call.order, number) for number in slots.values() if number is not None]


@pytest.mark.parametrize("name", ["Module.first.Mlp.forward.0", "Module.second.Mlp.forward.0", "Module.Net.forward.0"])
def test_a_module_built_again_gives_its_recorded_outputs_to_the_bit(tmp_path: Path, name: str) -> None:
    graph = captured(tmp_path / "run", *net())
    found = outputs(graph, name)
    assert found
    for order, number in found:
        assert torch.equal(module_replay(graph, order, number).run(), graph.data(number))


def test_a_unit_runs_in_float64_all_the_way_casts_included(tmp_path: Path) -> None:
    graph = captured(tmp_path / "run", *net())
    order, number = outputs(graph, "Module.second.Mlp.forward.0")[0]
    wide = module_replay(graph, order, number).run(dtype=torch.float64)
    assert wide.dtype == torch.float64
    assert 0 < relative_error(graph.data(number), wide) < 1e-5


def test_the_backward_call_of_a_module_gives_its_recorded_gradients(tmp_path: Path) -> None:
    graph = captured(tmp_path / "run", *net())
    found = outputs(graph, "Module.second.Mlp.backward.0") + outputs(graph, "Module.second.norm.BatchNorm1d.backward.0")
    assert len(found) >= 3
    for order, number in found:
        assert relative_error(module_replay(graph, order, number).run(), graph.data(number)) < 1e-6


def test_secrets_are_not_written_down(tmp_path: Path) -> None:
    captured(tmp_path / "run", *net())
    text = (tmp_path / "run" / "rank0" / "modules.json").read_text()
    assert "hidden" not in text
    assert json.loads(text)["objects"][0]["state"]["api_key"] == {"not": "secret"}


@pytest.mark.parametrize("settings", [{"keep": "stats"}, {"level": "api"}])
def test_what_no_replay_could_use_is_not_described(tmp_path: Path, settings: dict[str, Any]) -> None:
    graph = captured(tmp_path / "run", *net(), **settings)
    assert not (tmp_path / "run" / "rank0" / "modules.json").exists()
    if "level" not in settings:
        with pytest.raises(CannotReplay, match="does not say what its modules are made of"):
            module_replay(graph, *outputs(graph, "Module.Net.forward.0")[0])


class Handle:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Odd(nn.Module):
    """Has something that can't be written down, and does something that can't be repeated."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.handle, self.calls = what, Handle(2.0), 0
        self.loose = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        does: dict[str, Callable[[], torch.Tensor]] = {
            "handle": lambda: x * self.handle.factor,
            "loose": lambda: x * self.loose.sum(),
            "random": lambda: x * torch.rand_like(x),
            "state": lambda: x * self.calls,
            "fine": lambda: x * 2,
        }
        return does[self.what]()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("handle", "its attribute handle is a Handle, which can't be recorded"),
        ("loose", "its attribute loose is a tensor that is no parameter and no buffer"),
        ("random", "does not give its recorded output"),
        ("state", "does not give its recorded output"),
    ],
)
def test_a_module_that_cannot_be_built_again_is_not_believed(tmp_path: Path, what: str, why: str) -> None:
    graph = captured(tmp_path / "run", Odd(what), torch.randn(4), backward=False)
    with pytest.raises(CannotReplay, match=why):
        module_replay(graph, *outputs(graph, "Module.Odd.forward.0")[0])


def test_what_is_not_needed_may_be_lost(tmp_path: Path) -> None:
    graph = captured(tmp_path / "run", Odd("fine"), torch.randn(4), backward=False)
    order, number = outputs(graph, "Module.Odd.forward.0")[0]
    assert torch.equal(module_replay(graph, order, number).run(), graph.data(number))


def test_a_run_of_modules_alone_ends_with_the_call_at_fault_and_its_repair(tmp_path: Path) -> None:
    for side, form in (("target", Form.TANH), ("reference", Form.ERF)):
        captured(tmp_path / side, *net(form))
    origin = ns.diagnose(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    assert origin.mechanism == "semantic"
    assert "approximate='none' (now 'tanh')" in (origin.repair or "")
    assert "inside first" in (origin.repair or "")
    unit = origin.details["diagnosis"]["unit"]
    assert unit["call"] == "Module.first.Mlp.forward.0"
    assert unit["inside"]["call"] == "Functional.gelu.0.forward"
    assert unit["lift"]["float64"] > 1e-5


class Numpy(nn.Module):
    """Computes in numpy what no capture sees."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.from_numpy(x.detach().numpy() * self.factor))


def test_code_that_is_not_torchs_is_replayed_with_the_module_around_it(tmp_path: Path) -> None:
    for side, factor in (("target", 3.0), ("reference", 2.0)):
        torch.manual_seed(0)
        captured(tmp_path / side, Numpy(factor), torch.randn(5, 4), backward=False, level="module")
    origin = ns.diagnose(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    assert origin.mechanism == "semantic"
    assert origin.details["diagnosis"]["unit"]["call"] == "Module.Numpy.forward.0"


def test_why_a_suspected_module_was_not_replayed_as_a_unit_is_said(tmp_path: Path) -> None:
    for side, factor in (("target", 3.0), ("reference", 2.0)):
        model = Odd("handle")
        model.handle.factor = factor
        torch.manual_seed(0)
        captured(tmp_path / side, model, torch.randn(4), backward=False)
    origin = ns.diagnose(tmp_path / "target", tmp_path / "reference").origin
    assert origin is not None
    assert "handle is a Handle" in origin.details["diagnosis"]["unit"]["could_not"]


def test_the_buffers_that_a_call_leaves_behind_are_replayed_too(tmp_path: Path) -> None:
    graph = captured(tmp_path / "run", *net())
    call = graph.by_name["Module.first.norm.BatchNorm1d.forward.0"]
    number = graph.slots(call.order)["output.buffers.running_mean"]
    assert number is not None
    assert torch.equal(module_replay(graph, call.order, number).run(), graph.data(number))
