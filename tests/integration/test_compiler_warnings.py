"""The C and C++ sources compile without a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from numscope.capture.torch import native as capture
from numscope.compare.measure import native as measures
from numscope.core.compiling import program
from numscope.fingerprint import native as fingerprint


@pytest.mark.skipif(capture.load() is None, reason="no C++ compiler here")
@pytest.mark.parametrize("sources", [capture, fingerprint, measures], ids=["capture", "fingerprint", "measures"])
def test_sources_compile_with_warnings_as_errors(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, *usual in (("CC", "cc", "gcc", "clang"), ("CXX", "c++", "g++", "clang++")):
        monkeypatch.setenv(variable, " ".join([*program(variable, *usual), "-Wall", "-Wextra", "-Werror"]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # so that nothing is taken from an earlier compilation
    sources.load.__wrapped__()
    assert list(tmp_path.rglob("*.so")), "the compiler warns about these sources"


def test_a_warning_fails_that_test(tmp_path: Path) -> None:
    """The flags that are used warn about what -Wall and -Wextra know."""
    from numscope.core import compiling

    source = tmp_path / "source.c"
    source.write_text("int numscope(int unused) { return 0; }\n")
    commands = [[*program("CC", "cc", "gcc", "clang"), *compiling._WARNINGS, "-Werror", "-shared", str(source)]]
    with pytest.raises(RuntimeError, match="unused"):
        compiling._compile(tmp_path / "library.so", commands, lambda path: None)
