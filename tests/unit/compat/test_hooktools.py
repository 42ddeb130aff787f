"""hooktools' document: the Tracer's files, the Comparer's answers, and the page's server side."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import numscope.compat.hooktools as hooktools
from numscope.compat.hooktools import Comparer, Tracer, records
from numscope.compat.hooktools.comparer import write_conclusion
from numscope.compat.hooktools.forms import HooktoolsForms
from numscope.view.forms import DirectoryForm, FileForm

DEMO = Path(hooktools.__file__).parent / "config"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softmax(self.norm(self.linear(x)), dim=-1)


class Chat(nn.Module):
    """Stands for the document's chatglm-6b: generates step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def stream_generate(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = self(x)
            yield x


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def model() -> Chat:
    torch.manual_seed(0)
    return Chat()


def traced(name: str, bug: float = 0.0, **settings: Any) -> Path:
    net = model()
    with torch.no_grad():
        net.layers[1].norm.bias += bug
    options = {"log_dir": "./tmp", "tracer_name": name, "trace_mode": 3, "trace_granularity": 1, **settings}
    tracer = Tracer(options, net)
    torch.manual_seed(1)
    for epoch in range(1):
        for step in range(2):
            tracer.trace(epoch=epoch, step=step)
            net(torch.randn(3, 4)).pow(2).sum().backward()
            tracer.untrace()
    return tracer.folder


def test_the_first_example_inference_step_by_step() -> None:
    config = yaml.safe_load((DEMO / "tracer_demo.yaml").read_text())
    config["trace_mode"] = 1
    Path("tracer_demo.yaml").write_text(yaml.safe_dump(config))
    net = model()
    trace = Tracer("./tracer_demo.yaml", net)
    trace.trace()
    generate_step = 0
    with torch.no_grad():
        for _ in net.stream_generate(torch.randn(3, 4)):
            trace.update_step(generate_step)
            generate_step += 1
    trace.untrace()
    (folder,) = Path("tmp").glob("tracer_*/")
    assert re.fullmatch(r"tracer_\d+", folder.name)
    assert sorted(p.name for p in (folder / "forward" / "epoch-1").iterdir()) == ["step-1", "step0"]
    (index,) = Path("tmp").glob("module2path_*.json")
    assert len(json.loads(index.read_text())["layers.0.linear"]) == 2


def test_records_hold_name_place_values_and_no_pickle() -> None:
    folder = traced("a")
    assert sorted(p.name for p in folder.iterdir()) == ["backward", "forward"]
    files = sorted((folder / "forward" / "epoch0" / "step1").iterdir())
    assert [file.name for file in files] == [f"forward_{n:06d}.pt" for n in range(7)]
    record = torch.load(files[0], weights_only=True)
    assert list(record) == ["module_name", "file", "input", "output", "gradient", "gradient_grad"]
    assert record["module_name"] == "layers.0.linear"
    assert "test_hooktools.py:" in record["file"]
    net = model()
    torch.manual_seed(1)
    torch.randn(3, 4)
    x = torch.randn(3, 4)
    assert torch.equal(record["input"][0], x)
    assert torch.equal(record["output"][0], net.layers[0].linear(x))
    names = [torch.load(file, weights_only=True)["module_name"] for file in files]
    assert names == [
        "layers.0.linear",
        "layers.0.norm",
        "layers.0",
        "layers.1.linear",
        "layers.1.norm",
        "layers.1",
        "Chat",
    ]


def test_backward_records_have_grad_input_and_grad_output() -> None:
    folder = traced("a")
    files = sorted((folder / "backward" / "epoch0" / "step0").iterdir())
    by_name = {(record := torch.load(file, weights_only=True))["module_name"]: record for file in files}
    linear = by_name["layers.1.linear"]
    net = model()
    np.testing.assert_allclose(
        linear["input"][0].numpy(),
        linear["output"][0].numpy() @ net.layers[1].linear.weight.detach().numpy(),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("mode", "folders"), [(0, []), (1, ["forward"]), (2, ["backward"]), (3, ["backward", "forward"])]
)
def test_trace_modes(mode: int, folders: list[str]) -> None:
    folder = traced("a", trace_mode=mode)
    assert sorted(p.name for p in folder.iterdir()) == folders if folders else not folder.exists()


def test_granularity_0_sees_modules_outside_the_model_and_1_does_not() -> None:
    for granularity in (0, 1):
        net = model()
        tracer = Tracer({"trace_mode": 1, "trace_granularity": granularity, "tracer_name": f"g{granularity}"}, net)
        tracer.trace(0, 0)
        nn.MSELoss()(net(torch.randn(3, 4)), torch.zeros(3, 4))
        tracer.untrace()
        names = [records.read(file)["module_name"] for file in sorted(tracer.folder.rglob("*.pt"))]
        assert ("MSELoss" in names) is (granularity == 0)
        assert len(names) == 7 + (granularity == 0)  # no hook is left over


