"""Tensors in the source of a pytest file, bit for bit, or in a file beside it."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping

import torch

MOST_BYTES = 4 << 20  # in a source file

TENSOR = """def tensor(dtype, shape, data):
    raw = bytearray(zlib.decompress(base64.b85decode(data)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
"""
LOAD = """def load():
    return torch.load(Path(__file__).parent / "{name}", weights_only=True)
"""


def literal(tensor: torch.Tensor) -> str:
    """Return a tensor as an expression of the file."""
    raw = tensor.contiguous()
    data = (raw if raw.dim() else raw.reshape(1)).view(torch.uint8).numpy().tobytes()
    packed = base64.b85encode(zlib.compress(data, 9)).decode()
    return f"tensor({tensor.dtype}, {list(tensor.shape)}, {packed!r})"


def size_words(inputs: Mapping[str, torch.Tensor]) -> str:
    """Return the number, size and shapes of inputs in words."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in inputs.values())
    shapes = ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in list(inputs.values())[:4])
    more = ", …" if len(inputs) > 4 else ""
    return f"{len(inputs)} input{'s' * (len(inputs) > 1)}, {size} bytes ({shapes}{more})"
