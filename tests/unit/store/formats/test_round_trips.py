"""A run that is exported and imported again has the same calls, slots, values and hashes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.core.errors import RunError, SettingsError
from numscope.store.formats.detect import open_dump
from numscope.store.formats.foreign import Dump, ForeignCall, ForeignStep, ForeignTensor, write_run


class Small(nn.Module):
    """Two linears, an activation, and a list argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.second = nn.Linear(4, 2, dtype=torch.float32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.cat([self.first(x), self.first(x)], dim=0)
        return torch.nn.functional.gelu(self.second(hidden), approximate="tanh")


def capture(path: Path, keep: str) -> ns.Run:  # type: ignore[name-defined]
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ns.capture(path, model, keep=keep, on_error="raise") as cap:
        for _ in range(2):
            model(torch.randn(3, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            cap.step()
    return ns.open_run(path)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    return capture(tmp_path_factory.mktemp("kept") / "run", "tensors")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    return capture(tmp_path_factory.mktemp("measured") / "run", "stats")


def slots(run: Any) -> dict[tuple[int, str], dict[str, Any]]:
    rows = run.tensors.drop_columns(["sketch"]).to_pylist()
    return {(row["step"], row["name"]): row for row in rows}


def export(run: Any, destination: Path, form: str) -> None:
    assert main(["export", str(run.path), str(destination), "--format", form]) == 0


def test_msprobe_tensors_come_back_bit_for_bit(kept: Any, tmp_path: Path) -> None:
    export(kept, tmp_path / "dump", "msprobe")
    assert main(["import", str(tmp_path / "dump"), str(tmp_path / "run")]) == 0
    before, after = slots(kept), slots(ns.open_run(tmp_path / "run"))
    wanted = {
        key: row
        for key, row in before.items()
        if not key[1].startswith(("Optimizer.", "Data.", "Module.Small.")) and ".buffers." not in key[1]
    }
    assert set(after) == set(wanted)
    for key, row in wanted.items():
        for column in ("dtype", "shape", "hash", "min", "max", "mean", "l2", "nan", "zero"):
            assert after[key][column] == row[column], (key, column)


def test_msprobe_files_have_its_layout(kept: Any, tmp_path: Path) -> None:
    export(kept, tmp_path / "dump", "msprobe")
    folder = tmp_path / "dump" / "step1" / "rank"
    content = json.loads((folder / "dump.json").read_text())
    assert {key: content[key] for key in ("task", "level", "framework")} == {
        "task": "tensor",
        "level": "mix",
        "framework": "pytorch",
    }
    linear = content["data"]["Functional.linear.0.forward"]
    assert list(linear) == ["input_args", "input_kwargs", "output"]
    assert (
        list(linear["output"][0])
        == """
        type dtype shape Max Min Mean Norm requires_grad data_name
        """.split()
    )
    stored = torch.load(folder / "dump_tensor_data" / linear["output"][0]["data_name"], weights_only=True)
    assert linear["output"][0]["Norm"] == pytest.approx(float(stored.double().norm()), rel=1e-6)
    assert linear["output"][0]["requires_grad"] is True
    assert linear["input_args"][0]["requires_grad"] is False
    assert content["data"]["Torch.cat.0.forward"]["input_args"][0][1]["shape"] == [3, 4]
    assert content["data"]["Torch.cat.0.forward"]["input_kwargs"] == {"dim": {"type": "int", "value": 0}}
    gradient = content["data"]["Module.first.Linear.parameters_grad.0"]["weight"][0]
    assert gradient["shape"] == [4, 6]
    assert list(content["data"]["Functional.gelu.0.backward"]) == ["input", "output"]
    construct = json.loads((folder / "construct.json").read_text())
    assert construct["Functional.linear.1.forward"] == "Module.first.Linear.forward.1"
    assert construct["Functional.gelu.0.forward"] is None
    names, frames = json.loads((folder / "stack.json").read_text())["0"]
    assert names
    assert frames[-1].startswith("File ")


def test_statistics_alone_leave_hash_and_sketch_unknown(measured: Any, tmp_path: Path) -> None:
    export(measured, tmp_path / "dump", "msprobe")
    assert not (tmp_path / "dump" / "step0" / "rank" / "dump_tensor_data").exists()
    assert main(["import", str(tmp_path / "dump"), str(tmp_path / "run")]) == 0
    run = ns.open_run(tmp_path / "run")
    row = slots(run)[0, "Functional.gelu.0.forward.output.0"]
    same = slots(measured)[0, "Functional.gelu.0.forward.output.0"]
    assert row["hash"] is None
    assert row["nan"] is None
    assert not row["kept"]
    assert run.tensors["sketch"].null_count == run.tensors.num_rows
    for column in ("min", "max", "mean", "l2"):
        assert row[column] == same[column]
    with pytest.raises(ns.NotKeptError):
        run.tensor("Functional.gelu.0.forward.output.0")


def test_arguments_and_sources_survive_msprobe(kept: Any, tmp_path: Path) -> None:
    export(kept, tmp_path / "dump", "msprobe")
    main(["import", str(tmp_path / "dump"), str(tmp_path / "run")])
    call = next(c for c in ns.open_run(tmp_path / "run").calls.to_pylist() if c["name"] == "Functional.gelu.0.forward")
    assert json.loads(call["arguments"]) == {"kwargs": {"approximate": "tanh"}}
    assert call["source_file"].endswith("test_round_trips.py")
    assert "gelu" in call["source_code"]


def test_ptdbg_round_trip_turns_backward_round_and_back(kept: Any, tmp_path: Path) -> None:
    export(kept, tmp_path / "dump", "ptdbg")
    lines = [json.loads(line) for line in (tmp_path / "dump" / "rank0" / "step0.pkl").read_text().splitlines()]
    gelu = next(line for line in lines if "gelu_backward_input" in line[0])
    assert len(gelu) == 6
    assert gelu[1:3] == [1, []]
    assert gelu[3] == "torch.float32"
    main(["import", str(tmp_path / "dump"), str(tmp_path / "run")])
    before, after = slots(kept), slots(ns.open_run(tmp_path / "run"))
    for name in (
        "Functional.gelu.0.backward.input.0",
        "Functional.gelu.0.backward.output.0",
        "Torch.cat.0.forward.input.0.1",
    ):
        assert after[0, name]["hash"] == before[0, name]["hash"]


def test_xor_checksums_are_no_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "md5": "0x80a3c8c180fa7a03"}
    call = {"input_args": [tensor, [{"type": "int", "value": 1}]], "input_kwargs": {}, "output": [tensor]}
    folder = tmp_path / "step0" / "rank"
    folder.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    (folder / "dump.json").write_text(json.dumps({**head, "data": {"Torch.roll.0.forward": call}}))
    assert main(["import", str(tmp_path), str(tmp_path / "run")]) == 0
    assert "xor" in capsys.readouterr().err
    run = ns.open_run(tmp_path / "run")
    assert run.tensors["hash"].null_count == run.tensors.num_rows == 2
    assert json.loads(run.calls["arguments"][0].as_py()) == {"args": {"1": [1]}}


def test_the_time_of_an_import_is_not_told_as_that_of_the_run(
    measured: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export(measured, tmp_path / "dump", "msprobe")
    main(["import", str(tmp_path / "dump"), str(tmp_path / "run")])
    manifest = ns.open_run(tmp_path / "run").manifest
    assert manifest["created"] is manifest["python"] is manifest["platform"] is None
    assert manifest["imported"]["at"]
    main(["show", str(tmp_path / "run")])
    said = capsys.readouterr().out
    assert "from a dump of msprobe" in said
    assert "captured" not in said
    assert "s each" not in said


def test_npy_round_trip(kept: Any, tmp_path: Path) -> None:
    export(kept, tmp_path / "dump", "npy")
    name = "Functional.gelu.0.forward.output.0"
    array = np.load(tmp_path / "dump" / "step1" / "rank0" / f"{name}.npy")
    np.testing.assert_array_equal(array, kept.tensor(name, step=1))
    main(["import", str(tmp_path / "dump"), str(tmp_path / "run")])
    assert slots(ns.open_run(tmp_path / "run"))[1, name]["hash"] == slots(kept)[1, name]["hash"]


def test_tables_as_csv_and_parquet(kept: Any, tmp_path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    export(kept, tmp_path / "csv", "csv")
    export(kept, tmp_path / "one.csv", "csv")
    export(kept, tmp_path / "pq", "parquet")
    assert pyarrow.csv.read_csv(tmp_path / "csv" / "tensors.csv").num_rows == kept.tensors.num_rows
    assert pyarrow.csv.read_csv(tmp_path / "one.csv").column_names[:5] == ["step", "rank", "call", "slot", "name"]
    assert pyarrow.parquet.read_table(tmp_path / "pq" / "calls.parquet").equals(kept.calls)


def test_non_finite_statistics_are_told_apart(tmp_path: Path) -> None:
    def tensor(high: float, low: float) -> ForeignTensor:
        return ForeignTensor("float32", (3,), min=low, max=high, mean=math.nan, l2=math.inf)

    calls = [ForeignCall("Torch.exp.0.forward", [("output.0", tensor(math.inf, 1.0))])]
    write_run(tmp_path / "run", Dump("test", [ForeignStep(0, 0, calls)]))
    row = slots(ns.open_run(tmp_path / "run"))[0, "Torch.exp.0.forward.output.0"]
    assert (row["posinf"], row["neginf"], row["nan"]) == (1, None, 1)
    assert row["max"] is None
    assert row["min"] == 1.0


def test_plain_folders(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    source = tmp_path / "source"
    (source / "step3" / "rank1").mkdir(parents=True)
    np.save(source / "step3" / "rank1" / "hidden.npy", np.arange(6.0).reshape(2, 3))
    torch.save({"a": torch.ones(2), "b": [torch.zeros(1)]}, source / "state.pt")
    save_file({"w": np.full((2, 2), 7, np.float16)}, source / "weights.safetensors")
    assert main(["import", str(source), str(tmp_path / "run")]) == 0
    run = ns.open_run(tmp_path / "run")
    np.testing.assert_array_equal(
        run.tensor("Save.hidden.0.forward.output.0", step=3, rank=1), np.arange(6.0).reshape(2, 3)
    )
    assert run.tensor("Save.state.a.0.forward.output.0").tolist() == [1.0, 1.0]
    assert run.tensor("Save.weights.w.0.forward.output.0").dtype == np.float16


def test_torch_npu_lines_are_read_in_both_forms(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    sampled = [*values.reshape(-1)[:10].tolist(), 1.0, -1.0, 0.0]
    for name, content in (("sampled", sampled), ("whole", values.reshape(-1).tolist())):
        lines = [
            ["0_Functional_relu_forward_input", content, "torch.float32", [3, 4]],
            ["1_Functional_relu_forward_output", content, "torch.float32", [3, 4]],
            ["2_Functional_relu_backward_input", content, "torch.float32", [3, 4]],
            ["3_Functional_relu_backward_output", content, "torch.float32", [3, 4]],
        ]
        file = tmp_path / f"{name}.pkl"
        file.write_text("\n".join(map(json.dumps, lines)))
        assert main(["import", str(file), str(tmp_path / name)]) == 0
        run = ns.open_run(tmp_path / name)
        assert run.calls["name"].to_pylist() == ["Functional.relu.0.forward", "Functional.relu.0.backward"]
        assert run.tensors["slot"].to_pylist() == ["input.0", "output.0", "output.0", "input.0"]
        row = slots(run)[0, "Functional.relu.0.forward.output.0"]
        assert row["kept"] is (name == "whole")
        assert row["sampled"] is (name == "sampled")
        assert row["max"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["import", "nowhere", "run"], "does not exist"),
        (["import", ".", "run", "--format", "nonsense"], "unknown format"),
        (["import", ".", "run"], "is not a dump of"),
        (["export", "nowhere", "dest", "--format", "msprobe"], "does not exist"),
        (["export", "nowhere", "dest", "--format", "word"], "there are msprobe"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_run_is_not_imported_and_nothing_is_overwritten(kept: Any, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="already"):
        open_dump(kept.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    assert main(["export", str(kept.path), str(tmp_path / "full"), "--format", "csv"]) == 2
    with pytest.raises(SettingsError):
        open_dump(tmp_path, "word")
