"""Both forms of the exact measures: the compiled one, whatever the size, and numpy's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from numscope.compare.measure import exact, native


@pytest.fixture(scope="module", params=["compiled", "numpy"])
def both_forms(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "compiled" and native.load() is None:
        pytest.skip("needs a C compiler")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "compiled":
            patch.setattr(native, "LEAST", 1)
        else:
            patch.setattr(exact, "pair", lambda *_: None)
        yield request.param
