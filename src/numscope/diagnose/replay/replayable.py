"""A computation that can be replayed in another precision: a subgraph of calls, or a whole module."""

from __future__ import annotations

from typing import Protocol

import torch

from numscope.diagnose.recorded.step_graph import RecordedCall, StepGraph
from numscope.diagnose.replay.calls import Values


class Replayable(Protocol):
    """A computation of one run, from recorded inputs to one output."""

    @property
    def graph(self) -> StepGraph: ...
    @property
    def calls(self) -> tuple[RecordedCall, ...]: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def output(self) -> int: ...
    def run(self, values: Values | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Compute the output again."""
        ...
