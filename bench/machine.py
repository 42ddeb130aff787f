"""The description of the machine of a figure: hardware, versions and date; no names and no paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import date
from pathlib import Path


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def about(**more: object) -> dict[str, object]:
    import numscope

    packages = ("torch", "numpy", "pyarrow", "triton")
    return {
        "date": date.today().isoformat(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numscope": numscope.__version__,
        **{package: version(package) for package in packages if version(package)},
        **more,
    }
