"""Pairs the operators of two dumps, skipping those that only one side has."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher


def paired(target: Sequence[Hashable], reference: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the indices of equal keys in both, by the longest common blocks, in order."""
    blocks = SequenceMatcher(None, target, reference, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]
