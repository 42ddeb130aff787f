"""An explanation: the mechanism of a suspect, the repair that proves it, and the figures that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from numscope.core.errors import NotKeptError
from numscope.core.report import Origin
from numscope.core.words import Mechanism
from numscope.diagnose.hypotheses.case import Fitted
from numscope.diagnose.replay.lift import Lift

KEEP_TENSORS = "capture with --keep tensors, or let `numscope bisect` keep what is needed"


@dataclass(frozen=True)
class Explanation:
    """The mechanism and repair of a suspect."""

    mechanism: Mechanism
    repair: str | None = None
    reason: str = ""  # replaces the comparison's reason, unless empty
    details: Mapping[str, object] = field(default_factory=dict)
    lift: Lift | None = None
    fitted: Fitted | None = None  # the repair, where a number in it was fitted, for another step

    @classmethod
    def could_not(cls, why: str | Exception) -> Explanation:
        """Return the explanation of a suspect that could not be explained."""
        return cls("unknown", details=obstacle(why))

    def on(self, origin: Origin) -> Origin:
        """Return the suspect with its mechanism and repair filled in.

        Where nothing could be replayed, what arguments and settings tell stays. A device that computes coarsely because
        the job set it so is no fault of the device: the setting, which the comparison found, stays.
        """
        is_known = self.mechanism == "device" and "setting" in origin.details
        is_known |= self.mechanism == "unknown" and "could_not" in self.details  # what the comparison knows stays
        return replace(
            origin,
            mechanism=origin.mechanism if is_known else self.mechanism,
            repair=origin.repair if is_known else self.repair,
            reason=self.reason or origin.reason,
            details={**origin.details, "diagnosis": dict(self.details)},
        )

    def with_details(self, details: Mapping[str, object]) -> Explanation:
        """Return the explanation with further details before its own."""
        return replace(self, details={**details, **self.details})


def needs_tensors(origin: Origin) -> bool:
    """Tell whether an origin was not explained because its tensors were not kept."""
    found = origin.details.get("diagnosis")
    return isinstance(found, dict) and "could_not" in found and "next" in found


def obstacle(why: str | Exception) -> dict[str, object]:
    """Return the details that say why something could not be done, with the cure where there is one."""
    cure = {"next": KEEP_TENSORS} if isinstance(why, NotKeptError) else {}
    return {"could_not": str(why), **cure}
