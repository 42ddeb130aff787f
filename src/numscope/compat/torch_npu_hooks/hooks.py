"""Registers hooks, with three listeners: a dump as JSON lines, a watch for overflows, a dump by a background thread."""

from __future__ import annotations

import atexit
import json
import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch

from numscope.compat.live import LiveCall, LiveSession, LiveTensor, is_overflow, rank_and_world, statistics
from numscope.compat.measures import Array
from numscope.compat.ptdbg_ascend.names import head_of, overflow_stem, role_names
from numscope.compat.tokens import Token, chosen
from numscope.compat.torch_npu_hooks.schedules import schedule, step_schedule
from numscope.core.errors import SettingsError
from numscope.diagnose.seeds import seed_all
from numscope.store.formats.npy_export import widened

wrap_acc_cmp_hook = Token("wrap_acc_cmp_hook")
wrap_checkoverflow_hook = Token("wrap_checkoverflow_hook")
wrap_async_datadump_hook = Token("wrap_async_datadump_hook")

SAMPLE = 10  # elements at the front of a sampled tensor
ND = 2  # the number of the plain layout among Ascend's formats


@dataclass
class _State:
    """The registrations so far; one session listens for all models."""

    path: Path | None = None
    counter: int = 0
    models: list[torch.nn.Module] = field(default_factory=list)
    session: LiveSession | None = None
    listener: _Scheduled | None = None


_state = _State()


def set_dump_path(fpath: str | None = None) -> None:
    """Set the file to dump to from here on; an existing file is replaced."""
    if fpath is None:
        raise SettingsError("set_dump_path needs a file name, such as './npu_module_op.pkl'")
    path = Path(fpath)
    if not path.parent.is_dir():
        raise SettingsError(f"set_dump_path({str(fpath)!r}): the folder {path.parent} does not exist: make it first")
    if path.is_dir():
        raise SettingsError(f"set_dump_path({str(fpath)!r}): that is a folder: give a file name")
    if _state.session is not None and _state.session.running:
        _state.session.end_step()
    rank, world = rank_and_world()
    if world > 1:
        path = path.parent / f"rank{rank}" / path.name
        path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    _state.path, _state.counter = path, 0


def register_hook(model: torch.nn.Module, hook: Token, **options: object) -> None:
    """Register a hook on the operators that run from here on.

    seed: fix the random numbers first (nothing is seeded without it) · sample: ten elements and the statistics (default),
    or all elements · path: the folder of wrap_async_datadump_hook · schedule: which steps.
    """
    token = chosen(hook, (wrap_acc_cmp_hook, wrap_checkoverflow_hook, wrap_async_datadump_hook))
    known = {"seed", "sample", "path", "schedule"}
    for name in options:
        if name not in known:
            raise SettingsError(f"register_hook has no option {name!r}: there are {', '.join(sorted(known))}")
    steps = options.get("schedule", schedule())
    if not isinstance(steps, schedule):
        raise SettingsError(f"schedule={steps!r}: give schedule(begin, end, stride), imported from here")
    if "seed" in options:
        seed_all(cast(int, options["seed"]))
    listener: _Scheduled
    if token is wrap_acc_cmp_hook:
        listener = _Lines(bool(options.get("sample", True)), steps)
    elif token is wrap_async_datadump_hook:
        listener = _AsyncFiles(Path(str(options.get("path", "./"))), steps)
    else:
        listener = _Overflow(steps)
    if _state.session is not None:
        _state.session.stop()
    if type(_state.listener) is not type(listener):
        _state.models.clear()
    on_error = "raise" if token is wrap_checkoverflow_hook else "warn"
    session = LiveSession([*_state.models, model], listener, stacks=False, on_error=on_error)
    _state.models.append(model)
    _state.listener, _state.session = listener, session
    session.start()


