"""Comparisons in parts: the same answer as in one piece, and memory that does not grow with the ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.many_ranks import Fault, write_pair
from numscope.__main__ import main
from numscope.compare.comparison import Comparison, compare, compare_part, merge_parts
from numscope.compare.parts.rows import Key, Rows
from numscope.compare.parts.shares import Share
from numscope.core.errors import RunError
from numscope.core.report import plain
from numscope.store.reader import open_run
from numscope.view.jobs import Choice, open_runs
from tests.integration.test_compare import Net, train

SCHEMA = pa.schema([("pair", pa.int32()), ("word", pa.string())])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("template") / "run", Net(), steps=1)


class Pair:
    """Two runs, and how many places they have."""

    def __init__(self, target: Path, reference: Path) -> None:
        self.target, self.reference = target, reference


@pytest.fixture(scope="module")
def pairs(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Runs of several layouts: many ranks of one, one process, ranks that one side alone has, and joined ranks."""
    path = tmp_path_factory.mktemp("pairs")
    write_pair(open_run(template), path / "many", ranks=5, steps=4)
    wrong = Net()
    wrong.blocks[1].norm.eps = 1e-3
    one = Pair(train(path / "wrong", wrong, steps=2), train(path / "right", Net(), steps=2))
    found = {"many": Pair(path / "many" / "target", path / "many" / "reference"), "one": one}
    shutil.copytree(path / "many", path / "fewer")
    shutil.rmtree(path / "fewer" / "target" / "rank3")
    found["fewer"] = Pair(path / "fewer" / "target", path / "fewer" / "reference")
    return found


def merged(pair: Pair, of: int, out: Path) -> Comparison:
    paths = [compare_part(pair.target, pair.reference, Share(number, of), out).path for number in range(1, of + 1)]
    return merge_parts(pair.target, pair.reference, paths[::-1])


def same(one: Comparison, other: Comparison) -> None:
    assert json.dumps(plain(one.report.to_dict())) == json.dumps(plain(other.report.to_dict()))
    assert one.calls.equals(other.calls)
    assert one.pairs.equals(other.pairs)


@pytest.mark.parametrize("layout", ["many", "one", "fewer"])
@pytest.mark.parametrize("of", [1, 2, 7])
def test_the_answer_of_all_parts_is_that_of_one_piece(
    layout: str, of: int, pairs: dict[str, Pair], tmp_path: Path
) -> None:
    pair = pairs[layout]
    same(merged(pair, of, tmp_path), compare(pair.target, pair.reference))


def test_a_fault_of_one_rank_of_many_is_named(template: Path, tmp_path: Path) -> None:
    fault = write_pair(open_run(template), tmp_path, ranks=5, steps=4)
    found = compare(tmp_path / "target", tmp_path / "reference")
    assert found.origin is not None
    assert Fault(found.origin.rank, found.origin.step, found.origin.call) == fault


