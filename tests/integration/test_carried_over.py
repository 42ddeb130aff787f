"""Parameters that an optimizer has left are not measured again in the next step, unless anything may have written to them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn

import numscope as ns
from numscope.capture.recording.recorder import Recorder
from numscope.capture.torch import native
from numscope.capture.torch.identity.carried_over import CarriedOver
from numscope.capture.torch.levels.optimizer_operators import OptimizerStep
from numscope.fingerprint.definition import fingerprint
from numscope.fingerprint.torch_form import TorchBatch
from tests.integration.writes import ADDRESSES, WRITES


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(4, 5)
        self.b = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "foreach": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "single": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
}


def train(model: Net, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


def true_hash(tensor: torch.Tensor) -> int:
    return int(fingerprint(np.ascontiguousarray(tensor.detach().clone().numpy())).hash[0])


@pytest.fixture
def in_python() -> Iterator[None]:
    """Python's functions do all, so that it can be seen what they do; `test_compiled_twins.py` shows that the others do it, too."""
    with native.without():
        yield


@pytest.fixture
def referred(monkeypatch: pytest.MonkeyPatch, in_python: None) -> list[int]:
    """The tensors that were not measured again, as they come."""
    found: list[int] = []
    plain = Recorder.again

    def again(recorder: Recorder, *args: Any) -> int:
        number = plain(recorder, *args)
        found.append(number)
        return number

    plain_many = Recorder.many

    def many(recorder: Recorder, new: Any) -> None:
        plain_many(recorder, new)
        found.extend(number for number, *_, lasting, _ in new if lasting is not None)

    monkeypatch.setattr(Recorder, "again", again)
    monkeypatch.setattr(Recorder, "many", many)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    return [
        {**row, "sketch": [float(value) for value in row["sketch"] or ()]}
        for row in ns.open_run(path).tensors.to_pylist()
    ]


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("keep", ["stats", "tensors", "sample"])
@pytest.mark.parametrize("level", ["module", "api", "mix", "aten"])
def test_the_run_is_the_one_in_which_all_is_measured_anew(
    level: str, keep: str, parts: bool, tmp_path: Path, referred: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if parts:
        monkeypatch.setattr("numscope.capture.recording.recorder.FLUSH_SLOTS", 6)

    def run(path: Path) -> list[dict[str, Any]]:
        model = Net()
        optimizer = OPTIMIZERS["fused"](model.parameters())
        with ns.capture(path, model, level=level, keep=keep, on_error="raise") as cap:
            for _ in range(4):
                train(model, optimizer)
                cap.step()
        # A tensor that is measured again has a number of its own.
        return [{**row, "tensor": row["tensor"] if level != "aten" else -1} for row in rows(path)]

    fewer = run(tmp_path / "fewer")
    count = len(referred)
    if level != "aten":
        assert count == 3 * 4  # the parameters, in every step but the first
    else:
        assert count == 3 * 16  # the optimizer's state, too
    monkeypatch.setattr(CarriedOver, "add", lambda *_: False)
    monkeypatch.setattr(OptimizerStep, "covers", lambda stepping, _: stepping.go_on(False))
    assert run(tmp_path / "all") == fewer
    assert len(referred) == count


@pytest.mark.parametrize("level", ["module", "mix", "aten"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_step_has_the_fingerprints_of_its_own_parameters(
    name: str, level: str, tmp_path: Path, referred: list[int]
) -> None:
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    true = []
    with ns.capture(tmp_path / "run", model, level=level, on_error="raise") as cap:
        for step in range(5):
            true.append(true_hash(model.a.weight))
            if step == 2:  # a step without its optimizer: the next begins with the same parameters
                model(torch.ones(3, 4))
            else:
                train(model, optimizer)
            cap.step()
    found = [
        row["hash"] for row in rows(tmp_path / "run") if row["name"] == "Module.a.Linear.forward.0.parameters.weight"
    ]
    assert found == true
    assert len(set(true)) == 4
    assert len(referred) == 4 * 4 if level != "aten" else len(referred) > 4 * 4


@pytest.mark.parametrize(("name", "times"), [("fused", 4), ("foreach", 3), ("single", 9)])
def test_what_the_operators_of_an_optimizer_write_is_measured_once(
    name: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_python: None
) -> None:
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    measured: list[torch.Tensor] | None = None  # what is held here could be written to unseen
    plain, plain_alike = TorchBatch.add, TorchBatch.add_alike

    def add(batch: TorchBatch, tensor: torch.Tensor) -> int:
        if measured is not None:
            measured.append(tensor)
        return plain(batch, tensor)

    def add_alike(batch: TorchBatch, tensor: torch.Tensor, alike: object, address: int) -> int:
        if measured is not None:
            measured.append(tensor)
        return plain_alike(batch, tensor, alike, address)

    monkeypatch.setattr(TorchBatch, "add", add)
    monkeypatch.setattr(TorchBatch, "add_alike", add_alike)
    with ns.capture(tmp_path / "run", model, level="aten", on_error="raise") as cap:
        for _ in range(2):  # the first makes the state
            train(model, optimizer)
            cap.step()
        measured = []
        model(torch.ones(3, 4)).square().mean().backward()
        assert not any(tensor is parameter for tensor in measured for parameter in model.parameters())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
        measured.clear()
        optimizer.step()
    assert (
        len(measured) == (times + 1) * 4
    )  # the gradients, as somebody may have written to them; what each operator has written, and nothing before or after it


@pytest.mark.parametrize("after_the_step", [False, True])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("level", ["module", "mix", "aten"])
def test_what_is_written_between_two_steps_is_measured_anew(
    level: str, write: str, after_the_step: bool, tmp_path: Path
) -> None:
    model = Net()
    model.held = model.a.weight.data if write == "a view that is held" else None  # type: ignore[assignment]
    ADDRESSES[id(model)] = model.a.weight.data_ptr()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    true = []
    with ns.capture(tmp_path / "run", model, level=level, on_error="raise") as cap:
        for _ in range(3):
            true.append(true_hash(model.a.weight))
            train(model, optimizer)
            if not after_the_step:
                WRITES[write](model)
            cap.step()
            if after_the_step:
                WRITES[write](model)
    slot = "Module.a.Linear.forward.0.parameters.weight"
    found = [row["hash"] for row in rows(tmp_path / "run") if row["name"] == slot]
    assert found == true


def test_an_optimizer_whose_step_is_not_recorded_is_believed_nothing(tmp_path: Path, referred: list[int]) -> None:
    model = Net()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    true = []
    with ns.capture(tmp_path / "run", model, steps=[0, 2, 3], on_error="raise") as cap:
        for _ in range(4):
            true.append(true_hash(model.a.weight))
            train(model, optimizer)
            cap.step()
    found = [
        row["hash"] for row in rows(tmp_path / "run") if row["name"] == "Module.a.Linear.forward.0.parameters.weight"
    ]
    assert found == [true[0], true[2], true[3]]
    assert len(referred) == 4  # step 3 follows step 2


def test_an_optimizer_that_is_out_of_scope_is_believed_nothing(tmp_path: Path) -> None:
    model = Net()
    first, second = OPTIMIZERS["fused"](model.parameters()), torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    true = []
    with ns.capture(tmp_path / "run", model, exclude="Optimizer.Adam.*", on_error="raise") as cap:
        for _ in range(3):
            true.append(true_hash(model.a.weight))
            train(model, first)
            second.step()
            cap.step()
    found = [
        row["hash"] for row in rows(tmp_path / "run") if row["name"] == "Module.a.Linear.forward.0.parameters.weight"
    ]
    assert found == true


def test_memory_that_other_processes_see_is_measured_anew(tmp_path: Path, referred: list[int]) -> None:
    model = Net().share_memory()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    with ns.capture(tmp_path / "run", model, on_error="raise") as cap:
        for _ in range(2):
            train(model, optimizer)
            cap.step()
    assert not referred


def test_start_and_stop_between_steps_leave_nothing_known(tmp_path: Path, referred: list[int]) -> None:
    model = Net()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    cap = ns.capture(tmp_path / "run", model, on_error="raise")
    for _ in range(2):
        with_step = cap.start()
        assert with_step is None
        train(model, optimizer)
        cap.step()
        cap.stop()
        model.a.weight.data.fill_(0.5)
    cap.close()
    assert not referred


def test_a_training_in_a_thread_without_the_mode_is_measured_anew(tmp_path: Path, referred: list[int]) -> None:
    import threading

    model = Net()
    optimizer = OPTIMIZERS["fused"](model.parameters())
    true = []

    def work() -> None:
        for _ in range(3):
            true.append(true_hash(model.a.weight))
            train(model, optimizer)
            model.a.weight.data.clamp_(-0.1, 0.1)
            cap.step()

    with ns.capture(tmp_path / "run", model, on_error="raise") as cap:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    found = [
        row["hash"] for row in rows(tmp_path / "run") if row["name"] == "Module.a.Linear.forward.0.parameters.weight"
    ]
    assert found == true
    assert not referred


def test_a_replayed_graph_may_have_written_to_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.grad = torch.ones(3)

    class Graph:
        def replay(self) -> None:
            with torch._C.DisableTorchFunction():
                parameter.data.fill_(5.0)  # as a kernel would: no version, no hook, no mode

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    plain = Graph.replay
    with ns.capture(tmp_path / "run", None, on_error="raise") as cap:
        optimizer.step()
        cap.step()
        Graph().replay()
        parameter.sin()
        cap.step()
    assert Graph.replay is plain
    found = [row for row in rows(tmp_path / "run") if row["name"] == "Tensor.sin.0.forward.input.0"]
    assert [row["mean"] for row in found] == [5.0]
