"""Graft: put the reference's tensors into the target while it runs.

    with ns.graft(model, "runs/gpu", "blocks.3.attn"):                    # its output is the reference's
        train_step(batch)

    with ns.graft(model, "runs/gpu", "Functional.softmax.2.forward"):     # one call's
        train_step(batch)

    with ns.graft(model, "runs/gpu", single_step=True):                   # every module is given the reference's input
        train_step(batch)

A grafted module adds no error to what follows. A run that is captured under a graft says so in its manifest, and
`compare` reports how much of the final error the graft removed. With single_step every module shows its own error alone,
because nothing accumulates. Gradients flow as if nothing had been replaced. The reference may come from another device,
dtype or framework: a call of a module is found by the module's path and the number of its earlier calls in the step.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from numscope.compare.comparison import compare
from numscope.compare.grafted import final_error, share_removed
from numscope.compare.load.wrappers import normalise
from numscope.core import grafts
from numscope.core.errors import CaptureError, NotKeptError, SettingsError
from numscope.diagnose.intervene.graft_backend import Arguments, Backend, ReplaceInputs, ReplaceResult, Undo
from numscope.diagnose.intervene.path_patterns import path_matcher
from numscope.diagnose.recorded.step_graph import StepGraph
from numscope.store.reader import Run, open_run

_PREFIXES = ("Functional", "Torch", "Tensor", "Linalg", "Fft", "Special", "VF")  # of calls; modules have paths

Names = str | Iterable[str] | None
RunLike = str | os.PathLike[str] | Run


def graft(
    model: object,
    reference: RunLike,
    names: Names = None,
    single_step: bool = False,
    *,
    inputs: bool = False,
) -> Graft:
    """Return a graft of the reference's tensors into a model.

    `names` are module paths, names of calls, or patterns of either. Their outputs are replaced; with `inputs` the inputs
    of the modules instead. `single_step` replaces the inputs of every module.
    """
    if names is None and not single_step:
        raise SettingsError("graft needs the names of the modules to replace, or single_step=True for all of them")
    run = reference if isinstance(reference, Run) else open_run(reference)
    return Graft(model, run, names, inputs or single_step)


class Graft:
    """Replaces outputs or inputs of modules and calls while it is entered."""

    def __init__(self, model: object, run: Run, names: Names, inputs: bool, rank: int = 0) -> None:
        self._model = model
        self._run = run
        listed = None if names is None else [names] if isinstance(names, str) else list(names)
        calls = [name for name in listed or () if name.partition(".")[0] in _PREFIXES]
        paths = None if listed is None else [name for name in listed if name not in calls]
        self._wants = path_matcher(paths) if paths is not None else bool  # None: every module but the model itself
        self._wants_call = _call_matcher(calls)
        self._calls, self._paths = calls, paths
        self._inputs = inputs
        self._rank = rank
        self._backend = _backend(model)
        self._undo: list[Undo] = []
        self._step_number = 0
        self._by_hand = False
        self._graph: StepGraph | None = None
        self._counts: dict[str, int] = {}
        self._orders: dict[str, list[int]] = {}  # of the reference's calls of a module, by path
        self._manifest_entry = {"reference": str(run.path), "names": listed or [], "inputs": inputs}
        self.replaced: list[str] = []  # names of the tensors that were put in
        self.not_replaced: dict[str, str] = {}  # name → why not

    def __enter__(self) -> Graft:
        if self._undo:
            raise CaptureError("this graft is entered already: make another with ns.graft")
        chosen = [(path, module) for path, module in self._backend.modules(self._model) if self._wants(path)]
        if not chosen and (self._paths is None or self._paths):
            raise SettingsError("no module of the model has such a path: the names are those of model.named_modules()")
        for path, module in chosen:
            self._undo.append(self._backend.hook(module, self._before(path), self._after(path)))
        if self._calls:
            self._undo.append(self._backend.watch_calls(self._after_call))
        self._undo.append(self._backend.on_step(self._optimizer_stepped))
        number = grafts.begin(self._manifest_entry)
        self._undo.append(lambda: grafts.end(number))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()
        if kind is not None:
            return
        detail = next((f"{name}: {why}" for name, why in self.not_replaced.items()), "")
        if not self.replaced:
            hint = detail or "capture it with keep='tensors', and give names that the model calls"
            raise NotKeptError(f"nothing was grafted from {self._run.path}: {hint}")
        if detail:
            more = f", and {len(self.not_replaced) - 1} more" if len(self.not_replaced) > 1 else ""
            warnings.warn(f"numscope: not all was grafted: {detail}{more}", RuntimeWarning, stacklevel=2)

    def step(self) -> None:
        """End one step and begin the next; a job that never calls this ends a step with each optimizer step."""
        self._by_hand = True
        self._next_step()

    def _optimizer_stepped(self) -> None:
        if not self._by_hand:
            self._next_step()

    def _next_step(self) -> None:
        self._step_number += 1
        self._graph = None
        self._counts.clear()

    def _before(self, path: str) -> ReplaceInputs:
        def before(args: tuple[object, ...], kwargs: dict[str, object]) -> Arguments | None:
            if not self._inputs or self._backend.is_recomputing():
                return None
            call = self._call(path)
            if call is None:
                return None
            positional = tuple(self._replaced(value, call, f"input.{index}") for index, value in enumerate(args))
            named = {name: self._replaced(value, call, f"kwargs.{name}") for name, value in kwargs.items()}
            return positional, named

        return before

    def _after(self, path: str) -> ReplaceResult:
        def after(result: object) -> object:
            if self._backend.is_recomputing():
                return result  # the recomputation of a checkpoint is not counted as a call
            call = self._call(path)
            self._counts[path] = self._counts.get(path, 0) + 1
            return result if self._inputs or call is None else self._outputs(result, call)

        return after

    def _after_call(self, head: str, result: object) -> object:
        """Replace the result of a call; its index is the number of calls of that name before it in the step."""
        if self._backend.is_recomputing():
            return result
        index = self._counts.get(head, 0)
        self._counts[head] = index + 1
        name = f"{head}.{index}.forward"
        graph = self._reference()
        if graph is None or not self._wants_call(name):
            return result
        if name not in graph.by_name:
            self.not_replaced[name] = "the reference has no such call"
            return result
        return self._outputs(result, graph.by_name[name].order)

    def _outputs(self, result: object, call: int) -> object:
        nested = isinstance(result, (tuple, list, dict))
        return self._replaced(result, call, "output" if nested else "output.0")

    def _replaced(self, value: object, order: int, slot: str) -> object:
        """Return a value with its tensors replaced by those of the reference's slot; the value itself where there are none."""
        if isinstance(value, (tuple, list)):
            items = [self._replaced(item, order, f"{slot}.{index}") for index, item in enumerate(value)]
            make: Callable[..., object] = type(value)
            return make(*items) if hasattr(value, "_fields") else make(items)
        if isinstance(value, dict):
            put = {name: self._replaced(item, order, f"{slot}.{name}") for name, item in value.items()}
            return type(value)(**put) if type(value) is not dict else put
        graph = self._reference()
        if graph is None or not self._backend.is_tensor(value):
            return value
        name = f"{graph.calls[order].name}.{slot}"
        number = graph.slots(order).get(slot)
        if number is None:
            self.not_replaced[name] = "the reference has no such tensor"
            return value
        here, there = self._backend.shape(value), graph.tensors[number].shape
        if here != there:
            self.not_replaced[name] = f"shape {list(there)} there, {list(here)} here"
            return value
        try:
            replacement: object = self._backend.replaced(value, graph, number)
        except NotKeptError as why:
            self.not_replaced[name] = f"{why}: capture it with keep='tensors'"
            return value
        self.replaced.append(name)
        return replacement

    def _reference(self) -> StepGraph | None:
        """Return the reference's step of the same number as the current one."""
        if self._graph is None and self._step_number in self._run.rank_steps(self._rank):
            self._graph = StepGraph(self._run, self._step_number, self._rank)
            self._orders = {}
            for call in self._graph.calls.values():
                if call.kind == "module" and call.phase == "forward" and not call.recompute:
                    self._orders.setdefault(_without_wrappers(call.module), []).append(call.order)
        return self._graph

    def _call(self, path: str) -> int | None:
        """Return the order of the reference's call that corresponds to the current call of a module."""
        if self._reference() is None:
            self.not_replaced[f"step {self._step_number}"] = "the reference has no such step"
            return None
        orders = self._orders.get(_without_wrappers(path), [])
        index = self._counts.get(path, 0)
        if index < len(orders):
            return orders[index]
        self.not_replaced[f"call {index} of {path or 'the model'}"] = "the reference has no such call"
        return None


