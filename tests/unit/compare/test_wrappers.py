"""Module paths without the parts that wrappers add, where that is unambiguous."""

from __future__ import annotations

import pytest

from numscope.compare.load.wrappers import normalise


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (["", "module", "module.up"], ["", "", "up"]),
        (["", "_orig_mod", "_orig_mod.blocks.0"], ["", "", "blocks.0"]),
        (["", "module", "module._orig_mod.up"], ["", "", "up"]),
        (["", "_fsdp_wrapped_module.blocks.0._checkpoint_wrapped_module.up"], ["", "blocks.0.up"]),
        (["", "base_model", "base_model.model", "base_model.model.up"], ["", "", "", "up"]),
        (["", "module", "other"], ["", "module", "other"]),
        (["", "up", "down"], ["", "up", "down"]),
    ],
)
def test_paths(given: list[str], plain: list[str]) -> None:
    found = normalise(given)
    assert [found[path] for path in given] == plain
