"""ptdbg_ascend's document, its examples run here: files, names, sampling, columns, errors; values by numpy."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import numscope as ns
from numscope.__main__ import main
from numscope.compat.ptdbg_ascend import (
    acc_cmp_dump,
    compare,
    compare_distributed,
    overflow_check,
    parse,
    register_hook,
    seed_all,
    set_dump_path,
    set_dump_switch,
)
from numscope.compat.ptdbg_ascend import dump as implementation


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(40, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).permute(1, 0)


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    implementation._at_exit()
    monkeypatch.undo()
    implementation._state = implementation._State()


def train(model: nn.Module, scale: float = 1.0) -> None:
    torch.manual_seed(1)
    (model(torch.randn(40, 40)) * scale).sum().backward()


def dump(name: str, *, dump_step: int = 1, scale: float = 1.0, **switch: Any) -> tuple[list[Any], Path | None]:
    """The document's first scene, on the CPU."""
    seed_all()
    set_dump_path(f"./{name}.pkl")
    model = Net()
    register_hook(model, acc_cmp_dump, dump_step=dump_step)
    set_dump_switch("ON", **switch)
    train(model, scale)
    set_dump_switch("OFF")
    train(model)  # after OFF nothing is dumped
    lines = [json.loads(line) for line in Path(f"{name}.pkl").read_text().splitlines()]
    folders = [p for p in Path().iterdir() if p.is_dir() and re.fullmatch(rf"{name}_\d{{8}}_\d{{6}}", p.name)]
    return lines, max(folders, default=None)


def test_a_whole_network_dump_has_names_statistics_and_data() -> None:
    lines, folder = dump("npu_dump")
    assert folder is not None
    names = [line[0] for line in lines]
    assert names[:3] == [f"0_Functional_linear_forward_input.{i}" for i in range(3)]
    assert "0_Functional_linear_forward_output" in names
    assert "1_Torch_relu_forward_output" in names
    assert "2_Tensor_permute_forward_output" in names
    backward = [name for name in names if "_backward_" in name]
    assert any(re.fullmatch(r"\d+_Torch_relu_backward_input\.0", name) for name in backward)
    assert not any("stack_info" in name for name in names)
    assert {f"{name}.npy" for name in names} == {file.name for file in folder.iterdir()}
    torch.manual_seed(1)
    data = torch.randn(40, 40).numpy()
    name, step, empty, dtype, shape, (high, low, mean) = lines[0]
    assert (step, empty, dtype, shape) == (1, [], "torch.float32", [40, 40])
    assert (high, low) == (float(data.max()), float(data.min()))
    assert mean == pytest.approx(data.astype(np.float64).mean(), abs=1e-12)
    np.testing.assert_array_equal(np.load(folder / f"{name}.npy"), data.reshape(-1))


def test_numbers_count_calls_forward_and_backward_alike() -> None:
    lines, _ = dump("npu_dump")
    calls = list(dict.fromkeys(re.match(r"(\d+)_(.+?)_(?:input|output)", line[0]).groups() for line in lines))
    assert [int(number) for number, _ in calls] == list(range(len(calls)))


def test_backward_input_is_the_gradient_of_the_inputs() -> None:
    lines, folder = dump("npu_dump")
    assert folder is not None
    gradient_out = next(line for line in lines if "Functional_linear_backward_input.1" in line[0])
    gradient_in = next(line for line in lines if "Functional_linear_backward_output.0" in line[0])
    torch.manual_seed(1234)
    x = next(np.load(folder / f"{line[0]}.npy") for line in lines if "linear_forward_input.0" in line[0])
    incoming = np.load(folder / f"{gradient_in[0]}.npy").reshape(40, 40)
    weight = np.load(folder / f"{gradient_out[0]}.npy").reshape(40, 40)
    np.testing.assert_allclose(weight, incoming.T @ x.reshape(40, 40), rtol=1e-4, atol=1e-4)


def test_sampling_keeps_both_ends_and_every_second_of_the_middle() -> None:
    lines, folder = dump("npu_dump", dump_step=2)
    assert folder is not None
    torch.manual_seed(1)
    flat = torch.randn(40, 40).numpy().reshape(-1)
    kept = np.load(folder / f"{lines[0][0]}.npy")
    assert kept.shape == (1056,)
    np.testing.assert_array_equal(kept, np.concatenate([flat[:256], flat[256:-256:2], flat[-256:]]))
    assert lines[0][1] == 2
    assert lines[0][5][0] == float(flat.max())
    bias = next(line for line in lines if line[0] == "0_Functional_linear_forward_input.2")
    assert np.load(folder / f"{bias[0]}.npy").shape == (40,)


