"""The one table of frameworks: the packages of each, and its class of models."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple


class Framework(NamedTuple):
    """A framework that can be captured."""

    name: str  # of its package
    model: str  # its class of models, in that package
    packages: tuple[str, ...]  # whose frames are not the user's

    def is_imported(self) -> bool:
        """Tell whether this process has imported it."""
        return self.name in sys.modules

    def has_made(self, models: Iterable[object]) -> bool:
        """Tell whether it is imported, and all of these models are its own."""
        package = sys.modules.get(self.name)
        return package is not None and all(isinstance(model, attrgetter(self.model)(package)) for model in models)


FRAMEWORKS = (
    Framework("torch", "nn.Module", ("torch", "torch_npu")),
    Framework("paddle", "nn.Layer", ("paddle",)),
)
NAMES = tuple(framework.name for framework in FRAMEWORKS)
PACKAGES = frozenset(package for framework in FRAMEWORKS for package in framework.packages)
