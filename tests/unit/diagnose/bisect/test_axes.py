"""Each axis of a bisection does in the reference's process what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from numscope.diagnose.bisect.axes import AXES, sides

SHOWN = {
    "compile": (
        "import torch; f = torch.compile(lambda x: x + 1, backend='eager'); print(f(torch.ones(1)).item(), "
        "len(torch._dynamo.utils.counters['frames']))",
        "2.0 0",
    ),
    "device": ("import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))", "''"),
    "dtype": (
        "with torch.autocast('cpu', torch.bfloat16): print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)",
        "torch.float32",
    ),
    "threads": ("print(torch.get_num_threads())", "1"),
    "deterministic": (
        "print(torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic)",
        "True True",
    ),
    "env FLAG=1,0": ("import os; print(os.environ['FLAG'])", "0"),
}


def test_every_axis_is_shown() -> None:
    assert {axis.partition(" ")[0] for axis in SHOWN} == set(AXES)


@pytest.mark.parametrize("axis", list(SHOWN))
def test_the_references_side_of_an_axis_is_at_work(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed = SHOWN[axis]
    _, reference = sides(axis)
    for name, value in reference.environment.items():
        monkeypatch.setenv(name, value)
    install = f"from numscope.diagnose.bisect.axes import install; install({{'install': {reference.install!r}}})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"import torch\n{install}\n{code}"], capture_output=True, text=True
    )
    assert done.stdout.strip() == printed, done.stderr
