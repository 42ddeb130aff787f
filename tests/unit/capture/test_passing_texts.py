"""Names and arguments that are new in each call need no memory that grows with the job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import numscope as ns
from numscope.capture.recording import interned
from numscope.capture.recording.interned import Series, Strings

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interned, "MOST", 60)


def full() -> Strings:
    strings = Strings(passes=True)
    for number in range(60):
        strings.id(f"text {number}")
    return strings


def test_a_text_that_passes_has_a_number_that_gives_it_back() -> None:
    strings = full()
    number = strings.of_call("grün \ud800")
    known = strings.id("text 3")
    assert strings[number] == "grün \ud800"
    assert strings.of_call("text 3") == known
    plain = strings.of_call("a")
    assert strings.column(np.array([known, -1, plain], np.int32)).to_pylist() == ["text 3", None, "a"]


def test_texts_of_the_step_before_the_last_are_forgotten() -> None:
    strings = full()
    numbers = []
    for step in range(5):
        past = strings.begin_step()
        strings.forget(past)
        numbers.append(strings.of_call(f"step {step}"))
        assert strings[numbers[step]] == f"step {step}"
        if step:
            assert strings[numbers[step - 1]] == f"step {step - 1}"
    assert strings[numbers[0]] == ""
    assert len(strings._passing._bytes) == 2 * len("step 0")


def test_names_beyond_those_that_are_interned_are_the_same() -> None:
    strings = full()
    series = Series(strings, "Torch.add", "{head}.{n}.{phase}")
    assert [strings[series.name(number)] for number in range(3)] == [f"Torch.add.{n}.forward" for n in range(3)]
    assert strings[series.name(7, "backward")] == "Torch.add.7.backward"


@pytest.mark.parametrize("level", ["mix", "aten"])
def test_a_run_whose_texts_pass_is_the_run_whose_texts_are_interned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    def rows(most: int) -> list[dict[str, object]]:
        monkeypatch.setattr(interned, "MOST", most)
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        with ns.capture(tmp_path / f"run{most}", model, level=level, stacks=False, on_error="raise") as cap:
            for step in range(4):
                x = torch.ones(2, 3)
                for number in range(30):
                    x = x * (1 + number / 7 + step)
                torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
                cap.step()
        run = ns.open_run(tmp_path / f"run{most}")
        assert not run.faults()
        return run.calls.drop_columns(["thread"]).to_pylist()

    rows(1_000_000)  # a first checkpoint imports what the others find
    assert rows(90) == rows(100_000)


def test_a_step_of_many_calls_links_recomputed_calls_to_their_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numscope.capture.recording import recorder
    from numscope.capture.torch.autograd import recompute

    def links(loose: int) -> list[tuple[str, object]]:
        monkeypatch.setattr(recompute, "_LOOSE", loose)
        monkeypatch.setattr(recorder, "FLUSH_SLOTS", 10)
        torch.manual_seed(0)
        layers = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.GELU()) for _ in range(8))
        with ns.capture(tmp_path / f"run{loose}", layers, on_error="raise") as cap:
            x = torch.ones(2, 3, requires_grad=True)
            for layer in layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            x.sum().backward()
            cap.step()
        calls = ns.open_run(tmp_path / f"run{loose}").calls
        return [(row["name"], row["forward"]) for row in calls.to_pylist() if row["recompute"]]

    packed = links(10)
    assert len(packed) >= 16
    assert packed == links(1 << 30)
