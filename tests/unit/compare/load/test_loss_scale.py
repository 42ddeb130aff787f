"""The factor of a gradient scaler is taken off the gradients before they are compared."""

from __future__ import annotations

import numpy as np

from numscope.compare.load.loss_scale import without_scale
from numscope.compare.load.side import Codebook
from tests.unit.compare.scripted import Script, numbers

X, GRADIENT = numbers((16, 64)), numbers((16, 64), seed=1)


def scaled(factor: float, taken_off: bool = True) -> Script:
    """A loss that is multiplied by a factor, its gradient, and the call that divides the gradient again."""
    script = Script()
    script.call("Data.Net.0.input", made={"output.0": X})
    loss, scale = np.float32([3.0]), np.float32([factor])
    script.call("Torch.mean.0.forward", {"input.0": X}, {"output.0": loss})
    script.call("Tensor.mul.0.forward", {"input.0": loss}, {"output.0": loss * scale})
    script.call("Tensor.mul.0.backward", {"input.0": np.float32([1.0])}, {"output.0": scale}, forward=2)
    gradient = GRADIENT * np.float32(factor)
    script.call("Torch.mean.0.backward", {"input.0": scale}, {"output.0": gradient}, forward=1)
    divided = gradient / np.float32(factor if taken_off else 7)
    script.call(
        "Torch._amp_foreach_non_finite_check_and_unscale_.0.forward", {"input.0": gradient}, {"output.0": divided}
    )
    return script


def test_gradients_are_compared_without_a_scale_that_is_taken_off_later() -> None:
    """Where a later call takes the factor off again, gradients are compared without it"""
    book = Codebook()
    target, reference, scales = without_scale(scaled(1024.0).side(book), scaled(1.0).side(book))
    assert scales == (1024.0, 1.0)
    by_size = [side.tensors.l2[side.tensors.elements == GRADIENT.size] for side in (target, reference)]
    np.testing.assert_allclose(by_size[0][1], by_size[1][1], rtol=1e-6)  # the first is data
    np.testing.assert_allclose(by_size[0][0], np.linalg.norm(X), rtol=1e-6)  # data has no scale


def test_a_factor_that_nothing_takes_off_is_a_difference() -> None:
    """A factor that nothing takes off is a difference like any other"""
    book = Codebook()
    _, _, scales = without_scale(scaled(1024.0, taken_off=False).side(book), scaled(1.0).side(book))
    assert scales == (1.0, 1.0)


def test_the_same_factor_on_both_sides_stays() -> None:
    book = Codebook()
    target = scaled(8.0).side(book)
    same, _, scales = without_scale(target, scaled(8.0).side(book))
    assert same is target
    assert scales == (1.0, 1.0)
