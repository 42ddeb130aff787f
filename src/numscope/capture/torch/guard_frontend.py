"""PyTorch's side of the guard: installs what watches, takes it away again, and writes the record."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import overrides

from numscope.capture.recorder import Recorder
from numscope.capture.torch.compiled import CompiledRegions
from numscope.capture.torch.flags import is_finite
from numscope.capture.torch.functions import Functions
from numscope.capture.torch.guard_calls import Entry, Item, Ring, Seen, key_of
from numscope.capture.torch.guard_judge import Judge, Strike
from numscope.capture.torch.guard_late import LateFlags, immediate
from numscope.capture.torch.guard_mode import GuardMode, GuardModules, _version, watch_call
from numscope.capture.torch.guard_record import write
from numscope.capture.torch.guard_training import GuardCollectives, GuardOptimizers, Scalers
from numscope.capture.torch.names import Api
from numscope.capture.torch.tensors import to_numpy
from numscope.capture.torch.watch import Undo, Watch
from numscope.core.settings import CaptureSettings
from numscope.store.writer import RunWriter

Tensor = torch.Tensor

# Elementwise, never larger than what they are given, and passing on whatever is not finite: their results are finite
# exactly where their input is, and on a device need no look of their own.
PRESERVES = frozenset({"relu", "gelu", "silu"})
_OUTPUTS = [f"output.{index}" for index in range(64)]


class TorchGuard:
    """Watches for what is not finite."""

    name = "torch"

    def __init__(
        self,
        settings: Any,
        models: dict[str, torch.nn.Module],
        found: Callable[[Strike], None],
        open_writer: Callable[[], RunWriter],
        after_step: Callable[[], None],
        skipped: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.open_writer = open_writer
        self.recorder = Recorder(open_writer, None, to_numpy)  # names and stacks alone; a record has one of its own
        self.watch = Watch(self.recorder, CaptureSettings(level=settings.level))
        self.watch.thread.last = None
        self.judge = Judge(self.recorder.strings, self.recorder.sites, settings.allow, self._found)
        self.skipped = skipped
        self._on_origin = found
        self.ring = Ring(settings.calls, settings.memory)
        self.waits = settings.deferred
        self.late = LateFlags(settings.deferred)
        self.leaves: dict[int, Any] = {}
        self.models = models
        self._since = 0  # calls on a device since the flags were last read
        self._mode = GuardMode(self) if settings.level != "module" else None
        self.modules = GuardModules(self, models)
        self.optimizers = GuardOptimizers(self, after_step)
        self._scalers = Scalers(self)
        self._collectives = GuardCollectives(self)
        self._undo: list[Undo] = []

    # Installing -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch."""
        self._undo = [
            self.modules.install(self._mode),
            self.optimizers.install(),
            self._scalers.install(),
            self._collectives.install(),
        ]
        if self._mode is not None:
            record = lambda watch, api, work, args, kwargs, frame: watch_call(self, api, work, args, kwargs, frame)  # noqa: E731
            self._undo.append(Functions(self.watch, record).install())
            self._enter_mode()
            self._undo += [self._leave_mode, CompiledRegions(self.watch, self._leave_mode, self._enter_mode).install()]
        self.recorder.begin_step(self.judge.step)
        self.watch.on = True

    def stop(self) -> None:
        """Undo everything that start did."""
        self.watch.on = False
        while self._undo:
            self._undo.pop()()
        self.watch.thread.stack.clear()
        self.watch.thread.end_quiet()

    def new_step(self, step: int) -> None:
        """Number calls anew, and send the flags of the step that ended to the host."""
        self.recorder.begin_step(step)
        self.watch.executions.forget()
        self.judge.marks.forget()
        self.end_pass()
        with Unseen(self):
            self.late.end()
            self._since = 0
            self.late.read(wait=self.settings.latency == 0)
        self.submit(self.judge.begin_step, step)

    def finish(self) -> None:
        """Judge all that is still on a device."""
        self.end_pass()
        with Unseen(self):
            self.late.end()
            self.late.read(wait=True)

    def unseen(self) -> Unseen:
        """Return a context for work of our own."""
        return Unseen(self)

    def _found(self, strike: Strike) -> None:
        """Tell of an origin; one inside an optimizer's step only tells the line of that step's."""
        if self.judge.inside:
            self.judge.hint = self.judge.hint or (strike.origin.call, strike.seen.site)
        else:
            self._on_origin(strike)

    # What is seen ---------------------------------------------------------------------------------------------------

    def after(
        self, api: Api, seen: Seen, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int], outputs: Any,
        clean: bool,
    ) -> bool:  # fmt: skip
        """Look at the results of an API call; tell whether they are more than views of what it was given."""
        with torch._C.DisableTorchFunction():
            return self._after(api, seen, args, kwargs, tensors, versions, outputs, clean)

    def _after(
        self, api: Api, seen: Seen, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int], outputs: Any,
        clean: bool,
    ) -> bool:  # fmt: skip
        thread = self.watch.thread
        bad = late = False
        waits = self.waits
        size = 0
        if api.uninitialized:
            for tensor in outputs:
                self.judge.marks.set(tensor, key_of(tensor), "blank")
            return False
        view = tensors[0] if tensors and not api.overwrites else None
        last = thread.last
        fresh = False
        for tensor in outputs:
            base = tensor._base
            if base is not None and view is not None and (base is view or base is view._base):
                continue
            fresh = True
            if waits or not tensor.is_cpu:
                late = True
                continue
            if tensor is last and not api.overwrites:
                continue
            size += tensor.numel() * tensor.element_size()
            bad = bad or not is_finite(tensor)
        thread.last = outputs[0]
        if fresh and (bad or late or any(not tensor.is_cpu for tensor in tensors)):
            late = late or any(not tensor.is_cpu for tensor in tensors)
            self._judge_call(api, seen, args, kwargs, tensors, versions, outputs, clean, late)
        # what the ring holds must not keep the graph alive
        held = [(index, _shadow(item), version) for index, (item, version) in enumerate(zip(tensors, versions))]
        self.ring.add(Entry(seen, "forward", held, [(i, _shadow(t), _version(t)) for i, t in enumerate(outputs)], size))
        return fresh

    def _judge_call(
        self, api: Api, seen: Seen, args: Any, kwargs: Any, tensors: list[Tensor], versions: list[int], outputs: Any,
        clean: bool, late: bool,
    ) -> None:  # fmt: skip
        with Unseen(self):
            before = dict(zip(map(id, tensors), versions))
            constants: list[tuple[str, Any]] = []
            given = self.watch.flatten("input", args, constants)
            given += self.watch.flatten_named("kwargs", {k: v for k, v in kwargs.items() if k != "out"}, constants)
            blank = api.overwrites and self.judge.marks.get(key_of(outputs[0])) == "blank"
            if blank and (late or not clean):
                return  # a part of it may still be what nobody wrote
            inputs: list[Any] = []
            texts = self.recorder.strings
            waiting: list[tuple[str, Tensor, str]] = []
            for slot, tensor in given:
                version = before.get(id(tensor), -1)
                if version in (-1, _version(tensor)):
                    if self.is_late(tensor):
                        waiting.append((texts[slot], tensor, self.parameter(tensor)))
                        inputs.append(None)
                    else:
                        inputs.append(self.item(texts[slot], tensor))
                elif self.is_late(tensor):  # overwritten by the call: what it was is known from when it was made
                    inputs.append(self.late.before(texts[slot], tensor, version))
                elif clean and self.judge.marks.get(key_of(tensor)) is None:
                    inputs.append(self.judge.item(texts[slot], tensor, clean=True))
                else:
                    inputs.append(immediate(texts[slot], tensor, self.parameter(tensor)))
            keeps = late and api.op in PRESERVES and len(outputs) == 1 and not api.overwrites
            after = (
                []
                if keeps or not late
                else [(_OUTPUTS[min(i, 63)], t, self.parameter(t)) for i, t in enumerate(outputs)]
            )
            together = self.late.items(waiting + after) if waiting or after else []
            found = iter(together)
            inputs = [item if item is not None else next(found) for item in inputs]
            if keeps:
                made = [self.late.same("output.0", outputs[0], inputs[0])]
            elif late:
                made = together[len(waiting) :]
            else:
                made = [self.item(_OUTPUTS[min(index, 63)], tensor) for index, tensor in enumerate(outputs)]
            numbers = [float(v) for _, v in constants if isinstance(v, (int, float)) and not isinstance(v, bool)]
            self.submit(self.judge.forward, seen, inputs, made, numbers, late=late)

    def gradients(
        self, seen: Seen, incoming: list[tuple[str, Tensor]], outgoing: list[tuple[str, Tensor]], leaves: list[Any]
    ) -> None:
        """Look at gradients that came into a node, and went out of it; leaves: slots and parameters that some go to."""
        with Unseen(self), torch.no_grad():
            late = bool(leaves) or any(self.is_late(tensor) for _, tensor in outgoing)
            if not late:
                given = [self.item(slot, tensor) for slot, tensor in incoming]
                made = [self.item(slot, tensor) for slot, tensor in outgoing]
            elif seen.op in PRESERVES and len(incoming) == 1 and len(outgoing) == 1:
                given = [self.late.item(*incoming[0])]
                made = [self.late.same(outgoing[0][0], outgoing[0][1], given[0])]
            else:
                items = self.late.items([(slot, tensor, "") for slot, tensor in [*incoming, *outgoing]])
                given, made = items[: len(incoming)], items[len(incoming) :]
            for slot, variable in leaves:
                self.leaf(seen, slot, given, variable)
            if made:
                self.submit(self.judge.backward, seen, given, made, late=late)

    def leaf(self, seen: Seen, slot: str, incoming: list[Item], variable: Tensor) -> None:
        """A gradient goes to a parameter: it is looked at when the pass is over, with all others in one launch."""
        self.leaves[id(variable)] = (seen, slot, incoming, weakref.ref(variable))

    def end_pass(self) -> None:
        """Look at the parameters' gradients of the backward pass that is over."""
        leaves, self.leaves = self.leaves, {}
        found = [(seen, slot, given, reference()) for seen, slot, given, reference in leaves.values()]
        ready = [item for item in found if item[3] is not None and item[3].grad is not None]
        if not ready:
            return
        with Unseen(self), torch.no_grad():
            items = self.late.items([(slot, variable.grad, "") for _, slot, _, variable in ready])
            for (seen, _, given, _), item in zip(ready, items):
                self.submit(self.judge.backward, seen, given, [item], late=True)

    def outgoing(self, seen: Seen, slot: str, gradient: Tensor, incoming: list[Item]) -> Item:
        """Return a gradient that leaves a module, whose own flags are not needed where the module keeps what it gets."""
        if seen.op in PRESERVES and len(incoming) == 1 and self.is_late(gradient):
            return self.late.same(slot, gradient, incoming[0])
        return self.item(slot, gradient)

    def judge_gradients(self, seen: Seen, incoming: list[Item], outgoing: list[Item]) -> None:
        """Judge gradients that were looked at already."""
        late = any(item.counts is None for item in outgoing)
        self.submit(self.judge.backward, seen, incoming, outgoing, late=late)

    def module(self, seen: Seen, module: Any, slots: list[Any], versions: list[int], outputs: list[Any]) -> None:
        """Look at what a module was given and gave back, where calls inside it are not watched."""
        late = any(self.is_late(tensor) for _, tensor in outputs)
        with torch._C.DisableTorchFunction():
            clean = not late and all(is_finite(tensor) for _, tensor in outputs)
        held = [(self.recorder.strings[slot], _shadow(tensor), _version(tensor)) for slot, tensor in outputs]
        self.ring.add(Entry(seen, "forward", [], held, 0 if late else sum(t.nbytes for _, t in outputs)))
        if clean:
            return
        with Unseen(self), torch.no_grad():
            texts = self.recorder.strings
            given = []
            for (slot, tensor), version in zip(slots, versions):
                same = version == _version(tensor)
                given.append(
                    self.item(texts[slot], tensor) if same else self.judge.item(texts[slot], tensor, clean=True)
                )
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    given.append(self.item(f"parameters.{name}", parameter))
            if late and seen.op in PRESERVES and len(outputs) == 1 and len(slots) == 1:
                made = [self.late.same(texts[outputs[0][0]], outputs[0][1], given[0])]
            else:
                made = [self.item(texts[slot], tensor) for slot, tensor in outputs]
            self.submit(self.judge.forward, seen, given, made, [], late=late)

    def data(self, name: str, site: int, args: Any, kwargs: Any) -> None:
        """Look at what enters a root module."""
        self.submit(self.judge.new_pass)
        watch = self.watch
        slots = watch.flatten("output", args, []) + watch.flatten_named("output.kwargs", kwargs, [])
        series = watch.series(f"Data.{name}")
        if not slots:
            return
        seen = Seen(series, series.next(self.recorder.epoch), "data", "", None, site)
        late = any(self.is_late(tensor) for _, tensor in slots)
        with torch._C.DisableTorchFunction():
            bad = [
                pair
                for pair in slots
                if self.is_late(pair[1]) or (pair[1] is not watch.thread.last and not is_finite(pair[1]))
            ]
        if bad:
            with Unseen(self):
                texts = self.recorder.strings
                items = [self.item(texts[slot], tensor) for slot, tensor in bad]
                self.submit(self.judge.data, seen, items, late=late)

    def item(self, slot: str, tensor: Tensor, fresh: bool = False) -> Item:
        """Return a tensor in a slot with its counts, now or when they can be had."""
        if not self.is_late(tensor):
            if is_finite(tensor) and not tensor.dtype.is_floating_point:
                return self.judge.item(slot, tensor, clean=True)
            return immediate(slot, tensor, self.parameter(tensor))
        return self.late.item(slot, tensor, self.parameter(tensor), fresh)

    def is_late(self, tensor: Tensor) -> bool:
        """Tell whether a tensor's state is known only when flags have been read."""
        return self.waits or not tensor.is_cpu

    def parameter(self, tensor: Tensor) -> str:
        """Return the name of a parameter, or nothing where a tensor is none."""
        name = self.modules.parameter_name(tensor)
        return name or ("parameter" if isinstance(tensor, torch.nn.Parameter) else "")

    def was_finite(self, tensor: Tensor) -> bool:
        """Tell whether a tensor of the CPU that is about to be overwritten is finite; of others their flags tell."""
        with torch._C.DisableTorchFunction():
            return self.is_late(tensor) or is_finite(tensor)

    def submit(self, judge: Any, *arguments: Any, late: bool | None = None) -> None:
        """Judge now where all is at hand (`late` is False); else when the flags have come, after all that came before."""
        if late is None:
            late = self.late.in_use
        if not late:
            if len(self.late):
                self.finish()
            judge(*arguments)
            return
        self.late.log(judge, *arguments)
        self._since += 1
        latency = self.settings.latency
        if (latency is not None and self._since >= max(latency, 1)) or self.late.full:
            self._since = 0
            self.late.end()
            self.late.read(wait=latency is not None)

    # The mode -------------------------------------------------------------------------------------------------------

    def _enter_mode(self) -> None:
        assert self._mode is not None
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self.watch.thread.entered = True

    def _leave_mode(self) -> None:
        """Take our mode off the stack, wherever on it the user's own modes have put it."""
        if not self.watch.thread.entered:
            return
        self.watch.thread.entered = False
        above = []
        for mode in reversed(overrides._get_current_function_mode_stack()):
            mode.__exit__(None, None, None)
            if mode is self._mode:
                break
            above.append(mode)
        for mode in reversed(above):
            mode.__enter__()

    def write(self, strike: Strike | None) -> None:
        """Write the record."""
        write(self, strike)

    def devices(self) -> list[str]:
        """Return the devices of the models' parameters, for the manifest."""
        return sorted({str(p.device) for model in self.models.values() for p in model.parameters()} or {"cpu"})


class Unseen:
    """A stretch of our own code: no mode sees it. A NonFiniteError goes through."""

    __slots__ = ("_before", "_guard", "_thread")

    def __init__(self, guard: TorchGuard) -> None:
        self._thread = guard.watch.thread
        self._guard = torch._C.DisableTorchFunction()

    def __enter__(self) -> None:
        self._before = self._thread.busy
        self._thread.busy = True
        self._guard.__enter__()

    def __exit__(self, *error: object) -> None:
        self._guard.__exit__(None, None, None)
        self._thread.busy = self._before


def _shadow(tensor: Tensor) -> Any:
    """Return what the ring holds of a tensor: its memory on the CPU, a weak reference elsewhere."""
    return tensor.detach() if tensor.is_cpu else weakref.ref(tensor)
