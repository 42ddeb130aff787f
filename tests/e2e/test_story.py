"""The names of steps under the story of a long run: drawn on a canvas, where they must not run into each other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from numscope.view.session import Session
from tests.e2e import synthetic
from tests.e2e.browser import ready, serving, until

# Remembers what is written on a canvas, with its place and width.
SPY = """
window.written = [];
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    window.written.push({ text, x, y, width: this.measureText(text).width, align: this.textAlign });
    return write.apply(this, arguments);
};
"""
STEPS = "window.written.filter(one => /^(step )?\\d+( · .*)?$/.test(one.text) && /step|·/.test(one.text))"


@pytest.fixture(scope="module")
def long() -> Iterator[str]:
    calls, pairs, report = synthetic.comparison(12_000, steps=120, ranks=1)
    with serving(ready(Session.of_tables(calls, pairs, report))) as access:
        yield access.url


def test_steps_of_a_long_run_are_named_and_do_not_overlap(go: Any, page: Any, long: str) -> None:
    page.add_init_script(SPY)
    go(long, "story")
    until(page, f"() => {STEPS}.length > 5")
    drawn = page.evaluate(f"() => {STEPS}")
    names = sorted({(one["x"], one["width"], one["text"]) for one in drawn})  # drawn again where it was
    assert names[0][2].startswith("step 0")
    assert 5 < len(names) < 120  # as many as there is room for
    for (x, width, name), (following, _, other) in pairwise(names):
        assert x + width <= following, (name, other)
