"""The outputs of a comparison: one screen, strict JSON, and tables that any tool reads."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from numscope.compare.comparison import Comparison, compare
from numscope.compare.schema import PAIRS
from numscope.core.errors import SettingsError
from numscope.report.csv import write_csv
from numscope.report.files import check_output
from numscope.report.json import write_json
from numscope.report.parquet import write_parquet
from numscope.report.terminal.alignment import print_alignment
from numscope.report.terminal.comparison import print_comparison, text
from numscope.report.terminal.worst_pairs import groups
from numscope.report.xlsx import write_xlsx
from tests.unit.compare.test_judge import chain, softcapped


def spoil(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[0, 0] = np.nan
    x[1] *= np.float32(1.01)
    return x


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    path = tmp_path_factory.mktemp("runs")
    return compare(chain(spoil).write(path / "a", keep=True), chain().write(path / "b", keep=True))


def test_the_answer_is_the_first_line_and_fits_one_screen(diverged: Comparison) -> None:
    lines = text(diverged).splitlines()
    assert "DIVERGED" in lines[0]
    assert "Functional.gelu.0.forward" in lines[0]
    assert len(lines) <= 40
    assert max(len(line) for line in lines if not line.startswith("  next ")) <= 100  # a command stays one line
    assert not [line for line in lines if "…" in line]


def test_pairs_are_told_once_a_module_and_step(diverged: Comparison) -> None:
    shown = groups(diverged, most=100)
    assert len({(group.place, group.worst["verdict"]) for group in shown}) == len(shown)
    differing = [row for row in diverged.pairs.to_pylist() if row["verdict"] not in ("identical", None)]
    assert sum(group.count for group in shown) == len(differing)
    errors = [group.worst["relative_l2"] for group in shown]
    assert errors == sorted(errors, reverse=True)


def test_only_pairings_that_are_no_matter_of_course_are_listed(diverged: Comparison) -> None:
    stream = io.StringIO()
    print_alignment(diverged, stream)
    assert (
        stream.getvalue().strip() == f"{diverged.calls.num_rows} calls are paired with the same name at the same place"
    )


def test_there_is_colour_on_a_terminal_only(diverged: Comparison) -> None:
    plain, coloured = io.StringIO(), io.StringIO()
    print_comparison(diverged, plain)
    print_comparison(diverged, coloured, colour=True)
    assert "\x1b[" not in plain.getvalue()
    assert "\x1b[" in coloured.getvalue()


def test_only_and_top_choose_the_pairs(diverged: Comparison) -> None:
    stream = io.StringIO()
    print_comparison(diverged, stream, only="origin", top=3)
    rows = [line for line in stream.getvalue().splitlines() if line.startswith("  Functional")]
    assert [row.split()[0] for row in rows] == ["Functional.gelu.0.forward.output.0"]


def test_json_is_strict_and_has_the_contract_s_keys(diverged: Comparison, tmp_path: Path) -> None:
    write_json(diverged.report, tmp_path / "r.json")

    def refuse(name: str) -> None:
        raise ValueError(name)

    report = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert report["format"] == "numscope.report/1"
    assert {"verdict", "origin", "suspects", "prefix", "coverage", "counts"} <= set(report)
    assert report["origin"]["error"]["relative"] == "inf"
    assert report["suspects"][0] == report["origin"]
    keys = {"target", "reference", "matched", "unmatched_target", "unmatched_reference", "tensors", "skipped"}
    assert keys <= set(report["coverage"])
    assert set(report["counts"]) == {"identical", "equivalent", "origin", "inherited", "unmatched"}


def test_csv_and_parquet_have_all_columns_and_rows(diverged: Comparison, tmp_path: Path) -> None:
    write_csv(diverged.pairs, tmp_path / "p.csv")
    write_parquet(diverged.pairs, diverged.report, tmp_path / "p.parquet")
    from_csv = pyarrow.csv.read_csv(tmp_path / "p.csv")
    from_parquet = pyarrow.parquet.read_table(tmp_path / "p.parquet")
    assert from_csv.column_names == from_parquet.column_names == PAIRS.names
    assert from_csv.num_rows == from_parquet.num_rows == diverged.pairs.num_rows
    kept = json.loads(from_parquet.schema.metadata[b"numscope.report"])
    assert kept["verdict"] == "diverged"


def test_a_column_that_cannot_be_known_is_empty(tmp_path: Path) -> None:
    comparison = compare(chain(spoil).write(tmp_path / "a"), chain().write(tmp_path / "b"))
    rows = [row for row in comparison.pairs.to_pylist() if not row["bitwise_equal"]]
    assert rows
    assert all(row["estimated"] and row["max_abs_err"] is None and row["ulp_max"] is None for row in rows)
    assert all(row["relative_l2"] is not None for row in rows)


def test_xlsx_is_coloured_filtered_and_frozen(diverged: Comparison, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    write_xlsx(diverged, tmp_path / "r.xlsx")
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    assert book.sheetnames == ["answer", "pairs", "calls"]
    sheet = book["pairs"]
    assert sheet.freeze_panes == "A2"
    assert sheet.auto_filter.ref.startswith("A1:")
    assert [cell.value for cell in sheet[1]] == PAIRS.names
    colours = {sheet.cell(row, 1).fill.fgColor.rgb for row in range(2, sheet.max_row + 1)}
    assert len(colours) >= 2


def test_the_alignment_is_explained(tmp_path: Path) -> None:
    comparison = compare(softcapped(True).write(tmp_path / "a"), softcapped(False).write(tmp_path / "b"))
    stream = io.StringIO()
    print_alignment(comparison, stream)
    assert "Torch.tanh.0.forward  ↔  —  (no counterpart)" in stream.getvalue()
    assert "3 calls are paired with the same name at the same place" in stream.getvalue()


def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is a directory"):
        check_output(tmp_path)
    with pytest.raises(SettingsError, match="no directory"):
        check_output(tmp_path / "nowhere" / "r.json")


def test_no_cell_is_a_formula(diverged: Comparison, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    evil = '=HYPERLINK("http://evil","x")'
    rows = diverged.pairs
    rows = rows.set_column(
        rows.schema.get_field_index("target_name"), "target_name", pyarrow.array([evil] * rows.num_rows)
    )
    write_csv(rows, tmp_path / "pairs.csv")
    assert set(pyarrow.csv.read_csv(tmp_path / "pairs.csv")["target_name"].to_pylist()) == {f"'{evil}"}
    answer = dataclasses.replace(diverged, report=dataclasses.replace(diverged.report, reason=evil))
    write_xlsx(answer, tmp_path / "answer.xlsx")
    cells = [cell for row in openpyxl.load_workbook(tmp_path / "answer.xlsx")["answer"].iter_rows() for cell in row]
    assert evil in [cell.value for cell in cells]
    assert {cell.data_type for cell in cells} <= {"s", "n"}
