"""The guard on the CPU: results are looked at on the spot, and for a finite one nothing is described or written down."""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.guard.calls import Entry, Item, Seen, bytes_of, key_of, version_of
from numscope.capture.torch.guard.flags import count, is_finite
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.own_code import OwnCode, OwnComputation
from numscope.nonfinite.rule import Counts

Tensor = torch.Tensor
_PLAIN = (Tensor, torch.nn.Parameter)
_SAVED = 1 << 20  # bytes of a tensor that is copied before a call overwrites it


class Now:
    """Looks at tensors of the CPU."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def save(self, tensor: Tensor) -> Tensor | None:
        """Return a copy of a small tensor that is about to be overwritten: the record will want it as it was."""
        if tensor.layout is not torch.strided or tensor.nbytes > _SAVED or type(tensor) not in _PLAIN:
            return None
        with OwnComputation(self._guard.watch):
            copy = tensor.detach().clone()
            state = self._guard.watch.thread.here
            before = self._guard.ring.last() if tensor is state.last else None
            if before is not None and before.outputs and before.outputs[0][1] is state.held:
                before.outputs[0] = (before.outputs[0][0], copy, None)  # the call that made it has it from here, too
        return copy

    def call(
        self, api: Api, seen: Seen, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int], outputs: Any,
        clean: bool, saved: Tensor | None,
    ) -> bool:  # fmt: skip
        """Look at the results of an API call; tell whether they are more than views of what it was given."""
        guard = self._guard
        state = guard.watch.thread.here
        bad = fresh = False
        size = 0
        view = tensors[0] if tensors and not api.overwrites else None
        last = state.last
        for tensor in outputs:
            base = tensor._base
            if base is not None and view is not None and (base is view or base is view._base):
                continue
            fresh = True
            if tensor is last and not api.overwrites:
                continue
            size += tensor.numel() * tensor.element_size()
            bad = bad or not is_finite(tensor)
        state.last = outputs[0]
        if bad and fresh:
            self._judge(api, seen, args, kwargs, tensors, versions, outputs, clean, saved)
        elif fresh and guard.judge.doubts:
            guard.judge.take(api.op, [key_of(item) for item in tensors])
        # What the ring holds must not keep a graph alive; the result of the call before is held already.
        held: list[tuple[int, Any, int | None]] = [
            (index, item if item.grad_fn is None else state.held if item is last else item.detach(), version)
            for index, (item, version) in enumerate(zip(tensors, versions))
        ]
        if saved is not None:
            held[0] = (0, saved, None)
            size += saved.nbytes
        made = [(index, item.detach(), version_of(item)) for index, item in enumerate(outputs)]
        state.held = made[0][1]
        guard.ring.add(Entry(seen, "forward", held, made, size))
        return fresh

    def _judge(
        self, api: Api, seen: Seen, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int], outputs: Any,
        clean: bool, saved: Tensor | None,
    ) -> None:  # fmt: skip
        guard = self._guard
        marks = guard.judge.marks
        with OwnCode(guard.watch):
            results = list(enumerate(outputs))
            if not (api.overwrites and clean):
                results = self.written(results, kwargs)
            if not results:
                return
            before = dict(zip(map(id, tensors), versions))
            constants: list[tuple[str, Any]] = []
            given = guard.watch.flatten("input", args, constants)
            given += guard.watch.flatten_named("kwargs", {k: v for k, v in kwargs.items() if k != "out"}, constants)
            inputs = []
            texts = guard.recorder.strings
            for slot, tensor in given:
                overwritten = before.get(id(tensor), -1) not in (-1, version_of(tensor))
                finite = overwritten and clean and marks.get(key_of(tensor)) in (None, "blank")
                item = self.item(texts[slot], tensor, clean=finite)
                if overwritten and saved is not None and tensor is tensors[0]:
                    item = item._replace(tensor=saved, counts=count(saved))
                elif overwritten:
                    item = item._replace(version=before[id(tensor)])
                inputs.append(item)
            made = [self.item(f"output.{index}", tensor) for index, tensor in results]
            guard.submit(guard.judge.forward, seen, inputs, made, numbers(constants), late=False)

    def written(self, results: list[tuple[int, Tensor]], kwargs: Any) -> list[tuple[int, Tensor]]:
        """Return the results of which no part may still be memory that nobody wrote to."""
        marks = self._guard.judge.marks
        if not marks or "out" in kwargs:
            return results
        return [(index, tensor) for index, tensor in results if marks.get(key_of(tensor)) != "blank"]

    def gradients(self, seen: Seen, incoming: list[tuple[str, Tensor]], outgoing: list[tuple[str, Tensor]]) -> None:
        """Judge gradients that came into a node or module, and went out of it, one of them not finite."""
        with OwnComputation(self._guard.watch):
            given = [self.item(slot, tensor) for slot, tensor in incoming]
            made = [self.item(slot, tensor) for slot, tensor in outgoing]
            self._guard.submit(self._guard.judge.backward, seen, given, made, late=False)

    def module(self, seen: Seen, module: Any, slots: list[Any], versions: list[int], outputs: list[Any]) -> None:
        """Look at what a module gave back, where calls inside it are not watched."""
        guard = self._guard
        texts = guard.recorder.strings
        with OwnCode(guard.watch):
            clean = all(is_finite(tensor) for _, tensor in outputs)
            taken = [(texts[slot], tensor.detach(), version) for (slot, tensor), version in zip(slots, versions)]
            held = [(texts[slot], tensor.detach(), version_of(tensor)) for slot, tensor in outputs]
        guard.ring.add(Entry(seen, "forward", taken, held, sum(bytes_of(tensor) for _, tensor in outputs)))
        if clean:
            return
        with OwnComputation(guard.watch):
            given = [
                self.item(texts[slot], tensor, clean=version != version_of(tensor))._replace(version=version)
                for (slot, tensor), version in zip(slots, versions)
            ]
            given += [self.item(f"parameters.{n}", p) for n, p in module._parameters.items() if p is not None]
            made = [self.item(texts[slot], tensor) for slot, tensor in outputs]
            guard.submit(guard.judge.forward, seen, given, made, [], late=False)

    def data(self, seen: Seen, slots: list[Any]) -> None:
        """Look at what enters a root module."""
        guard = self._guard
        last = guard.watch.thread.here.last
        with OwnCode(guard.watch):
            bad = [pair for pair in slots if pair[1] is not last and not is_finite(pair[1])]
        if bad:
            with OwnCode(guard.watch):
                items = [self.item(guard.recorder.strings[slot], tensor) for slot, tensor in bad]
                guard.submit(guard.judge.data, seen, items, late=False)

    def item(self, slot: str, tensor: Tensor, clean: bool = False) -> Item:
        """Return a tensor in a slot with its counts; `clean`: it is known to be, or to have been, finite."""
        if clean or not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            return Item(slot, key_of(tensor), Counts(elements=tensor.numel()), None, "", tensor)
        return Item(slot, key_of(tensor), count(tensor), None, self._guard.parameter(tensor), tensor)


def numbers(constants: list[tuple[str, Any]]) -> list[float]:
    """Return the numbers among a call's arguments."""
    return [float(v) for _, v in constants if isinstance(v, (int, float)) and not isinstance(v, bool)]
