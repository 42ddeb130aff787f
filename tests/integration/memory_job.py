"""A job that makes tensors one after the other, and prints by how many MB capture made it larger."""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator

import torch

import numscope as ns


def used() -> float:
    """Return the most memory that the process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def loop(count: int, elements: int, how: str) -> Iterator[None]:
    """Make so many tensors; yield once on the way, when everything that the job itself needs is there."""
    x = torch.ones(elements, requires_grad=how == "backward")
    for index in range(count):
        if how == "numbers":  # arguments that no other call has
            y = x * (1.0 + index / count)
        elif how == "backward":
            y = x * 1.0001
            y.sum().backward()
            x.grad = None
        else:
            y = torch.ones(elements) if index % 100 == 0 else x * 1.0001
            x = y
        if index == 0:
            yield
    del y


def main() -> None:
    count, elements, level, keep, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
    torch.set_num_threads(1)
    for _ in loop(200, elements, how):
        pass
    with tempfile.TemporaryDirectory() as folder:
        before = used()
        with ns.capture(f"{folder}/run", level=level, keep=keep, on_error="raise") as cap:
            for _ in loop(count, elements, how):
                pass
            cap.step()
        print(f"{used() - before:.0f}")
        run = ns.open_run(f"{folder}/run")
        assert run.steps == [0]


if __name__ == "__main__":
    main()
