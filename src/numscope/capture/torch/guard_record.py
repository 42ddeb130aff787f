"""The guard's record: the ring's calls with fingerprints, and the origin's tensors in full, as an ordinary run."""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.recorder import Recorder
from numscope.capture.torch.guard_calls import Entry, Seen, resolve
from numscope.capture.torch.guard_judge import Strike
from numscope.capture.torch.tensors import to_numpy
from numscope.capture.torch.watch import Watch
from numscope.core.settings import CaptureSettings
from numscope.fingerprint.torch_form import TorchBatch

Tensor = torch.Tensor


def write(guard: Any, strike: Strike | None) -> None:
    """Write what the ring holds, and the tensors of the origin, through a recorder of the record's own."""
    recorder = Recorder(guard.open_writer, TorchBatch(), to_numpy)
    recorder.strings, recorder.sites = guard.recorder.strings, guard.recorder.sites
    recorder.begin_step(strike.origin.step if strike is not None else guard.judge.step)
    watch = Watch(recorder, CaptureSettings())
    with guard.unseen(), torch.no_grad():
        entries = [
            entry
            for entry in guard.ring
            if strike is None or entry.seen is not strike.seen or entry.phase != strike.phase
        ]
        if strike is not None:
            entries = [*entries[max(len(entries) - guard.settings.calls + 1, 0) :], _entry_of(strike)]
        for entry in entries:
            _call(watch, entry, keep=strike is not None and entry is entries[-1])
        recorder.end_step()
        recorder.close()
        watch.new_step()


def _entry_of(strike: Strike) -> Entry:
    """Return the origin's call with the tensors that are at hand."""
    inputs = [(item.slot, item.tensor, None) for item in strike.inputs]
    outputs = [(item.slot, item.tensor, None) for item in strike.outputs]
    return Entry(strike.seen, strike.phase, inputs, outputs, 0)


def _call(watch: Watch, entry: Entry, keep: bool) -> None:
    recorder = watch.recorder
    seen: Seen = entry.seen
    order = recorder.order()
    parent = seen.parent
    phase = "backward" if entry.phase == "backward" else "input" if seen.kind == "data" else entry.phase
    name = seen.name("backward" if entry.phase == "backward" else phase if phase == "input" else "forward")
    recorder.call(
        order, name, watch.kinds[seen.kind], parent.module if parent else watch.no_text,
        parent.module_class if parent else watch.no_text, watch.phases["optimizer" if seen.kind == "optimizer" else phase],
        -1, -1, -1, seen.site, False, -1, 0,
    )  # fmt: skip
    for group, held in (("input", entry.inputs), ("output", entry.outputs)):
        for slot, reference, version in held:
            text = slot if isinstance(slot, str) else f"{group}.{slot}"
            _slot(watch, order, name, text, resolve(reference), version, keep)


def _slot(
    watch: Watch, order: int, name: int, text: str, tensor: Tensor | None, version: int | None, keep: bool
) -> None:
    recorder = watch.recorder
    slot = recorder.strings.id(text)
    why = "gone before it was recorded" if tensor is None else ""
    if tensor is not None and version not in (None, -1) and tensor._version != version:
        why = "overwritten before it was recorded"
    if tensor is None or why:
        recorder.skip(why)
        recorder.slot(order, slot, -1, recorder.strings.id(why))
        return
    rows = watch.measure([(slot, tensor)])
    watch.slots(order, rows)
    if keep and rows[0][1] >= 0:
        watch.tensors.keep(rows[0][1], tensor)
