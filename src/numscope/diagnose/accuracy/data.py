"""Inputs that try an operator: few terms and many, sums that cancel, rows of very different size."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

_REMAINDER = 1e-2  # of its terms, that a sum which cancels leaves
_MEAN = 30.0  # deviations: a mean that a normalisation has to take off


class Form(Enum):
    """A kind of inputs."""

    SHORT = "short"  # few terms to a sum
    LONG = "long"  # thousands
    CANCELLING = "cancelling"  # sums leave a hundredth of their terms
    SCALED = "scaled"  # rows whose sizes are decades apart


_SIZES = {Form.SHORT: (8, 16), Form.LONG: (8, 4096), Form.CANCELLING: (16, 256), Form.SCALED: (16, 256)}


@dataclass
class Data:
    """Draws the inputs of one sample, in float64."""

    form: Form
    random: torch.Generator

    @property
    def rows(self) -> int:
        """How many sums an operator makes."""
        rows, _ = _SIZES[self.form]
        return rows

    @property
    def depth(self) -> int:
        """How many terms each of them has."""
        _, depth = _SIZES[self.form]
        return depth

    def normal(self, *shape: int) -> torch.Tensor:
        """Return normal numbers, whatever the form."""
        return torch.randn(shape, generator=self.random, dtype=torch.float64)

    def uniform(self, *shape: int) -> torch.Tensor:
        """Return numbers in [0, 1)."""
        return torch.rand(shape, generator=self.random, dtype=torch.float64)

    def integers(self, below: int, *shape: int) -> torch.Tensor:
        """Return labels or indices."""
        return torch.randint(below, shape, generator=self.random)

    def real(self, *shape: int) -> torch.Tensor:
        """Return normal numbers; in the form of the same name, those of the last dimension cancel."""
        shape = shape or (self.rows, self.depth)
        if self.form is Form.CANCELLING and shape[-1] % 2 == 0:
            half = self.normal(*shape[:-1], shape[-1] // 2)
            return torch.cat([half, _REMAINDER * self.normal(*half.shape) - half], -1)
        return self._scaled(self.normal(*shape))

    def factor(self, *shape: int, dim: int = -1) -> torch.Tensor:
        """Return what is multiplied with `real`, summed over a dimension of its own: cancels where that one does."""
        x = self.normal(*shape)
        if self.form is Form.CANCELLING and shape[dim] % 2 == 0:
            half = x.narrow(dim, 0, shape[dim] // 2)
            return torch.cat([half, half], dim)
        return x

    def opposite(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is added to x elementwise: nearly -x in the cancelling form."""
        other = self._scaled(self.normal(*x.shape))
        return _REMAINDER * other - x if self.form is Form.CANCELLING else other

    def shifted(self, *shape: int) -> torch.Tensor:
        """Return numbers to be normalised: of a large mean in the cancelling form."""
        shape = shape or (self.rows, self.depth)
        return self._scaled(self.normal(*shape)) + _MEAN * (self.form is Form.CANCELLING)

    def positive(self, *shape: int) -> torch.Tensor:
        """Return numbers above zero, rows decades apart in the form of that name."""
        shape = shape or (self.rows, self.depth)
        return self._scaled(torch.exp(0.5 * self.normal(*shape)))

    def inside(self, *shape: int) -> torch.Tensor:
        """Return numbers between -1 and 1."""
        return 0.98 * (2.0 * self.uniform(*(shape or (self.rows, self.depth))) - 1.0)

    def logits(self, *shape: int) -> torch.Tensor:
        """Return logits: of a few units, of tens where sums cancel (their differences count), rows of different size."""
        x = self.normal(*(shape or (self.rows, self.depth)))
        if self.form is Form.CANCELLING:
            return 2.0 * x + 20.0
        return 4.0 * x if self.form is Form.SCALED else x

    def gradient(self, *shape: int) -> torch.Tensor:
        """Return the gradient of a result: nearly one for all elements in the cancelling form."""
        x = self.normal(*shape)
        return 1.0 + _REMAINDER * x if self.form is Form.CANCELLING else x

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        if self.form is not Form.SCALED or x.dim() < 2:
            return x
        sizes = torch.exp(1.5 * self.normal(x.shape[0]))
        return x * sizes.reshape(-1, *[1] * (x.dim() - 1))
