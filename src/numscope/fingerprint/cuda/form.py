"""The fingerprint of CUDA tensors by Triton: no synchronisation until the rows are asked for."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch

from numscope.fingerprint.cuda.stream import Finish, StreamBatch
from numscope.fingerprint.cuda.tables import TILE, tables_of
from numscope.fingerprint.numpy_form import NumpyBatch
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_content import PendingTensor

Tensor = torch.Tensor

LONG = 2500 * TILE  # elements of a tensor whose programs take several tiles each

_IN_A_GRAPH = "a CUDA graph is being captured: its replays would measure again, and nobody would ask"

# The bindings behind the functions of torch.cuda, without their overhead: they are called for every tensor.
_raw_stream = torch._C._cuda_getCurrentRawStream
_capturing = torch._C._cuda_isCurrentStreamCapturing
_current_device = torch._C._cuda_getDevice


class CudaBatch:
    """The pending launches of one CUDA device, on all its streams."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index
        with torch.cuda.device(device):
            self.tables = tables_of(device)
            self.streams: dict[int, StreamBatch] = {}
            if not self.tables.tried:
                self._try_out()
                self.tables.tried = True

    def _try_out(self) -> None:
        """Check that the kernels agree with the definition, launched directly or else by Triton; raise if not."""
        try:
            self._measure_some()
        except RuntimeError:
            if not self.tables.direct:
                raise
            self.tables.direct = False
            self.streams.clear()
            self._measure_some()

    def _measure_some(self) -> None:
        """Measure some tensors and compare with the numpy form; raise where this Triton or GPU fails or disagrees."""
        short = torch.arange(-700, 2000, device=self.device)
        long = torch.arange(LONG, device=self.device) % 1021 - 500
        tensors = [value.to(dtype) for value in (short, long) for dtype in (torch.float32, torch.bfloat16)]
        known = NumpyBatch()
        batch, rows = self._current(), Rows()
        for row, tensor in enumerate(tensors):
            self.add(row, tensor)
            batch.learn(tensor, row)
            half = tensor.dtype is torch.bfloat16
            bits = tensor.view(torch.int16 if half else torch.int32).cpu().numpy()
            known.add(bits.view("bfloat16" if half else np.float32))
        once = len(tensors)
        rows.count = 2 * once
        pending = [PendingTensor(once + row, tensor, tensor.data_ptr(), row) for row, tensor in enumerate(tensors)]
        self.add_many(pending)
        batch.alike.clear()
        self.begin()(rows)
        measured, true = rows.hand_over(), known.collect()
        for row in range(2 * once):
            right = row % once
            near = np.allclose(measured.sketch[row], true.sketch[right], atol=1e-6 * true.l2[right])
            if measured.hash[row] != true.hash[right] or measured.zero[row] != true.zero[right] or not near:
                raise RuntimeError(f"Triton's fingerprint of a {tensors[right].dtype} tensor is not the defined one")

    def add(self, row: int, tensor: Tensor, address: int | None = None) -> None:
        """Launch the kernel that measures the tensor, on the current stream."""
        index = self.index
        if _capturing():
            raise TypeError(_IN_A_GRAPH)
        batch = self.streams.get(_raw_stream(index)) or self._current()
        if address is None:
            address = tensor.data_ptr()
        if _current_device() == index:
            batch.add(row, tensor, address)
        else:
            with torch.cuda.device(index):
                batch.add(row, tensor, address)

    def add_alike(self, row: int, tensor: Tensor, address: int, alike: Hashable) -> None:
        """Do as `add` for one of the tensors that `alike` stands for."""
        index = self.index
        if _capturing():
            raise TypeError(_IN_A_GRAPH)
        batch = self.streams.get(_raw_stream(index))
        if batch is None or address & 15 or _current_device() != index:
            self.add(row, tensor, address)
            return
        plan = batch.alike.get(alike)
        if plan is None:
            batch.add(row, tensor, address)
            batch.learn(tensor, alike)
            return
        packed = plan.packed  # from here on as in `launch`, without a call of it for each
        if packed is None or batch.start is None or batch.start(packed, row, address >> 32, address):
            batch.launch_by_triton(plan, row, address)

    def add_many(self, many: Sequence[PendingTensor]) -> None:
        """Launch kernels that measure the tensors, on the current stream: one for many small ones."""
        with torch.cuda.device(self.index):
            self._current().add_many(many)

    def _current(self) -> StreamBatch:
        if _capturing():
            raise TypeError(_IN_A_GRAPH)
        stream = _raw_stream(self.index)
        batch = self.streams.get(stream)
        if batch is None:
            queue = torch.cuda.current_stream(self.index)
            batch = self.streams[stream] = StreamBatch(self.tables, stream, queue)
        return batch

    def begin(self) -> Finish:
        """Start the copies of all streams; return a function that waits for them and writes the rows."""
        with torch.cuda.device(self.device):
            waits = [batch.begin() for batch in self.streams.values()]

        def finish(rows: Rows) -> None:
            for wait in waits:
                wait(rows)

        return finish