class _Scheduled(ABC):
    """A listener that takes the calls of scheduled steps alone."""

    def __init__(self, steps: schedule) -> None:
        self._steps = steps

    def forward(self, call: LiveCall) -> None:
        """Take a call, where its step is scheduled."""
        head = head_of(call)
        if head is not None and self._steps.wants(step_schedule.step_num):
            self.take(head, call)

    def backward(self, calls: list[LiveCall]) -> None:
        """Take the calls."""
        for call in calls:
            self.forward(call)

    @abstractmethod
    def take(self, head: str, call: LiveCall) -> None:
        """Take a call of a scheduled step, with the first part of its tensors' names."""


def elements(array: Array, count: int | None = None) -> list[float]:
    """Return the first elements, or all, as numbers that JSON can hold."""
    flat = widened(np.ascontiguousarray(array)).reshape(-1)[:count]
    return [float(value) for value in (np.abs(flat) if flat.dtype.kind == "c" else flat)]


class _Lines(_Scheduled):
    """Writes `[name, values, dtype, shape]`, a line per tensor; one of a tuple has its place in its name (`input.1`)."""

    def __init__(self, sample: bool, steps: schedule) -> None:
        super().__init__(steps)
        self._sample = sample

    def take(self, head: str, call: LiveCall) -> None:
        if _state.path is None:
            return
        lines = []
        for role, tensor in role_names(call):
            array = tensor.numpy()
            values = [*elements(array, SAMPLE), *statistics(array)] if self._sample else elements(array)
            record = [f"{_state.counter}_{head}_{role}", values, tensor.dtype, list(tensor.shape)]
            lines.append(json.dumps(record) + "\n")
            _state.counter += 1
        with _state.path.open("a", encoding="utf-8") as stream:
            stream.write("".join(lines))


class _Overflow(_Scheduled):
    """Writes Overflow_info_{time}.pkl at the first overflow, and raises."""

    def __init__(self, steps: schedule) -> None:
        super().__init__(steps)
        self._counter = 0

    def take(self, head: str, call: LiveCall) -> None:
        tensors = role_names(call)
        first, self._counter = self._counter, self._counter + len(tensors)
        if not is_overflow(call):
            return
        file = Path(f"{overflow_stem()}.pkl")
        with file.open("w", encoding="utf-8") as stream:
            for number, (role, tensor) in enumerate(tensors, first):
                values = elements(tensor.numpy())
                stream.write(json.dumps([f"{number}_{head}_{role}", values, tensor.dtype, list(tensor.shape)]) + "\n")
        if _state.session is not None:
            _state.session.end()
        raise ValueError(f"overflow in {head} (call {call.name}): its tensors are in {file}")


class _AsyncFiles(_Scheduled):
    """Hands tensors to a thread that writes one .npy file each."""

    def __init__(self, folder: Path, steps: schedule) -> None:
        super().__init__(steps)
        if not folder.parent.is_dir():
            raise SettingsError(f"path={str(folder)!r}: the folder {folder.parent} does not exist: make it first")
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._counter = 0
        self._waiting: queue.Queue[tuple[str, LiveTensor]] = queue.Queue(256)
        threading.Thread(target=self._work, name="numscope-async-dump", daemon=True).start()

    def take(self, head: str, call: LiveCall) -> None:
        counts = {"input": 0, "output": 0}
        for name, tensor in role_names(call):
            role = name.partition(".")[0]
            parts = {"shape": tensor.shape, "stride": tensor.stride, "offset": (tensor.offset,), "format": (ND,)}
            facts = "_".join(f"{part}[{','.join(map(str, values))}]" for part, values in parts.items())
            self._waiting.put((f"{self._counter}_{head}_{role}{counts[role]}_{facts}.npy", tensor))
            self._counter += 1
            counts[role] += 1

    def _work(self) -> None:
        while True:
            name, tensor = self._waiting.get()
            try:
                np.save(self._folder / name, widened(tensor.numpy()))
            finally:
                self._waiting.task_done()

    def finish(self) -> None:
        """Wait until all files are written."""
        self._waiting.join()


def flush() -> None:
    """Write all calls so far."""
    if _state.session is not None and _state.session.running:
        _state.session.end_step()
    if isinstance(_state.listener, _AsyncFiles):
        _state.listener.finish()


@atexit.register
def _at_exit() -> None:
    if _state.session is not None:
        _state.session.stop()
    flush()
