"""What a call of a torch function has left: its results, what it has written to, or an error."""

from __future__ import annotations

from typing import Any

from numscope.capture.interned import Series
from numscope.capture.torch.identity.storages import version_of
from numscope.capture.torch.identity.uninitialized import record_results
from numscope.capture.torch.inputs import Targets
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.own_code import OwnCode
from numscope.capture.torch.slots import Slot
from numscope.capture.torch.thread import Open
from numscope.capture.torch.watch import Watch

# A call that has begun: its row, its input tensors and their rows, its series and number there, what it runs in, the versions
# of its inputs where they are asked, and where their gradients will go.
Begun = tuple[tuple[int, ...], list[Slot], list[int], Series, int, Open, list[int | None] | None, Targets | None, int]


def record(watch: Watch, api: Api, begun: Begun, result: Any) -> list[Slot]:
    """Record a call of any kind; return its outputs, none where it is no call."""
    row, slots, rows, series, number, _, versions, _, _ = begun
    if api.writes_unversioned:
        _distrust_written(watch, slots, versions)
    elif api.foreign:
        watch.tensors.note_foreign_use([tensor for _, tensor in slots])
    outputs = watch.flatten_output(result)
    if outputs:
        if not api.computes:
            api.has_computed()
    elif not (
        outputs := _written(watch, slots, versions) or _unscaled(watch, api, slots)
    ):  # computes no tensor: no call
        if not row[10]:
            series.give_back(number)
        return outputs
    if watch.record_forward:
        watch.call_row(row)
        if api.uninitialized or api.pending:
            watch.add(rows)
            watch.blank(row[0], outputs, watch.not_waited if api.pending else watch.uninitialized)
        elif versions is not None and watch.tensors.uninitialized:
            record_results(watch, api, row[0], row[1], slots, versions, rows, outputs)
        else:
            watch.add(rows)
            for slot, tensor in outputs:
                watch.show(row[0], slot, tensor, row[1], False)
    return outputs


def _distrust_written(watch: Watch, slots: list[Slot], versions: list[int | None] | None) -> None:
    """Measure anew what a call may have written without telling the version counter."""
    for (_, tensor), version in zip(slots, versions or ()):
        if not tensor.requires_grad and version_of(tensor) == version:
            watch.tensors.mark_unversioned(tensor)


def _written(watch: Watch, slots: list[Slot], versions: list[int | None] | None) -> list[Slot]:
    """Return the inputs that a call has written to, as its outputs."""
    written = [
        tensor
        for (_, tensor), version in zip(slots, versions or ())
        if version is not None and version_of(tensor) != version
    ]
    return [(watch.slot_id("output", index), tensor) for index, tensor in enumerate(written)]


def _unscaled(watch: Watch, api: Api, slots: list[Slot]) -> list[Slot]:
    """Return what a GradScaler has divided, and its count of infinities: it tells no version counter."""
    written = slots[:-1] if api.op == "_amp_foreach_non_finite_check_and_unscale_" else []
    return [(watch.slot_id("output", index), tensor) for index, (_, tensor) in enumerate(written)]


def raised(watch: Watch, api: Api, row: tuple[int, ...], rows: list[int], error: Exception) -> None:
    """Record a call that raised; the user may catch it and go on."""
    if type(error).__name__ == "_StopRecomputationError":  # how checkpoint ends a recomputation
        return
    with OwnCode(watch, api.head):
        text = watch.recorder.strings.id(f"{type(error).__name__}: {error}"[:300])
        watch.call_row((*row[:11], text, row[12]))
        watch.add(rows)
