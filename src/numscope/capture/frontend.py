"""The base of every framework's front end: the methods that a capture calls, with an answer for what a framework may lack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

from numscope.capture.recording.recorder import Recorder
from numscope.core.job_files.layout import Layout
from numscope.core.job_files.program import Program
from numscope.core.json_value import JsonObject
from numscope.store.writer import RunWriter

OpenWriter: TypeAlias = Callable[[], RunWriter]


class Frontend(ABC):
    """Watches one framework's calls and feeds them to a recorder."""

    name: str
    recorder: Recorder

    @abstractmethod
    def start(self) -> None:
        """Begin to watch."""

    @abstractmethod
    def stop(self) -> None:
        """Undo everything that start did."""

    @abstractmethod
    def own_code(self) -> AbstractContextManager[object]:
        """Return a context for our own code, of which nothing is recorded."""

    @abstractmethod
    def new_step(self) -> None:
        """Forget what belongs to the step that ended."""

    @abstractmethod
    def end_forward(self) -> None:
        """Record no further forward call until stop."""

    @abstractmethod
    def save(self, name: str, value: object, grad: bool) -> None:
        """Record a value of the user's own."""

    @abstractmethod
    def before_next_call(self, work: Callable[[], None]) -> None:
        """Call `work` before the next call outside an optimizer is recorded."""

    @abstractmethod
    def tick(self, stepped: Callable[[object], None]) -> Callable[[], None]:
        """Call back after each optimizer's step, watched or not; return a function that ends this."""

    def complaint(self) -> str | None:
        """Return a complaint about the capture's settings, to show at its end; None where there is none."""
        return None

    def devices(self) -> list[str]:
        """Return the devices that the job uses, for the manifest."""
        return ["cpu"]

    def seeds(self) -> dict[str, int]:
        """Return the seeds of the framework's generators, for the manifest."""
        return {}

    def numerics(self) -> dict[str, dict[str, object]]:
        """Return the settings that change numbers, the libraries' versions and the chips, for the manifest."""
        return {"settings": {}, "versions": {}, "hardware": {}}

    def arrangement(self) -> JsonObject:
        """Return how the ranks of the job are arranged, for the manifest; here only their number is known."""
        return {}

    def description(self) -> Mapping[str, object] | None:
        """Return a description from which the captured modules can be built again; here none: calls are replayed alone."""
        return None

    def program(self) -> Program | None:
        """Return the source and the plain attributes of what runs; here none: no chain of causes is followed."""
        return None

    def layout(self) -> Layout | None:
        """Return how this rank's parameters lie in the whole ones; here nothing is declared."""
        return None

    def write_inside(self, folder: Path | None) -> None:
        """Write what was seen inside compiled regions into a rank's folder; here nothing is seen there."""
        return None

    def is_helper(self) -> bool:
        """Tell whether this process is no rank, but a data loader's worker."""
        return False
