"""Uninitialised memory, on its way through calls that make views of it or fill it.

FSDP allocates memory, makes views of its parts, fills it by operators of its own, frees it and allocates it anew. The
content of such a tensor before it is filled differs from run to run, and must not be measured. But code outside torch
(numpy, a raw kernel) may also fill memory: so an uninitialised tensor that is the input of a computation is measured all the
same.
"""

from __future__ import annotations

import torch

from numscope.capture.recording.rows import SLOT_WIDTH, TENSOR_OF_SLOT
from numscope.capture.torch.identity.storages import address_of
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.patching import replace
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch


def drop_uninitialized(
    watch: Watch, api: Api, inputs: list[Slot], versions: list[int | None], rows: list[int], outputs: list[Slot]
) -> list[Slot]:
    """Blank the rows of uninitialised inputs that the call only viewed or filled; return the initialised outputs.

    Such an input has an output in the same memory. `versions` are the inputs' versions from before the call, `rows` their
    rows.
    """
    output_addresses = {address_of(tensor) for _, tensor in outputs}
    any_blanked = False
    for (_, tensor), version, index in zip(inputs, versions, range(TENSOR_OF_SLOT, len(rows), SLOT_WIDTH)):
        if (
            rows[index] >= 0
            and watch.tensors.was_uninitialized(tensor, version)
            and address_of(tensor) in output_addresses
        ):
            rows[index : index + 2] = -1, watch.uninitialized  # the note follows
            any_blanked = True
    if not any_blanked:
        return outputs
    if api.views:
        return []
    if api.fills_a_part:
        whole = max(tensor.numel() for _, tensor in outputs)
        return [output for output in outputs if output.tensor.numel() < whole]
    for _, tensor in outputs:
        watch.tensors.note_write(tensor)
    return outputs


def record_results(
    watch: Watch,
    api: Api,
    order: int,
    name: int,
    inputs: list[Slot],
    versions: list[int | None],
    rows: list[int],
    outputs: list[Slot],
    base: torch.Tensor | None = None,
) -> None:
    """Record a call's inputs and outputs, uninitialised ones without a fingerprint; `base`: see `Watch.record`."""
    measured = outputs
    if watch.tensors.uninitialized:
        measured = drop_uninitialized(watch, api, inputs, versions, rows, outputs)
    watch.add(rows)
    watch.record(order, measured, name, base=base)
    if measured is not outputs:
        holding = {output.name for output in measured}
        watch.empty(order, [output for output in outputs if output.name not in holding])


class Reallocations:
    """Sees storages that are freed and allocated anew: no operator does that, so a dispatch mode sees nothing of it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace `UntypedStorage.resize_`; return a function that puts it back."""
        watch, original = self._watch, torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> object:
            was_free = storage.nbytes() == 0
            result = original(storage, size)
            if was_free and size and watch.on and not watch.thread.here.busy:
                watch.tensors.reallocated(storage)
            return result

        return replace(torch.UntypedStorage, "resize_", resize_)
