"""Ports from torch to Paddle of what libraries have: benign ones are equivalent, one wrong setting is named with its values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    paddle = pytest.importorskip("paddle")

import torch
from torch import nn

import numscope as ns

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.standard_normal((6, 5, 8)).astype("float32")
IMAGES = RANDOM.standard_normal((4, 3, 6, 6)).astype("float32")
LABELS = RANDOM.integers(0, 4, 6)


def trained(path: Path, model: Any, data: Any, loss: Callable[[Any], Any], optimizer: Any, steps: int) -> Path:
    with ns.capture(path, model, on_error="raise") as cap:
        for _ in range(steps):
            loss(model(data)).backward()
            optimizer.step()
            (getattr(optimizer, "clear_grad", None) or optimizer.zero_grad)()
            cap.step()
    return path


def ported(
    root: Path,
    model: nn.Module,
    layer: Any,
    data: Any,
    *,
    losses: tuple[Any, Any] | None = None,
    steps: int = 2,
    optimizers: tuple[Any, Any] | None = None,
) -> tuple[Any, Any]:
    """Train a model and its port, compare them both ways round, and return the two comparisons."""
    ns.copy_weights(model, layer)
    losses = losses or ((lambda y: (y**2).mean()),) * 2
    theirs = optimizers[0] if optimizers else torch.optim.SGD(model.parameters(), lr=0.1)
    ours = optimizers[1] if optimizers else paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    reference = trained(root / "torch", model, torch.from_numpy(data), losses[0], theirs, steps)
    target = trained(root / "paddle", layer, paddle.to_tensor(data), losses[1], ours, steps)
    return ns.compare(target, reference), ns.compare(reference, target)


class TorchHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.inner, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(nn.functional.gelu(self.inner(self.norm(x))).mean(1))


class PaddleHead(paddle.nn.Layer):
    def __init__(self, bug: str = "") -> None:
        super().__init__()
        self.bug = bug
        self.norm = paddle.nn.LayerNorm(8, epsilon=1e-4 if bug == "eps" else 1e-5)
        self.inner, self.out = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = self.inner(self.norm(x))
        if self.bug == "bfloat16":
            x = x.astype("bfloat16").astype("float32")
        if self.bug == "relu":  # and all before it once more
            paddle.nn.functional.gelu(x)
            return self.out(paddle.nn.functional.relu(self.inner(self.norm(self.given))).mean(1))
        return self.out(paddle.nn.functional.gelu(x, approximate=self.bug == "tanh").mean(1))


@pytest.mark.parametrize(
    ("bug", "call", "told"),
    [
        ("eps", "layer_norm", "argument eps 0.0001 against 1e-05"),
        ("tanh", "gelu", "argument approximate 'tanh' against not given"),
        ("bfloat16", "astype", "only the target has this call"),
    ],
)
def test_a_wrong_setting_of_a_port_is_told_in_words(tmp_path: Path, bug: str, call: str, told: str) -> None:
    found, back = ported(tmp_path, TorchHead(), PaddleHead(bug), ROWS, steps=1)
    assert call in found.origin.call, found
    assert told in found.origin.reason
    assert call in back.origin.call
    diagnosed = ns.diagnose(found).origin  # Paddle's calls are not made again: no repair is made up
    assert (diagnosed.mechanism, diagnosed.repair) == (found.origin.mechanism, None)


def test_what_is_computed_twice_is_not_named_but_what_follows(tmp_path: Path) -> None:
    layer = PaddleHead("relu")
    layer.given = paddle.to_tensor(ROWS)
    found, back = ported(tmp_path, TorchHead(), layer, ROWS, steps=1)
    assert {found.origin.call, back.origin.call} <= {"Functional.relu.0.forward", "Functional.gelu.0.forward"}


class Raw(PaddleHead):
    """Holds linear layers, and never calls them."""

    def forward(self, x: Any) -> Any:
        x = paddle.matmul(self.norm(x), self.inner.weight) + self.inner.bias
        return paddle.matmul(paddle.nn.functional.gelu(x).mean(1), self.out.weight) + self.out.bias


def test_weights_of_layers_that_are_not_called_are_turned_too(tmp_path: Path) -> None:
    for found in ported(tmp_path, TorchHead(), Raw(), ROWS):
        assert found.verdict == "equivalent", found


def cross_entropy(**kwargs: Any) -> tuple[Any, Any]:
    labels = paddle.to_tensor(LABELS)
    return (
        lambda y: nn.functional.cross_entropy(y, torch.from_numpy(LABELS)),
        lambda y: paddle.nn.functional.cross_entropy(y, labels, **kwargs),
    )


def test_a_loss_of_another_reduction_is_named_and_a_sum_that_is_divided_is_a_mean(tmp_path: Path) -> None:
    found, _ = ported(tmp_path / "sum", TorchHead(), PaddleHead(), ROWS, losses=cross_entropy(reduction="sum"), steps=1)
    assert found.origin.call == "Functional.cross_entropy.0.forward"
    assert "argument reduction 'sum' against 'mean'" in found.origin.reason
    torch_loss, summed = cross_entropy(reduction="sum")
    losses = (torch_loss, lambda y: summed(y) / len(LABELS))
    for one in ported(tmp_path / "mean", TorchHead(), PaddleHead(), ROWS, losses=losses):
        assert one.verdict == "equivalent", one


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({}, ""),
        ({"learning_rate": 2e-3}, "lr 0.002 against 0.001"),
        ({"weight_decay": 0.1}, "weight_decay 0.1 against 0.01"),
        ({"epsilon": 1e-4}, "eps 0.0001 against 1e-08"),
        ({"beta2": 0.9}, "betas.1: 0.9 against 0.999"),
    ],
)
def test_settings_of_optimizers_are_compared(tmp_path: Path, setting: dict[str, float], told: str) -> None:
    model, layer = TorchHead(), PaddleHead()
    settings = {"learning_rate": 1e-3, "weight_decay": 0.01, **setting}
    optimizers = (
        torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
        paddle.optimizer.AdamW(parameters=layer.parameters(), **settings),
    )
    found, _ = ported(tmp_path, model, layer, ROWS, optimizers=optimizers, losses=cross_entropy())
    if not told:
        assert found.verdict == "equivalent", found
    else:
        assert found.origin.kind == "optimizer", found
        assert told in found.origin.reason
        if "lr" in told:  # of gradients that differ and were not kept
            assert ns.diagnose(tmp_path / "paddle", tmp_path / "torch").origin.call == found.origin.call


def test_an_optimizer_of_another_class_is_named_though_gradients_have_noise(tmp_path: Path) -> None:
    model, layer = TorchHead(), PaddleHead()
    optimizers = (
        torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1),
        paddle.optimizer.Adam(1e-2, parameters=layer.parameters(), weight_decay=0.1),
    )
    found, _ = ported(tmp_path, model, layer, ROWS, optimizers=optimizers, losses=cross_entropy())
    assert found.origin.kind == "optimizer", found


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_library_s_encoder_is_equivalent_and_its_activation_is_seen(tmp_path: Path, activation: str) -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer = paddle.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation=activation)
    held = layer.activation
    weights = RANDOM.standard_normal(8).astype("float32")
    losses = (
        lambda y: (y * torch.from_numpy(weights)).pow(2).mean(),
        lambda y: (y * paddle.to_tensor(weights)).pow(2).mean(),
    )
    for found in ported(tmp_path, model, layer, ROWS, losses=losses):
        if activation == "relu":
            assert found.verdict == "equivalent", found
        else:
            assert found.origin.call in ("Functional.relu.0.forward", "Functional.gelu.0.forward")
    assert layer.activation is held


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_running_variances_that_are_divided_by_one_more_are_equivalent(tmp_path: Path, momentum: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    layer = paddle.nn.Sequential(
        paddle.nn.Conv2D(3, 4, 3),
        paddle.nn.BatchNorm2D(4, momentum=momentum),
        paddle.nn.ReLU(),
        paddle.nn.Flatten(),
        paddle.nn.Linear(64, 2),
    )
    for found in ported(tmp_path, model, layer, IMAGES, steps=3):
        if momentum == 0.9:
            assert found.verdict == "equivalent", found
        else:
            assert found.origin.call == "Functional.batch_norm.0.forward"
            assert "argument momentum" in found.origin.reason


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_weights_of_recurrent_layers_are_copied_both_ways(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    shape = {"batch_first": True, "num_layers": 2}
    model, back = (getattr(nn, kind)(8, 6, bidirectional=True, **shape) for _ in range(2))
    layer = getattr(paddle.nn, kind)(8, 6, num_layers=2, direction="bidirect")
    ns.copy_weights(model, layer)
    np.testing.assert_allclose(
        layer(paddle.to_tensor(ROWS))[0].numpy(), model(torch.from_numpy(ROWS))[0].detach().numpy(), atol=1e-6
    )
    ns.copy_weights(layer, back)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), back.parameters()))
