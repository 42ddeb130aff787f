"""The page of `numscope weights`: from a server and as one file, the model's tree in colours, and what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numscope as ns
from numscope.__main__ import main
from numscope.report.weights import write_weights_html
from numscope.view.app import Viewer
from numscope.weights.pair import Pair, Weights
from tests.e2e.browser import serving, until
from tests.integration.weight_conversions import random_numbers

LAYERS = 4


def original() -> dict[str, Any]:
    tensors = {"model.embed_tokens.weight": random_numbers((64, 32), 90)}
    for layer in range(LAYERS):
        here = f"model.layers.{layer}"
        for number, name in enumerate(("q", "k", "v", "o")):
            tensors[f"{here}.self_attn.{name}_proj.weight"] = random_numbers((32, 32), 10 * layer + number)
        tensors[f"{here}.mlp.up_proj.weight"] = random_numbers((96, 32), 10 * layer + 5)
        tensors[f"{here}.input_layernorm.weight"] = random_numbers((32,), 10 * layer + 6)
    return tensors


def converted() -> dict[str, Any]:
    """Query, key and value fused, one matrix swapped with another's, one tensor lost, one too many."""
    tensors = original()
    for layer in range(LAYERS):
        here = f"model.layers.{layer}.self_attn"
        parts = [tensors.pop(f"{here}.{name}_proj.weight") for name in "qkv"]
        tensors[f"{here}.qkv_proj.weight"] = np.concatenate(parts)
    first, second = (f"model.layers.{layer}.self_attn.o_proj.weight" for layer in (1, 2))
    tensors[first], tensors[second] = tensors[second], tensors[first]
    del tensors["model.layers.3.mlp.up_proj.weight"]
    return tensors | {"value_head.weight": random_numbers((7, 5), 99)}


@pytest.fixture(scope="module")
def answer() -> Weights:
    return ns.weights(converted(), original())


@pytest.fixture(scope="module")
def shown(answer: Weights) -> Iterator[str]:
    with serving(Viewer(document=answer.to_dict())) as access:
        yield access.url


def test_the_page_says_what_is_wrong_and_the_tree_is_open_there(go: Any, shown: str) -> None:
    page = go(shown, "")
    page.wait_for_selector("[data-testid=tree]")
    assert "not the same weights" in page.inner_text("[data-testid=verdict] h1")
    assert "swapped with model.layers.2.self_attn.o_proj.weight" in page.inner_text("[data-testid=verdict]")
    assert page.locator("[data-testid=wrong] .list > div").count() == 2
    tree = page.inner_text("[data-testid=tree]")
    assert "o_proj.weight" in tree
    assert "up_proj.weight" in tree  # the missing one
    assert "value_head.weight" in tree
    page.click("[data-testid=wrong] .linked >> nth=0")
    page.wait_for_selector("[data-testid=about]")
    about = page.inner_text("[data-testid=about]")
    assert "float32 [32, 32]" in about
    assert "take it from model.layers.2.self_attn.o_proj.weight of A" in about
    page.reload()
    page.wait_for_selector("[data-testid=about]")  # the address says what is shown


def test_the_map_is_coloured_by_verdict_relation_and_error(go: Any, shown: str) -> None:
    page = go(shown, "")
    page.wait_for_selector("[data-testid=map]")
    assert page.locator("[data-testid=map] .cell").count() == 6 * LAYERS
    assert page.locator("[data-testid=map] .cell.v-origin").count() == 2
    assert page.locator("[data-testid=map] .cell.v-unmatched").count() == 1
    page.click("text=relation")
    until(page, "() => document.querySelectorAll('[data-testid=map] .cell.r-split').length === 12")
    assert "split" in page.inner_text("[data-testid=legend]")
    page.click(".segments >> text=error")
    until(page, "() => document.querySelectorAll('[data-testid=map] .cell.e-4').length === 2")
    page.click("[data-testid=map] .cell.e-4 >> nth=0")
    page.wait_for_selector("[data-testid=about] >> text=model.layers.1.self_attn.o_proj.weight")


