"""Forms: all that a tensor is besides its storage."""

from __future__ import annotations

from typing import Any

import torch

VERSION = 64  # the bit from which on a place has its version
_STORAGE = (1 << VERSION) - 1  # the bits that have its storage


def place_of(storage: int, version: int) -> int:
    """Return the number under which what lies in a storage at a version is known."""
    return storage + (version << VERSION)


class Form:
    """All that a tensor is besides what lies in its storage: shape, strides, dtype, device, offset.

    Most tensors of a step have the form of some of the step before, so that a form is described once, and which tensors
    of that form were seen is a map from numbers to numbers. A version is no part of a form: parameters have a new one in
    each step.
    """

    __slots__ = ("_put_off", "device", "dtype", "is_complex", "may_put_off", "rows", "seen", "shape", "views")

    def __init__(
        self, dtype: int, shape: int, device: int, may_put_off: bool, rows: dict[int, tuple[int, int]], is_complex: bool
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.device = device
        self.may_put_off = may_put_off  # torch may have put off a conjugation or a negation of such a tensor
        self.seen: dict[int, int] = {}  # place → number
        self.rows = rows  # place → where it is measured; shared with the forms of other shape that show the same
        self.is_complex = is_complex  # no other is conjugated
        self.views: dict[int, tuple[Form, int]] = {}  # how a view is made → its form, and how far off its data lie
        self._put_off: dict[tuple[bool, bool], Form] = {}

    def put_off(self, conjugation: bool, negation: bool) -> Form:
        """Return the same form with what torch has put off."""
        if not (conjugation or negation):
            return self
        found = self._put_off.get((conjugation, negation))
        if found is None:
            found = self._put_off[conjugation, negation] = Form(
                self.dtype, self.shape, self.device, True, {}, self.is_complex
            )
        return found

    def hand_on(self, place: int, later: int) -> None:
        """Let what lies in a place be known in another one, too."""
        if place in self.seen:
            self.seen[later] = self.seen[place]
        if place in self.rows:
            self.rows[later] = self.rows[place]

    def forget_those(self, storages: set[int]) -> None:
        """Forget the tensors of these storages."""
        both: tuple[dict[int, Any], ...] = (self.seen, self.rows)
        for known in filter(None, both):
            kept = {place: what for place, what in known.items() if place & _STORAGE not in storages}
            known.clear()  # `rows` belongs to other forms, too
            known.update(kept)
        for form in self._put_off.values():
            form.forget_those(storages)

    def forget(self) -> None:
        """Forget which tensors were seen."""
        self.seen.clear()
        self.rows.clear()
        for form in self._put_off.values():
            form.forget()


def form_of(tensor: torch.Tensor) -> Any:
    """Return all that tells two views of one storage apart."""
    lies = None if tensor.is_contiguous() else tensor.stride()
    return (tensor.shape, lies, tensor.dtype, tensor.device, tensor.storage_offset())


def order_of(tensor: torch.Tensor) -> Any:
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
