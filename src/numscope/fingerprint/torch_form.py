"""The fingerprint of torch tensors on any device, without a synchronisation per tensor.

CPU tensors are measured in their own memory, by a compiled function where there is a compiler, or else by numpy calls, small
ones many at a time; tensors of CUDA devices by Triton, where it is installed and works; all others by torch operations.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from ctypes import memmove
from typing import TYPE_CHECKING, NamedTuple

import torch

from numscope.fingerprint.arena import Arena, Block
from numscope.fingerprint.chunks import STEP, Scratch
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.large import Large
from numscope.fingerprint.native import Native, Way, load
from numscope.fingerprint.rows import Places, Rows
from numscope.fingerprint.torch_complex import ComplexCounts
from numscope.fingerprint.torch_content import KIND_OF, PendingTensor, is_plain, raw_chunks, refuse
from numscope.fingerprint.torch_ops import DeviceBatch

if TYPE_CHECKING:
    from numscope.fingerprint.cuda.form import CudaBatch

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_data_ptr = torch._C.TensorBase.data_ptr  # torch's own, whatever replaces it on `Tensor`
_SHAPES = 10_000  # shapes whose strides are remembered


class SmallContent(NamedTuple):
    """Small contents of one dtype and size on the CPU, and the block that they are copied to."""

    block: Block
    real: int  # elements, complex ones counted twice
    elements: int
    size: int  # bytes
    typed: torch.Tensor  # the block as a tensor


class TorchBatch:
    """Measures tensors of any device, dtype and strides; several threads may share it, except for `add_alike`.

    `add` raises TypeError with the reason for a tensor that has no data (sparse, nested, meta, fake, quantized).
    """

    __slots__ = tuple(
        """
        _arena _complex _cuda _devices _forms _held _large _later _lock _native _places _rows _scratch _small _strides _ways
        fallbacks
        """.split()
    )

    def __init__(self, native: bool = True) -> None:
        self._lock = threading.Lock()
        self._places = Places()
        self._rows = Rows(places=self._places)
        self._native = load() if native else None
        self._scratch = Scratch()
        self._arena = Arena(self._scratch, self._rows)
        self._large = Large(self._scratch, self._rows)
        self._devices: dict[torch.device, DeviceBatch | CudaBatch] = {}
        self._complex = ComplexCounts()
        self._cuda: dict[int, CudaBatch] = {}  # the devices that Triton measures
        self._later: dict[int, list[PendingTensor]] | None = None  # put off, by device
        self.fallbacks: dict[str, str] = {}  # device -> why it is measured by torch operations and not by Triton
        self._held: dict[
            torch.dtype, torch.Tensor
        ] = {}  # buffers for copies of non-contiguous tensors, a few chunks each
        self._small: dict[tuple[torch.dtype, int], SmallContent] = {}  # by dtype and number of elements
        self._strides: dict[torch.Size, tuple[int, ...]] = {}  # of contiguous tensors
        self._forms: dict[tuple[torch.dtype, torch.Size, tuple[int, ...]], Way] = {}  # the ways of native.c
        self._ways: dict[Hashable, CudaBatch | Way | SmallContent] = {}  # the way to measure contents that are alike

    def add(self, tensor: torch.Tensor) -> int:
        """Measure the tensor as it is now; return its row in the next `collect`."""
        return self._add(tensor)

    def add_alike(self, tensor: torch.Tensor, alike: Hashable, address: int = -1) -> int:
        """Do as `add` for one of many tensors that are alike: torch is asked for the properties of the first one only.

        `alike` is an object for all tensors of one dtype, shape, strides and device, with equal conjugate and negative
        bits; `address` is the address of the data, asked for if it is not passed.
        No other thread may use the batch meanwhile: the caller holds a lock of its own.
        """
        if address < 0:
            try:
                address = _data_ptr(tensor)
            except RuntimeError:  # batched and functional ones have no storage
                address = 0
        way = self._ways.get(alike)
        if way is None or not address:
            row = self._add(tensor)
            self._learn(tensor, alike)
            return row
        rows = self._rows
        row = rows.count
        rows.count = row + 1
        if isinstance(way, Way):
            if row >= rows.room:
                rows.reserve()
            if way.measure(way.form, row, address >> 32, address):
                self._add_numpy(row, tensor.detach())
        elif isinstance(way, SmallContent):
            block = way.block
            place = self._arena.take(block, row, way.real, way.elements)
            memmove(block.address + place * block.stride, address, way.size)
        elif self._later is None:
            way.add_alike(row, tensor, address, alike)
        else:
            self._later.setdefault(way.index, []).append(PendingTensor(row, tensor, address, alike))
        return row

    def _learn(self, tensor: torch.Tensor, alike: Hashable) -> None:
        """Remember the way in which a tensor was just measured, for tensors like it."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
            return
        if tensor.is_conj() or tensor.is_neg() or tensor.dtype.is_complex:  # whose counts need more than a way
            return
        if len(self._ways) > _SHAPES:
            self._ways.clear()
        if tensor.is_cuda and tensor.get_device() in self._cuda:
            self._ways[alike] = self._cuda[tensor.get_device()]
        elif not tensor.is_cpu:
            return
        elif self._native is not None and (way := self._way(self._native, tensor)) is not None:
            self._ways[alike] = way
        elif is_plain(tensor):
            small = self._small.get((tensor.dtype, tensor.numel()))
            if small is not None:
                self._ways[alike] = small

    def _add(self, tensor: torch.Tensor) -> int:
        row = self._add_parts(tensor)
        if tensor.dtype.is_complex and tensor.numel():
            with self._lock:
                self._complex.add(row, tensor)
        return row

    def _add_parts(self, tensor: torch.Tensor) -> int:
        """Measure a tensor; the parts of a complex element are two."""
        if self._cuda and tensor.is_cuda:
            row = self._add_cuda(tensor)
            if row is not None:
                return row
        if self._native is not None and tensor.is_cpu:
            row = self._add_native(self._native, tensor)
            if row is not None:
                return row
        elements = tensor.numel()
        small = self._small.get((tensor.dtype, elements))
        if (
            small is None
            or type(tensor) not in _PLAIN
            or not tensor.is_cpu
            or tensor.layout is not torch.strided
            or tensor.is_nested
        ):
            return self._add_any(tensor)
        try:
            address = _data_ptr(tensor)
        except RuntimeError:  # it has no storage: `refuse` says why
            address = 0
        if address == 0:
            return self._add_any(tensor)
        block = small.block
        plain = is_plain(tensor)
        with self._lock:
            rows = self._rows
            row = rows.count
            rows.count = row + 1
            place = self._arena.take(block, row, small.real, elements)
            if plain:
                memmove(block.address + place * block.stride, address, small.size)
            else:
                self._place(small.typed, place, tensor.shape).copy_(tensor.detach())
        return row

    def _add_native(self, native: Native, tensor: torch.Tensor) -> int | None:
        """Measure a CPU tensor by the compiled function; return None where that cannot, or where there is no data."""
        if (
            type(tensor) not in _PLAIN
            or tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.dtype not in KIND_OF
        ):
            return None
        try:
            if tensor.is_conj() or tensor.is_neg():
                # As it is kept: a copy that is made first has other signs of zero.
                tensor = tensor.detach().resolve_conj().resolve_neg()
            address = _data_ptr(tensor)
        except RuntimeError:  # batched and functional ones have no storage
            return None
        if not address:
            return None
        with self._lock:
            rows = self._rows
            way = self._way(native, tensor)
            if way is None:
                return None
            row = rows.count
            rows.count = row + 1
            rows.reserve()
            if way.measure(way.form, row, address >> 32, address):
                self._add_numpy(row, tensor.detach())
        return row

    def _way(self, native: Native, tensor: torch.Tensor) -> Way | None:
        """Return the way in which the compiled function measures tensors of this form, or None where it cannot."""
        shape, strides = tensor.shape, tensor.stride()
        key = tensor.dtype, shape, strides
        way = self._forms.get(key)
        if way is None:
            kind, parts = KIND_OF[tensor.dtype]
            size = parts * kind.size
            real = ([*shape, parts], [*(stride * size for stride in strides), kind.size])
            way = native.way(self._places, kind, tensor.numel(), *real)
            if len(self._forms) > _SHAPES:
                self._forms.clear()
            if way is not None:
                self._forms[key] = way
        return way

    def _place(self, typed: torch.Tensor, place: int, shape: torch.Size) -> torch.Tensor:
        """Return a row of a block as a contiguous tensor of this shape, by one torch operation."""
        strides = self._strides.get(shape)
        if strides is None:
            if len(self._strides) > _SHAPES:
                self._strides.clear()
            strides = self._strides[shape] = torch.empty(shape, device="meta").stride()
        return torch.as_strided(typed, shape, strides, place * typed.stride(0))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Put off the tensors added inside and measure them at the end, small ones on CUDA by one launch for many.

        None of them may change before, and no other thread may add or collect.
        """
        if self._later is not None:  # nested
            yield
            return
        self._later = {}
        try:
            yield
        finally:
            later, self._later = self._later, None
            for index, pending in later.items():
                self._cuda[index].add_many(pending)

    def _add_cuda(self, tensor: torch.Tensor) -> int | None:
        """Measure a tensor of a CUDA device by Triton; return None where that cannot, or where there is no data."""
        if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        try:
            cuda = self._cuda.get(tensor.get_device())
            address = _data_ptr(tensor)
        except RuntimeError:  # batched and functional ones have no storage
            return None
        if cuda is None or not (address or tensor.numel() == 0):
            return None
        with self._lock:
            row = self._rows.count
            self._rows.count = row + 1
            if self._later is None:
                cuda.add(row, tensor, address)
            else:
                self._later.setdefault(cuda.index, []).append(PendingTensor(row, tensor, address, None))
        return row

    def _add_any(self, tensor: torch.Tensor) -> int:
        why = refuse(tensor)
        if why is not None:
            raise TypeError(why)
        with self._lock:
            rows = self._rows
            row = rows.count
            rows.count += 1
            if tensor.is_cpu and type(tensor) in _PLAIN and is_plain(tensor):
                self._add_numpy(row, tensor)  # no torch operation reads it
                return row
            with torch.no_grad():
                tensor = tensor.detach()
                if tensor.device.type == "cpu":
                    self._add_numpy(row, tensor)
                else:
                    self._device(tensor.device).add(row, tensor)
        return row

    def _add_numpy(self, row: int, tensor: torch.Tensor) -> None:
        kind, parts = KIND_OF[tensor.dtype]
        elements = tensor.numel()
        count = elements * parts
        block = self._arena.block(kind, count)
        if block is None:
            self._large.measure(row, elements, kind, count, lambda: raw_chunks(tensor, STEP // parts, self._held))
            return
        with torch.inference_mode(False):  # a tensor made in inference mode could not be written to outside it
            typed = torch.from_numpy(block.raw).view(tensor.dtype)
        self._small[tensor.dtype, elements] = SmallContent(block, count, elements, count * kind.size, typed)
        place = self._arena.take(block, row, count, elements)
        if is_plain(tensor):
            memmove(block.address + place * block.stride, _data_ptr(tensor), count * kind.size)
        else:
            self._place(typed, place, tensor.shape).copy_(tensor)

    def _device(self, device: torch.device) -> DeviceBatch | CudaBatch:
        batch = self._devices.get(device)
        if batch is None:
            batch = self._devices[device] = self._make(device)
        return batch

    def _make(self, device: torch.device) -> DeviceBatch | CudaBatch:
        if device.type == "cuda":
            try:
                from numscope.fingerprint.cuda.form import CudaBatch

                batch = self._cuda[device.index] = CudaBatch(device)
                return batch
            except Exception as error:  # no Triton, or one that does not work here: slower, not wrong
                self.fallbacks[str(device)] = f"{type(error).__name__}: {error}"
        return DeviceBatch(device)

    @property
    def is_on_host(self) -> bool:
        """Tell whether all tensors so far were in the host's memory: then any thread may end the batch."""
        return not self._devices

    def collect(self) -> Fingerprints:
        """Return the rows added since the last `collect`, with one copy from each device."""
        return self.flush()()

    def flush(self) -> Callable[[], Fingerprints]:
        """End the batch without waiting for a device; return a function that waits, in any thread, and returns the rows."""
        with self._lock:
            self._arena.finish()
            rows = self._rows
            self._rows = self._arena.rows = rows.succeed()
            self._large.begin(self._rows)
            finishes = [batch.begin() for batch in self._devices.values()]
            finishes.append(self._complex.begin())  # the last: it corrects what the others write

        def wait() -> Fingerprints:
            for finish in finishes:
                finish(rows)
            return rows.hand_over()

        return wait
