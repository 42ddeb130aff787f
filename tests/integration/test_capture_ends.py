"""How a capture ends where the machine or the job does not let it end well."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

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