@pytest.mark.parametrize(("mode", "scope"), [(2, ["1_Torch_relu", "2_Tensor_permute"]), ("list", ["1_Torch_relu"])])
def test_a_list_dumps_those_calls_and_their_stacks(mode: Any, scope: list[str]) -> None:
    lines, _ = dump("npu_dump", mode=mode, scope=scope)
    assert {re.match(r"\d+_[A-Za-z]+_[a-z]+", line[0])[0] for line in lines} == set(scope)
    name, frames = lines[0]
    assert name == "1_Torch_relu_forward_stack_info"
    file, number, function, code = frames[0]
    assert (Path(file).name, function, code) == (
        "test_ptdbg_ascend.py",
        "forward",
        "return torch.relu(self.linear(x)).permute(1, 0)",
    )
    assert isinstance(number, int)


def test_a_range_includes_both_ends() -> None:
    lines, _ = dump("npu_dump", mode=3, scope=["0_Functional_linear", "1_Torch_relu_forward"])
    assert {int(line[0].partition("_")[0]) for line in lines} == {0, 1}


def test_stack_mode_writes_stacks_alone() -> None:
    lines, folder = dump("npu_dump", mode=4, scope=["0_Functional_linear", "2_Tensor_permute_forward"])
    assert [line[0] for line in lines] == [
        "0_Functional_linear_forward_stack_info",
        "1_Torch_relu_forward_stack_info",
        "2_Tensor_permute_forward_stack_info",
    ]
    assert folder is None


def test_api_list_of_later_releases_goes_by_operator() -> None:
    lines, _ = dump("npu_dump", mode="api_list", scope=["relu"])
    assert lines
    assert all("Torch_relu" in line[0] for line in lines)


def test_a_scope_that_matches_nothing_is_a_warning_with_the_nearest_names() -> None:
    set_dump_path("./npu_dump.pkl")
    model = Net()
    register_hook(model, acc_cmp_dump)
    set_dump_switch("ON", mode=2, scope=["7_Torch_relux"])
    train(model)
    with pytest.warns(UserWarning, match="1_Torch_relu"):
        set_dump_switch("OFF")
    assert not Path("npu_dump.pkl").exists()


def test_parse_prints_the_stack_and_the_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    dump("npu_dump", mode=2, scope=["1_Torch_relu"])
    parse("./npu_dump.pkl", "1_Torch_relu")
    out = capsys.readouterr().out
    assert 'File "' in out
    assert "in forward" in out
    assert out.index("Trace back") < out.index("Statistic Info")
    for word in ("1_Torch_relu_forward_input.0", "torch.float32", "[40, 40]", "max: ", "min: ", "mean: "):
        assert word in out


def test_compare_writes_the_documented_columns() -> None:
    _, npu = dump("npu_dump", dump_step=2)
    _, gpu = dump("gpu_dump", dump_step=2, scale=1.5)
    Path("output").mkdir()
    param = {
        "npu_pkl_path": "./npu_dump.pkl",
        "bench_pkl_path": "./gpu_dump.pkl",
        "npu_dump_data_dir": str(npu),
        "bench_dump_data_dir": str(gpu),
    }
    compare(param, "./output", True)
    (file,) = Path("output").iterdir()
    assert re.fullmatch(r"compare_result_\d{14}\.csv", file.name)
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert ", ".join(rows[0]) == (
        "NPU Name, Bench Name, NPU Tensor Dtype, Bench Tensor Dtype, NPU Tensor Shape, Bench Tensor Shape, "
        "Cosine, RMSE, MAPE, MaxAbsErr, MaxRelativeErr, NPU max, NPU min, NPU mean, Bench max, Bench min, "
        "Bench mean, Err_message"
    )
    assert float(rows[0]["Cosine"]) == 1.0
    assert float(rows[0]["RMSE"]) == 0.0
    row = next(row for row in rows if "linear_backward_input.1" in row["NPU Name"])
    a = np.load(f"{npu}/{row['NPU Name']}.npy").astype(np.float64)
    b = np.load(f"{gpu}/{row['Bench Name']}.npy").astype(np.float64)
    assert float(row["Cosine"]) == pytest.approx(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b), abs=1e-12)
    assert float(row["RMSE"]) == pytest.approx(np.sqrt(np.mean((a - b) ** 2)))
    assert float(row["MAPE"]) == pytest.approx(np.mean(np.abs(a - b)[b != 0] / np.abs(b[b != 0])))
    assert float(row["MaxAbsErr"]) == pytest.approx(np.abs(a - b).max())
    assert float(row["NPU max"]) != float(row["Bench max"])