def test_filters_are_or_ed() -> None:
    wanted = {"starts_with": ["layers.1.norm"], "regular_expression": [r"^layers\.0\.lin"]}
    folder = traced("a", trace_mode=1, dump_pt_hook_options={"hook_specifiy_modules": wanted})
    names = {records.read(file)["module_name"] for file in folder.rglob("*.pt")}
    assert names == {"layers.1.norm", "layers.0.linear"}


def test_functions_are_traced_from_the_listed_groups_and_restored() -> None:
    softmax = torch.nn.functional.softmax
    apis = {"functional": ["torch.nn.functional.softmax"], "torch": ["torch.no_such_thing"]}
    with pytest.warns(UserWarning, match="no_such_thing"):
        folder = traced("a", trace_mode=1, hacker_non_nn_modules=True, hacker_options={"supported_apis": apis})
    names = [records.read(file)["module_name"] for file in sorted((folder / "forward/epoch0/step0").iterdir())]
    assert names.count("torch.nn.functional.softmax") == 2
    assert not [name for name in names if name.startswith("torch.") and "softmax" not in name]
    assert torch.nn.functional.softmax is softmax


def test_trace_gradient_writes_parameters_and_gradients() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    tracer = Tracer({"tracer_name": "g"}, net)
    net(torch.randn(3, 4)).pow(2).sum().backward()
    optimizer.step()
    tracer.trace_gradient(epoch=0, step=3)
    files = sorted((tracer.folder / "gradient" / "epoch0" / "step3").iterdir())
    assert len(files) == len(list(net.parameters()))
    record = torch.load(files[0], weights_only=True)
    assert record["module_name"] == "layers.0.linear.weight"
    assert torch.equal(record["gradient"], net.layers[0].linear.weight)
    assert torch.equal(record["gradient_grad"], net.layers[0].linear.weight.grad)


def compared(first: Path, second: Path, **settings: Any) -> Comparer:
    directory = {
        "compared_directory_1": str(first),
        "compared_directory_2": str(second),
        **settings.pop("directory", {}),
    }
    comparer = Comparer({"compare_mode": 0, "compare_directory_options": directory, **settings})
    comparer.compare()
    return comparer


