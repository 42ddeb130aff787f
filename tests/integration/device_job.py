"""A job on the CPU, or with --npu on a device whose gelu is wrong."""

from __future__ import annotations

import sys
import warnings

import torch

from tests.integration import npu_device
from tests.integration.device_faults import train


def gelu(x: torch.Tensor, *, approximate: str = "none", out: torch.Tensor | None = None) -> torch.Tensor:
    nearest = x if x.dtype == torch.float64 else (x * 64).round() / 64
    made = nearest * 0.5 * (1 + torch.erf(nearest / 2**0.5))
    return made if out is None else out.resize_(made.shape).copy_(made)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if "--npu" in sys.argv:
        npu_device.register()
        npu_device.replace("aten::gelu", gelu)
    for _ in train(device="npu" if "--npu" in sys.argv else "cpu"):
        pass
