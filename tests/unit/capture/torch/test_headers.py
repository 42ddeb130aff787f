"""The C++ header of records is up to date with their Python definitions."""

from __future__ import annotations

from numscope.capture.torch.native import headers


def test_the_header_names_the_fields_of_pythons_definitions() -> None:
    written = headers.PATH.read_text(encoding="utf-8")
    assert written == headers.text(), "run python -m numscope.capture.torch.native.headers"
