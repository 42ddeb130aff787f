"""The source texts that a run keeps."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from numscope.capture.source_texts import source_texts

TEXT = '''"""A model."""

EPS = 1e-6
NAME = "long text"


class Base:
    eps = EPS


class Model(Base):
    token = "abcdef"  # a secret
    width = 4


def unused():
    return 1


def main():
    return Model()
'''


def module(tmp_path: Path, text: str = TEXT) -> ModuleType:
    path = tmp_path / "model_of_sources.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("model_of_sources", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["model_of_sources"] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def test_definitions_of_frames_and_of_classes_with_what_they_extend_are_kept_and_nothing_else(tmp_path: Path) -> None:
    loaded = module(tmp_path)
    frame = {"file": loaded.__file__, "line": 21, "function": "main", "code": "return Model()"}
    found = source_texts([frame], [loaded.Model])
    assert [one["line"] for one in found] == [3, 7, 11, 20]
    assert found[3]["text"] == "def main():\n    return Model()\n"


def test_a_line_that_gives_a_secret_a_value_is_left_out(tmp_path: Path) -> None:
    texts = "".join(one["text"] for one in source_texts([], [module(tmp_path).Model]))
    assert "width = 4" in texts
    assert "abcdef" not in texts


def test_a_file_that_cannot_be_read_or_parsed_gives_nothing(tmp_path: Path) -> None:
    gone = {"file": str(tmp_path / "gone.py"), "line": 3, "function": "f", "code": ""}
    broken = tmp_path / "broken.py"
    broken.write_text("def f(:\n")
    assert source_texts([gone, {**gone, "file": str(broken), "line": 1}], []) == []
