"""GPU against CPU on one machine: planted faults are found, diagnosed, and proven by rerouting.

    python bench/gpu_diagnose.py            # prints a line per part and ends with 0 where all are right

Needs torch with CUDA, numpy, pyarrow, safetensors, ml_dtypes and rich. The model is trained on the CPU (the reference)
and on the GPU (the target) from the same weights and data:

  clean     no fault: the two are equivalent
  gelu      the GPU's path has the tanh form of GELU in one block: found, semantic, with its repair
  kernel    a function between two modules, which torch does not see into, is wrong on the GPU alone (seed 000's story):
            found, and to_cpu of that one function makes the runs equivalent
  tf32      the GPU multiplies in TF32: precision, not a difference in meaning
  bfloat16  both in bf16 with the tanh form in one block, where rounding is larger than the fault
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns
from numscope.core.report import Report

WIDTH, LAYERS, BATCH, LENGTH, WORDS = 128, 4, 4, 32, 97


class Block(nn.Module):
    """Attention and feed-forward; `tanh` plants the fault."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.tanh = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(-2, -1) / (WIDTH // 4) ** 0.5).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.up(self.norm2(x))
        h = F.gelu(h, approximate="tanh") if self.tanh else F.gelu(h)
        return x + self.down(h)


def logits_warper(scores: torch.Tensor) -> torch.Tensor:
    """A third party's function: plain numpy on the CPU; its device build keeps one element too many."""
    values = scores.detach().float().cpu().numpy().copy()
    keep = 6 if scores.is_cuda and faulty["kernel"] else 5
    values[values < np.sort(values, axis=-1)[..., -keep][..., None]] = -1e4
    return torch.from_numpy(values).to(scores.device)


faulty = {"kernel": False}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def run(path: Path, device: str, dtype: torch.dtype, tanh: bool = False, warp: bool = False) -> None:
    """Capture two steps on a device."""
    torch.manual_seed(0)
    model = Model()
    model.blocks[2].tanh = tanh
    model = model.to(device, dtype)
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with ns.capture(path, model, keep="tensors") as cap:
        for _ in range(2):
            tokens = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator).to(device)
            optimizer.zero_grad()
            logits = model(tokens[:, :-1])
            if warp:
                with torch.no_grad():
                    cap.save("probabilities", F.softmax(logits_warper(logits), dim=-1))
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            cap.step()


DEVICE = ["cuda"]


def diagnosed(folder: Path, **settings: bool) -> Report:
    dtype = torch.bfloat16 if settings.pop("bf16", False) else torch.float32
    run(folder / "cpu", "cpu", dtype, warp=settings.get("warp", False))
    run(folder / "gpu", DEVICE[0], dtype, **settings)
    return ns.diagnose(folder / "gpu", folder / "cpu")


def clean(folder: Path) -> tuple[bool, str]:
    report = diagnosed(folder)
    return report.verdict in ("identical", "equivalent"), report.reason or report.verdict


def gelu(folder: Path, bf16: bool = False) -> tuple[bool, str]:
    report = diagnosed(folder, tanh=True, bf16=bf16)
    origin = report.origin
    right = (
        report.verdict == "diverged"
        and origin is not None
        and origin.call.startswith("Functional.gelu.2.")
        and origin.mechanism == "semantic"
        and "approximate='none'" in (origin.repair or "")
    )
    said = f"{origin.reason}; {origin.mechanism}; {origin.repair}" if origin else ""
    return right, f"{report.verdict}: {said}"


def bfloat16(folder: Path) -> tuple[bool, str]:
    return gelu(folder, bf16=True)


def kernel(folder: Path) -> tuple[bool, str]:
    faulty["kernel"] = True
    try:
        report = diagnosed(folder, warp=True)
        with ns.to_cpu(logits_warper) as reroute:
            run(folder / "rerouted", DEVICE[0], torch.float32, warp=True)
    finally:
        faulty["kernel"] = False
    healed = ns.compare(folder / "rerouted", folder / "cpu")
    origin = report.origin
    right = (
        report.verdict == "diverged"
        and origin is not None
        and reroute.used == 2
        and healed.verdict in ("identical", "equivalent")
    )
    return right, f"{report.verdict}: {origin.reason if origin else ''}; rerouted: {healed.verdict}"


def tf32(folder: Path) -> tuple[bool, str]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        report = diagnosed(folder)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    origin = report.origin
    right = origin is None or origin.mechanism in ("precision", "order")
    return right, f"{report.verdict}: {origin.reason if origin else ''}; {origin.mechanism if origin else 'no origin'}"


PARTS: tuple[Callable[[Path], tuple[bool, str]], ...] = (clean, gelu, kernel, tf32, bfloat16)


def main() -> int:
    """Run every part; return 0 where all passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="one part")
    parser.add_argument(
        "--device", default="cuda", help="the target's device; cpu to try the script (kernel is wrong then)"
    )
    options = parser.parse_args()
    only, DEVICE[0] = options.only, options.device
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return 2
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if options.device == 'cuda' else 'CPU'}")
    wrong = 0
    for part in PARTS:
        if only and part.__name__ != only:
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            try:
                right, said = part(Path(folder))
            except Exception as error:  # one part's fault must not hide the others
                right, said = False, f"{type(error).__name__}: {error}"
        wrong += not right
        print(f"{'ok   ' if right else 'WRONG'} {part.__name__:9} {time.perf_counter() - start:5.1f} s  {said}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
