"""Backward, by hooks on tensors: they add no node and change nothing.

A hook sees the whole gradient of its tensor. To the call that made the tensor it is an incoming gradient. To a call that
used the tensor it is an outgoing gradient only if no other call used the tensor too: otherwise the slot has a note and no
value, because Paddle gives the sum alone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import paddle

from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Backward, MeasuredSlot, Place, Slot, Watch


class BackwardCall:
    """The backward part of one call; it is recorded when its first gradient arrives."""

    def __init__(
        self, watch: Watch, name: int, kind: str, place: Place, forward: int, site: int, parent: Backward | None
    ) -> None:
        self._watch = watch
        self.name = name
        self.place = place
        self._kind = kind
        self._forward, self._site, self._parent = forward, site, parent
        self._order = self._epoch = -1
        self._seen: set[int] = set()

    def begin(self) -> int:
        """Return this call's order, recording the call when it is first asked for in a step."""
        recorder = self._watch.recorder
        if self._epoch != recorder.epoch:
            parent = self._parent.begin() if self._parent is not None else -1
            first = self._epoch == -1
            self._epoch = recorder.epoch
            self._order = recorder.order()
            self._seen.clear()
            self._watch.call(
                self._order,
                self.name,
                self._kind,
                "backward",
                self.place,
                parent=parent,
                forward=self._forward if first else -1,
                site=self._site,
            )
        return self._order

    def record(self, slot: int, gradient: paddle.Tensor) -> None:
        """Record one gradient."""
        order = self.begin()
        if slot in self._seen:  # the graph was retained and runs again: a call of its own
            self._epoch = -2
            order = self.begin()
        self._seen.add(slot)
        self._watch.slots(order, self._watch.measure([Slot(slot, gradient)], self.name, backward=True))

    def cannot_say(self, slot: int, why: str) -> None:
        """Record why a gradient cannot be told."""
        if slot not in self._seen:
            order = self.begin()
            self._seen.add(slot)
            self._watch.slots(order, [MeasuredSlot(slot, -1, self._watch.recorder.strings.id(why))])


class _Hook(Protocol):
    def remove(self) -> object: ...


@dataclass(frozen=True)
class _Made:
    """A call that made a tensor, and the slot of the incoming gradient."""

    call: BackwardCall
    slot: int


@dataclass(frozen=True)
class _Use:
    """A call that used a tensor, and the slot of the outgoing gradient."""

    call: BackwardCall
    slot: int
    functions: int  # innermost functions inside the call that used the tensor


class _Track:
    """The calls that made a tensor, and those that used it."""

    def __init__(self, tensor: paddle.Tensor) -> None:
        self.reference = weakref.ref(tensor)
        self.is_leaf = bool(tensor.is_leaf)
        self.hook: _Hook | None = None
        self.makers: list[_Made] = []
        self.functions = 0  # innermost functions that used the tensor
        self.users: list[_Use] = []

    def stands_for(self, tensor: paddle.Tensor) -> bool:
        return self.reference() is tensor


class Gradients:
    """The tensors of the running step whose gradients are waited for."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._tracks: dict[int, _Track] = {}

    def forget(self) -> None:
        """Forget the step that ended: parameters live on, and their next gradients belong to other calls."""
        for track in self._tracks.values():
            if track.is_leaf and track.hook is not None:
                track.hook.remove()
        self._tracks.clear()

    def _track(self, tensor: paddle.Tensor, fresh: bool = False) -> _Track:
        track = self._tracks.get(id(tensor))
        if track is None or not track.stands_for(tensor) or fresh:
            track = self._tracks[id(tensor)] = _Track(tensor)
            track.hook = tensor.register_hook(self._hook(track))
        return track

    def used(self, slots: list[Slot]) -> dict[int, int]:
        """Count the uses of these inputs by a function that begins; return the counts from before, by slot."""
        counts = {}
        for slot, tensor in slots:
            if not tensor.stop_gradient:
                track = self._track(tensor)
                counts[slot] = track.functions
        return counts

    def count(self, slots: list[Slot]) -> None:
        """Count one use of these inputs by an innermost function."""
        for _, tensor in slots:
            if not tensor.stop_gradient:
                self._track(tensor).functions += 1

    def attach(
        self, call: BackwardCall, inputs: list[Slot], before: dict[int, int], outputs: list[Slot], makes: bool
    ) -> None:
        """Watch the backward of a call that has ended; `makes`: it is the innermost call that made its outputs."""
        watch = self._watch
        text = watch.recorder.strings
        for slot, tensor in inputs:
            if slot in before:
                group, _, tail = text[slot].partition(".")
                out = watch.slot_id(f"output.{tail if group == 'input' else text[slot]}")
                track = self._track(tensor)
                track.users.append(_Use(call, out, track.functions - before[slot]))
        for slot, tensor in outputs:
            if not tensor.stop_gradient:
                track = self._track(tensor, fresh=makes and any(tensor is item.tensor for item in inputs))
                _, _, tail = text[slot].partition(".")
                track.makers.append(_Made(call, watch.slot_id(f"input.{tail}")))

    def _hook(self, track: _Track) -> Callable[[paddle.Tensor], None]:
        watch = self._watch

        def seen(gradient: paddle.Tensor) -> None:
            if not watch.on or watch.thread.busy:
                return
            with OwnCode(watch, "backward"):
                for use in track.users:
                    if use.functions >= track.functions:
                        use.call.record(use.slot, gradient)
                    else:
                        use.call.cannot_say(use.slot, f"paddle gives the sum over {track.functions} uses alone")
                if track.is_leaf:  # its next gradient comes from other uses: another micro-batch
                    track.users.clear()
                    track.functions = 0
                for made in reversed(track.makers):  # the outermost call's backward begins first
                    made.call.record(made.slot, gradient)
                watch.flush_if_full()

        return seen
