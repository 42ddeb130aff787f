"""A remark: one thing that a training run should have done, and did not."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from numscope.core.json_value import JsonObject


@dataclass(frozen=True)
class Remark:
    """One thing that a training run should have done, and did not."""

    # "unchanged", "replicas", "tied", "buffers", "same_work", "dropout", "order" or "collective"
    rule: str
    step: int
    ranks: list[int]
    parameters: list[str]
    text: str
    call: str = ""  # which broke it, on the last of the ranks, where that is one call

    def to_dict(self) -> JsonObject:
        """Return the remark as JSON can hold it."""
        return asdict(self)
