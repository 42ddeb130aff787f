"""Two models in one process: `ns.compare_models(a, b, inputs)` runs both, backward too, and compares.

comparison = ns.compare_models(fused, plain, torch.randn(4, 16))
assert comparison.verdict == "equivalent", comparison.origin.reason
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from numscope.compare.comparison import Comparison, compare
from numscope.core.errors import SettingsError

Model = Callable[..., object]  # a torch.nn.Module, or a function


def compare_models(
    target: Model,
    reference: Model,
    inputs: object,
    *,
    loss: Callable[[Any], object] | None = None,
    backward: bool = True,
    level: str = "mix",
    keep: str = "tensors",
    seed: int = 0,
) -> Comparison:
    """Run two models on the same inputs with the same random draws, and return the comparison.

    `inputs` is one argument, a tuple of them, or a dict of keyword arguments. The backward pass starts from
    `loss(outputs)`, or else from fixed random gradients of the outputs. Gradients, random state and the models'
    buffers are restored afterwards.
    """
    if "torch" not in sys.modules:
        raise SettingsError("compare_models takes torch models: import torch first")
    directory = Path(tempfile.mkdtemp(prefix="numscope-models-"))
    try:
        for name, model in (("target", target), ("reference", reference)):
            _run(directory / name, model, inputs, loss, backward, level, keep, seed)
        comparison = compare(directory / "target", directory / "reference")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    weakref.finalize(comparison, shutil.rmtree, directory, ignore_errors=True)
    return comparison


def _run(
    path: Path,
    model: Model,
    inputs: object,
    loss: Callable[[Any], object] | None,
    backward: bool,
    level: str,
    keep: str,
    seed: int,
) -> None:
    from numscope.capture.session import capture

    torch = sys.modules["torch"]
    with _unchanged(torch, model, seed), capture(path, model, level=level, keep=keep, backward=backward) as recording:
        if isinstance(inputs, dict):
            outputs = model(**inputs)
        else:
            outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        if backward:
            _backward(torch, loss(outputs) if loss is not None else outputs, seed)
        recording.step()


def _backward(torch: ModuleType, outputs: object, seed: int) -> None:
    ends = [tensor for tensor in _tensors(torch, outputs) if tensor.requires_grad]
    if not ends:
        return
    generator = torch.Generator().manual_seed(seed)
    starts = [
        None if tensor.numel() == 1 else torch.randn(tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
        for tensor in ends
    ]
    torch.autograd.backward(ends, starts)


def _tensors(torch: ModuleType, value: object) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(torch, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(torch, item)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _tensors(torch, vars(value))


@contextmanager
def _unchanged(torch: ModuleType, model: Model, seed: int) -> Iterator[None]:
    """Seed the generators for the run, and put gradients, buffers and random state back after it."""
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    buffers = list(model.buffers()) if hasattr(model, "buffers") else []
    gradients = [parameter.grad for parameter in parameters]
    held = [buffer.detach().clone() for buffer in buffers]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in zip(buffers, held):
                    buffer.copy_(before)
