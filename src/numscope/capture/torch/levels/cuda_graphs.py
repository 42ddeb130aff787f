"""CUDA graphs: a replay runs kernels that were recorded before, and no hook, mode or version tells what they wrote."""

from __future__ import annotations

from typing import Any

import torch

from numscope.capture.torch.patching import replace
from numscope.capture.torch.thread import Undo
from numscope.capture.torch.watch import Watch


class Replays:
    """Sees that a CUDA graph is replayed."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def install(self) -> Undo:
        """Replace `CUDAGraph.replay`; return what puts it back."""
        graphs: Any = torch.cuda.CUDAGraph
        watch, plain = self._watch, graphs.replay

        def replay(graph: Any) -> None:
            plain(graph)
            watch.tensors.doubt_everything()

        return replace(graphs, "replay", replay)
