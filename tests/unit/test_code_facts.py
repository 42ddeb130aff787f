"""The measures of a source tree are those of its files: cycles through lazy imports, chains, Any, crowded folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.code_facts import FACTS, cycles, longest_chain, read


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A package of five modules: a → b → c ⇄ d."""
    files = {
        "pack/__init__.py": "",
        "pack/a.py": "from typing import Any\nimport pack.b\n\ndef f(x: Any, *rest: list[Any]) -> Any: ...\n",
        "pack/b.py": "from pack import c\n\nvalue = [1, 2][1] + {0: 1}[0]\n",
        "pack/c.py": "def f():\n    from pack.d import g\n    return g\n",
        "pack/d.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import pack.c\n",
        "pack/fast.cpp": "int main() {\n}\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_cycle_through_a_lazy_import_and_one_for_types_is_found(source: Path) -> None:
    imports = read(source).imports
    assert cycles(imports) == [{"pack.c", "pack.d"}]
    assert cycles({**imports, "pack.d": set()}) == []


def test_a_chain_is_counted_in_modules_and_a_cycle_does_not_prolong_it(source: Path) -> None:
    imports = read(source).imports
    assert longest_chain(imports) == 3
    assert longest_chain({**imports, "pack.d": set()}) == 4


def test_facts_are_counted(source: Path) -> None:
    tree = read(source)
    found = {name: fact(tree) for name, fact in FACTS.items()}
    assert found["modules"] == 5
    assert found["lines of C and C++"] == 2
    assert found["modules in the largest folder"] == "4 (pack)"
    assert found["parameters typed `Any`"] == 2
    assert found["subscripts by a number from 1 on"] == 1
    assert found["modules in an import cycle"] == 2
