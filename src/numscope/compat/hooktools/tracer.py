"""The Tracer: writes a .pt file per module call, function call or parameter, in folders by epoch and step."""

from __future__ import annotations

import atexit
import json
import time
import warnings
import weakref
from pathlib import Path

import torch

from numscope.capture.torch.identity.subclasses import to_numpy
from numscope.capture.torch.own_code import OwnComputation
from numscope.compat.hooktools.options import NameFilter, Settings, listed, load, one_of, section, warn_unused_keys
from numscope.compat.live import LiveCall, LiveSession, LiveTensor
from numscope.compat.measures import Array
from numscope.core.errors import SettingsError
from numscope.core.names import parse_call
from numscope.store.formats import torch_file
from numscope.store.formats.foreign import is_user_file

_KEYS = set(
    """
    log_dir tracer_name verbose trace_mode trace_granularity register_hooks dump_pt_hook_options
    hacker_non_nn_modules hacker_options
    """.split()
)
_NAMESPACES = {
    "Functional": "torch.nn.functional",
    "Tensor": "torch.Tensor",
    "Torch": "torch",
    "Linalg": "torch.linalg",
    "Fft": "torch.fft",
    "Special": "torch.special",
    "Sparse": "torch.sparse",
}


class Tracer:
    """Traces a model between `trace` and `untrace`."""

    def __init__(self, config: str | Path | Settings, model: torch.nn.Module) -> None:
        settings = load(config)
        warn_unused_keys(settings, _KEYS, "tracer settings")
        self._mode = one_of(settings, "trace_mode", (0, 1, 2, 3), 0)
        self._named_only = one_of(settings, "trace_granularity", (0, 1), 0) == 1
        hooks = settings.get("register_hooks", ["dump_pt_hook"])
        if listed(hooks) != ["dump_pt_hook"]:
            raise SettingsError(f"register_hooks: {hooks!r}: there is dump_pt_hook alone")
        self._wants = NameFilter(section(section(settings, "dump_pt_hook_options"), "hook_specifiy_modules"))
        self._functions = _Functions(settings)
        self._verbose = bool(settings.get("verbose", False))
        self._model = model
        if not isinstance(model, torch.nn.Module):
            raise SettingsError(f"the model is a {type(model).__name__}: pass a torch.nn.Module")
        self._log_dir = Path(str(settings.get("log_dir") or "./tmp"))
        self._name = str(settings.get("tracer_name") or "tracer")
        self._stamp = self._free_stamp()
        self.folder = self._log_dir / f"{self._name}_{self._stamp}"
        self.epoch = self.step = -1
        self._counts: dict[Path, int] = {}
        self._places: dict[str, list[str]] = {}
        self._session: LiveSession | None = None
        self._paths = {name for name, _ in model.named_modules()}
        atexit.register(_untrace_at_exit, weakref.ref(self))

    def _free_stamp(self) -> int:
        stamp = int(time.time())
        while (self._log_dir / f"{self._name}_{stamp}").exists():
            stamp += 1
        return stamp

    def trace(self, epoch: int = -1, step: int = -1) -> None:
        """Begin to trace."""
        self.update_epoch(epoch)
        self.update_step(step)
        if self._mode == 0:
            return
        if self._session is None:
            level = "mix" if self._functions.on else "module"
            self._session = LiveSession([self._model], self, level=level, backward=self._mode in (2, 3))
        self._session.start()

    def untrace(self) -> None:
        """Stop tracing, undo everything, and write module2path.json: the files of each module."""
        if self._session is not None:
            self._session.stop()
        if self._places:
            file = self._log_dir / f"module2path_{self._stamp}.json"
            file.write_text(json.dumps(self._places, indent=1, ensure_ascii=False), encoding="utf-8")

    def update_step(self, step: int) -> None:
        """Set the number of the step that runs from here on."""
        self.step = int(step)

    def update_epoch(self, epoch: int) -> None:
        """Set the number of the epoch that runs from here on."""
        self.epoch = int(epoch)

    def trace_gradient(self, epoch: int = -1, step: int = -1) -> None:
        """Write each parameter and its gradient; to be called after optimizer.step()."""
        self.update_epoch(epoch)
        self.update_step(step)
        with OwnComputation():
            for name, parameter in self._model.named_parameters():
                if self._wants(name):
                    gradient = _array(parameter.grad) if parameter.grad is not None else None
                    self._save("gradient", name, "", {}, {}, _array(parameter), gradient)

    # The listener of the session ----------------------------------------------------------------------------------------

    def forward(self, call: LiveCall) -> None:
        """Write a forward call."""
        if self._mode in (1, 3) and (name := self._traced_name(call)):
            inputs = {**call.group("input"), **call.group("kwargs")}
            self._save("forward", name, _source(call), inputs, call.group("output"))

    def backward(self, calls: list[LiveCall]) -> None:
        """Write backward calls: `input` is torch's grad_input, the gradient that goes out."""
        for call in calls:
            if self._mode in (2, 3) and (name := self._traced_name(call)):
                self._save("backward", name, _source(call), call.group("output"), call.group("input"))

    def _traced_name(self, call: LiveCall) -> str | None:
        """Return the name under which a call is traced, or None."""
        if call.kind == "module":
            is_named = call.module in self._paths if call.module else call.module_class == type(self._model).__name__
            if self._named_only and not is_named:
                return None
            name = call.module or call.module_class
        elif call.kind == "api" and self._functions.on:
            dotted = _dotted(call.name)
            if dotted is None or not self._functions.wants(dotted):
                return None
            return dotted
        else:
            return None
        return name if self._wants(name) else None

    def _save(
        self,
        kind: str,
        name: str,
        source: str,
        inputs: dict[str, LiveTensor],
        outputs: dict[str, LiveTensor],
        gradient: Array | None = None,
        gradient_grad: Array | None = None,
    ) -> None:
        folder = self.folder / kind / f"epoch{self.epoch}" / f"step{self.step}"
        number = self._counts.get(folder, 0)
        if not number:
            folder.mkdir(parents=True, exist_ok=True)
        self._counts[folder] = number + 1
        file = folder / f"{kind}_{number:06d}.pt"
        record = {
            "module_name": name,
            "file": source,
            "input": _nested(inputs),
            "output": _nested(outputs),
            "gradient": gradient,
            "gradient_grad": gradient_grad,
        }
        torch_file.save(file, record)
        self._places.setdefault(name, []).append(str(file))
        if self._verbose:
            print(f"hooktools: {file} {name}")


