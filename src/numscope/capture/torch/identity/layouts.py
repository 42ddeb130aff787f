"""Layouts: shape, strides, dtype, device and offset tell apart the tensors of one storage at one version."""

from __future__ import annotations

from typing import NamedTuple

import torch

from numscope.capture.recording.rows import MeasuredAt

VERSION_SHIFT = 64  # the bit of a content key at which the version begins
_STORAGE = (1 << VERSION_SHIFT) - 1  # the bits below

LayoutKey = tuple[torch.Size, tuple[int, ...] | None, torch.dtype, torch.device, int]
ElementOrder = int | tuple[tuple[int, int], ...]


def content_key(storage: int, version: int) -> int:
    """Return a number for the content of a storage at a version."""
    return storage + (version << VERSION_SHIFT)


class View(NamedTuple):
    """The layout of a view, and the distance in bytes from its base's first element to its own."""

    layout: Layout
    distance: int


class Layout:
    """Everything about a tensor but the content of its storage: shape, strides, dtype, device, storage offset.

    Most tensors of a step have a layout that the step before had too. So a layout is described once, and holds the numbers
    of its tensors by content key. The version is no part of a layout: a parameter has a new one in each step.
    """

    __slots__ = (
        "_lazy",
        "device",
        "dtype",
        "is_complex",
        "is_lazy",
        "may_be_lazy",
        "numbers",
        "rows",
        "shape",
        "views",
    )

    def __init__(
        self,
        dtype: int,
        shape: int,
        device: int,
        rows: dict[int, MeasuredAt],
        *,
        is_complex: bool,
        may_be_lazy: bool,
        is_lazy: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.is_complex = is_complex  # only a complex tensor has a conjugate bit
        self.may_be_lazy = may_be_lazy  # its tensors may have the conjugate or negative bit set
        self.is_lazy = is_lazy  # its tensors have one of the bits set
        self.numbers: dict[int, int] = {}  # by content key
        # By content key; shared with layouts of other shapes that show the same elements in the same order.
        self.rows = rows
        self.views: dict[int, View] = {}  # of a tensor of this layout, by the operation that makes the view
        self._lazy: dict[tuple[bool, bool], Layout] = {}

    def lazy(self, conjugate: bool, negative: bool) -> Layout:
        """Return this layout with a conjugate bit and a negative bit."""
        if not (conjugate or negative):
            return self
        layout = self._lazy.get((conjugate, negative))
        if layout is None:
            layout = self._lazy[conjugate, negative] = Layout(
                self.dtype, self.shape, self.device, {}, is_complex=self.is_complex, may_be_lazy=True, is_lazy=True
            )
        return layout

    def copy_content(self, content: int, later: int) -> None:
        """Enter a content under another key, too."""
        if content in self.numbers:
            self.numbers[later] = self.numbers[content]
        if content in self.rows:
            self.rows[later] = self.rows[content]

    def forget_storages(self, storages: set[int]) -> None:
        """Forget the tensors of these storages."""
        for by_content in (self.numbers, self.rows):
            dead = [content for content in by_content if content & _STORAGE in storages]
            for content in dead:
                del by_content[content]
        for layout in self._lazy.values():
            layout.forget_storages(storages)

    def forget(self) -> None:
        """Forget which tensors were seen."""
        self.numbers.clear()
        self.rows.clear()
        for layout in self._lazy.values():
            layout.forget()


def layout_key(tensor: torch.Tensor) -> LayoutKey:
    """Return a key that differs between any two different views of one storage."""
    strides = None if tensor.is_contiguous() else tensor.stride()
    return tensor.shape, strides, tensor.dtype, tensor.device, int(tensor.storage_offset())


def element_order(tensor: torch.Tensor) -> ElementOrder:
    """Return sizes and strides with contiguous dimensions merged: equal for shapes that show the same elements in order."""
    if tensor.is_contiguous():
        return tensor.numel()
    merged: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape, tensor.stride()):
        outer_size, outer_stride = merged[-1] if merged else (0, 0)
        if merged and outer_stride == size * stride:
            merged[-1] = outer_size * size, stride
        elif size != 1:
            merged.append((size, stride))
    return tuple(merged)