def test_arguments_by_name_are_dumped_parsed_compared_and_imported(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.BatchNorm1d(3)
    folders = []
    for name in ("npu_dump", "gpu_dump"):
        set_dump_path(f"./{name}.pkl")
        register_hook(model, acc_cmp_dump)
        set_dump_switch("ON")
        model(torch.randn(4, 3)).sum().backward()
        set_dump_switch("OFF")
        folders.append(str(next(path for path in Path().iterdir() if path.is_dir() and path.name.startswith(name))))
    parse("./npu_dump.pkl", "1_Functional_batch_norm_forward")
    assert "1_Functional_batch_norm_forward_input.weight" in capsys.readouterr().out
    keys = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")
    Path("output").mkdir()
    compare(dict(zip(keys, ("npu_dump.pkl", "gpu_dump.pkl", *folders))), "output")
    (file,) = Path("output").iterdir()
    with file.open(newline="") as stream:
        names = [row["NPU Name"] for row in csv.DictReader(stream)]
    assert "1_Functional_batch_norm_forward_input.weight" in names
    main(["import", "npu_dump.pkl", "run"])
    assert "Functional.batch_norm.0.forward.kwargs.weight" in ns.open_run("run").tensors["name"].to_pylist()


def test_a_second_dump_and_comparison_in_the_same_second_replace_nothing() -> None:
    folders = [dump("npu_dump")[1] for _ in range(2)]
    assert folders[0] != folders[1]
    keys = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")
    Path("output").mkdir()
    for _ in range(2):
        compare(dict(zip(keys, ("npu_dump.pkl", "npu_dump.pkl", str(folders[0]), str(folders[1])))), "output")
    assert len(list(Path("output").iterdir())) == 2


def test_operators_have_the_names_of_the_document() -> None:
    set_dump_path("./npu_dump.pkl")
    register_hook(Net(), acc_cmp_dump)
    set_dump_switch("ON", mode=4)
    x = torch.randn(2, 2)
    abs(-x.abs().neg())
    set_dump_switch("OFF")
    lines = [json.loads(line)[0] for line in Path("npu_dump.pkl").read_text().splitlines()]
    assert lines == [f"{n}_Tensor_{op}_forward_stack_info" for n, op in enumerate(("abs", "neg", "neg", "abs"))]


def test_compare_skips_operators_that_only_one_side_has() -> None:
    def write(name: str, ops: list[str]) -> None:
        Path(name).mkdir()
        with Path(f"{name}.pkl").open("w") as stream:
            for number, op in enumerate(ops):
                full = f"{number}_Torch_{op}_forward_output"
                np.save(f"{name}/{full}.npy", np.ones(3, np.float32))
                stream.write(json.dumps([full, 1, [], "torch.float32", [3], [1.0, 1.0, 1.0]]) + "\n")

    write("npu", ["exp", "npu_fused", "npu_other", "sin", "cos"])
    write("gpu", ["exp", "mul", "sin", "cos"])
    Path("output").mkdir()
    keys = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")
    compare(dict(zip(keys, ("npu.pkl", "gpu.pkl", "npu", "gpu"))), "output")
    (file,) = Path("output").iterdir()
    with file.open(newline="") as stream:
        pairs = [(row["NPU Name"], row["Bench Name"]) for row in csv.DictReader(stream)]
    assert [a for a, _ in pairs] == [f"{n}_Torch_{op}_forward_output" for n, op in ((0, "exp"), (3, "sin"), (4, "cos"))]


def test_compare_distributed_pairs_ranks() -> None:
    for side in ("npu", "gpu"):
        for rank in (0, 1):
            folder = Path(side) / f"rank{rank}"
            (folder / "dump_20230104_134340").mkdir(parents=True)
            np.save(folder / "dump_20230104_134340" / "0_Torch_exp_forward_output.npy", np.ones(2, np.float32))
            record = ["0_Torch_exp_forward_output", 1, [], "torch.float32", [2], [1, 1, 1]]
            (folder / "dump.pkl").write_text(json.dumps(record) + "\n")
    Path("output").mkdir()
    compare_distributed("npu", "gpu", "output")
    assert len(list(Path("output").glob("compare_result_rank*.csv"))) == 2


class Overflowing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        big = torch.exp(x * 100)  # infinity is born here
        return big * 2 + torch.log(x - x)  # inherited, then born again


def test_overflow_check_stops_at_the_wanted_overflow() -> None:
    model = Overflowing()
    register_hook(model, overflow_check, overflow_nums=2)
    with pytest.raises(ValueError, match="Torch_log_forward"):
        model(torch.ones(3))
    files = sorted(Path().glob("Overflow_info_*.pkl"))
    assert len(files) == 2
    record = json.loads(files[0].read_text().splitlines()[-1])
    assert "Torch_exp_forward_output" in record[0]
    assert record[3:] == ["torch.float32", [3], []]
    assert np.isinf(np.load(files[0].with_suffix("") / f"{record[0]}.npy")).all()
    assert model(torch.ones(3)).isnan().all()  # the watch has ended, nothing is patched any more


def test_a_mask_of_infinities_is_no_overflow() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x.masked_fill(x > 0, float("-inf")), -1)

    model = Masked()
    register_hook(model, overflow_check)
    model(torch.tensor([1.0, -1.0]))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: set_dump_path("./nowhere/x.pkl"), "does not exist"),
        (lambda: set_dump_path("."), "folder"),
        (lambda: register_hook(Net(), acc_cmp_dump, dump_step=0), "1 to 100"),
        (lambda: register_hook(Net(), acc_cmp_dump, dump_step=101), "1 to 100"),
        (lambda: register_hook(Net(), overflow_check, overflow_nums=0), "from 1 on"),
        (lambda: register_hook(Net(), print), "acc_cmp_dump"),
        (lambda: register_hook("model", acc_cmp_dump), "nn.Module"),
        (lambda: set_dump_switch("YES"), "'ON' or 'OFF'"),
        (lambda: set_dump_switch("ON", mode=5), "mode=5"),
        (lambda: set_dump_switch("ON", mode=2), "needs a scope"),
        (lambda: set_dump_switch("ON", mode=3, scope=["1_Torch_relu"]), "exactly two"),
        (lambda: set_dump_switch("ON", mode=3, scope=["9_Torch_a", "1_Torch_b"]), "greater"),
        (lambda: set_dump_switch("ON", mode=4, scope=["1_a", "2_b", "3_c"]), "none, one or two"),
        (lambda: set_dump_switch("ON"), "set_dump_path"),
        (lambda: parse("nowhere.pkl", "1"), "does not exist"),
        (lambda: compare({}, "."), "missing"),
        (lambda: acc_cmp_dump(), "register_hook"),
    ],
)
def test_bad_input_says_what_is_wrong(act: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        act()


def test_an_existing_file_is_replaced_and_the_numbering_begins_anew() -> None:
    dump("npu_dump")
    lines, _ = dump("npu_dump")
    assert lines[0][0].startswith("0_")
    assert len([line for line in lines if line[0].startswith("0_")]) == 4


def test_shape_flag_pairs_operators_of_other_dtypes(tmp_path: Path) -> None:
    for side, dtype in (("npu", "torch.float16"), ("cpu", "torch.float32")):
        (tmp_path / side).mkdir()
        np.save(tmp_path / side / "0_Torch_norm_forward_output.npy", np.ones((2, 3), np.float32))
        line = ["0_Torch_norm_forward_output", 1, [], dtype, [2, 3], [1.0, 1.0, 1.0]]
        (tmp_path / f"{side}.pkl").write_text(json.dumps(line) + "\n")
    paths = {
        "npu_pkl_path": str(tmp_path / "npu.pkl"),
        "bench_pkl_path": str(tmp_path / "cpu.pkl"),
        "npu_dump_data_dir": str(tmp_path / "npu"),
        "bench_dump_data_dir": str(tmp_path / "cpu"),
    }
    compare(paths, str(tmp_path), shape_flag=True)
    (file,) = tmp_path.glob("compare_result_*.csv")
    (row,) = csv.DictReader(file.read_text().splitlines())
    assert (row["NPU Tensor Dtype"], row["Bench Tensor Dtype"], float(row["Cosine"])) == (
        "torch.float16",
        "torch.float32",
        pytest.approx(1.0),
    )
