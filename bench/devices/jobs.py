"""One job: a model, where and how it computes, and the fault in it. Recorded as statistics, two training steps."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import numscope as ns
from bench.devices.planted import BATCH, LENGTH, VOCABULARY, Decoder
from bench.devices.public import PUBLIC


@dataclass(frozen=True)
class How:
    """Where and in what precision a job computes."""

    device: str = "cuda"
    dtype: str = "float32"  # of parameters
    attention: str = "sdpa"
    autocast: str = ""
    tf32: bool = False

    @property
    def name(self) -> str:
        """Return the words of it that are not usual."""
        words = [self.device, self.dtype, self.attention, self.autocast and f"autocast_{self.autocast}"]
        return "-".join(word for word in [*words, "tf32" if self.tf32 else ""] if word)


@dataclass(frozen=True)
class Job:
    """A model and how it computes; `fault` is planted in it."""

    model: str  # of PUBLIC, or a family of planted.FAULTS
    how: How
    fault: str = ""

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return f"{self.model}-{self.how.name}" + (f"-{self.fault}" if self.fault else "")


def record(job: Job, folder: Path, steps: int) -> list[float]:
    """Run a job under capture; return its losses."""
    how = job.how
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = how.tf32
    if job.model in PUBLIC:
        build, make_batch = PUBLIC[job.model]
        model: torch.nn.Module = build(how.attention)
        batch: dict[str, Any] = make_batch()
    else:
        model = Decoder(job.model, how.attention, job.fault)
        batch = {"tokens": torch.randint(VOCABULARY, (BATCH, LENGTH))}
    for parameter in model.parameters():  # a trained model's norms and biases are no ones and zeros
        if parameter.ndim == 1:
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn_like(parameter))
    dtype = getattr(torch, how.dtype)
    model = model.to(how.device, dtype).train()
    batch = {name: value.to(how.device, dtype if value.is_floating_point() else None) for name, value in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False, foreach=False)
    precision: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if how.autocast:
        precision = torch.autocast(how.device, getattr(torch, how.autocast))
    losses = []
    with ns.capture(folder, model, level="mix", keep="stats", overwrite=True, on_error="raise") as cap:
        for _ in range(steps):
            with precision:
                loss = _loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            cap.step()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return losses


def _loss(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    if isinstance(model, Decoder):
        return model.loss(model(batch["tokens"]), batch["tokens"])
    loss = model(**batch)[0]
    assert isinstance(loss, torch.Tensor)
    return loss
