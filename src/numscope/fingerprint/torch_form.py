"""The fingerprint of torch tensors on any device, without a synchronisation per tensor.

CPU tensors are measured by numpy calls on their own memory; those of other devices by torch operations there.
"""

from __future__ import annotations

import torch

from numscope.fingerprint.chunks import Measure, Scratch
from numscope.fingerprint.columns import Fingerprints
from numscope.fingerprint.constants import CHUNK
from numscope.fingerprint.rows import Rows
from numscope.fingerprint.torch_content import KIND_OF, flat_chunks, raw_bytes, refuse
from numscope.fingerprint.torch_ops import DeviceBatch


class TorchBatch:
    """Measures tensors of any device, dtype and strides; several threads may share it.

    `add` raises TypeError with the reason for a tensor that has no data (sparse, nested, meta, fake, quantized).
    """

    def __init__(self) -> None:
        self._rows = Rows()
        self._scratch = Scratch()
        self._devices: dict[torch.device, DeviceBatch] = {}

    def add(self, tensor: torch.Tensor) -> int:
        """Measure the tensor as it is now; return its row in the next `collect`."""
        why = refuse(tensor)
        if why is not None:
            raise TypeError(why)
        tensor = tensor.detach()
        rows = self._rows
        with rows.lock, torch.no_grad():
            row = rows.count
            rows.count += 1
            if tensor.device.type == "cpu":
                kind, parts = KIND_OF[tensor.dtype]
                result = Measure(kind, tensor.numel() * parts, self._scratch)
                for chunk in flat_chunks(tensor, CHUNK // parts):
                    result.take(raw_bytes(chunk).numpy())
                rows.set(row, tensor.numel(), result)
            else:
                self._device(tensor.device).add(row, tensor)
        return row

    def _device(self, device: torch.device) -> DeviceBatch:
        batch = self._devices.get(device)
        if batch is None:
            batch = self._devices[device] = DeviceBatch(device)
        return batch

    def collect(self) -> Fingerprints:
        """Return the rows added since the last `collect`, with one copy from each device."""
        with self._rows.lock:
            for batch in self._devices.values():
                batch.finish(self._rows)
            return self._rows.hand_over()