@dataclass(frozen=True)
class ErrorRemoved:
    """The final error of a target run before and after grafting, and the share of it that the graft removed."""

    before: float
    after: float
    removed: float


def error_removed(target: RunLike, grafted: RunLike, reference: RunLike) -> ErrorRemoved:
    """Return the final error that a graft removed: that of the model's last output in the first step that differs."""
    before = final_error(compare(target, reference)) or 0.0
    after = final_error(compare(grafted, reference, ungrafted=target)) or 0.0
    return ErrorRemoved(before, after, share_removed(before, after) or 0.0)


def _without_wrappers(path: str) -> str:
    """Return a module's path without wrappers."""
    return normalise([path])[path]


def _call_matcher(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a test for names of calls: a pattern, a name, or a head such as `Functional.softmax` for all its calls."""
    return path_matcher([*names, *(f"{name}.*" for name in names if not any(mark in name for mark in "*?["))])


def _backend(model: object) -> Backend[Any, Any]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from numscope.diagnose.intervene.graft_torch import TorchBackend

        return TorchBackend()
    paddle = sys.modules.get("paddle")
    if paddle is not None and isinstance(model, paddle.nn.Layer):
        from numscope.diagnose.intervene.graft_paddle import PaddleBackend

        return PaddleBackend()
    raise SettingsError(f"cannot graft into a {type(model).__name__}: give a torch nn.Module or a paddle Layer")
