"""The chips of this machine, and the roundoff that its settings let products have."""

from __future__ import annotations

from functools import cache

import torch

_TF32, _BF16 = 2.0**-11, 2.0**-8
_ROUGH = {"tf32": _TF32, "bf16": _BF16}
_CONVOLUTIONS = ("convolution", "convolution_backward", "cudnn_convolution", "mkldnn_convolution")


class Machine:
    """Says what this machine computes with; asked anew in each step."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], float] = {}

    def new_step(self) -> None:
        """Forget the settings: the job may have changed them."""
        self._found.clear()

    def chip(self, device: str) -> str:
        """Return the name of a device's chip, as the table of limits has it."""
        return _chip(device)

    def roughness(self, operator: str, dtype: str, device: str) -> float:
        """Return the roundoff to which the settings let the operands of a product be rounded; 0: they don't."""
        if dtype != "float32":
            return 0.0
        key = device.partition(":")[0], operator in _CONVOLUTIONS
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _roughness(*key)
        return found


@cache
def _chip(device: str) -> str:
    kind = device.partition(":")[0]
    if kind == "cpu":
        return torch.backends.cpu.get_cpu_capability()
    backend = getattr(torch, kind, None)
    try:
        return str(backend.get_device_name(device)) if backend is not None else kind
    except Exception:  # a backend that does not say
        return kind


def _roughness(kind: str, convolves: bool) -> float:
    """Return the roundoff that the settings of a kind of device allow; a torch that has no such setting allows none."""
    backends = torch.backends
    part = ("conv" if convolves else "matmul") if kind == "cpu" or not convolves else "conv"
    owner = backends.mkldnn if kind == "cpu" else backends.cudnn if convolves else backends.cuda
    allowed = [getattr(getattr(owner, part, None), "fp32_precision", "")]
    allowed.append(getattr(owner, "fp32_precision", ""))
    if kind == "cuda":
        try:
            tf32 = backends.cudnn.allow_tf32 if convolves else backends.cuda.matmul.allow_tf32
            allowed.append("tf32" if tf32 else "")
        except RuntimeError:  # the newer settings are in use
            pass
    rough = [_ROUGH[name] for name in allowed if name in _ROUGH]
    if not convolves and torch.get_float32_matmul_precision() == "medium":
        rough.append(_BF16 if kind == "cpu" else _TF32)
    return max(rough, default=0.0)
