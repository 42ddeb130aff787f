"""The guard on a device: a call is written down with the looks at its tensors, and judged when their counts have come."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from numscope.capture.torch.guard.calls import Entry, Seen, key_of
from numscope.capture.torch.guard.device_log import Look
from numscope.capture.torch.guard.on_cpu import numbers
from numscope.capture.torch.levels.function_names import Api
from numscope.capture.torch.own_code import OwnCode, OwnComputation

Tensor = torch.Tensor
Looks = list[tuple[Any, Look]]  # with their slots


class Later:
    """Writes calls down."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard

    def call(
        self, api: Api, seen: Seen, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int], outputs: Any
    ) -> bool:
        """Look at the results of an API call; tell whether they are more than views of what it was given."""
        guard = self._guard
        late = guard.late
        view = tensors[0] if tensors and not api.overwrites else None
        made_new = []
        for tensor in outputs:
            base = tensor._base
            if base is not None and view is not None and (base is view or base is view._base):
                late.alias(tensor, view)
            else:
                made_new.append(tensor)
        if not made_new:
            return False
        written = guard.now.written(list(enumerate(outputs)), kwargs)
        if not written:
            return True
        before = late.held
        inputs: Looks = []
        constants: Any = []
        nested = bool(kwargs)
        at = 0
        for index, value in enumerate(args):
            if isinstance(value, Tensor):
                inputs.append((index, late.given(value, guard.parameter, versions[at])))
                at += 1
            elif isinstance(value, (list, tuple, dict)):
                nested = True
            elif isinstance(value, (int, float)):
                constants.append(float(value))
        if nested:
            inputs, constants = self._nested(args, kwargs, tensors, versions)
        made: Looks = [(index, late.made(tensor)) for index, tensor in written]
        if seen.transmits:
            _transmit(inputs, made)
        self._log(Entry(seen, "forward", inputs, made, late.held - before, late.window, constants))
        return True

    def before_write(self, target: Tensor) -> None:
        """Look at what is about to be overwritten, where nothing is known of it: a gradient, say, that DDP has filled."""
        late = self._guard.late
        if late.known(target) is None and self._guard.judge.marks.get(key_of(target)) != "blank":
            with OwnCode(self._guard.watch):
                late.given(target, self._guard.parameter).tensor = None

    def _nested(self, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int]) -> tuple[Looks, list[float]]:
        guard = self._guard
        before = dict(zip(map(id, tensors), versions))
        constants: list[tuple[str, Any]] = []
        given = guard.watch.flatten("input", args, constants)
        given += guard.watch.flatten_named("kwargs", {k: v for k, v in kwargs.items() if k != "out"}, constants)
        texts = guard.recorder.strings
        looks = [(texts[slot], guard.late.given(t, guard.parameter, before.get(id(t)))) for slot, t in given]
        return looks, numbers(constants)

    def gradients(
        self,
        seen: Seen,
        incoming: list[tuple[Any, Tensor]],
        outgoing: list[tuple[Any, Tensor]],
        passing: list[tuple[Any, Tensor]] | None = None,
    ) -> Looks:
        """Look at gradients that came into a node, and went out of it; return the looks at the former."""
        late = self._guard.late
        before = late.held
        given = [(slot, late.gradient(tensor)) for slot, tensor in incoming]
        made = [(slot, late.gradient(tensor)) for slot, tensor in outgoing]
        made += [(slot, late.passing(tensor)) for slot, tensor in passing or ()]
        self.backward(seen, given, made, before)
        return given

    def backward(self, seen: Seen, given: Looks, made: Looks, before: int) -> None:
        """Write gradients down; `before`: the bytes that were held before them."""
        if made and all(any(look is other for _, other in given) for _, look in made):
            return  # handed on as they are
        if seen.transmits:
            _transmit(given, made)
        late = self._guard.late
        self._log(Entry(seen, "backward", given, made, late.held - before, late.window))

    def end_pass(self, leaves: list[Any]) -> None:
        """Look at the gradients of parameters in one launch."""
        guard = self._guard
        with OwnComputation(guard.watch):
            found = [(seen, slot, given, reference()) for seen, slot, given, reference in leaves]
            ready = [item for item in found if item[3] is not None and item[3].grad is not None]
            looks = guard.late.all([(variable.grad, "") for *_, variable in ready])
            for (seen, slot, given, variable), look in zip(ready, looks):
                look.tensor = weakref.ref(variable.grad)  # the gradient is the optimizer's
                entry = Entry(seen, "backward", given, [(slot, look)], 0, guard.late.window)
                guard.submit(guard.judge.added_up, entry, late=True)

    def module(self, seen: Seen, module: Any, slots: list[Any], versions: list[int], outputs: list[Any]) -> None:
        """Look at what a module was given and gave back, where calls inside it are not watched."""
        guard = self._guard
        late = guard.late
        texts = guard.recorder.strings
        with OwnCode(guard.watch):
            before = late.held
            given = [
                (texts[slot], late.given(tensor, guard.parameter, version))
                for (slot, tensor), version in zip(slots, versions)
            ]
            parameters = [
                (f"parameters.{name}", late.given(parameter, guard.parameter))
                for name, parameter in module._parameters.items()
                if parameter is not None
            ]
            made = [(texts[slot], late.made(tensor)) for slot, tensor in outputs]
            if seen.transmits:
                _transmit(given, made)
            self._log(Entry(seen, "forward", given + parameters, made, late.held - before, late.window))

    def data(self, seen: Seen, slots: list[Any]) -> None:
        """Look at what enters a root module."""
        guard = self._guard
        late = guard.late
        texts = guard.recorder.strings
        with OwnCode(guard.watch):
            before = late.held
            made = [(texts[slot], late.given(tensor, guard.parameter)) for slot, tensor in slots]
            entry = Entry(seen, "input", (), made, late.held - before, late.window)
            guard.ring.add(entry)
            guard.submit(lambda: guard.judge.data(seen, entry.items("output")), late=True)

    def _log(self, entry: Entry) -> None:
        guard = self._guard
        guard.ring.add(entry)
        guard.submit(guard.judge.late, entry, late=True)


def _transmit(given: Looks, made: Looks) -> None:
    """What is given needs no look where what was made of it is finite; both must wait for the same launch."""
    sink = next((look for _, look in made if look.waits), None)
    if sink is not None:
        for _, look in given:
            if look.waits and look.after is None and look.row < sink.row:  # in one order, so that none waits for itself
                look.after = sink
