"""A tensor object with its cached fingerprint, and the check that the fingerprint still holds."""

from __future__ import annotations

import weakref

import torch

from numscope.capture.torch.identity.layouts import Layout
from numscope.capture.torch.identity.subclasses import data_ptr


class KnownTensor:
    """A tensor object, where its elements lie, and the fingerprint that it was last given in the running step."""

    __slots__ = ("content", "data_ptr", "layout", "number", "storage", "tensor", "version")

    # The cached fingerprint: its number, and the version counter and content key (`layouts.py`) when it was measured.
    version: int
    content: int
    number: int

    def __init__(self, tensor: weakref.ref[torch.Tensor], data_ptr: int, storage: int, layout: Layout) -> None:
        self.tensor = tensor
        self.data_ptr = data_ptr
        self.storage = storage  # its address
        self.layout = layout

    def is_at(self, tensor: torch.Tensor) -> bool:
        """Tell whether this is the tensor and its elements still lie at the same address: `.data = …` moves them."""
        return self.tensor() is tensor and self.data_ptr == data_ptr(tensor)

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Tell whether this is the tensor and its cached fingerprint holds: nothing has raised its version counter."""
        return self.tensor() is tensor and self.version == tensor._version and self.data_ptr == data_ptr(tensor)
