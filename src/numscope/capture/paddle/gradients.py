"""Backward, from tensors' own hooks: they add no node and change nothing.

A hook sees the whole gradient of its tensor. For the call that made the tensor that is the gradient that comes in. For a
call that used it, it is the gradient that goes out only if no other call used it: otherwise the slot says so, and has no
value, because Paddle gives the sum alone.
"""

from __future__ import annotations

import weakref
from typing import Any

from numscope.capture.paddle.own_code import OwnCode
from numscope.capture.paddle.watch import Slot, Watch


class BackwardCall:
    """The backward part of one call; it is recorded when its first gradient arrives."""

    def __init__(
        self, watch: Watch, name: int, kind: int, module: int, module_class: int, forward: int, site: int,
        parent: BackwardCall | None,
    ) -> None:  # fmt: skip
        self._watch = watch
        self._row = (name, kind, module, module_class)
        self._forward, self._site, self._parent = forward, site, parent
        self._order = self._epoch = -1
        self._seen: set[int] = set()

    @property
    def name(self) -> int:
        """The interned name."""
        return self._row[0]

    @property
    def place(self) -> tuple[int, int]:
        """The interned module path and class."""
        return self._row[2:]

    def begin(self) -> int:
        """Return this call's order, recording the call when it is first asked for in a step."""
        recorder = self._watch.recorder
        if self._epoch != recorder.epoch:
            parent = self._parent.begin() if self._parent is not None else -1
            first = self._epoch == -1
            self._epoch = recorder.epoch
            self._order = recorder.order()
            self._seen.clear()
            recorder.call(
                self._order, *self._row, self._watch.phases["backward"], parent, self._forward if first else -1, -1,
                self._site, False, -1, self._watch.thread_number(),
            )  # fmt: skip
        return self._order

    def record(self, slot: int, gradient: Any) -> None:
        """Record one gradient."""
        order = self.begin()
        if slot in self._seen:  # the graph was kept and runs again: a call of its own
            self._epoch = -2
            order = self.begin()
        self._seen.add(slot)
        self._watch.slots(order, self._watch.measure([(slot, gradient)], self.name, backward=True))

    def cannot_say(self, slot: int, why: str) -> None:
        """Record that a gradient cannot be known."""
        if slot not in self._seen:
            order = self.begin()
            self._seen.add(slot)
            self._watch.slots(order, [(slot, -1, self._watch.recorder.strings.id(why))])


class _Track:
    """Who made a tensor, and who used it."""

    def __init__(self, tensor: Any) -> None:
        self.reference = weakref.ref(tensor)
        self.is_leaf = bool(tensor.is_leaf)
        self.hook: Any = None
        self.makers: list[tuple[BackwardCall, int]] = []
        self.functions = 0  # uses by functions, innermost ones
        self.users: list[tuple[BackwardCall, int, int]] = []  # call, slot, functions inside it that used the tensor

    def stands_for(self, tensor: Any) -> bool:
        return self.reference() is tensor


class Gradients:
    """The tensors of the running step whose gradients are waited for."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._tracks: dict[int, _Track] = {}

    def forget(self) -> None:
        """A new step begins: parameters live on, and must not tell the calls of this one of their next gradients."""
        for track in self._tracks.values():
            if track.is_leaf and track.hook is not None:
                track.hook.remove()
        self._tracks.clear()

    def _track(self, tensor: Any, fresh: bool = False) -> _Track:
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
        """An innermost function has used these."""
        for _, tensor in slots:
            if not tensor.stop_gradient:
                self._track(tensor).functions += 1

    def attach(
        self, call: BackwardCall, inputs: list[Slot], before: dict[int, int], outputs: list[Slot], makes: bool
    ) -> None:
        """Watch the backward of a call that has ended; `makes` where it is the innermost call that made its outputs."""
        watch = self._watch
        text = watch.recorder.strings
        for slot, tensor in inputs:
            if slot in before:
                group, _, tail = text[slot].partition(".")
                out = watch.slot_id(f"output.{tail if group == 'input' else text[slot]}")
                track = self._track(tensor)
                track.users.append((call, out, track.functions - before[slot]))
        for slot, tensor in outputs:
            if not tensor.stop_gradient:
                track = self._track(tensor, fresh=makes and any(tensor is given for _, given in inputs))
                track.makers.append((call, watch.slot_id(f"input.{text[slot].partition('.')[2]}")))

    def _hook(self, track: _Track) -> Any:
        watch = self._watch

        def seen(gradient: Any) -> None:
            if not watch.on or watch.thread.busy:
                return
            with OwnCode(watch, "backward"):
                for call, slot, inside in track.users:
                    if inside >= track.functions:
                        call.record(slot, gradient)
                    else:
                        call.cannot_say(slot, f"paddle gives the sum over {track.functions} uses alone")
                if track.is_leaf:  # its next gradient comes from other uses: another micro-batch
                    track.users.clear()
                    track.functions = 0
                for call, slot in reversed(track.makers):  # the outermost call's backward begins first
                    call.record(slot, gradient)
                watch.flush_if_full()

        return seen
