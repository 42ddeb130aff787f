"""Functions as statements, and what feeds a line of them."""

from __future__ import annotations

import textwrap

from numscope.compare.cause.sources import Definition, ProgramSources
from numscope.compare.cause.statements import conditions_around, feeding, statements


def function(text: str, line: int = 1) -> Definition:
    sources = ProgramSources(
        {
            "format": "numscope.program/1",
            "modules": {},
            "objects": [],
            "optimizers": [],
            "sources": [{"file": "/lib/model.py", "line": line, "text": textwrap.dedent(text)}],
            "packages": {},
        }
    )
    return next(sources.functions())


def texts(text: str) -> list[str]:
    return [one.text for one in statements(function(text))]


def test_annotations_comments_docstrings_and_line_breaks_are_no_difference():
    one = '''
    def f(x: int, rate: float = 0.5):
        """Does it."""
        y: int = (
            x + 1
        )
        return y
    '''
    other = """
    def f(x, rate=0.5):
        y = x + 1  # the next
        return y
    """
    assert texts(one) == texts(other)


def test_what_only_warns_logs_or_checks_is_left_out():
    text = """
    def f(x):
        if x is None:
            raise ValueError("none")
        if x > 3:
            logger.warning("large")
        assert x
        warnings.warn("old", DeprecationWarning)
        return x
    """
    assert texts(text) == ["def f(x)", "return x"]


def test_each_default_is_told_by_itself():
    assert "def f(rectify=True)" in texts("def f(x, *, rate=1e-3, rectify=True):\n    return x")


def test_the_names_that_feed_a_line_come_from_assignments_writes_in_place_and_conditions():
    text = """
    def f(self, x, other, unused):
        scale = self.scale * other
        state = self.state
        state.mul_(scale)
        dead = unused + 1
        if self.is_wide:
            return x / state
        return x
    """
    names = feeding(function(text), 8)
    assert {"x", "state", "scale", "self.scale", "other", "self.is_wide"} <= names
    assert not {"unused", "dead"} & names


def test_the_conditions_around_a_line_are_told_from_the_inside_and_with_the_files_lines():
    text = """
    def f(x, a, b):
        if a:
            for one in b:
                x = x + one
        return x
    """
    definition = function(text, line=101)
    assert [definition.code(test) for test in conditions_around(definition, 105)] == ["b", "a"]
    assert conditions_around(definition, 106) == []
