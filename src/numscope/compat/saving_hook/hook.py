"""`register_saving_hook`: the frameworks' own hooks on leaf layers, which change nothing, and files as the job runs.

What a parameter's hook sees is the gradient of this micro-step, before it is accumulated: what the document promises. The
capture engine records the accumulated one, so this facade listens to the frameworks themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from numscope.capture import ranks
from numscope.core.errors import SettingsError
from numscope.store.formats.npy_export import widened


class Framework(Protocol):
    """What differs between Paddle and torch."""

    def leaves(self, model: Any) -> list[tuple[Any, str]]:
        """Return the layers without sublayers, with their names."""

    def on_output(self, layer: Any, seen: Any) -> None:
        """Call `seen(outputs)` after each forward of a layer."""

    def parameters(self, model: Any, layer: Any) -> list[tuple[Any, str]]:
        """Return a layer's own trainable parameters, with their names."""

    def tensors(self, value: Any) -> Iterator[NDArray[Any]]:
        """Return the tensors of a result, as numpy."""


class _Paddle:
    def leaves(self, model: Any) -> list[tuple[Any, str]]:
        layers = model.sublayers(include_self=True)
        return [(layer, layer.full_name()) for layer in layers if not layer.sublayers()]

    def on_output(self, layer: Any, seen: Any) -> None:
        layer.register_forward_post_hook(lambda _layer, _inputs, outputs: seen(outputs))

    def parameters(self, model: Any, layer: Any) -> list[tuple[Any, str]]:
        own = layer.parameters(include_sublayers=False)
        return [(parameter, parameter.name) for parameter in own if not parameter.stop_gradient]

    def tensors(self, value: Any) -> Iterator[NDArray[Any]]:
        import paddle

        from numscope.capture.paddle.tensors import to_numpy

        for item in _leaves(value):
            if isinstance(item, paddle.Tensor):
                yield to_numpy(item)


class _Torch:
    def leaves(self, model: Any) -> list[tuple[Any, str]]:
        return [
            (module, path or type(module).__name__)
            for path, module in model.named_modules()
            if not any(True for _ in module.children())
        ]

    def on_output(self, layer: Any, seen: Any) -> None:
        layer.register_forward_hook(lambda _module, _inputs, outputs: seen(outputs))

    def parameters(self, model: Any, layer: Any) -> list[tuple[Any, str]]:
        names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
        own = layer.parameters(recurse=False)
        return [(parameter, names[id(parameter)]) for parameter in own if parameter.requires_grad]

    def tensors(self, value: Any) -> Iterator[NDArray[Any]]:
        import torch

        from numscope.capture.torch.identity.subclasses import to_numpy
        from numscope.capture.torch.own_code import OwnComputation

        for item in _leaves(value):
            if isinstance(item, torch.Tensor):
                with OwnComputation():
                    array = to_numpy(item.detach().contiguous())
                yield array


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def register_saving_hook(
    model: Any,
    path: str | Path = "./tmp_tensors",
    target_class_names: str | Sequence[str] | None = None,
    max_saved_tensors: int = 50,
    max_saved_grads: int = 100,
    *,
    max_saved_tensors_per_step: int | None = None,
    max_saved_grads_per_step: int | None = None,
) -> Any:
    """Save outputs and parameter gradients of leaf layers from here on, and return the model.

    target_class_names: the classes of the layers, None for all · max_saved_tensors, max_saved_grads: how many files at
    most in all, no cap where zero or negative · …_per_step: the same for each micro-step, in place of the cap on all.
    """
    framework = _framework(model)
    if target_class_names is None:
        targets = None
    elif isinstance(target_class_names, str):
        targets = {target_class_names}
    else:
        targets = set(target_class_names)
    leaves = [item for item in framework.leaves(model) if targets is None or type(item[0]).__name__ in targets]
    if not leaves:
        present = sorted({type(layer).__name__ for layer, _ in framework.leaves(model)})
        raise SettingsError(f"target_class_names={target_class_names!r} matches no leaf layer: the model has {present}")
    limits = {
        "tensors": _Cap(max_saved_tensors, max_saved_tensors_per_step),
        "grads": _Cap(max_saved_grads, max_saved_grads_per_step),
    }
    saver = _Saver(Path(path), framework, limits)
    for place, (layer, name) in enumerate(leaves):
        saver.watch(layer, name, first=place == 0)
    seen: set[int] = set()
    for layer, _ in leaves:
        for parameter, name in framework.parameters(model, layer):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                saver.watch_parameter(parameter, name)
    return model


register_hook = register_saving_hook


def _framework(model: Any) -> Framework:
    torch, paddle = sys.modules.get("torch"), sys.modules.get("paddle")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _Torch()
    if paddle is not None and isinstance(model, paddle.nn.Layer):
        return _Paddle()
    raise SettingsError(f"the model is a {type(model).__name__}: pass a paddle.nn.Layer or a torch.nn.Module")


class _Cap:
    """How many files of a kind may still be written."""

    def __init__(self, in_all: int, per_step: int | None) -> None:
        self._limit = in_all if per_step is None else per_step
        self._per_step = per_step is not None
        self._counted = 0

    def has_room(self) -> bool:
        return self._limit <= 0 or self._counted < self._limit

    def count(self) -> None:
        self._counted += 1

    def new_step(self) -> None:
        if self._per_step:
            self._counted = 0


class _Saver:
    """Counts, and writes files."""

    def __init__(self, path: Path, framework: Framework, limits: dict[str, _Cap]) -> None:
        self._path = path
        self._framework = framework
        self._limits = limits
        self._saved = dict.fromkeys(limits, 0)
        self._micro_step = -1

    def watch(self, layer: Any, name: str, first: bool) -> None:
        class_name = type(layer).__name__

        def seen(outputs: Any) -> None:
            if first:
                self._micro_step += 1
                for limit in self._limits.values():
                    limit.new_step()
            head = f"layer_class_{class_name}_layer_name_{name}"
            for array in self._framework.tensors(outputs) if self._limits["tensors"].has_room() else ():
                self._save("tensors", "tensor", head, array)

        self._framework.on_output(layer, seen)

    def watch_parameter(self, parameter: Any, name: str) -> None:
        def seen(gradient: Any) -> None:
            for array in self._framework.tensors(gradient) if self._limits["grads"].has_room() else ():
                self._save("grads", "grad", f"of_param_name_{name}", array)

        parameter.register_hook(seen)

    def _save(self, kind: str, word: str, head: str, array: NDArray[Any]) -> None:
        if not self._limits[kind].has_room():
            return
        self._limits[kind].count()
        folder = self._path / kind / f"rank_{ranks.current()[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        index = self._saved[kind]
        self._saved[kind] = index + 1
        np.save(folder / f"{word}_idx_{index}_{head}_micro_step_{max(self._micro_step, 0)}.npy", widened(array))
