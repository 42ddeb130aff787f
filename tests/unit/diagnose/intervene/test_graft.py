"""A graft puts the reference's tensors into the target, bit for bit, and leaves gradients and modules as they were."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

import numscope as ns
from numscope.diagnose.intervene.graft import error_removed


def model(wrong: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    built = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    if wrong:
        with torch.no_grad():
            built[2].weight.mul_(1.05)
            built[4].bias.add_(0.001)
    return built


def inputs() -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


def captured(path: Path, net: nn.Module, x: torch.Tensor) -> Path:
    with ns.capture(path, net, keep="tensors"):
        net(x).pow(2).mean().backward()
    return path


def test_the_output_is_the_references_to_the_bit_and_most_of_the_error_goes(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    target = captured(tmp_path / "target", model(wrong=True), x)
    net = model(wrong=True)
    seen: list[torch.Tensor] = []
    with ns.graft(net, reference, "2") as graft:
        net[3].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
        grafted = captured(tmp_path / "grafted", net, x)
    assert graft.replaced == ["Module.2.Linear.forward.0.output.0"]
    wanted = ns.open_run(reference).tensor("Module.2.Linear.forward.0.output.0")
    assert torch.equal(seen[0], torch.from_numpy(wanted.copy()))
    share = error_removed(target, grafted, reference)
    assert 0.5 < share.removed < 1.0
    assert share.after < share.before


def test_gradients_flow_through_a_graft(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    net = model()
    plain = model()
    plain(x).sum().backward()
    with ns.graft(net, reference, ["0", "2"]):
        net(x).sum().backward()
    for (name, a), b in zip(plain.named_parameters(), net.parameters()):
        assert a.grad is not None
        assert b.grad is not None
        assert torch.equal(a.grad, b.grad), name
    assert not net[0]._forward_hooks


def test_one_call_is_grafted_by_its_name(tmp_path: Path) -> None:
    x = inputs()

    def work(factor: float) -> torch.Tensor:
        return torch.tanh(torch.sigmoid(torch.sigmoid(x) * factor) * 2)

    with ns.capture(tmp_path / "reference", keep="tensors"):
        wanted = work(1.0)
    with ns.graft(nn.Identity(), tmp_path / "reference", "Torch.sigmoid.1.forward") as graft:
        assert torch.equal(work(1.5), wanted)
    assert graft.replaced == ["Torch.sigmoid.1.forward.output.0"]
    assert not torch.equal(work(1.5), wanted)


def test_a_single_step_shows_each_modules_own_error_alone(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    net = model(wrong=True)
    with ns.graft(net, reference, single_step=True):
        grafted = captured(tmp_path / "grafted", net, x)
    run, other = ns.open_run(grafted), ns.open_run(reference)
    for index, is_wrong in enumerate((False, False, True, False, True)):
        name = f"Module.{index}.{type(net[index]).__name__}.forward.0.output.0"
        a, b = run.tensor(name), other.tensor(name)
        assert ((a == b).all()) != is_wrong, name


def test_another_dtype_and_several_steps(tmp_path: Path) -> None:
    net, x = model(), inputs()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ns.capture(tmp_path / "reference", net, keep="tensors") as cap:
        for _ in range(2):
            net(x).sum().backward()
            optimizer.step()
            cap.step()
    low = model().to(torch.bfloat16)
    optimizer = torch.optim.SGD(low.parameters(), lr=0.1)
    with ns.graft(low, tmp_path / "reference", "4") as graft:
        outputs = []
        for _ in range(2):
            outputs.append(low(x.to(torch.bfloat16)))
            outputs[-1].sum().backward()
            optimizer.step()
    run = ns.open_run(tmp_path / "reference")
    for step, output in enumerate(outputs):
        wanted = torch.from_numpy(run.tensor("Module.4.Linear.forward.0.output.0", step=step).copy())
        assert torch.equal(output, wanted.to(torch.bfloat16))
    assert len(graft.replaced) == 2


def test_what_cannot_be_grafted_is_an_error(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    with pytest.raises(ns.SettingsError, match="no module"), ns.graft(model(), reference, "blocks.*"):
        pass
    with pytest.raises(ns.SettingsError, match="names"):
        ns.graft(model(), reference)
    net = model()
    with ns.capture(tmp_path / "stats", net) as cap:
        net(x)
        cap.step()
    with pytest.raises(ns.NotKeptError, match="keep='tensors'"), ns.graft(net, tmp_path / "stats", "2"):
        net(x)
    with pytest.raises(ns.NotKeptError, match=r"shape \[5, 8\] there, \[3, 8\] here"), ns.graft(net, reference, "2"):
        net(x[:3])
    with pytest.raises(ns.NotKeptError, match="no such call"), ns.graft(net, reference, "Torch.tanh.7.forward"):
        [net(x) for _ in range(4)]


def test_what_is_not_grafted_though_its_name_was_given_is_told(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    net = model()
    with (
        pytest.warns(RuntimeWarning, match="not all was grafted: call 1 of 2: the reference has no such call"),
        ns.graft(net, reference, "2"),
    ):
        net(x)
        net(x)


def test_tuples_inside_tuples_are_grafted_whole(tmp_path: Path) -> None:
    class Recurrent(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell = nn.LSTM(6, 4)
            self.factor = factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made, (hidden, state) = self.cell(x * self.factor)
            return made[-1] + hidden[0] + state[0]

    x = inputs()[:, None]
    reference = captured(tmp_path / "reference", right := Recurrent(1.0), x)
    net = Recurrent(1.2)
    with ns.graft(net, reference, "cell") as graft:
        assert torch.equal(net(x), right(x))
    assert len(graft.replaced) == 3


def test_what_a_checkpoint_runs_again_is_no_call_of_its_own(tmp_path: Path) -> None:
    net, x = model(), inputs()
    run = lambda: checkpoint_sequential(net, 2, x, use_reentrant=False).sum()  # noqa: E731
    with ns.capture(tmp_path / "reference", net, keep="tensors"):
        for _ in range(2):
            run().backward()
    with ns.graft(net, tmp_path / "reference", "2") as graft:
        for _ in range(2):
            run().backward()
    assert graft.replaced == [f"Module.2.Linear.forward.{number}.output.0" for number in range(2)]


def test_a_paddle_model_takes_a_torch_reference(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    layers = paddle.nn.Sequential(
        paddle.nn.Linear(6, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 3)
    )
    with ns.graft(layers, reference, "3") as graft:
        result = layers(paddle.to_tensor(x.numpy()))
    assert graft.replaced == ["Module.3.Tanh.forward.0.output.0"]
    wanted = ns.open_run(reference).tensor("Module.3.Tanh.forward.0.output.0")
    expected = wanted @ layers[4].weight.numpy() + layers[4].bias.numpy()
    assert abs(result.numpy() - expected).max() < 1e-5
    result.sum().backward()
    assert layers[0].weight.grad is not None


def test_compare_says_how_much_of_the_final_error_a_graft_removed(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    target = captured(tmp_path / "target", model(wrong=True), x)
    net = model(wrong=True)
    with ns.graft(net, reference, "2"):
        grafted = captured(tmp_path / "grafted", net, x)
    assert ns.open_run(grafted).manifest["grafts"] == [{"reference": str(reference), "names": ["2"], "inputs": False}]
    told = ns.compare(grafted, reference).report.details["graft"]
    assert Path(told["ungrafted"]) == target.resolve()  # found: the same job, without a graft
    share = error_removed(target, grafted, reference)
    assert told["removed"] == pytest.approx(share.removed)
    assert told["before"] == pytest.approx(share.before)
    assert 0.5 < told["removed"] < 1
    given = ns.compare(grafted, reference, ungrafted=target).report.details["graft"]
    assert given["removed"] == told["removed"]
    assert "graft" not in ns.compare(target, reference).report.details


def test_without_the_ungrafted_run_the_final_error_is_said_and_what_to_give(tmp_path: Path, capsys: Any) -> None:
    from numscope.__main__ import main

    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    (tmp_path / "elsewhere").mkdir()
    target = captured(tmp_path / "elsewhere" / "target", model(wrong=True), x)
    net = model(wrong=True)
    with ns.graft(net, reference, "2"):
        grafted = captured(tmp_path / "grafted", net, x)
    assert main(["compare", str(grafted), str(reference)]) == 1
    assert "give the run without the graft: --ungrafted RUN" in " ".join(capsys.readouterr().out.split())
    assert main(["compare", str(grafted), str(reference), "--ungrafted", str(target)]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"grafted 2 gives the reference's tensors: the final error is \S+, without it .*% of it removed", printed
    )


def test_a_graft_that_begins_and_ends_inside_a_capture_is_in_its_manifest_and_in_no_other(tmp_path: Path) -> None:
    x = inputs()
    reference = captured(tmp_path / "reference", model(), x)
    net = model()
    with ns.capture(tmp_path / "run", net, keep="tensors") as cap:
        net(x)
        cap.step()
        with ns.graft(net, reference, ["0", "2"], inputs=True):
            net(x)
    grafts = ns.open_run(tmp_path / "run").manifest["grafts"]
    assert grafts == [{"reference": str(reference), "names": ["0", "2"], "inputs": True}]
    later = captured(tmp_path / "later", model(), x)
    assert "grafts" not in ns.open_run(later).manifest
