"""The line of the user's code that made a call, for one rank of one run or for all of them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from numscope.compare.load.side import Ints
from numscope.core.report import Source
from numscope.store.reader import Run

RANK_STACKS = 1 << 32  # the stacks of a rank have this times its number added where all ranks are one step


class Sources:
    """Looks up the innermost frame of the user's own code of each stack."""

    def __init__(self, run: Run, rank: int) -> None:
        self._run, self._ranks = run, {rank: 0}

    @classmethod
    def of_all_ranks(cls, run: Run) -> Sources:
        """Return the sources of a step that is whole (layouts/)."""
        sources = cls(run, run.ranks[0])
        sources._ranks = {rank: rank * RANK_STACKS for rank in run.ranks}
        return sources

    @cached_property
    def _frames(self) -> dict[int, Source]:
        return {
            number + offset: source
            for rank, offset in self._ranks.items()
            for number, source in self._of_rank(rank).items()
        }

    def _of_rank(self, rank: int) -> dict[int, Source]:
        table = self._run.stacks(rank)
        sources: dict[int, Source] = {}
        for number, frames, user in zip(
            table["stack"].to_pylist(), table["frames"].to_pylist(), table["user"].to_pylist()
        ):
            if frames and user is not None and 0 <= user < len(frames):
                frame = frames[user]
                sources[number] = Source(
                    frame["file"], frame["line"] or 0, frame["function"] or "", frame["code"] or ""
                )
        return sources

    def of(self, stack: int) -> Source | None:
        """Return the user's innermost frame of a stack, or None where it has none."""
        return self._frames.get(int(stack))

    def columns(self, stacks: Ints) -> tuple[pa.Array, pa.Array]:
        """Return the file and line of each stack number."""
        distinct, inverse = np.unique(stacks, return_inverse=True)
        sources = [self._frames.get(int(number)) for number in distinct]
        files = pa.array([source.file if source else None for source in sources], pa.string())
        lines = pa.array([source.line if source else None for source in sources], pa.int32())
        return files.take(pa.array(inverse)), lines.take(pa.array(inverse))
