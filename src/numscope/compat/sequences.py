"""Pairs the operators of two dumps: those that only one side has are skipped, and where both agree again it goes on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher


def paired(target: Sequence[Hashable], reference: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the places of equal keys that a longest common run of blocks pairs, in order."""
    blocks = SequenceMatcher(None, target, reference, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
