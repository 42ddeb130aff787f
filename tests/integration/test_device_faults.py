"""The oldest story: the program is right, and one operator of the device is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import numscope as ns
from numscope.core.report import Origin
from numscope.diagnose.repro import device_page
from numscope.diagnose.repro.write import write_repro
from numscope.report.terminal.diagnosis import lines
from tests.integration.device_faults import FAULTS, faulty, train

# What is said of the elements, where the fault has a place or a form.
ELEMENTS = {
    "softmax rows sum to 0.98": "each by the factor 0.98",
    "product with a wrong tile": "a tile [0, 8:16, 8:16]",
    "product without its last column": "a column [:, :, 95 (the last)]",
    "tanh with flipped signs": "each 37 elements one, from index 0 on: 56 of 2,048; each with the opposite sign",
    "embedding off by one row": "8 of 64 rows, each as a whole",
    "softmax wrong in its last column": "a column [:, :, :, 15 (the last)]",
    "layer norm by the sample's variance": "each by the factor 0.98",
    "sigmoid with a bit stuck": "is 1 in every number",
    "batched product with a row twice": "rows [:, :, 15 (the last), :]",
}
# In bfloat16 the others differ less than its rounding does.
IN_BFLOAT16 = [
    "softmax rows sum to 0.98",
    "product without its last column",
    "tanh with flipped signs",
    "embedding off by one row",
    "softmax wrong in its last column",
    "product without the end of its sums",
    "layer norm by the sample's variance",
    "sigmoid with a bit stuck",
    "batched product with a row twice",
    "log softmax by a coarse logarithm",
]


def capture(path: Path, dtype: torch.dtype = torch.float32, **settings: object) -> Path:
    with ns.capture(path, keep="tensors", on_error="raise", **settings) as recording:
        for _ in train(dtype):
            recording.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[torch.dtype], Path]:
    folder = tmp_path_factory.mktemp("references")

    def of(dtype: torch.dtype) -> Path:
        path = folder / str(dtype)
        return path if path.exists() else capture(path, dtype)

    return of


def diagnosed(target: Path, reference: Path) -> Origin:
    report = ns.diagnose(target, reference)
    assert report.verdict == "diverged"
    assert report.origin is not None
    return report.origin


CASES = [(name, torch.float32) for name in FAULTS] + [(name, torch.bfloat16) for name in IN_BFLOAT16]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda value: str(value))
def test_the_device_is_at_fault_and_the_elements_are_named(
    name: str, dtype: torch.dtype, reference: Callable[[torch.dtype], Path], tmp_path: Path
) -> None:
    with faulty(name):
        target = capture(tmp_path / "target", dtype)
    origin = diagnosed(target, reference(dtype))
    fault = FAULTS[name]
    assert (origin.call.split(".")[1] in fault.calls, origin.phase) == (True, fault.phase), origin.call
    assert (origin.mechanism, origin.repair) == ("device", None)
    found = origin.details["diagnosis"]["device"]
    assert found["side"] == "target"
    assert found["call"] == origin.call
    assert found["error"] > 8 * found["operator_error"]
    assert ELEMENTS.get(name, "") in found["elements"]
    assert found["again"] == "on the CPU here it is right"
    assert "torch" in found["made_by"]
    is_once = not name.startswith(("product", "batched")) and "cross_entropy" not in origin.call
    if fault.phase == "forward" and is_once:  # else the loss comes from further calls of the faulty kernel
        carried = origin.details["carried"]
        assert carried["loss"] == "Functional.cross_entropy.0.forward"
        assert carried["after"] < carried["before"] / 10, carried


def test_a_kernel_that_is_wrong_here_too_is_told_by_float64(
    reference: Callable[[torch.dtype], Path], tmp_path: Path
) -> None:
    right = reference(torch.float32)
    with faulty("product without its last column"):
        origin = diagnosed(capture(tmp_path / "target"), right)
    assert origin.mechanism == "device"
    assert origin.details["diagnosis"]["device"]["again"] == "on the CPU here it comes back"


def test_a_fault_of_the_references_device_is_the_references(
    reference: Callable[[torch.dtype], Path], tmp_path: Path
) -> None:
    with faulty("gelu by a coarse table"):
        wrong = capture(tmp_path / "reference")
    origin = diagnosed(reference(torch.float32), wrong)
    assert origin.mechanism == "device"
    assert origin.details["diagnosis"]["device"]["side"] == "reference"
    text = " ".join("\n".join(lines(ns.diagnose(reference(torch.float32), wrong))).split())
    assert "reference, cpu: off by 7.7e-03; target, cpu: 4.3e-08; the operator's own error here is 4.3e-08" in text


def test_inputs_that_were_rounded_are_told(reference: Callable[[torch.dtype], Path], tmp_path: Path) -> None:
    with faulty("product in reduced precision"):
        target = capture(tmp_path / "target")
    origin = diagnosed(target, reference(torch.float32))
    assert "rounded to bfloat16" in origin.details["diagnosis"]["device"]["rounded_inputs"]


def test_another_program_is_no_fault_of_the_device(reference: Callable[[torch.dtype], Path], tmp_path: Path) -> None:
    gelu = nn.functional.gelu
    nn.functional.gelu = partial(gelu, approximate="tanh")
    try:
        target = capture(tmp_path / "target")
    finally:
        nn.functional.gelu = gelu
    assert diagnosed(target, reference(torch.float32)).mechanism == "semantic"


REPRODUCED = [
    "gelu by a coarse table",
    "product with a wrong tile",
    "embedding off by one row",
    "gelu's backward by the tanh form",
    "sigmoid with a bit stuck",
]


@pytest.mark.parametrize("large", [False, True], ids=["in source", "beside it"])
@pytest.mark.parametrize("name", REPRODUCED)
def test_the_makers_file_passes_where_the_device_is_right_and_fails_where_it_is_not(
    name: str,
    large: bool,
    reference: Callable[[torch.dtype], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if large:
        monkeypatch.setattr(device_page, "MOST_BYTES", 0)
    right = reference(torch.float32)
    with faulty(name):
        target = capture(tmp_path / "target")
    comparison = ns.compare(target, right)
    file = tmp_path / "test_origin.py"
    told = write_repro(comparison, ns.diagnose(comparison), file)
    assert "DEVICE=cpu pytest" in told
    text = file.read_text()
    assert "numscope" not in text.replace("Written by numscope", "").replace(str(tmp_path), "")
    namespace: dict[str, Any] = {"__name__": "repro", "__file__": str(file)}
    exec(compile(text, "repro", "exec"), namespace)
    test = namespace["test_the_device_gives_what_float64_gives"]
    test()
    with faulty(name), pytest.raises(AssertionError, match="the same numbers as were recorded"):
        test()
    namespace["DEVICE"] = "cuda:0"
    if not torch.cuda.is_available():
        with pytest.raises(pytest.skip.Exception, match="there is no cuda:0 here"):
            test()


def test_bisect_proves_a_devices_fault_by_itself(tmp_path: Path) -> None:
    job = Path(__file__).parent / "device_job.py"
    root = str(job.parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "numscope", "bisect", "--no-check", "--out", str(tmp_path / "out")]
    commands = ["--target", f"{job} --npu", "--reference", str(job)]
    done = subprocess.run([*line, *commands], capture_output=True, text=True, env=environment)
    assert done.returncode == 1, done.stderr
    origin = json.loads((tmp_path / "out" / "report.json").read_text())["origin"]
    assert (origin["call"], origin["mechanism"]) == ("Functional.gelu.0.forward", "device")
    assert origin["details"]["diagnosis"]["device"]["device"] == "npu:0"
    on_cpu, in_float64 = origin["details"]["proof"]
    for proof, where in ((on_cpu, "on the CPU"), (in_float64, "in float64 where it was")):
        assert proof["where"] == f"Functional.gelu {where}"
        assert proof["verdict"] == "equivalent"
        for name in ("loss", "gradients"):
            assert proof[name]["after"] < 0.1 * proof[name]["before"], proof
    text = " ".join(done.stdout.split())
    assert "with Functional.gelu on the CPU the two runs are equivalent: the fault is proven to be there" in text
    assert re.search(r"of the gradients' difference \(\S+\) more than 99.9% is gone", text), text
    assert "test_origin.py: 1 input" in text
    assert "DEVICE=npu:0 pytest" in text
