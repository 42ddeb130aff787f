"""Dumps calls: selects them, samples their tensors, and writes the files."""

from __future__ import annotations

import atexit
import difflib
import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.compat.live import LiveCall, LiveSession, flat_float32, rank_and_world, statistics
from numscope.compat.measures import Array
from numscope.compat.ptdbg_ascend.names import head_of, role_names, unused
from numscope.compat.ptdbg_ascend.overflow import OverflowWatch
from numscope.compat.ptdbg_ascend.scopes import Scope, scope_of
from numscope.compat.tokens import Token, chosen
from numscope.core.errors import SettingsError
from numscope.store.formats.npy_export import widened

acc_cmp_dump = Token("acc_cmp_dump")
overflow_check = Token("overflow_check")

HEAD = 256  # elements kept at either end of a sampled tensor


@dataclass
class _State:
    """The settings that the functions of this module have been given so far."""

    path: Path | None = None
    data: Path | None = None  # the folder of .npy files, once there is one
    counter: int = 0
    step: int = 1
    on: bool = False
    scope: Scope = field(default_factory=Scope)
    session: LiveSession | None = None
    overflow: LiveSession | None = None
    names: list[str] = field(default_factory=list)  # of the calls since the switch was on, for the hint of a warning


_state = _State()


def set_dump_path(fpath: str) -> None:
    """Set the file to dump to; an existing file is replaced, and calls are numbered from 0 again."""
    path = Path(fpath)
    if not path.parent.is_dir():
        raise SettingsError(f"set_dump_path({str(fpath)!r}): the folder {path.parent} does not exist: make it first")
    if path.is_dir():
        raise SettingsError(f"set_dump_path({str(fpath)!r}): that is a folder: give a file name such as npu_dump.pkl")
    rank, world = rank_and_world()
    if world > 1:
        path = path.parent / f"rank{rank}" / path.name
        path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    _state.path, _state.data, _state.counter = path, None, 0


def set_dump_switch(switch: str, mode: int | str = 1, scope: str | Iterable[str] | None = None) -> None:
    """Turn dumping "ON" or "OFF"; mode and scope select the calls: see `scopes.py`."""
    if switch not in ("ON", "OFF"):
        raise SettingsError(f"set_dump_switch({switch!r}): give 'ON' or 'OFF'")
    if switch == "OFF":
        _switch_off()
        return
    _state.scope = scope_of(mode, scope)
    if _state.path is None:
        raise SettingsError("set_dump_switch('ON'): call set_dump_path('./npu_dump.pkl') first")
    _state.on = True
    _state.names.clear()
    if _state.session is not None:
        _state.session.start()


def _switch_off() -> None:
    if _state.session is not None:
        _state.session.stop()
    if _state.on and _state.names:
        for wanted in _state.scope.unmatched():
            near = difflib.get_close_matches(wanted, _state.names, 3, 0.3)
            warnings.warn(
                f"the scope {wanted!r} matched no call of {len(_state.names)}; nearest: {', '.join(near) or 'none'}",
                stacklevel=3,
            )
    _state.on = False


def register_hook(model: torch.nn.Module, hook: Token, **options: object) -> None:
    """Register a dump (`acc_cmp_dump`, dump_step) or a watch for overflows (`overflow_check`, overflow_nums)."""
    token = chosen(hook, (acc_cmp_dump, overflow_check))
    allowed = ("dump_step" if token is acc_cmp_dump else "overflow_nums", "dump_mode")
    for name in options:
        if name not in allowed:
            raise SettingsError(f"register_hook has no option {name!r} for {token.name}: there is {allowed[0]}")
    if token is overflow_check:
        _watch_overflow(model, options.get("overflow_nums", 1))
        return
    step = options.get("dump_step", 1)
    if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step <= 100:
        raise SettingsError(f"dump_step={step!r}: give a whole number from 1 to 100")
    if _state.session is not None:
        _state.session.stop()
    _state.step = step
    _state.session = LiveSession([model], _Dump())
    if _state.on:
        _state.session.start()


def _watch_overflow(model: torch.nn.Module, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SettingsError(f"overflow_nums={count!r}: give a whole number from 1 on")
    if _state.overflow is not None:
        _state.overflow.stop()
    watch = OverflowWatch(count, _stop_overflow)
    _state.overflow = LiveSession([model], watch, on_error="raise")
    _state.overflow.start()


def _stop_overflow() -> None:
    if _state.overflow is not None:
        _state.overflow.end()


class _Dump:
    """Writes the calls that the scope selects."""

    def forward(self, call: LiveCall) -> None:
        self._write([call])

    def backward(self, calls: list[LiveCall]) -> None:
        self._write(calls)

    def _write(self, calls: list[LiveCall]) -> None:
        if not _state.on or _state.path is None:
            return
        lines: list[str] = []
        for call in calls:
            head = head_of(call)
            if head is None or not role_names(call):
                continue
            name = f"{_state.counter}_{head}"
            _state.counter += 1
            _state.names.append(name)
            if _state.scope.wants(name):
                lines += _lines(name, call)
        if lines:
            with _state.path.open("a", encoding="utf-8") as stream:
                stream.write("".join(lines))


def _lines(name: str, call: LiveCall) -> list[str]:
    scope = _state.scope
    lines = []
    if scope.stacks:
        frames = [[frame["file"], frame["line"], frame["function"], frame["code"]] for frame in reversed(call.frames)]
        lines.append(json.dumps([f"{name}_stack_info", frames]) + "\n")
    if scope.stacks_only:
        return lines
    for role, tensor in role_names(call):
        array = tensor.numpy()
        full = f"{name}_{role}"
        np.save(_data_folder() / f"{full}.npy", sampled(array, _state.step))
        record = [full, _state.step, [], tensor.dtype, list(tensor.shape), list(statistics(array))]
        lines.append(json.dumps(record) + "\n")
    return lines


def sampled(array: Array, step: int) -> NDArray[np.float32]:
    """Return the elements that are kept: all of them up to 512; beyond, both ends and every step-th of the middle."""
    flat = flat_float32(widened(array))
    if flat.size <= 2 * HEAD:
        return flat
    return np.concatenate([flat[:HEAD], flat[HEAD:-HEAD:step], flat[-HEAD:]])


def _data_folder() -> Path:
    if _state.data is None:
        assert _state.path is not None
        stem = _state.path.stem.replace("{", "{{").replace("}", "}}")
        _state.data = unused(_state.path.parent, f"{stem}_{{}}", "%Y%m%d_%H%M%S")
        _state.data.mkdir()
    return _state.data


@atexit.register
def _at_exit() -> None:
    for session in (_state.session, _state.overflow):
        if session is not None:
            session.stop()
