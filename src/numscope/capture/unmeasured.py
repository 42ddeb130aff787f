"""Why a tensor has no fingerprint."""

from __future__ import annotations


class Unmeasured(Exception):
    """This tensor cannot be measured; the message is the reason that the run will show."""
