"""Installs releases side by side: a folder for each `name==version`, without its dependencies; torch stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.real.pair import Releases

ROOT = Path(__file__).parents[2]
_DONE = ".installed"
_METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"


class InstallError(Exception):
    """A release could not be installed; the message has the end of pip's output."""


def install(requirement: str, folder: Path) -> Path:
    """Return the folder of a release, installed if it is not yet; a half installed one is made again."""
    place = folder / requirement.replace("==", "-")
    if not (place / _DONE).exists():
        shutil.rmtree(place, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--target", str(place), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise InstallError(f"{requirement}: {done.stderr[-1000:]}")
        (place / _DONE).touch()
    return place


def say(requirements: Iterable[str], folder: Path) -> Path | None:
    """Return a folder whose metadata says that releases are there: an old release insists on one it does not need."""
    requirements = tuple(requirements)
    if not requirements:
        return None
    place = folder / f"said-{'-'.join(requirements).replace('==', '-')}"
    for requirement in requirements:
        name, _, version = requirement.partition("==")
        metadata = place / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(_METADATA.format(name=name, version=version), encoding="utf-8")
    return place


def environment(releases: Releases, side: str, folder: Path) -> dict[str, str]:
    """Return the environment of a side's job: its release before all others, and no network."""
    own = releases.bad if side == "bad" else releases.fixed
    places = [say(releases.said, folder), *(install(one, folder) for one in (own, *releases.beside))]
    path = [str(place) for place in places if place is not None] + [str(ROOT / "src"), str(ROOT)]
    settings = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "WANDB_DISABLED": "true",
    }
    return {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(path)}
