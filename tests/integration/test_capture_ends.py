"""How a capture ends where the machine or the job does not let it end well."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch

import numscope as ns
from numscope.capture.sites import is_user
from numscope.core.errors import RunError, SettingsError
from numscope.store.writer import RunWriter
from tests.unit.store.batches import arrays_of, batch_of

FULL = """
import resource, signal, torch, warnings
import numscope as ns

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))  # a file that cannot grow, as on a full disk
model = torch.nn.Linear(64, 64)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    with ns.capture("run", model, keep="tensors") as cap:
        for _ in range(5):
            model(torch.randn(8, 64)).sum().backward()
            cap.step()
print([str(item.message).partition(":")[0] for item in told])
"""


def test_a_disk_that_is_full_is_told_once_and_the_job_goes_on(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(FULL)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['numscope stopped recording into run']\n", done.stdout


def test_a_job_whose_run_another_has_overwritten_leaves_that_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    model = torch.nn.Linear(4, 4)
    first = RunWriter(path, rank=0, manifest={})
    first.write(batch_of(0, arrays_of(0)))
    first.end_step(0, {})
    first.flush()
    with ns.capture(path, model, keep="tensors", overwrite=True) as cap:
        model(torch.randn(2, 4)).sum().backward()
        cap.step()
        first.write(batch_of(1, arrays_of(1)))
        with pytest.raises(
            RunError, match=r"run could not be written \(it was removed, or overwritten by another job\)"
        ):
            first.flush()
        with pytest.raises(RunError, match="overwritten by another job"):
            first.close()
    names = set(ns.open_run(path).calls["name"].to_pylist())
    assert "Functional.linear.0.forward" in names
    assert ns.compare(path, path).verdict == "identical"
    assert not list((path / "rank0").glob("*.arrows"))


def test_a_run_may_be_removed_once_its_capture_was_stopped(tmp_path: Path) -> None:
    cap = ns.capture(tmp_path / "run", None, on_error="raise")
    cap.start()
    torch.ones(2).exp()
    cap.stop()
    shutil.rmtree(tmp_path / "run")
    cap.close()


def test_what_is_typed_has_its_own_line() -> None:
    assert is_user("<stdin>")
    assert is_user("<ipython-input-3-0a1b2c>")
    assert not is_user("<frozen importlib._bootstrap>")
    assert not is_user("<eval_with_key>.0")


def test_a_script_on_stdin_has_its_lines_in_the_run(tmp_path: Path) -> None:
    job = "import torch\nimport numscope as ns\nwith ns.capture('run', None):\n    torch.ones(2).exp()\n"
    subprocess.run([sys.executable, "-"], input=job, text=True, cwd=tmp_path, check=True)
    calls = ns.open_run(tmp_path / "run").calls
    row = calls.filter(pc.equal(calls["name"], "Tensor.exp.0.forward")).to_pylist()[0]
    assert (row["source_file"], row["source_line"]) == ("<stdin>", 4)


def test_a_warning_of_capture_names_the_line_of_the_job(tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="the scope nowhere matched none") as told,
        ns.capture(tmp_path / "run", None, scope="nowhere"),
    ):
        torch.ones(2).exp()
    assert told[0].filename == __file__


@pytest.mark.parametrize("setting", [{"scope": 3}, {"tensors": 5}, {"exclude": 1.5}])
def test_a_pattern_that_is_none_is_a_settings_error(tmp_path: Path, setting: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="give a pattern, or a list of them"):
        ns.capture(tmp_path / "run", torch.nn.Linear(2, 2), **setting)


def test_a_path_that_is_not_in_utf8_is_told(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/l\xe4uft")
    for work in (lambda: ns.capture(path, torch.nn.Linear(2, 2)), lambda: ns.open_run(path)):
        with pytest.raises(RunError, match=r"l\\xe4uft is not in UTF-8: rename it"):
            work()


def test_steps_that_never_came_are_told(tmp_path: Path) -> None:
    says = r"nothing was recorded into .*run: steps='4-10:2', and 2 steps ran"
    with pytest.warns(UserWarning, match=says) as told, ns.capture(tmp_path / "run", None, steps="4-10:2") as cap:
        for _ in range(2):
            torch.ones(2).exp()
            cap.step()
    assert told[0].filename == __file__


def test_a_rank_that_the_job_does_not_have_is_told(tmp_path: Path) -> None:
    says = r"nothing was recorded into .*run: ranks=\[1\], and this job has rank 0 alone"
    with pytest.warns(UserWarning, match=says), ns.capture(tmp_path / "run", None, ranks=[1]):
        torch.ones(2).exp()


def test_a_job_that_goes_elsewhere_writes_its_run_where_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Linear(2, 2)
    with ns.capture("run", model, keep="tensors") as cap:
        for _ in range(2):
            monkeypatch.chdir(tmp_path / "elsewhere")
            model(torch.ones(1, 2)).sum().backward()
            cap.step()
            cap.stop()
            monkeypatch.chdir(tmp_path)
            cap.start()
    assert ns.open_run(tmp_path / "run").steps == [0, 1]
    assert (tmp_path / "run" / "rank0" / "modules.json").exists()
    guard = ns.guard(model, record="nan")
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ns.NonFiniteError), guard:
        torch.log(model(torch.ones(1, 2)) - 100)
    assert ns.open_run(tmp_path / "nan").ranks == [0]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_script_that_goes_elsewhere_before_it_loads_torch_is_recorded_where_it_was_asked_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "train.py").write_text("import os\nos.chdir('elsewhere')\nimport torch\ntorch.ones(2).exp()\n")
    command = [sys.executable, "-m", "numscope", "run", "--out", "run", "--", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ns.open_run(tmp_path / "run").steps == [0]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_second_process_that_takes_itself_for_the_same_rank_is_told_why(tmp_path: Path) -> None:
    says = r"another process of this job writes rank 0 of .*run: begin torch\.distributed"
    with RunWriter(tmp_path / "run", rank=0, manifest={"job": "one"}), pytest.raises(RunError, match=says):
        RunWriter(tmp_path / "run", rank=0, manifest={"job": "one"})


WORKERS = """
import torch
import torch.multiprocessing as mp

def work(number, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for data in torch.utils.data.DataLoader(torch.full((2, 3), float(number)), batch_size=1, num_workers=1):
        model(data).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    model = torch.nn.Linear(3, 1)
    mp.spawn(work, (model,), nprocs=2)
"""


def test_workers_without_a_process_group_are_a_rank_each_and_their_loaders_workers_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    command = [sys.executable, "-m", "numscope", "run", "--out", "run", "--", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    run = ns.open_run(tmp_path / "run")
    assert (run.ranks, run.steps) == ([0, 1], [0, 1])
    given = [row["mean"] for row in run.tensors.to_pylist() if row["name"] == "Data.Linear.0.input.output.0"]
    assert given == [0.0, 0.0, 1.0, 1.0]


def test_overwriting_a_run_leaves_the_ranks_of_the_same_job(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        RunWriter(tmp_path / "run", rank=rank, manifest={"job": "old"}).close()
    for rank in (1, 0):
        RunWriter(tmp_path / "run", rank=rank, manifest={"job": "new", "world_size": 1}, overwrite=True).close()
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir() if entry.is_dir()) == ["rank0", "rank1"]
