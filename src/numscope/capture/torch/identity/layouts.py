"""Layouts: all that tells apart two tensors of one storage at one version."""

from __future__ import annotations

from typing import NamedTuple

import torch

VERSION_SHIFT = 64  # the bit of a content key at which the version begins
_STORAGE = (1 << VERSION_SHIFT) - 1  # the bits below

LayoutKey = tuple[torch.Size, tuple[int, ...] | None, torch.dtype, torch.device, int]
ElementOrder = int | tuple[tuple[int, int], ...]


def content_key(storage: int, version: int) -> int:
    """Return the number that stands for what a storage held at a version."""
    return storage + (version << VERSION_SHIFT)


class View(NamedTuple):
    """The layout of a view, and how many bytes after its base's its elements begin."""

    layout: Layout
    distance: int


class Layout:
    """All that a tensor is besides the content of its storage: shape, strides, dtype, device, storage offset.

    Most tensors of a step have the layout of some of the step before. So a layout is described once, and which tensors of
    it were seen is a map from content keys to numbers. A version is no part of a layout: parameters have a new one in each
    step.
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
        rows: dict[int, tuple[int, int]],
        *,
        is_complex: bool,
        may_be_lazy: bool,
        is_lazy: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.is_complex = is_complex  # only a complex tensor has a conjugate bit
        self.may_be_lazy = may_be_lazy  # a tensor of this layout may have its conjugate or negative bit set
        self.is_lazy = is_lazy  # a tensor of this layout has
        self.numbers: dict[int, int] = {}  # by content key
        self.rows = (
            rows  # by content key; shared by layouts of other shapes that show the same elements in the same order
        )
        self.views: dict[int, View] = {}  # by the way in which a view is made of a tensor of this layout
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
        """Let a content be known under another key, too."""
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
    """Return all that tells two views of one storage apart."""
    strides = None if tensor.is_contiguous() else tensor.stride()
    return tensor.shape, strides, tensor.dtype, tensor.device, int(tensor.storage_offset())


def element_order(tensor: torch.Tensor) -> ElementOrder:
    """Return what elements a tensor shows in what order, whatever its shape: sizes and strides, neighbours joined."""
    if tensor.is_contiguous():
        return tensor.numel()
    joined: list[tuple[int, int]] = []
    for size, stride in zip(tensor.shape, tensor.stride()):
        if joined and joined[-1][1] == size * stride:
            joined[-1] = joined[-1][0] * size, stride
        elif size != 1:
            joined.append((size, stride))
    return tuple(joined)
