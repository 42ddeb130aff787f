"""The pytest plugin with the fixture `numscope_capture`; it imports the rest of numscope only for tests that use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from numscope.capture.session import Capture


class Captures:
    """Captures into the test's own directory: `with numscope_capture("name", model): …`, then `.path("name")`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __call__(self, name: str, model: object = None, **settings: object) -> Capture:
        """Return a capture of `model` into the run `name`; the settings are those of `ns.capture`."""
        from numscope.capture.session import capture

        return capture(self.path(name), model, **settings)

    def path(self, name: str) -> Path:
        """Return where the run `name` of this test lies."""
        return self._directory / name


@pytest.fixture
def numscope_capture(tmp_path: Path) -> Captures:
    """Captures runs into the test's temporary directory."""
    return Captures(tmp_path / "numscope")
