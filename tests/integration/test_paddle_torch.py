"""The same model in torch and in Paddle: weights copied, runs compared, a planted bug's origin found."""

from __future__ import annotations

import warnings
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


class TorchBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.batch = nn.BatchNorm1d(16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(self.batch(hidden))


class TorchNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = TorchBlock()
        self.second = TorchBlock()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)))


class PaddleBlock(paddle.nn.Layer):
    def __init__(self, approximate: bool = False) -> None:
        super().__init__()
        self.norm = paddle.nn.LayerNorm(8)
        self.up = paddle.nn.Linear(8, 16)
        self.batch = paddle.nn.BatchNorm1D(16)
        self.down = paddle.nn.Linear(16, 8)
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        hidden = paddle.nn.functional.gelu(self.up(self.norm(x)), approximate=self.approximate)
        return x + self.down(self.batch(hidden))


class PaddleNet(paddle.nn.Layer):
    def __init__(self, approximate: bool = False) -> None:
        super().__init__()
        self.first = PaddleBlock()
        self.second = PaddleBlock(approximate)
        self.head = paddle.nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.second(self.first(x)))


BATCH = np.random.default_rng(5).standard_normal((6, 8)).astype("float32")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("both")
    torch.manual_seed(0)
    model = TorchNet()
    found = {"torch": root / "torch"}
    for keep in ("stats", "tensors"):
        for name, net in (("right", PaddleNet()), ("wrong", PaddleNet(approximate=True))):
            ns.copy_weights(model, net)
            path = found[f"{name} {keep}"] = root / f"{name}_{keep}"
            with ns.capture(path, net, keep=keep, on_error="raise") as cap:
                (net(paddle.to_tensor(BATCH)) ** 2).mean().backward()
                cap.step()
    with ns.capture(found["torch"], model, keep="tensors", on_error="raise") as cap:
        (model(torch.from_numpy(BATCH)) ** 2).mean().backward()
        cap.step()
    return found


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_equal_models_are_equivalent(runs: dict[str, Path], keep: str) -> None:
    comparison = ns.compare(runs[f"right {keep}"], runs["torch"])
    assert comparison.verdict == "equivalent", comparison.report
    pairs = comparison.pairs.to_pylist()
    paired = {row["target_name"] for row in pairs if row["reference_name"]}
    for name in """
        Module.first.norm.LayerNorm.forward.0.output.0 Functional.linear.0.forward.output.0
        Module.second.batch.BatchNorm1D.forward.0.output.0 Functional.gelu.1.backward.output.0
        Module.head.Linear.backward.0.parameters_grad.bias
        """.split():
        assert name in paired
    weight = next(row for row in pairs if row["target_name"] == "Module.first.up.Linear.forward.0.parameters.weight")
    assert weight["target_shape"] == weight["reference_shape"] == "[16, 8]"
    if keep == "tensors":
        assert weight["bitwise_equal"]


@pytest.mark.parametrize("keep", ["stats", "tensors"])
def test_the_planted_bug_is_the_origin(runs: dict[str, Path], keep: str) -> None:
    for target, reference in ((f"wrong {keep}", "torch"), ("torch", f"wrong {keep}")):
        comparison = ns.compare(runs[target], runs[reference])
        assert comparison.verdict == "diverged"
        assert comparison.origin is not None
        assert comparison.origin.call == "Functional.gelu.1.forward"
        assert comparison.origin.module == "second"


def test_weights_go_both_ways_and_misfits_are_named() -> None:
    torch.manual_seed(1)
    source, layer, back = TorchNet(), PaddleNet(), TorchNet()
    source.first.batch.running_mean.add_(0.25)
    names = ns.copy_weights(source, layer)
    assert "first.batch._mean" in names
    np.testing.assert_array_equal(layer.first.up.weight.numpy(), source.first.up.weight.detach().numpy().T)
    np.testing.assert_array_equal(layer.first.batch._mean.numpy(), np.full(16, 0.25, np.float32))
    ns.copy_weights(layer, back)
    for (name, a), (_, b) in zip(source.state_dict().items(), back.state_dict().items()):
        assert torch.equal(a, b), name
    with pytest.raises(ns.SettingsError, match="first"):
        ns.copy_weights(nn.Linear(8, 3), layer)
    with pytest.raises(ns.SettingsError, match="shapes differ"):
        ns.copy_weights(nn.Linear(8, 4), paddle.nn.Linear(8, 3))
    with pytest.raises(ns.SettingsError, match="int"):
        ns.copy_weights(3, layer)


def test_attention_is_taken_apart_and_put_together() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    layer = paddle.nn.MultiHeadAttention(8, 2)
    ns.copy_weights(attention, layer)
    x = BATCH[None]
    ours = attention(*(torch.from_numpy(x),) * 3)[0].detach().numpy()
    np.testing.assert_allclose(layer(paddle.to_tensor(x)).numpy(), ours, rtol=1e-4, atol=1e-5)
    back = nn.MultiheadAttention(8, 2, batch_first=True)
    ns.copy_weights(layer, back)
    assert torch.equal(back.in_proj_weight, attention.in_proj_weight)
