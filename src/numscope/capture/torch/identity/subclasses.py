"""Tensor subclasses: the plain tensor inside, the reason where there is none, and the data as numpy."""

from __future__ import annotations

import json

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.capture.recording.interned import Strings
from numscope.capture.torch.own_code import OwnCode
from numscope.fingerprint.columns import Unmeasured

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor)})

# Torch's own methods: while exposed memory is watched, replacements stand in `torch.Tensor` for the user's code to call.
data_ptr = torch._C.TensorBase.data_ptr
untyped_storage = torch._C.TensorBase.untyped_storage


def unwrap(tensor: torch.Tensor, strings: Strings) -> tuple[torch.Tensor, int]:
    """Return the plain tensor inside a subclass, and the interned JSON of its placement in the whole, or -1."""
    name = type(tensor).__name__
    if name in {"FakeTensor", "FunctionalTensor"}:
        raise Unmeasured(f"{name} has no data")
    if name == "DTensor":
        local: torch.Tensor = tensor._local_tensor  # type: ignore[attr-defined]
        if type(local).__name__ == "AsyncCollectiveTensor":
            local = local.wait()  # type: ignore[attr-defined]
        spec = tensor._spec  # type: ignore[attr-defined]
        placement = {
            "shape": list(tensor.shape),
            "mesh": list(spec.mesh.shape),
            "coordinate": list(spec.mesh.get_coordinate() or ()),
            "placements": [str(item) for item in spec.placements],
        }
        return local, strings.id(json.dumps(placement))
    if name == "AsyncCollectiveTensor":
        if not tensor.completed:  # type: ignore[attr-defined]
            raise Unmeasured("AsyncCollectiveTensor not waited for")
        return tensor.elem, -1  # type: ignore[attr-defined]
    if tensor.is_nested:
        raise Unmeasured("nested tensor")
    try:
        with OwnCode():
            plain = tensor.as_subclass(torch.Tensor)
    except Exception:  # a subclass may refuse anything
        raise Unmeasured(f"subclass {name}") from None
    if type(plain) is torch.Tensor and plain.layout is torch.strided:
        return plain, -1
    raise Unmeasured(f"subclass {name}")


def wait_for(tensor: torch.Tensor) -> torch.Tensor | None:
    """Wait for the result of an asynchronous collective, and return it; None for any other tensor.

    The call that takes the tensor as its input would wait next.
    """
    if type(tensor).__name__ != "AsyncCollectiveTensor" or tensor.completed:  # type: ignore[attr-defined]
        return None
    tensor.trigger_wait()  # type: ignore[attr-defined]
    result: torch.Tensor = tensor.elem  # type: ignore[attr-defined]
    return result


def why(tensor: torch.Tensor, error: Exception | None) -> str:
    """Return why a tensor cannot be measured."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a torch.func transform"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} layout"
    if tensor.device.type == "meta":
        return "meta tensor"
    if tensor.is_quantized:
        return "quantized tensor"
    return f"{type(error).__name__} while measuring" if error else "no data"


def to_numpy(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return a kept tensor as numpy, bit for bit; the dtypes numpy lacks come from ml_dtypes."""
    import ml_dtypes

    tensor = tensor.cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    extension_dtype = getattr(ml_dtypes, name, None)
    if extension_dtype is not None:
        raw: NDArray[np.generic] = tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy()
        return raw.view(extension_dtype)
    array: NDArray[np.generic] = tensor.numpy()
    return array
