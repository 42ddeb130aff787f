"""Two real gloo ranks, a fault between them, and what diagnose makes of it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import numscope as ns

REPAIRS = {
    "missing": "the all_reduce that is missing, Distributed.all_reduce.0.forward: the sum over 2 ranks (now missing",
    "doubled": "without the all_reduce Distributed.all_reduce.1.forward: the all_reduce done once (now twice",
    "sum_for_mean": "the mean over 2 ranks (now the sum: it is 2 times too large)",
    "mean_for_sum": "the sum over 2 ranks (now the mean: 2 times too small)",
    "times_n": "divided by the number of ranks, 2 (now 2 times too large)",
    "max_for_sum": "op=SUM (now MAX) in Distributed.all_reduce.0.forward",
    "concat_order": "the ranks' parts in the order 0, 1 (now 1, 0) along axis 0",
    "concat_axis": "the ranks' parts joined along axis 0 (now along axis 1)",
    "shards_permuted": "Tensor.chunk.0.forward.output.0 in this place (now Tensor.chunk.0.forward.output.1)",
    "other_shard": "shard 0 of the sum along axis 0 (now shard 1)",
    "not_gathered": "the all_gather that is missing, Distributed.all_gather.0.forward: the parts of 2 ranks",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("collective_faults.py")
    subprocess.run([sys.executable, str(script), str(port), str(out)], check=True)
    return out


@pytest.mark.parametrize("fault", list(REPAIRS))
def test_a_fault_between_ranks_is_named_with_its_repair(runs: Path, fault: str) -> None:
    origin = ns.diagnose(runs / fault / "target", runs / fault / "reference").origin
    assert origin is not None
    assert origin.mechanism == "semantic"
    assert REPAIRS[fault] in (origin.repair or "")


def test_a_collective_is_recorded_once_and_memory_it_has_yet_to_write_is_not_an_input(runs: Path) -> None:
    run = ns.open_run(runs / "concat_order" / "target")
    names = run.calls["name"].to_pylist()
    assert [name for name in names if "all_gather" in name] == ["Distributed.all_gather.0.forward"] * 2  # a rank each
    assert ns.compare(runs / "concat_order" / "target", runs / "concat_order" / "target").verdict == "identical"