class _Functions:
    """Selects the functions that are traced in addition to modules."""

    def __init__(self, settings: Settings) -> None:
        self.on = bool(settings.get("hacker_non_nn_modules", False))
        options = section(settings, "hacker_options")
        warn_unused_keys(options, {"verbose", "supported_apis"}, "hacker_options")
        self._listed: set[str] | None = None
        if options.get("supported_apis") is not None:
            groups = section(options, "supported_apis").values()
            self._listed = {str(name) for group in groups for name in listed(group)}
            missing = sorted(name for name in self._listed if not _exists(name))
            if missing and self.on:
                warnings.warn(f"supported_apis: torch has no {', '.join(missing)}: these are not traced", stacklevel=4)

    def wants(self, dotted: str) -> bool:
        return self._listed is None or dotted in self._listed


def _exists(dotted: str) -> bool:
    value: object = torch
    for part in dotted.split(".")[1:]:
        value = getattr(value, part, None)
        if value is None:
            return False
    return dotted.startswith("torch.")


def _dotted(name: str) -> str | None:
    parts = parse_call(name)
    if parts is None or parts.prefix not in _NAMESPACES:
        return None
    return f"{_NAMESPACES[parts.prefix]}.{parts.op}"


def _source(call: LiveCall) -> str:
    frame = next((frame for frame in reversed(call.frames) if is_user_file(frame["file"])), None)
    return f"{frame['file']}:{frame['line']}" if frame else ""


def _nested(flat: dict[str, LiveTensor]) -> list[object] | dict[str, object]:
    """Return {"0": a, "1.0": b, "mask": c} as [a, [b], {"mask": c}]: lists by number, the rest by name."""
    numbered: dict[int, object] = {}
    named: dict[str, object] = {}
    groups: dict[str, dict[str, LiveTensor]] = {}
    for tail, tensor in flat.items():
        first, _, rest = tail.partition(".")
        if rest:
            groups.setdefault(first, {})[rest] = tensor
        elif first.isdecimal():
            numbered[int(first)] = tensor.numpy()
        else:
            named[first] = tensor.numpy()
    for first, inner in groups.items():
        if first.isdecimal():
            numbered[int(first)] = _nested(inner)
        else:
            named[first] = _nested(inner)
    if not numbered:
        return named if named else []
    return [numbered.get(index) for index in range(max(numbered) + 1)] + ([named] if named else [])


def _array(tensor: torch.Tensor) -> Array:
    return to_numpy(tensor.detach().contiguous().clone())


def _untrace_at_exit(reference: weakref.ref[Tracer]) -> None:
    tracer = reference()
    if tracer is not None:
        tracer.untrace()
