"""Runs inside msprobe's own environment: its dumps of a small model, and its commands on any folder.

    python msprobe_peer.py dump OUT           OUT/{statistics,tensor,md5}, two steps each
    python msprobe_peer.py run COMMANDS.json  a list of msprobe command lines

Each is done in a child process of one that has loaded torch and msprobe: loading takes longer than all the rest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from msprobe.msprobe import main as msprobe_main
from msprobe.pytorch import PrecisionDebugger
from torch import nn

torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(8, 4)
        self.linear_2 = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.linear_2(self.linear_1(x)))


def dump(out: Path, task: str, mode: str) -> None:
    config = out.with_suffix(".json")
    config.write_text(
        json.dumps(
            {
                "task": task,
                "dump_path": str(out),
                "rank": [],
                "step": [],
                "level": "mix",
                task: {"scope": [], "list": [], "data_mode": ["all"], **({"summary_mode": mode} if mode else {})},
            }
        )
    )
    torch.manual_seed(0)
    net = Net()
    debugger = PrecisionDebugger(str(config))
    for _ in range(2):
        debugger.start(model=net)
        net(torch.randn(10, 8)).sum().backward()
        debugger.stop()
        debugger.step()


def command(arguments: list[str]) -> None:
    sys.argv = ["msprobe", *arguments]
    msprobe_main()


def in_child(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except SystemExit as leaving:
            os._exit(int(leaving.code or 0))
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"a child failed: {status}")


if __name__ == "__main__":
    job, target = sys.argv[1], Path(sys.argv[2])
    if job == "dump":
        for name, task, mode in (
            ("statistics", "statistics", "statistics"),
            ("tensor", "tensor", ""),
            ("md5", "statistics", "md5"),
        ):
            in_child(lambda name=name, task=task, mode=mode: dump(target / name, task, mode))
    else:
        for arguments in json.loads(target.read_text()):
            in_child(lambda arguments=arguments: command(arguments))
