"""A call that a checkpoint runs again inside backward is linked to its first execution, at every level."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import numscope as ns
from tests.integration.models import Transformer


@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant"])
def test_recomputation_is_linked_to_its_first_execution_and_takes_no_number(mode, tmp_path):
    torch.manual_seed(0)
    model = Transformer(mode)
    plain = Transformer()
    ids = torch.arange(6).view(1, 6)

    def record(path, model):
        with ns.capture(path, model, on_error="raise") as cap:
            model(ids).sum().backward()
            cap.step()
        return ns.open_run(path).calls.to_pylist()

    rows = record(tmp_path / "checkpointed", model)
    usual = record(tmp_path / "plain", plain)
    first = {row["name"] for row in rows if row["phase"] == "forward" and not row["recompute"]}
    wanted = {row["name"] for row in usual if row["phase"] == "forward"}
    assert first - {name for name in first if ".checkpoint" in name or "detach" in name} >= wanted - {
        name for name in wanted if "Tensor.detach" in name
    }
    again = [row for row in rows if row["recompute"]]
    assert again
    by_order = {row["order"]: row for row in rows}
    assert all(by_order[row["forward"]]["name"] == row["name"] for row in again)
    modules = [row["name"] for row in rows if row["phase"] == "backward" and row["kind"] == "module"]
    assert len(set(modules)) == len(modules)
    backward = {row["name"] for row in rows if row["phase"] == "backward" and row["kind"] == "api"}
    assert backward >= {
        row["name"] for row in usual if row["phase"] == "backward" and row["name"].startswith("Functional.linear")
    }


def test_a_checkpointed_module_s_parameters_have_their_gradients_in_its_one_backward_call(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    with ns.capture(tmp_path / "run", module, keep="tensors", on_error="raise"):
        checkpoint(module, torch.randn(2, 4, requires_grad=True), use_reentrant=False).sum().backward()
    run = ns.open_run(tmp_path / "run")
    for name in ("0", "2"):
        kept = run.tensor(f"Module.{name}.Linear.backward.0.parameters_grad.weight")
        assert (kept == module[int(name)].weight.grad.numpy()).all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_operators_have_the_names_of_their_first_execution(reentrant: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
    x = torch.randn(2, 4, requires_grad=True)

    def run(name: str, again: bool) -> list[dict[str, Any]]:
        layers.zero_grad()
        x.grad = None
        with ns.capture(tmp_path / name, layers, level="aten", on_error="raise") as cap:
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=reentrant) if again else layer(y)
            y.square().sum().backward()
            cap.step()
        return [row for row in ns.open_run(tmp_path / name).calls.to_pylist() if row["kind"] == "aten"]

    plain, checkpointed = run("plain", False), run("checkpointed", True)
    first = {row["name"]: row["order"] for row in plain if row["phase"] == "forward"}
    repeated = [row for row in checkpointed if row["recompute"]]
    assert {row["name"] for row in repeated} >= {f"Aten.addmm.{index}.forward" for index in range(3)}
    assert {row["name"] for row in repeated} < first.keys()
    once = {row["order"]: row["name"] for row in checkpointed if not row["recompute"]}
    assert all(once[row["forward"]] == row["name"] for row in repeated)
    assert set(once.values()) >= {row["name"] for row in plain}
    assert ns.compare(tmp_path / "checkpointed", tmp_path / "plain").verdict in ("identical", "equivalent")


def test_operators_of_a_backward_that_is_differentiated_again_are_no_recomputation(tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)
    x = torch.ones(2, 3, requires_grad=True)
    with ns.capture(tmp_path / "run", layer, level="aten", on_error="raise"):
        (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
    assert not any(row["recompute"] for row in ns.open_run(tmp_path / "run").calls.to_pylist())
