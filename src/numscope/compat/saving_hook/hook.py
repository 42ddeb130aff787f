"""`register_saving_hook`: the frameworks' own hooks on leaf layers, which change nothing, and files while the job runs.

A parameter's hook gets the gradient of this micro-step before it is accumulated, as the document promises. The capture
engine records the accumulated one, so this facade listens to the frameworks themselves.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from numscope.capture import ranks
from numscope.compat.measures import Array
from numscope.core.errors import SettingsError
from numscope.store.formats.npy_export import widened

if TYPE_CHECKING:
    import paddle
    import torch

Model = TypeVar("Model")
_Listener = Callable[[object], None]
ToArrays = Callable[[object], Iterator[Array]]  # the tensors in a layer's outputs, as numpy


class _Parameter(NamedTuple):
    tensor: object
    name: str
    on_gradient: Callable[[_Listener], object]  # calls the listener with each gradient


class _Leaf(NamedTuple):
    """A layer without sublayers."""

    class_name: str
    name: str
    on_output: Callable[[_Listener], object]  # calls the listener with the outputs of each forward
    parameters: list[_Parameter]  # its own trainable ones


class _Framework(NamedTuple):
    """The parts that differ between Paddle and torch."""

    leaves: list[_Leaf]
    containers: dict[str, list[str]]  # the class of a layer with sublayers → the classes of the leaves inside it
    arrays: ToArrays


def _hook(listener: _Listener, _layer: object, _inputs: object, outputs: object) -> None:
    listener(outputs)


def _paddle_leaves(model: paddle.nn.Layer) -> list[_Leaf]:
    leaves = []
    for layer in model.sublayers(include_self=True):
        if not layer.sublayers():
            own = (one for one in layer.parameters(include_sublayers=False) if not one.stop_gradient)
            parameters = [_Parameter(one, one.name, one.register_hook) for one in own]
            on_output = partial(_on_output, layer.register_forward_post_hook)
            leaves.append(_Leaf(type(layer).__name__, layer.full_name(), on_output, parameters))
    return leaves


def _torch_leaves(model: torch.nn.Module) -> list[_Leaf]:
    names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
    leaves = []
    for path, module in model.named_modules():
        if not any(True for _ in module.children()):
            own = (one for one in module.parameters(recurse=False) if one.requires_grad)
            parameters = [_Parameter(one, names[id(one)], one.register_hook) for one in own]
            class_name = type(module).__name__
            on_output = partial(_on_output, module.register_forward_hook)
            leaves.append(_Leaf(class_name, path or class_name, on_output, parameters))
    return leaves


def _on_output(register: Callable[[Callable[..., None]], object], listener: _Listener) -> None:
    register(partial(_hook, listener))


def _paddle_arrays(value: object) -> Iterator[Array]:
    import paddle

    from numscope.capture.paddle.tensors import to_numpy

    for item in _flat(value):
        if isinstance(item, paddle.Tensor):
            yield to_numpy(item)


def _torch_arrays(value: object) -> Iterator[Array]:
    import torch

    from numscope.capture.torch.identity.subclasses import to_numpy
    from numscope.capture.torch.own_code import OwnComputation

    for item in _flat(value):
        if isinstance(item, torch.Tensor):
            with OwnComputation():
                array = to_numpy(item.detach().contiguous())
            yield array


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def register_saving_hook(
    model: Model,
    path: str | Path = "./tmp_tensors",
    target_class_names: str | Sequence[str] | None = None,
    max_saved_tensors: int = 50,
    max_saved_grads: int = 100,
    *,
    max_saved_tensors_per_step: int | None = None,
    max_saved_grads_per_step: int | None = None,
) -> Model:
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
    leaves = [leaf for leaf in framework.leaves if targets is None or leaf.class_name in targets]
    containers = [name for name in framework.containers if targets is not None and name in targets]
    for name in containers:
        inside = ", ".join(framework.containers[name])
        warnings.warn(
            f"target_class_names: {name} has layers inside, and only leaves are saved: name {inside}", stacklevel=2
        )
    if not leaves and not containers:
        present = sorted({leaf.class_name for leaf in framework.leaves})
        raise SettingsError(f"target_class_names={target_class_names!r} matches no leaf layer: the model has {present}")
    limits = {
        "tensors": _Cap(max_saved_tensors, max_saved_tensors_per_step),
        "grads": _Cap(max_saved_grads, max_saved_grads_per_step),
    }
    saver = _Saver(Path(path), framework.arrays, limits)
    for leaf in leaves:
        saver.watch(leaf, first=leaf is leaves[0])
    watched: set[int] = set()
    for parameter in (parameter for leaf in leaves for parameter in leaf.parameters):
        if id(parameter.tensor) not in watched:
            watched.add(id(parameter.tensor))
            saver.watch_parameter(parameter)
    return model


register_hook = register_saving_hook


def _framework(model: object) -> _Framework:
    torch, paddle = sys.modules.get("torch"), sys.modules.get("paddle")
    if torch is not None and isinstance(model, torch.nn.Module):
        modules = model.modules()
        nested = ((one, (leaf for leaf in one.modules() if not any(True for _ in leaf.children()))) for one in modules)
        return _Framework(_torch_leaves(model), _containers(nested), _torch_arrays)
    if paddle is not None and isinstance(model, paddle.nn.Layer):
        layers = model.sublayers(include_self=True)
        nested = ((one, (leaf for leaf in one.sublayers() if not leaf.sublayers())) for one in layers)
        return _Framework(_paddle_leaves(model), _containers(nested), _paddle_arrays)
    raise SettingsError(f"the model is a {type(model).__name__}: pass a paddle.nn.Layer or a torch.nn.Module")


def _containers(layers: Iterable[tuple[object, Iterable[object]]]) -> dict[str, list[str]]:
    """Return the classes of layers with sublayers, each with the classes of the leaves inside it."""
    found: dict[str, set[str]] = {}
    for layer, leaves in layers:
        inside = {type(leaf).__name__ for leaf in leaves if leaf is not layer}
        if inside:
            found.setdefault(type(layer).__name__, set()).update(inside)
    return {name: sorted(inside) for name, inside in found.items()}


class _Cap:
    """Limits how many files of a kind are written, in all or in each micro-step."""

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
    """Writes the files, up to their caps."""

    def __init__(self, path: Path, arrays: ToArrays, limits: dict[str, _Cap]) -> None:
        self._path = path
        self._arrays = arrays
        self._limits = limits
        self._saved = dict.fromkeys(limits, 0)
        self._micro_step = -1

    def watch(self, leaf: _Leaf, first: bool) -> None:
        def save_outputs(outputs: object) -> None:
            if first:
                self._micro_step += 1
                for limit in self._limits.values():
                    limit.new_step()
            head = f"layer_class_{leaf.class_name}_layer_name_{leaf.name}"
            for array in self._arrays(outputs) if self._limits["tensors"].has_room() else ():
                self._save("tensors", "tensor", head, array)

        leaf.on_output(save_outputs)

    def watch_parameter(self, parameter: _Parameter) -> None:
        def save_gradient(gradient: object) -> None:
            for array in self._arrays(gradient) if self._limits["grads"].has_room() else ():
                self._save("grads", "grad", f"of_param_name_{parameter.name}", array)

        parameter.on_gradient(save_gradient)

    def _save(self, kind: str, word: str, head: str, array: Array) -> None:
        if not self._limits[kind].has_room():
            return
        self._limits[kind].count()
        folder = self._path / kind / f"rank_{ranks.current()[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        index = self._saved[kind]
        self._saved[kind] = index + 1
        np.save(folder / f"{word}_idx_{index}_{head}_micro_step_{max(self._micro_step, 0)}.npy", widened(array))
