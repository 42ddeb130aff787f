"""The ways in which one device computes the same operator: TF32 or not, cuDNN or not, one attention kernel or another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch

from numscope.core.operators import MULTIPLIES, operator

Within = Callable[[], AbstractContextManager[object]]
_ALL = frozenset[str]()
_ATTENTION = frozenset({"scaled_dot_product_attention"})
_CUDNN = frozenset("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d".split())
_CUDNN |= frozenset("lstm gru rnn_tanh rnn_relu batch_norm native_batch_norm instance_norm".split())


@dataclass(frozen=True)
class Way:
    """A way of computing: a name, a context, and the operators that it concerns (all where none is named)."""

    name: str
    within: Within
    operators: frozenset[str] = _ALL
    products: bool = False  # products alone
    dtype: str = ""  # one alone

    def concerns(self, name: str, dtype: str) -> bool:
        """Return whether an operator may compute otherwise in this way."""
        if self.dtype and self.dtype != dtype:
            return False
        if self.products:
            return operator(name).rounding in MULTIPLIES
        return not self.operators or name in self.operators


def ways(device: torch.device) -> Iterator[Way]:
    """Yield the ways in which a device computes, the plain one first: float32 in float32."""
    if device.type != "cuda":
        yield Way("", nullcontext)
        return
    yield Way("", partial(tf32, False))
    yield Way("tf32", partial(tf32, True), products=True, dtype="float32")
    yield Way("no cudnn", lambda: torch.backends.cudnn.flags(enabled=False), _CUDNN)
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION"):
        kernel = getattr(SDPBackend, name, None)
        if kernel is not None:
            yield Way(name.lower().replace("_", " "), partial(sdpa_kernel, kernel), _ATTENTION)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Let products of float32 be made in TF32, or not, and restore the user's settings."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def chip(device: torch.device) -> str:
    """Return the name of a device's chip, as a run's manifest has it."""
    if device.type == "cpu":
        return torch.backends.cpu.get_cpu_capability()
    backend = getattr(torch, device.type, None)
    try:
        return str(backend.get_device_name(device)) if backend is not None else device.type
    except Exception:  # a backend that does not say
        return device.type
