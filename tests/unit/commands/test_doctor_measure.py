"""A chip's own table of accuracy: written in a minute, used by the verdicts of runs on it, faults excepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from numscope.__main__ import main
from numscope.compare.judge.rounding import accuracy
from numscope.compare.judge.rounding.accuracy import Key, Row, measured, own_rows, tables, unmeasured_chips, write_rows
from numscope.compare.run_settings import accelerators, chips
from numscope.core.operators import Rounding

SILU, GELU = Key("silu", False, False), Key("gelu", False, False)
NPU = frozenset({"NPU 910"})


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    measured.cache_clear()
    yield
    measured.cache_clear()


def of_silu(where: frozenset[str]) -> float:
    return measured(where).of("silu", Rounding.LIPSCHITZ, False, False)


def write(*rows: Row) -> None:
    tables().mkdir(parents=True)
    with (tables() / "npu.csv").open("w") as file:
        write_rows(rows, "here", file)


def test_measure_writes_a_table_that_is_read_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert main(["doctor", "--measure", "--seconds", "0.1", "--json", str(tmp_path / "told.json")]) == 0
    told = json.loads((tmp_path / "told.json").read_text())["measured"]
    (table,) = tables().glob("*.csv")
    rows = list(accuracy.read_rows(table.read_text().splitlines(), "table"))
    assert len(rows) == told[0]["rows"]
    assert {row.chip for row in rows} == {told[0]["chip"]}
    assert all(np.isfinite(row.high) for row in rows)
    assert "units of roundoff" in capsys.readouterr().out
    assert main(["doctor", "--measure", "--seconds", "0"]) == 2


def test_a_chips_table_counts_for_runs_on_it_alone() -> None:
    usual = of_silu(frozenset())
    write(Row(SILU, "NPU 910", 12, 1.0, 3 * usual))
    assert of_silu(NPU) == pytest.approx(3 * usual, rel=0.01)
    assert of_silu(frozenset({"NVIDIA H200"})) == of_silu(frozenset()) == usual


def test_an_operator_that_is_a_fault_of_the_chip_is_granted_nothing() -> None:
    usual = of_silu(frozenset())
    write(Row(SILU, "NPU 910", 12, 400.0, 4000.0), Row(GELU, "NPU 910", 12, 0.5, 0.6))
    assert of_silu(NPU) == usual


def test_the_answer_says_which_chip_has_no_row() -> None:
    assert unmeasured_chips({"AVX512", "NPU 910"}) == ["NPU 910"]
    write(Row(SILU, "NPU 910", 12, 0.5, 0.6))
    assert unmeasured_chips({"AVX512", "NPU 910"}) == []
    assert {row.chip for row in own_rows()} == {"AVX512", "NVIDIA H200"}


def test_the_chips_of_a_run_are_those_of_the_devices_that_it_used() -> None:
    hardware = {"cpu": "AVX2", "npu:0": "NPU 910"}
    on_cpu = {"devices": ["cpu"], "numerics": {"hardware": hardware}}
    on_npu = {"devices": ["cpu", "npu:0"], "numerics": {"hardware": hardware}}
    assert chips(on_cpu) == {"AVX2"}
    assert chips(on_cpu, on_npu) == {"AVX2", "NPU 910"}
    assert accelerators(on_cpu, on_npu) == NPU
    assert not chips({})