def test_the_tree_is_searched_by_either_sides_names(go: Any, shown: str) -> None:
    page = go(shown, "")
    page.get_by_label("Name").fill("2.self_attn.qkv")
    until(page, "() => document.querySelectorAll('[role=treeitem]').length > 0")
    names = page.locator("[role=treeitem] .name").all_inner_texts()
    assert [name.strip() for name in names if "weight" in name] == ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
    page.get_by_label("Name").fill("")
    page.click(".chip >> text=missing")
    until(page, "() => document.querySelectorAll('[role=treeitem]').length < 6")
    assert "up_proj.weight" in page.inner_text("[data-testid=tree]")


def test_the_page_is_chinese_too(go: Any, shown: str) -> None:
    page = go(shown, "")
    page.wait_for_selector("[data-testid=tree]")
    page.click("text=zh")
    page.wait_for_selector("text=两套权重不同")
    assert "互换" in page.inner_text("[data-testid=wrong]")
    assert "swapped" not in page.inner_text("main")


def test_the_page_fits_a_narrow_window(page: Any, shown: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(shown)
    page.wait_for_selector("[data-testid=tree]")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_one_file_shows_the_same_without_a_request(page: Any, answer: Weights, tmp_path: Path) -> None:
    write_weights_html(answer, tmp_path / "answer.html")
    page.goto((tmp_path / "answer.html").as_uri())
    page.wait_for_selector("[data-testid=tree]")
    assert "not the same weights" in page.inner_text("[data-testid=verdict] h1")
    assert page.locator("[data-testid=cap]").count() == 0


def test_names_cannot_become_code(page: Any, tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    pair = Pair((nasty,), (nasty,), "equal", 1.0, "diverged", nasty, "values", (nasty,), nasty)
    write_weights_html(Weights("a", nasty, (pair,), (nasty + "2",), ()), tmp_path / "answer.html")
    page.goto((tmp_path / "answer.html").as_uri())
    page.wait_for_selector("[data-testid=tree]")
    assert page.locator("script").count() == 2  # the data and the program
    assert page.locator("img").count() == 0


def test_a_file_of_many_pairs_holds_those_that_matter(page: Any, tmp_path: Path) -> None:
    names = [f"model.layers.{layer}.experts.{expert}.up.weight" for layer in range(60) for expert in range(250)]
    pairs = [Pair((name,), (name,), "equal", 0.0, "identical", "the same bits", None, ("x" * 400,)) for name in names]
    pairs[7000] = Pair(("wrong",), (names[7000],), "equal", 1.0, "diverged", "the values differ", "values")
    file = tmp_path / "answer.html"
    write_weights_html(Weights("a", "b", tuple(pairs), (), ()), file)
    assert file.stat().st_size < 5_000_000
    page.goto(file.as_uri())
    page.wait_for_selector("[data-testid=cap]")
    assert names[7000] in page.inner_text("[data-testid=wrong]")


@contextmanager
def command(*words: str) -> Iterator[str]:
    """Run a command that serves; give its address."""
    environment = os.environ | {"BROWSER": "true", "NUMSCOPE_LANG": "en"}
    environment.pop("DISPLAY", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "numscope", *words], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        yield next(line.split()[-1] for line in process.stdout if "http://" in line)
    finally:
        process.terminate()
        process.communicate()


def test_the_commands_open_the_page(go: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **converted())
    np.savez(tmp_path / "b.npz", **original())
    sides = str(tmp_path / "a.npz"), str(tmp_path / "b.npz")
    with command("weights", *sides, "--view") as address:
        go(address, "").wait_for_selector("[data-testid=tree]")
    report = tmp_path / "answer.json"
    assert main(["weights", *sides, "--json", str(report), "--html", str(tmp_path / "x.html")]) == 1
    assert (tmp_path / "x.html").stat().st_size > 100_000
    with command("view", str(report), "--no-open") as address:
        go(address, "").wait_for_selector("[data-testid=tree]")


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"format": "numscope.report/1"}), None])
def test_what_is_no_answer_is_refused_in_one_line(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    assert main(["view", str(file), "--no-open"]) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert "numscope weights --json" in told