def test_the_comparer_finds_the_first_wrong_module(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = traced("good"), traced("bad", bug=0.5)
    comparer = compared(bad, good, directory={"compare_steps": "[0,1)"})
    first = comparer.entries[0]
    assert (first.module, first.place, first.index, first.step) == ("layers.1.norm", "output", "0", 0)
    assert first.error == pytest.approx(0.5, abs=1e-6)
    assert "conclusion" in capsys.readouterr().out
    assert compared(good, good).entries == []


@pytest.mark.parametrize("metric", ["L1", "AE", "MAE", "CS", "MSE", "RMSE", "MAPE"])
def test_metrics_are_what_numpy_says(metric: str) -> None:
    good, bad = traced("good"), traced("bad", bug=0.5)
    comparer = compared(
        bad, good, evaluation_metrics=[metric], directory={"compare_steps": "0", "only_compare_output": True}
    )
    entry = next(entry for entry in comparer.entries if entry.module == "layers.1")
    a, b = (
        np.asarray(records.read(Path(path))["output"][0], np.float64).reshape(-1)
        for path in (entry.first_path, entry.second_path)
    )
    d = np.abs(a - b)
    expected = {
        "L1": d.sum(),
        "AE": d.max(),
        "MAE": d.mean(),
        "CS": a @ b / np.sqrt(a @ a) / np.sqrt(b @ b),
        "MSE": (d**2).mean(),
        "RMSE": np.sqrt((d**2).mean()),
        "MAPE": (d / np.abs(b)).mean(),
    }
    assert entry.error == pytest.approx(expected[metric])


def test_filters_order_and_selection_of_the_comparer() -> None:
    good, bad = traced("good"), traced("bad", bug=0.5)
    assert compared(bad, good, filter={"global_filter": 10}).entries == []
    assert compared(bad, good, filter={"global_filter": 10, "RMSE_filter": 0.1}).entries
    only = compared(bad, good, compare_by_order=False, compare_specifiy_modules={"starts_with": ["layers.1.norm"]})
    assert {entry.module for entry in only.entries} == {"layers.1.norm"}
    assert compared(bad, good, skip_nn_module=True).entries == []
    maximum = compared(bad, good, show_max_error_only=True)
    assert len(maximum.entries) == len({entry.first_path for entry in maximum.entries})
    files = [str(side / "forward/epoch0/step0/forward_000004.pt") for side in (bad, good)]
    one = Comparer(
        {"compare_mode": 1, "compare_file_options": dict(zip(("compared_file_1", "compared_file_2"), files))}
    )
    assert [entry.module for entry in one.compare()] == ["layers.1.norm"]
    lists = {"compared_file_list_1": files[:1], "compared_file_list_2": files[1:]}
    assert Comparer({"compare_mode": 2, "compare_file_list_options": lists}).compare()


def test_the_demo_settings_of_the_comparer_work() -> None:
    config = yaml.safe_load((DEMO / "comparer_demo.yaml").read_text())
    folder = traced("a")
    config["compare_directory_options"].update(compared_directory_1=str(folder), compared_directory_2=str(folder))
    Path("comparer.yaml").write_text(yaml.safe_dump(config))
    assert Comparer("comparer.yaml").compare() == []


def test_the_forms_answer_as_the_page_asks() -> None:
    good, bad = traced("good"), traced("bad", bug=0.5)
    forms = HooktoolsForms()
    entries = list(forms.directory(DirectoryForm(str(bad), str(good), "forward", steps="［0,1］", threshold=1e-6)))
    assert entries[0].module == "layers.1.norm"
    assert entries[0].folder == "forward"
    assert "float32 [3, 4]" in entries[0].first_value
    first = FileForm(entries[0].first_path, entries[0].second_path, "AE")
    assert [entry.place for entry in forms.file(first)] == ["input", "output"]
    pair = forms.neighbour(first.first, first.second, -1)
    assert all(path.endswith("forward_000003.pt") for path in pair)
    last = [str(side / "forward/epoch0/step0/forward_000006.pt") for side in (bad, good)]
    assert forms.neighbour(*last, 1)[0].endswith("step1/forward_000000.pt")
    write_conclusion(entries, Path("conclusion.xlsx"))
    assert Path("conclusion.xlsx").stat().st_size > 1000
    with pytest.raises(hooktools.comparer.records.RunError, match="does not exist"):
        list(forms.directory(DirectoryForm("nowhere", str(good))))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Tracer("nowhere.yaml", nn.Linear(1, 1)), "does not exist"),
        (lambda: Tracer({"trace_mode": 4}, nn.Linear(1, 1)), "trace_mode"),
        (lambda: Tracer({}, "model"), "nn.Module"),
        (lambda: Comparer({"evaluation_metrics": ["XX"]}), "evaluation_metrics"),
        (lambda: Comparer({"compare_mode": 3}), "compare_mode"),
        (lambda: Comparer({}).compare(), "compared_directory_1"),
        (lambda: Comparer({"compare_mode": 1}).compare(), "as many files"),
    ],
)
def test_bad_settings_say_what_is_wrong(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_key_that_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="did you mean 'trace_mode'"):
        Tracer({"trace_modes": 1}, nn.Linear(1, 1))
    settings = tmp_path / "comparer.yaml"
    settings.write_text("comparer_name: comparer\ncompare_mode: 1\n")
    with pytest.warns(UserWarning, match="'comparer_name' is not used"):
        Comparer(settings)


def test_the_page_is_served() -> None:
    command = [sys.executable, "-m", "numscope.compat.hooktools.compare_url", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert url.endswith("#/directory")
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(url.partition("#")[0], timeout=20) as answer:
                assert b"<html" in answer.read().lower()
        finally:
            process.terminate()


class Original:
    """Stands for an object of the original's that only pickle can hold."""


def test_its_folders_are_imported_and_pickled_ones_only_when_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    import numscope as ns
    from numscope.__main__ import main

    folder = traced("a")
    assert main(["import", str(folder), "ours"]) == 0
    run = ns.open_run("ours")
    assert run.steps == [0, 1]
    linear = records.read(folder / "forward/epoch0/step1/forward_000000.pt")
    np.testing.assert_array_equal(run.tensor("Module.layers.0.linear.forward.0.input.0", step=1), linear["input"][0])
    backward = [records.read(file) for file in (folder / "backward/epoch0/step0").iterdir()]
    root = next(record for record in backward if record["module_name"] == "Chat")
    np.testing.assert_array_equal(run.tensor("Module.Chat.backward.0.input.0", step=0), root["output"][0])

    file = Path("old/run_1/forward/epoch0/step0/forward_000000.pt")
    file.parent.mkdir(parents=True)
    torch.save({"module_name": "fc", "input": (torch.ones(2),), "output": torch.zeros(2), "extra": Original()}, file)
    assert main(["import", "old", "untrusted"]) == 2
    assert "--trust-pickle" in capsys.readouterr().err
    assert main(["import", "old", "trusted", "--trust-pickle"]) == 0
    assert ns.open_run("trusted").tensor("Module.fc.forward.0.input.0").tolist() == [1.0, 1.0]
