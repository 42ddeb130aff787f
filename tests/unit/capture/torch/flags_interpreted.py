"""Run the guard's Triton kernels in Triton's interpreter on the CPU; prints how many tensors were counted right.

A program of its own, because Triton decides when it is imported whether it compiles or interprets.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from numscope.capture.torch.guard.flag_kernel import _BLOCK, _KINDS, TritonLauncher, _one
from numscope.capture.torch.guard.flags import count


class Interpreted(TritonLauncher):
    """A launcher of the CPU: the interpreter takes tensors where a device takes addresses."""

    def __init__(self) -> None:
        self._device = torch.device("cpu")

    def one(self, values: torch.Tensor, buffer: torch.Tensor, row: int) -> None:
        size, *bits = _KINDS[values.dtype]
        padded = torch.cat([values, values.new_zeros(8 + values.numel() % 2)])
        words = padded.view(torch.int64 if size == 8 else torch.int32)
        _one[(3,)](words, buffer[row], values.numel(), size, *bits, _BLOCK[size])


def examples(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of many sizes with all that is special in them, and without."""
    found = []
    for size in (1, 2, 7, 8, 4096, 8193, 9001):
        values = torch.randn(size, dtype=torch.float64).to(dtype)
        found.append(values.clone())
        for special in (torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).min):
            values[torch.rand(size) < 0.05] = special
            values[-1] = special
            found.append(values.clone())
    return found


def main() -> None:
    torch.manual_seed(0)
    torch.Tensor.pin_memory = lambda self: self  # type: ignore[assignment, method-assign]
    launcher = Interpreted()
    right = 0
    for dtype in _KINDS:
        tensors = examples(dtype)
        rows = len(tensors)
        buffer = torch.zeros((4 * rows, 4), dtype=torch.int32)
        for row, tensor in enumerate(tensors):
            launcher.one(tensor, buffer, row)
        launcher.many([(tensor, rows + row, -1) for row, tensor in enumerate(tensors)], buffer)
        # Looked at again if the look before showed something; and if the look at something finite did, which is never.
        launcher.many([(tensor, 2 * rows + row, rows + row) for row, tensor in enumerate(tensors)], buffer)
        launcher.many([(tensor, 3 * rows + row, rows) for row, tensor in enumerate(tensors)], buffer)
        for row, tensor in enumerate(tensors):
            known = count(tensor)
            expected = [known.nan, known.posinf, known.neginf]
            for kind in range(3):
                found = buffer[kind * rows + row].tolist()
                assert found[:3] == expected, (dtype, row, kind, found, expected)
                if kind < 2 or not known.clean:
                    assert bool(found[3]) == known.low, (dtype, row, kind, found)
            assert buffer[3 * rows + row].tolist() == [0, 0, 0, 0]
            right += 1
    print(f"{right} right")


if __name__ == "__main__":
    main()
