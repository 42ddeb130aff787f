"""The steps that are dumped, `schedule(begin, end, stride)`, and the counter that the user's loop advances."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class schedule:
    """The steps begin, begin + stride, … up to end, which is included."""

    begin: int = 0
    end: int = sys.maxsize
    stride: int = 1

    def __post_init__(self) -> None:
        if self.begin < 0 or self.end < 0 or self.stride <= 0 or self.begin > self.end:
            raise RuntimeError(
                f"schedule(begin={self.begin}, end={self.end}, stride={self.stride}): begin and end must be 0 or more, "
                "stride 1 or more, and begin not greater than end"
            )

    def wants(self, step: int) -> bool:
        """Tell whether a step is dumped."""
        return self.begin <= step <= self.end and (step - self.begin) % self.stride == 0


class _StepSchedule:
    """The number of the step that runs."""

    def __init__(self) -> None:
        self.step_num = 0

    def step(self) -> None:
        """Count a step that has ended."""
        self.step_num += 1

    def reset_step(self) -> None:
        """Begin to count anew, as at the start of an epoch."""
        self.step_num = 0


step_schedule = _StepSchedule()
