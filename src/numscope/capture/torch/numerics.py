"""The settings, libraries and chips that change a torch job's numbers, named as a user writes them.

{"settings": {"torch.backends.cuda.matmul.allow_tf32": False, "torch.get_default_dtype()": "float32", …},
 "versions": {"torch": "2.13.0", "cuda": "13.0", "cudnn": "9.19.0", "transformers": "5.22.2"},
 "hardware": {"cpu": "AVX2", "cuda:0": "NVIDIA H200"}}
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from operator import attrgetter

import torch

_EVERYWHERE = (
    "torch.get_default_dtype()",
    "torch.get_float32_matmul_precision()",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.is_deterministic_algorithms_warn_only_enabled()",
    "torch.backends.mha.get_fastpath_enabled()",
    "torch.backends.opt_einsum.enabled",
    "torch.backends.cuda.flash_sdp_enabled()",  # the CPU's attention obeys these, too
    "torch.backends.cuda.mem_efficient_sdp_enabled()",
    "torch.backends.cuda.math_sdp_enabled()",
    "torch.backends.fp32_precision",  # since torch 2.9, as all of this name; where they are set, allow_tf32 is unreadable
)
_OF_CPU = (
    "torch.get_num_threads()",
    "torch.backends.mkldnn.enabled",
    "torch.backends.mkldnn.deterministic",
    "torch.backends.mkldnn.fp32_precision",
    "torch.backends.mkldnn.matmul.fp32_precision",
    "torch.backends.mkldnn.conv.fp32_precision",
    "torch.backends.nnpack.enabled()",
)
_OF_CUDA = (
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "torch.backends.cuda.preferred_blas_library()",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cuda.cudnn_sdp_enabled()",
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()",
    "torch.backends.cudnn.enabled",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
)
# Device types that have an autocast, the CPU last.
_AUTOCAST = sorted(getattr(torch._C, "_autocast_supported_devices", lambda: ("cpu", "cuda"))(), key="cpu".__eq__)
# Packages with kernels or models of their own. They are asked only where the job has loaded them.
_PACKAGES = """
torch torch_npu numpy triton transformers diffusers accelerate peft trl deepspeed megatron.core transformer_engine
flash_attn xformers apex bitsandbytes torchao vllm liger_kernel lightning pytorch_lightning timm torchvision torchaudio
einops
""".split()


def collect(*, start_devices: bool = False) -> dict[str, dict[str, object]]:
    """Return the settings that are in force now, the versions and the chips.

    Settings of CUDA count only where the job has begun to use it, or where it is to be started to be asked.
    """
    if start_devices and torch.cuda.is_available():
        torch.cuda.init()
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    names = [*_EVERYWHERE, *_OF_CPU, *(_OF_CUDA if cuda else ())]
    settings: dict[str, object] = {name: value for name in names if (value := _read(name)) is not None}
    return {"settings": settings, "versions": _versions(cuda), "hardware": _hardware()}


def autocast_dtype() -> str:
    """Return the dtype that autocast casts to in this thread; that of the accelerator, if it is on for the CPU as well."""
    on = next(filter(None, map(autocast_of, _AUTOCAST)), None)
    return str(on).removeprefix("torch.") if on else ""


def autocast_of(kind: str) -> torch.dtype | None:
    """Return the dtype to which autocast casts on a kind of device, None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    short = "gpu" if kind == "cuda" else kind  # before torch 2.4, each kind has its own functions
    is_on = torch.is_autocast_enabled if kind == "cuda" else getattr(torch, f"is_autocast_{kind}_enabled", None)
    dtype = getattr(torch, f"get_autocast_{short}_dtype", None)
    return dtype() if is_on is not None and dtype is not None and is_on() else None


def _read(name: str) -> bool | int | float | str | None:
    """Return the value of a setting; None where this torch has none of that name, or refuses to tell it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a getter that is old names its successor
        try:
            value = attrgetter(name.removeprefix("torch.").removesuffix("()"))(torch)
            value = value() if name.endswith("()") else value
        except Exception:
            return None
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value).rpartition(".")[2]


def _versions(cuda: bool) -> dict[str, object]:
    versions: dict[str, object] = {}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version
    if cuda:
        cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
        built = {"cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None), "cudnn": cudnn}
        versions |= {name: str(version) for name, version in built.items() if version}
    return versions


def _hardware() -> dict[str, object]:
    """Return the chips in use: the CPU's vector instructions, and the name of each accelerator's current device."""
    capability: Callable[[], str] = torch.backends.cpu.get_cpu_capability
    hardware: dict[str, object] = {"cpu": capability()}
    for kind in ("cuda", "xpu", "npu", "mps"):
        backend = getattr(torch, kind, None)
        if backend is None or not getattr(backend, "is_initialized", bool)():
            continue
        try:
            hardware[f"{kind}:{backend.current_device()}"] = str(backend.get_device_name())
        except Exception:  # a device that is gone, or a backend that does not say
            hardware[kind] = kind
    return hardware
