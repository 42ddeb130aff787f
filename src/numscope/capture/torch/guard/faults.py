"""A fault of the guard's own never stops a job; its findings do."""

from __future__ import annotations

from numscope.capture.torch.watch import Watch
from numscope.core.errors import NonFiniteError

_FINDINGS = (NonFiniteError, Warning)  # a finding is a Warning where the user has made errors of warnings


class GuardWatch(Watch):
    """Counts faults of the guard's own code, but raises its findings."""

    __slots__ = ()

    def fault(self, where: str, error: Exception) -> None:
        """Raise a finding; count anything else, which is left out."""
        if isinstance(error, _FINDINGS):
            raise error
        super().fault(where, error)