def test_tables_in_files_are_those_in_memory(
    pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    near = compare(pairs["many"].target, pairs["many"].reference)
    from numscope.compare.parts import rows

    monkeypatch.setattr(rows.Rows.__init__, "__defaults__", (0, *(rows.Rows.__init__.__defaults__ or ())[1:]))
    far = compare(pairs["many"].target, pairs["many"].reference)
    assert far.pair_rows._files
    same(far, near)
    assert pa.concat_tables(far.pair_rows.batches()).equals(near.pairs)


def test_parts_on_the_command_line(pairs: dict[str, Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(pairs["many"].target), str(pairs["many"].reference)]
    parts = str(tmp_path / "parts")
    for number in (1, 2, 3):
        assert main(["compare", *runs, "--part", f"{number}/3", "--out", parts]) == 0
    assert "part 3 of 3: 4 steps of 1 ranks" in capsys.readouterr().out
    for wrong, told in (
        (["--part", "1/3"], "a part is"),
        (["--part", "0/3", "--out", parts], "from 1 to N"),
        (["--part", "1/3", "--out", parts, "--json"], "a part has no report"),
        (["--merge", parts, "--ungrafted", runs[0]], "in one piece"),
    ):
        assert main(["compare", *runs, *wrong]) == 2
        assert told in capsys.readouterr().err
    assert main(["compare", *runs, "--merge", parts, "--json", str(tmp_path / "merged.json")]) == 1
    whole = capsys.readouterr().out
    assert main(["compare", *runs, "--json", str(tmp_path / "one.json")]) == 1
    assert capsys.readouterr().out == whole
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "one.json").read_bytes()


def test_the_viewer_opens_some_ranks_and_steps_of_many(pairs: dict[str, Pair]) -> None:
    choice = Choice(str(pairs["many"].target), str(pairs["many"].reference), steps=(2,), ranks=(1, 2))
    heat = open_runs(choice)(lambda _: None).heat()
    assert (heat["steps"], heat["ranks"]) == ([2], [1, 2])


def test_parts_that_do_not_belong_together_are_refused_in_one_line(pairs: dict[str, Pair], tmp_path: Path) -> None:
    pair = pairs["many"]
    runs = pair.target, pair.reference
    first = compare_part(*runs, Share(1, 2), tmp_path).path
    with pytest.raises(RunError, match="of 2 parts 2 is missing"):
        merge_parts(*runs, [first])
    second = compare_part(*runs, Share(2, 2), tmp_path, steps=[0]).path
    with pytest.raises(RunError, match="a part of another comparison"):
        merge_parts(*runs, [first, second])
    with pytest.raises(RunError, match="is no part of a comparison"):
        merge_parts(*runs, [tmp_path / "nothing"])
    one, other = (compare_part(*runs, Share(n, 2), tmp_path / "0", steps=[0]).path for n in (1, 2))
    with pytest.raises(RunError, match="a part of another comparison"):
        merge_parts(*runs, [one, other])
    shutil.copytree(pair.target, tmp_path / "longer")
    shutil.rmtree(tmp_path / "longer" / "rank4")
    with pytest.raises(RunError, match="not of what the runs hold now"):
        merge_parts(tmp_path / "longer", pair.reference, [compare_part(*runs, Share(1, 1), tmp_path / "1").path])
    second = compare_part(*runs, Share(2, 2), tmp_path).path
    with pytest.raises(RunError, match="given twice"):
        merge_parts(*runs, [first, second, second / ".." / second.name])
    (second / "part.json").write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        merge_parts(*runs, [first, second])


@settings(max_examples=40, deadline=None)
@given(
    st.permutations([(step, rank) for step in range(3) for rank in range(3)]),
    st.lists(st.integers(0, 20_000), min_size=9, max_size=9),
    st.sampled_from([0, 1000, 1 << 30]),
    st.integers(0, 9),
)
def test_rows_come_in_the_order_of_their_places_however_they_were_added(
    order: list[tuple[int, int]], counts: list[int], in_memory: int, first: int
) -> None:
    """`first` of the places are added to other rows, whose files are attached."""
    tables = {
        key: pa.table([list(range(count)), [f"{key}{n % 3}" for n in range(count)]], schema=SCHEMA)
        for key, count in zip(sorted(order), counts)
    }
    elsewhere, rows = Rows(SCHEMA, in_memory), Rows(SCHEMA, in_memory, moved=("pair",))
    for place, key in enumerate(order):
        (elsewhere if place < first else rows).add(tables[key], Key(*key))
    elsewhere.end(to_files=True)
    rows.attach(elsewhere.parts)
    rows.end()
    begins = rows.begins()
    rows.end(begins)
    expected = pa.concat_tables(tables[key] for key in sorted(tables))
    expected = expected.set_column(0, SCHEMA.field(0), pa.array(range(expected.num_rows), pa.int32()))
    assert rows.table().equals(expected)
    assert rows.take([expected.num_rows - 1, 0] if expected.num_rows else []).num_rows == (
        2 if expected.num_rows else 0
    )
    half = expected.num_rows // 2
    assert rows.slice(half, 30, ["word"]).equals(expected.slice(half, 30).select(["word"]))


_PEAK = """
import json, resource, sys
from numscope.compare.comparison import compare
found = compare(sys.argv[1], sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([peak, found.verdict, found.origin.rank if found.origin else None, found.call_rows.num_rows]))
"""


def test_memory_does_not_grow_with_the_ranks(template: Path, tmp_path: Path) -> None:
    peaks = {}
    for count in (16, 256):
        write_pair(open_run(template), tmp_path / str(count), ranks=count, steps=2)
        runs = [str(tmp_path / str(count) / side) for side in ("target", "reference")]
        done = subprocess.run([sys.executable, "-c", _PEAK, *runs], capture_output=True, text=True, check=True)
        peaks[count], verdict, rank, calls = json.loads(done.stdout)
        assert (verdict, rank, calls % count) == ("diverged", count // 2, 0)
    rest = peaks[256] - peaks[16] - (4 * 128 << 10)  # tables stay in memory up to a size, whatever they are of
    assert max(rest, 0) / 240 < 100  # kB a rank
