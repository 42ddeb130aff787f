from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import numscope as ns
from tests.integration.births import Struck


@pytest.fixture(params=[False, True], ids=["at once", "deferred"])
def struck(request: pytest.FixtureRequest) -> Struck:
    """Return what gives the origin that the guard names for a job: looked at on the spot, or read late as on a device."""

    def run(model: nn.Module | None, job: Callable[[], Any], record: Path, **settings: Any) -> dict[str, Any]:
        with (
            pytest.raises(ns.NonFiniteError) as caught,
            ns.guard(model, record=record, deferred=request.param, **settings),
        ):
            job()
        origin: dict[str, Any] = caught.value.origin
        assert str(record) in str(caught.value)
        return origin

    return run
