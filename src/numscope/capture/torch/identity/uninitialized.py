"""Memory that nothing was written to yet, on its way through calls that look at it or fill it.

FSDP asks for memory, looks at it in parts, has its own operators fill it, frees it and gives it memory anew. What such a
tensor holds before it is filled is no number of the job's: it differs from run to run, and must not be measured. But
memory may also be filled by what torch does not know of (numpy, a raw kernel): so a blank tensor that goes into a call that
computes is measured all the same.
"""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.identity.storages import address_of
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.patching import replace
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch


def passes_blank(
    watch: Watch, api: Api, inputs: list[Slot], versions: list[int | None], rows: list[int], outputs: list[Slot]
) -> list[Slot]:
    """Take away what was measured of inputs that held nothing yet, and that the call only looked at or filled.

    They are known by an output in the same memory; `versions` are the inputs' from before the call, `rows` their rows.
    Return the outputs that hold something; the others are recorded as they are.
    """
    given = {address_of(tensor) for _, tensor in outputs}
    found = False
    for (_, tensor), version, place in zip(inputs, versions, range(2, len(rows), 4)):
        if rows[place] >= 0 and watch.tensors.was_uninitialized(tensor, version) and address_of(tensor) in given:
            rows[place : place + 2] = -1, watch.uninitialized
            found = True
    if not found:
        return outputs
    if api.views:
        return []
    if api.fills_a_part:
        whole = max(tensor.numel() for _, tensor in outputs)
        return [(slot, tensor) for slot, tensor in outputs if tensor.numel() < whole]
    for _, tensor in outputs:
        watch.tensors.note_write(tensor)
    return outputs


def record_results(
    watch: Watch, api: Api, order: int, name: int, inputs: list[Slot], versions: list[int | None], rows: list[int],
    outputs: list[Slot], base: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Record the rows of a call's inputs and its outputs, without what holds nothing yet; `base`: see `Watch.record`."""
    measured = outputs
    if watch.tensors.uninitialized:
        measured = passes_blank(watch, api, inputs, versions, rows, outputs)
    watch.add(rows)
    watch.record(order, measured, name, base=base)
    if measured is not outputs:
        holding = {slot for slot, _ in measured}
        watch.empty(order, [item for item in outputs if item[0] not in holding])


class Reallocations:
    """Sees storages that are freed and given memory anew: no operator does that, so that a dispatch mode sees none."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace `UntypedStorage.resize_`; return what takes that away again."""
        storages: Any = torch.UntypedStorage
        watch, plain = self._watch, storages.resize_

        def resize_(storage: Any, size: int) -> Any:
            was_free = storage.nbytes() == 0
            result = plain(storage, size)
            if was_free and size and watch.on and not watch.thread.here.busy:
                watch.tensors.reallocated(storage)
            return result

        return replace(storages, "resize_", resize_)
