"""A job of many steps, or one that turns capture on and off; prints what it holds early and at its end."""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
from pathlib import Path

import torch

import numscope as ns


def held() -> dict[str, float]:
    """Return the memory of the process in MB, and its open files and threads."""
    gc.collect()
    text = Path("/proc/self/status").read_text()
    memory = int(text.partition("VmRSS:")[2].split()[0]) / 1024
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("numscope")]
    return {"memory": memory, "files": len(os.listdir("/proc/self/fd")), "threads": len(ours)}


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + number)  # arguments that no other step has
    model(torch.ones(2, 8) * (1 + number)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    how, count = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        if how == "steps":
            largest = 0
            with ns.capture(f"{folder}/run", model, keep="stats", keep_last=400, on_error="raise") as cap:
                for number in range(count):
                    step(model, optimizer, number)
                    cap.step()
                    if number in (count // 4, count - 1):
                        seen.append(held())
                    if number % 100 == 0:
                        files = sum(len(names) for _, _, names in os.walk(folder))
                        largest = max(largest, files)
            run = ns.open_run(f"{folder}/run")
            assert run.steps[-1] == count - 1
            assert 400 <= len(run.steps) <= 450
            assert largest < 100
        else:
            one = ns.capture(f"{folder}/run", model, keep="tensors", on_error="raise") if how == "one" else None
            for number in range(count):
                cap = one or ns.capture(f"{folder}/run{number}", model, keep="tensors", on_error="raise")
                cap.start()
                step(model, optimizer, number)
                cap.step()
                cap.stop()
                if how == "many":
                    cap.close()
                if number in (count // 4, count - 1):
                    seen.append(held())
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
