"""Collects the manifest of a run: facts about the job that can tell why two runs differ before any tensor is compared.

Other people will read it: it has no host name, no user name, no variable outside the list below, and no secret.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from numscope.core.json_value import JsonObject
from numscope.store.git import repository_state
from numscope.store.schema import FORMAT

# Variables that can change a job's numbers, its speed, or which device and rank it ran on.
ENVIRONMENT = re.compile(
    r"""(CUDA|CUBLAS|CUDNN|NVIDIA|NCCL|GLOO|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|INDUCTOR|AOT|OMP|MKL|OPENBLAS|BLIS|DNNL|ONEDNN
        |ATEN|XLA|JAX|TF_(?:CPP|XLA|ENABLE|CUDNN|DETERMINISTIC)|FLAGS|PADDLE|GLOG|ASCEND|HCCL|NPU|ACL|HIP|ROCM|ROCR|MIOPEN|KMP|GOMP|NUMBA|DEEPSPEED|ACCELERATE)_\w+
      |PYTHONHASHSEED|OMP\w*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK|USE_FLASH_ATTENTION|NVTE_\w+""",
    re.VERBOSE,
)
_SECRET = re.compile(
    r"(^|[-_])(token|secrets?|passw(or)?d|passphrase|credentials?|auth|(api|access|private|secret)[-_]?key)($|[-_])",
    re.I,
)  # whole words: --tokenizer and --max-tokens are no secrets


def collect(
    *,
    framework: str = "",
    framework_version: str = "",
    devices: Sequence[str] = (),
    seeds: Mapping[str, int] | None = None,
    settings: Mapping[str, object] | None = None,
    numerics: Mapping[str, object] | None = None,
    world_size: int = 1,
    arrangement: Mapping[str, object] | None = None,
) -> JsonObject:
    """Return the manifest of a run that begins now, quickly and without raising."""
    script = _script()
    return {
        "format": FORMAT,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "numscope": _version("numscope"),
        "framework": framework,
        "framework_version": framework_version or _version(framework),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "cpus": os.cpu_count(),
        "devices": list(devices),
        "world_size": world_size,
        "arrangement": dict(arrangement or {}),
        "argv": _without_secrets(sys.argv),
        "script": _relative(script),
        "git": repository_state(script.parent if script else Path.cwd()),
        "environment": environment(os.environ),
        "seeds": dict(seeds or {}),
        "settings": dict(settings or {}),
        "numerics": dict(numerics or {}),
    }


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that ENVIRONMENT matches and whose names are not secret."""
    return {
        name: value for name, value in sorted(variables.items()) if ENVIRONMENT.fullmatch(name) and not is_secret(name)
    }


def is_secret(name: str) -> bool:
    """Tell whether the name of a variable, argument or attribute says that its value is secret."""
    return bool(_SECRET.search(name))


def _version(package: str) -> str:
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _script() -> Path | None:
    """Return the script that runs, or None where it is no file; `numscope run` sets sys.argv to the script's own."""
    for name in (sys.argv[0] if sys.argv else "", getattr(sys.modules.get("__main__"), "__file__", None)):
        if name and Path(name).is_file():
            return Path(name).absolute()
    return None


def _relative(script: Path | None) -> str:
    if script is None:
        return ""
    try:
        return str(script.relative_to(Path.cwd()))
    except ValueError:
        return script.name


def _without_secrets(argv: Sequence[str]) -> list[str]:
    """Return the arguments, with *** for values whose name says that they are secret."""
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret = name.startswith("-") and is_secret(name)
        if hide_next and not argument.startswith("-"):
            shown.append("***")
        elif secret and equals:
            shown.append(f"{name}=***")
        else:
            shown.append(argument)
        hide_next = secret and not equals
    return shown
