"""Writes a comparison as an Excel workbook: the answer, the pairs coloured by verdict with filters set, and the calls."""

from __future__ import annotations

import io
import math
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from numscope.compare.comparison import Comparison
from numscope.core.errors import MissingExtraError
from numscope.report.files import output

if TYPE_CHECKING:
    from xlsxwriter import Workbook
    from xlsxwriter.format import Format
    from xlsxwriter.worksheet import Worksheet

_FILL = {
    "identical": "#E3F4E3",
    "equivalent": "#F1F9E8",
    "origin": "#F8C7C4",
    "inherited": "#FBE5C8",
    "unmatched": "#E6DDF3",
}
_MOST_ROWS = 1_000_000  # a sheet holds 1,048,576


def write_xlsx(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the workbook."""
    try:
        import xlsxwriter
    except ImportError as error:
        raise MissingExtraError("xlsxwriter", "compare --xlsx") from error
    memory = io.BytesIO()  # a workbook that fails to write a file raises again when it is garbage-collected
    with xlsxwriter.Workbook(memory, {"constant_memory": True, "nan_inf_to_errors": False}) as book:
        styles = {name: book.add_format({"bg_color": colour}) for name, colour in _FILL.items()}
        header = book.add_format({"bold": True, "bg_color": "#D9E1EA", "bottom": 1})
        _summary(book, comparison, header)
        _sheet(book, "pairs", comparison.pairs, styles, header)
        _sheet(book, "calls", comparison.calls, styles, header)
    with output(path) as target:
        target.write_bytes(memory.getvalue())  # a view of it, in a traceback, ends Python 3.12.1 when it is collected


def _summary(book: Workbook, comparison: Comparison, header: Format) -> None:
    sheet = book.add_worksheet("answer")
    sheet.set_column(0, 0, 18)
    sheet.set_column(1, 1, 120)
    report = comparison.report
    rows: list[tuple[str, object]] = [("verdict", report.verdict), ("reason", report.reason)]
    if report.origin:
        source = report.origin.source
        rows += [("origin", report.origin.call), ("module", report.origin.module), ("step", report.origin.step)]
        rows += [("source", f"{source.file}:{source.line}" if source else "")]
    rows += [("target", str(comparison.target.path)), ("reference", str(comparison.reference.path))]
    rows += [(f"calls: {name}", count) for name, count in report.counts.items()]
    rows += [(f"setting: {one['name']}", f"{one['target']} against {one['reference']}") for one in report.settings]
    rows += [(f"coverage: {name}", str(value)) for name, value in report.coverage.items()]
    for number, (label, value) in enumerate(rows):
        sheet.write(number, 0, label, header)
        _cell(sheet, number, 1, value, None)  # text stays text, whatever it begins with


def _sheet(book: Workbook, name: str, table: pa.Table, styles: dict[str, Format], header: Format) -> None:
    sheet = book.add_worksheet(name)
    columns = table.column_names
    sheet.freeze_panes(1, 0)
    for number, column in enumerate(columns):
        sheet.write_string(0, number, column, header)
        sheet.set_column(number, number, 44 if column.endswith("_name") else 14)
    rows = min(table.num_rows, _MOST_ROWS)
    sheet.autofilter(0, 0, max(rows, 1), len(columns) - 1)
    verdict_at = columns.index("verdict")
    number = 0
    for batch in table.slice(0, rows).to_batches():
        for values in zip(*(column.to_pylist() for column in batch.columns)):
            number += 1
            style = styles.get(values[verdict_at])
            for column_number, value in enumerate(values):
                _cell(sheet, number, column_number, value, style)


def _cell(sheet: Worksheet, row: int, column: int, value: object, style: Format | None) -> None:
    if value is None:
        sheet.write_blank(row, column, None, style)
    elif isinstance(value, bool):
        sheet.write_boolean(row, column, value, style)
    elif isinstance(value, (int, float)) and math.isfinite(value):
        sheet.write_number(row, column, value, style)
    else:
        sheet.write_string(row, column, str(value), style)
