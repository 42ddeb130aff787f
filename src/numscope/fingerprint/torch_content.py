"""The content of a torch tensor: its kind of elements, and its bytes in row-major order, a chunk at a time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from ctypes import c_char
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.fingerprint.kinds import KINDS, Kind

Tensor = torch.Tensor

_COMPLEX = {torch.complex32: "float16", torch.complex64: "float32", torch.complex128: "float64"}
_PACKED = {f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}  # torch packs them, ml_dtypes does not


class PendingTensor(NamedTuple):
    """A tensor that is to be measured."""

    row: int
    tensor: Tensor
    address: int
    alike: Hashable | None  # the object of all tensors like it, if there is one


def _kinds() -> dict[torch.dtype, tuple[Kind, int]]:
    """Map every dtype to its kind and the number of real elements per element; packed ones are taken as bytes."""
    table = {}
    for name in dir(torch):
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype) or str(dtype).startswith("torch.q"):
            continue
        short = str(dtype).removeprefix("torch.")
        if dtype in _COMPLEX:
            table[dtype] = KINDS[_COMPLEX[dtype]], 2
        elif short in KINDS and KINDS[short].size == dtype.itemsize and short not in _PACKED:
            table[dtype] = KINDS[short], 1
        else:
            table[dtype] = KINDS["uint8"], dtype.itemsize
    return table


KIND_OF = _kinds()
_ANYTHING = c_char * (1 << 46)  # memory of any size: a caller takes a part


def refuse(tensor: Tensor) -> str | None:
    """Return why the tensor has no content to measure, or None."""
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout} has no strided content"
    if tensor.is_nested:
        return "a nested tensor has no row-major content"
    if tensor.is_meta:
        return "a meta tensor has no data"
    if tensor.dtype not in KIND_OF:
        return f"no fingerprint is defined for {tensor.dtype}"
    try:
        # A device that is registered from Python keeps its data where torch has no address of it.
        if tensor.numel() and tensor.data_ptr() == 0 and tensor.device.type != torch._C._get_privateuse1_backend_name():
            return f"a {type(tensor).__name__} has no data of its own"
    except RuntimeError:  # fake, functional and batched tensors of torch's tracers and vmap
        return f"a {type(tensor).__name__} without storage has no data"
    return None


def memory(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the memory of a contiguous CPU tensor as bytes; the tensor must outlive the array.

    `tensor.numpy()` would make its storage non-resizable for good, and fail a job that resizes storages (FSDP frees and
    refills them).
    """
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(_ANYTHING.from_address(tensor.data_ptr()), np.uint8, size)  # type: ignore[call-overload,no-any-return]


def is_plain(tensor: Tensor) -> bool:
    """Tell whether the tensor's memory holds its content, in row-major order."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def raw_chunks(tensor: Tensor, step: int, held: dict[torch.dtype, Tensor]) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a CPU tensor in row-major order, `step` elements at a time.

    Elements in another order are copied to a buffer that is kept in `held`, four times as many at once: fresh memory
    would cost more than the copy, and torch starts its threads for each copy.
    """
    size = step * tensor.element_size()
    parts: Iterable[NDArray[np.uint8]]
    if is_plain(tensor):
        parts = [memory(tensor)]
    else:
        many = 4 * step
        if tensor.dtype not in held:
            held[tensor.dtype] = torch.empty(many, dtype=tensor.dtype, device="cpu")
        parts = map(_bytes, flat_chunks(tensor, many, held[tensor.dtype]))
    for raw in parts:
        for start in range(0, raw.size, size):
            yield raw[start : start + size]


def _bytes(part: Tensor) -> NDArray[np.uint8]:
    raw: NDArray[np.uint8] = raw_bytes(part).numpy()
    return raw


def flat_chunks(tensor: Tensor, step: int, held: Tensor | None = None) -> Iterator[Tensor]:
    """Yield the elements in row-major order as contiguous 1-d tensors of `step` elements (fewer in the last).

    Contiguous tensors are not copied. Of others, one chunk at a time is copied, with its conjugate and negative bits
    resolved.
    """
    if tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        flat = tensor.view(-1)
        for start in range(0, flat.numel(), step):
            yield flat.narrow(0, start, min(step, flat.numel() - start))
        return
    if held is None:
        held = torch.empty(min(step, tensor.numel()), dtype=tensor.dtype, device=tensor.device)
    filled = 0
    for piece in _pieces(tensor, step):
        if piece.numel() <= step - filled:
            held.narrow(0, filled, piece.numel()).view(piece.shape).copy_(piece)
            filled += piece.numel()
            if filled == step:
                yield held
                filled = 0
            continue
        source = piece.reshape(-1)
        while source.numel():
            taken = min(step - filled, source.numel())
            held.narrow(0, filled, taken).copy_(source.narrow(0, 0, taken))
            filled, source = filled + taken, source.narrow(0, taken, source.numel() - taken)
            if filled == step:
                yield held
                filled = 0
    if filled:
        yield held.narrow(0, 0, filled)


def _pieces(tensor: Tensor, step: int) -> Iterator[Tensor]:
    """Yield parts of at most `step` elements that follow one another in row-major order."""
    if tensor.numel() <= step:
        yield tensor
        return
    inner = tensor.numel() // tensor.shape[0]
    if inner > step:
        for index in range(tensor.shape[0]):
            yield from _pieces(tensor.select(0, index), step)
        return
    many = step // inner
    for start in range(0, tensor.shape[0], many):
        yield tensor.narrow(0, start, min(many, tensor.shape[0] - start))


def raw_bytes(chunk: Tensor) -> Tensor:
    """Return a contiguous 1-d chunk as its bytes."""
    return chunk.view(torch.uint8) if chunk.dtype is not torch.uint8 else chunk
