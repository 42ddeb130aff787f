"""A tensor that is written in place, or not written yet, is measured as it is then."""

import pytest
import torch
import torch.nn as nn

import numscope as ns
from tests.integration.writes import raw_write


def test_running_statistics_and_unscaled_gradients_are_measured_after_they_are_written(tmp_path):
    norm = nn.BatchNorm1d(3)
    with ns.capture(tmp_path / "run", norm, keep="tensors", on_error="raise") as cap:
        norm(torch.arange(12.0).view(4, 3))
        middle = norm.running_mean.clone()
        norm(torch.arange(12.0).view(4, 3) * 2)
        gradients = [torch.full((3,), 8.0)]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(1), torch.tensor(0.5))
        gradients[0].sin()
        cap.step()
    run = ns.open_run(tmp_path / "run")
    name = "Module.BatchNorm1d.forward"
    assert (run.tensor(f"{name}.0.output.buffers.running_mean") == middle.numpy()).all()
    assert (run.tensor(f"{name}.1.buffers.running_mean") == middle.numpy()).all()
    assert (run.tensor(f"{name}.1.output.buffers.running_mean") == norm.running_mean.numpy()).all()
    assert (run.tensor("Tensor.sin.0.forward.input.0") == 4.0).all()


def test_memory_that_nothing_was_written_to_is_not_measured_however_it_is_looked_at(tmp_path):
    with ns.capture(tmp_path / "run", None, keep="tensors", on_error="raise"):
        memory = torch.empty(6)
        memory.view(2, 3)[0]
        torch.add(torch.ones(3), 1, out=memory.view(2, 3)[1])
        filled = torch.empty(3)
        filled.numpy()[:] = 7  # torch does not know of this
        filled.view(3) * 2
    run = ns.open_run(tmp_path / "run")
    notes = {row["name"]: row["note"] for row in run.tensors.to_pylist()}
    for name in (
        "Tensor.view.0.forward.input.0",
        "Tensor.view.0.forward.output.0",
        "Tensor.__getitem__.0.forward.output.0",
    ):
        assert notes[name] == "uninitialised memory"
    assert run.tensor("Torch.add.0.forward.output.0").tolist() == [2, 2, 2]
    assert run.tensor("Tensor.view.2.forward.output.0").tolist() == [7, 7, 7]
    assert run.tensor("Tensor.mul.0.forward.input.0").tolist() == [7, 7, 7]


def test_an_operator_that_writes_to_its_arguments_is_recorded_with_what_it_wrote(tmp_path):
    x, y = torch.ones(3), torch.zeros(3)
    with ns.capture(tmp_path / "run", None, level="aten", on_error="raise"):
        x.add_(1)
        torch.mul(x, 3, out=y)
        torch._foreach_add_([x, y], 1)
        z = torch.empty(3)
        with torch.autograd._unsafe_preserve_version_counter(z):
            z.view(-1).copy_(x)
        z.exp()
        z.untyped_storage().resize_(0)
        z.untyped_storage().resize_(12)
        z.view(-1)
    means = {row["name"]: row["mean"] for row in ns.open_run(tmp_path / "run").tensors.to_pylist()}
    assert means == {
        "Aten.add_.0.forward.input.0": 1,
        "Aten.add_.0.forward.output.0": 2,
        "Aten.mul.0.forward.input.0": 2,
        "Aten.mul.0.forward.output.0": 6,
        "Aten._foreach_add_.0.forward.input.0.0": 2,
        "Aten._foreach_add_.0.forward.input.0.1": 6,
        "Aten._foreach_add_.0.forward.output.0.0": 3,
        "Aten._foreach_add_.0.forward.output.0.1": 7,
        "Aten.empty.0.forward.output.0": None,
        "Aten.view.0.forward.input.0": None,
        "Aten.view.0.forward.output.0": None,
        "Aten.copy_.0.forward.input.0": None,
        "Aten.copy_.0.forward.input.1": 3,
        "Aten.copy_.0.forward.output.0": 3,
        "Aten.exp.0.forward.input.0": 3,
        "Aten.exp.0.forward.output.0": pytest.approx(20.0855, rel=1e-4),
        "Aten.view.1.forward.input.0": None,
        "Aten.view.1.forward.output.0": None,
    }


def test_tensors_that_cannot_be_trusted_are_measured_one_by_one_though_they_are_alike(tmp_path):
    first, second = torch.zeros(3), torch.zeros(3)
    seen = [first.numpy(), second.numpy()]
    with ns.capture(tmp_path / "run", None, on_error="raise"):
        for number in range(3):  # of which torch knows nothing
            seen[0][:] = number + 1
            seen[1][:] = 10 * (number + 1)
            torch.add(first.data, second.data)
    run = ns.open_run(tmp_path / "run")
    means = {row["name"]: row["mean"] for row in run.tensors.to_pylist()}
    for number in range(3):
        assert means[f"Torch.add.{number}.forward.input.0"] == number + 1
        assert means[f"Torch.add.{number}.forward.input.1"] == 10 * (number + 1)


class Negates(nn.Module):
    def forward(self, x):
        return x.neg()


_LOOKS = {
    "module": "Module.m.Negates.forward.{}",
    "api": "Tensor.neg.{}.forward",
    "mix": "Tensor.neg.{}.forward",
    "aten": "Aten.neg.{}.forward",
}


@pytest.mark.parametrize("level", _LOOKS)
def test_what_others_may_have_written_to_is_measured_again(level, tmp_path):
    x = torch.ones(3)
    address = x.data_ptr()

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, given):
            raw_write(address, 3, 5.0)
            return torch.zeros(())

    library = torch.library.Library("numscope_written", "FRAGMENT")
    library.define(f"silent_{level}(Tensor x) -> ()")
    library.define(f"told_{level}(Tensor(a!) x) -> ()")
    library.impl(f"silent_{level}", lambda _: raw_write(address, 3, 6.0), "CPU")
    library.impl(f"told_{level}", lambda _: raw_write(address, 3, 7.0), "CPU")
    model = Negates()
    with ns.capture(tmp_path / "run", {"m": model}, level=level, on_error="raise"):
        model(x)
        Writes.apply(x)
        model(x)
        getattr(torch.ops.numscope_written, f"silent_{level}")(x)
        model(x)
        getattr(torch.ops.numscope_written, f"told_{level}")(x)
        model(x)
        with torch.autograd._unsafe_preserve_version_counter(x):
            x.fill_(8.0)
        model(x)
    means = {row["name"]: row["mean"] for row in ns.open_run(tmp_path / "run").tensors.to_pylist()}
    looks = [f"{_LOOKS[level].format(number)}.input.0" for number in range(5)]
    assert [means[name] for name in looks] == [1.0, 5.0, 6.0, 7.0, 8.0]
