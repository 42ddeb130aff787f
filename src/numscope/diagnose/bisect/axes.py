"""Axes of a bisection: how the reference's job is derived from the target's.

An axis gives the environment variables of the two jobs, and the change that is made in their processes before the script
runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from numscope.core.errors import SettingsError

if TYPE_CHECKING:
    import torch

AXES = ("compile", "device", "dtype", "threads", "deterministic", "env")


@dataclass(frozen=True)
class JobEnvironment:
    """The environment of one of the two jobs."""

    environment: dict[str, str] = field(default_factory=dict)
    install: str = ""  # the change that `install` makes in its processes
    words: str = ""
    inside: bool = False  # its compiled regions are looked into


def sides(axis: str) -> tuple[JobEnvironment, JobEnvironment]:
    """Return target's and reference's side of an axis: `threads`, `env NAME=A,B` …"""
    name, _, rest = axis.partition(" ")
    if name == "compile":
        return JobEnvironment(inside=True), JobEnvironment(
            {"TORCH_COMPILE_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1"}, words="without torch.compile"
        )
    if name == "device":
        return JobEnvironment(), JobEnvironment(
            {"CUDA_VISIBLE_DEVICES": "", "ASCEND_RT_VISIBLE_DEVICES": ""}, words="on the CPU"
        )
    if name == "dtype":
        return JobEnvironment(), JobEnvironment(install="float32", words="without autocast")
    if name == "threads":
        one = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return JobEnvironment(), JobEnvironment(one, install="one thread", words="on one thread")
    if name == "deterministic":
        fixed = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        return JobEnvironment(), JobEnvironment(fixed, install="deterministic", words="with deterministic algorithms")
    if name == "env":
        match = re.fullmatch(r"(\w+)=([^,]*),([^,]*)", rest.strip())
        if match is None:
            raise SettingsError(f"--axis {axis!r}: write env NAME=A,B, the target's value and the reference's")
        variable, here, there = match.groups()
        return JobEnvironment({variable: here}, words=f"{variable}={here}"), JobEnvironment(
            {variable: there}, words=f"{variable}={there}"
        )
    raise SettingsError(f"there is no axis {name!r}: there are {', '.join(AXES)}")


def install(order: dict[str, str]) -> None:
    """Make an axis's change in this process; called when the framework has been loaded."""
    import torch

    change = order["install"]
    if change == "one thread":
        torch.set_num_threads(1)
    elif change == "deterministic":
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    elif change == "float32":
        _without_autocast(torch.autocast)


def _without_autocast(autocast: type[torch.autocast]) -> None:
    """Turn off every autocast of this process."""
    original: Callable[..., None] = autocast.__init__

    def __init__(self: torch.autocast, *args: object, **kwargs: object) -> None:
        original(self, *args, **{**kwargs, "enabled": False})

    autocast.__init__ = __init__  # type: ignore[method-assign]
