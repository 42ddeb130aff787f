"""Whether the difference that a suspected call makes reaches anything."""

from __future__ import annotations

import numpy as np

from numscope.compare.judge.findings import Weight
from tests.unit.compare.judge.tables import W, X, data, judged
from tests.unit.compare.scripted import Script

LOSS = np.float32(1.5)


def with_loss(script: Script, given: np.ndarray) -> Script:
    """Add a loss and its gradient."""
    loss = np.array(np.abs(given).sum(dtype=np.float64), np.float32)
    order = script.call("Torch.norm.0.forward", {"input.0": given}, {"output.0": loss})
    script.call("Torch.norm.0.backward", {"input.0": LOSS}, {"output.0": np.sign(given)}, forward=order)
    return script


def masked(fill: float, rejoins: bool = True) -> Script:
    """Scores that are filled with a number where a mask hides them, and their softmax."""
    script = data(Script(), X)
    scores = np.where(X > 1, np.float32(fill), X)
    script.call("Tensor.masked_fill.0.forward", {"input.0": X}, {"output.0": scores})
    hidden = 0 if rejoins else np.float32(np.isinf(fill))
    weights = np.where(X > 1, hidden, np.exp(X)).astype(np.float32)
    script.call("Functional.softmax.0.forward", {"input.0": scores}, {"output.0": weights})
    product = weights @ W
    script.call("Torch.matmul.0.forward", {"input.0": weights, "input.1": W}, {"output.0": product})
    return with_loss(script, product)


def test_a_difference_that_rejoins_the_same_tensors_is_told_below_and_no_origin() -> None:
    """Calls whose ways rejoin tensors that agree, before a loss, a gradient, a parameter or a saved tensor, are a
    rearrangement."""
    found = judged(masked(-1e30), masked(-np.inf))
    assert found.findings == []
    assert [one.target for one in found.judgement.rearranged] == [1]
    assert found.verdict("Tensor.masked_fill.0.forward") == "equivalent"


def test_a_difference_that_reaches_the_loss_is_the_origin() -> None:
    assert (
        judged(masked(-1e30, rejoins=False), masked(-np.inf, rejoins=False)).named() == "Tensor.masked_fill.0.forward"
    )


def test_what_nothing_reads_comes_after_what_reaches_the_loss() -> None:
    """What no recorded call reads (a metric) comes after what reaches an end."""

    def script(own: bool) -> Script:
        made = data(Script(), X)
        seen = np.tanh(X) if own else np.tanh(X) * np.float32(1.1)
        made.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": seen})
        product = X @ W * np.float32(1.0 if own else 1.2)
        made.call("Torch.matmul.0.forward", {"input.0": X, "input.1": W}, {"output.0": product})
        return with_loss(made, product)

    found = judged(script(True), script(False))
    assert found.named() == "Torch.matmul.0.forward"
    assert [one.weight for one in found.findings] == [Weight.PROVEN, Weight.READ_BY_NONE]


def test_what_nothing_reads_is_the_origin_where_nothing_else_is() -> None:
    def script(factor: float) -> Script:
        made = data(Script(), X)
        made.call("Torch.tanh.0.forward", {"input.0": X}, {"output.0": np.tanh(X) * np.float32(factor)})
        product = X @ W
        made.call("Torch.matmul.0.forward", {"input.0": X, "input.1": W}, {"output.0": product})
        return with_loss(made, product)

    assert judged(script(1.1), script(1.0)).named() == "Torch.tanh.0.forward"
