"""The guard's record: the ring's calls with fingerprints, and the origin's tensors in full, as an ordinary run."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch

from numscope.capture.recorder import Recorder
from numscope.capture.torch.device_to_host import for_the_writer
from numscope.capture.torch.guard.calls import Entry, Item, Seen
from numscope.capture.torch.guard.strike import Strike
from numscope.capture.torch.own_code import OwnComputation
from numscope.capture.torch.watch import Watch
from numscope.core.settings import CaptureSettings
from numscope.fingerprint.torch_form import TorchBatch

Tensor = torch.Tensor


# Why a tensor is not in the record; the flags of a device may come after it had to be let go.
_GONE = "gone before it was recorded"
_LET_GO = "let go before the device's flags came: a greater memory=, or latency=1, keeps it"


def write(guard: Any, strike: Strike | None) -> int:
    """Write what the ring holds, and the tensors of the origin, through a recorder of the record's own.

    Returns how many of the origin's tensors had to be let go before they could be written.
    """
    known = guard.recorder
    recorder = Recorder(guard.open_writer, TorchBatch(), for_the_writer, known.strings, known.sites)
    watch = Watch(recorder, CaptureSettings())
    entries = _entries(guard, strike)
    missing = 0
    with OwnComputation(guard.watch):
        for step, calls in groupby(entries, key=lambda entry: entry.step):
            recorder.begin_step(step)
            for entry in calls:
                # Of an origin in backward the forward call's tensors are as telling as its gradients.
                missing = _call(watch, entry, keep=strike is not None and entry.seen is strike.seen)
            recorder.end_step()
            watch.new_step()
        recorder.close()
    return missing if strike is not None else 0


def _entries(guard: Any, strike: Strike | None) -> list[Entry]:
    """Return the calls of the record in their order: the last ones, or those up to the origin, with the origin's tensors."""
    entries: list[Entry] = list(guard.ring)
    if strike is None:
        return entries[-guard.settings.calls :]
    origin = _entry_of(strike)
    places = [at for at, entry in enumerate(entries) if entry.seen is strike.seen and entry.phase == strike.phase]
    before = sum(entry.step <= origin.step for entry in entries)
    entries = entries[: places[0] if places else before]
    return [*entries[max(len(entries) - guard.settings.calls + 1, 0) :], origin]


def _entry_of(strike: Strike) -> Entry:
    """Return the origin's call with the tensors that are at hand."""
    inputs, outputs = ([_held(item) for item in side] for side in (strike.inputs, strike.outputs))
    window = next((item.look.window for item in strike.outputs if item.look is not None), None)
    entry = Entry(strike.seen, strike.phase, inputs, outputs, 0, window)
    entry.step = strike.origin.step
    return entry


def _held(item: Item) -> tuple[str, Any, int | None]:
    return item.slot, item.tensor, item.look.version if item.look is not None else item.version


def _call(watch: Watch, entry: Entry, keep: bool) -> int:
    """Record a call of the ring; return how many of its tensors were let go."""
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
    missing = 0
    for group in ("input", "output"):
        for slot, tensor, version in entry.held(group):
            gone = _LET_GO if entry.window is not None else _GONE
            _slot(watch, order, name, slot, tensor, version, keep, gone)
            missing += tensor is None and entry.window is not None
    return missing


def _slot(
    watch: Watch, order: int, name: int, text: str, tensor: Tensor | None, version: int | None, keep: bool, gone: str
) -> None:
    recorder = watch.recorder
    slot = recorder.strings.id(text)
    why = gone if tensor is None else ""
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
