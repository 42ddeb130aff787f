"""What is known of one tensor object, and the check that it still holds."""

from __future__ import annotations

import weakref

import torch

from numscope.capture.torch.identity.layouts import Layout
from numscope.capture.torch.identity.subclasses import data_ptr


class KnownTensor:
    """A tensor object, where its elements lie, and the fingerprint that it was last given in the running step."""

    __slots__ = ("content", "data_ptr", "layout", "number", "storage", "tensor", "version")

    # The version counter when it was last looked at, what was in its storage then (see `content_key`), and the number of the
    # fingerprint of that: the cached fingerprint.
    version: int
    content: int
    number: int

    def __init__(self, tensor: weakref.ref[torch.Tensor], data_ptr: int, storage: int, layout: Layout) -> None:
        self.tensor = tensor  # it lives as long as the tensor does
        self.data_ptr = data_ptr
        self.storage = storage  # its address
        self.layout = layout

    def is_at(self, tensor: torch.Tensor) -> bool:
        """Tell whether this is the tensor, and its elements lie where they lay: `.data = …` gives it others."""
        return self.tensor() is tensor and self.data_ptr == data_ptr(tensor)

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Tell whether this is the tensor, and its cached fingerprint holds: nothing has raised its version counter."""
        return self.tensor() is tensor and self.version == tensor._version and self.data_ptr == data_ptr(tensor)
