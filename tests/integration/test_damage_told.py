"""What commands say of a damaged run: the same as before, or that it is damaged; `make damage` does 200 of them."""

from __future__ import annotations

import os

import pytest

from tests.damage import damage


@pytest.mark.filterwarnings("ignore")
def test_no_damage_changes_what_is_said_in_silence() -> None:
    count = int(os.environ.get("DAMAGES", "30"))
    found, wrong = damage(count)
    assert not wrong
    assert found["named"] > 0.5 * count
