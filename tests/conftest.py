"""The set-up that all tests share: subprocesses see this tree's source, and nobody takes more than one thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

SOURCE = str(Path(__file__).parent.parent / "src")


@pytest.fixture(autouse=True, scope="session")
def _source_for_subprocesses() -> None:
    paths = [SOURCE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["NUMSCOPE_LANG"] = "en"  # whatever the machine speaks
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
