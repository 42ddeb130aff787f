"""Whether capture leaves compiled jobs alone: `python -m bench.compiled [--jobs …] [--levels …] [--out F]`.

Each job trains (or runs) a small model that is compiled in one way, four steps long. It runs without capture, then with
capture at each level, with and without compiled twins, captured before the first compilation, after it, or for two steps
in between. Held: the bits of losses, gradients, parameters, optimizer state and random state; what torch counts (graphs,
breaks, recompilations, cache hits, operators and guards of each compiled frame); and that Dynamo saw no frame of numscope's.

A run is compared with a run of the same job that starts with the same caches: the first run of a job fills the cache of
compiled graphs, all others find it. Without `--levels`, all are run; the table says `same`, or what differs.

In a bounded time, as often as is needed: `python -m bench.compiled --seconds 100 --caches C --out F` begins no cell after
100 seconds, and goes on where the file F ends; one cell of each job comes first.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 4
WIDTH, HEADS, VOCABULARY, LENGTH = 16, 2, 29, 8
LEVELS = ("module", "api", "mix", "aten")
ORDERS = ("before", "after", "between")


# Models ---------------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal attention of the GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class GptBlock(nn.Module):
    """A block of the GPT, with dropout."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.ln_2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln_1(x))
        if self.breaks and float(x.detach().abs().max()) > 0:  # a graph break: the number must be known
            x = x * 1.5
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """Two blocks; `around` calls a block, `breaks` has a graph break in each."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = nn.ModuleList(GptBlock(breaks) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.around: Callable[[nn.Module, torch.Tensor], torch.Tensor] = lambda block, x: block(x)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = self.around(block, x)
        return self.head(self.norm(x))


class RmsNorm(nn.Module):
    """The normalisation of the Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaBlock(nn.Module):
    """Rotary grouped attention and SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.input_norm, self.post_norm = RmsNorm(), RmsNorm()
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, size, bias=False), nn.Linear(WIDTH, size, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        h = self.input_norm(x)

        def rotated(y: torch.Tensor) -> torch.Tensor:
            y = y.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            first, second = y.chunk(2, dim=-1)
            return y * cos + torch.cat((-second, first), dim=-1) * sin

        q, k = rotated(self.q(h)), rotated(self.k(h)).repeat_interleave(HEADS, dim=1)
        v = self.v(h).view(batch, length, 1, -1).transpose(1, 2).repeat_interleave(HEADS, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, WIDTH))
        h = self.post_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.norm = RmsNorm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        size = WIDTH // HEADS
        angle = torch.arange(2 * LENGTH)[:, None] / 100.0 ** (torch.arange(size // 2)[None] * 2 / size)
        self.register_buffer("angles", torch.cat((angle, angle), dim=-1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        angles = self.angles[: tokens.shape[1]]
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


# Jobs -----------------------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """A training that has begun: `step` makes one step and returns what it computed."""

    step: Callable[[int], torch.Tensor]
    models: list[nn.Module]
    optimizer: torch.optim.Optimizer | None = None


JOBS: dict[str, Callable[[torch.device], Job]] = {}


def job(build: Callable[[torch.device], Job]) -> Callable[[torch.device], Job]:
    """Add a job under the function's name."""
    JOBS[build.__name__] = build
    return build


def _tokens(device: torch.device, index: int, length: int = LENGTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + index)
    return torch.randint(VOCABULARY, (2, length + 1), generator=generator).to(device)


def _training(
    model: nn.Module, device: torch.device, *, call: Callable[..., torch.Tensor] | None = None,
    lengths: Sequence[int] = (LENGTH,), optimizer: torch.optim.Optimizer | None = None,
    update: Callable[[], Any] | None = None, backward: Callable[[torch.Tensor], None] = torch.Tensor.backward,
    loss_of: Callable[..., torch.Tensor] = F.cross_entropy,
) -> Job:  # fmt: skip
    """Return the training of a language model; `call`: what is called in the model's place."""
    forward = model if call is None else call
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    update = update or optimizer.step

    def step(index: int) -> torch.Tensor:
        tokens = _tokens(device, index, lengths[index % len(lengths)])
        loss = loss_of(forward(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        backward(loss)
        update()
        optimizer.zero_grad()
        return loss.detach()

    return Job(step, [model], optimizer)


@job
def gpt_whole(device: torch.device) -> Job:
    model = Gpt().to(device)
    return _training(model, device, call=torch.compile(model))


@job
def llama_whole(device: torch.device) -> Job:
    model = Llama().to(device)
    return _training(model, device, call=torch.compile(model))


@job
def llama_bf16(device: torch.device) -> Job:
    model = Llama().to(device, torch.bfloat16)
    return _training(model, device, call=torch.compile(model))


@job
def gpt_blocks(device: torch.device) -> Job:
    model = Gpt().to(device)
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block)
    return _training(model, device)


@job
def llama_blocks(device: torch.device) -> Job:
    model = Llama().to(device)
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block)
    return _training(model, device)


@job
def module_compile(device: torch.device) -> Job:
    model = Gpt().to(device)
    model.compile()
    return _training(model, device)


@job
def blocks_compile(device: torch.device) -> Job:
    model = Llama().to(device)
    for block in model.blocks:
        block.compile()
    return _training(model, device)


@job
def function(device: torch.device) -> Job:
    model = Gpt().to(device)
    return _training(model, device, loss_of=torch.compile(lambda x, y: F.cross_entropy(x, y) * 2))


@job
def loss_function(device: torch.device) -> Job:
    """The whole of forward and loss is one compiled function."""
    model = Llama().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    @torch.compile
    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def step(index: int) -> torch.Tensor:
        loss = loss_of(_tokens(device, index))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Job(step, [model], optimizer)


@job
def optimizer_step(device: torch.device) -> Job:
    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    return _training(model, device, optimizer=optimizer, update=torch.compile(optimizer.step))


@job
def optimizer_function(device: torch.device) -> Job:
    model = Llama().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    @torch.compile(fullgraph=False)
    def update() -> None:
        optimizer.step()

    return _training(model, device, optimizer=optimizer, update=update)


@job
def fullgraph(device: torch.device) -> Job:
    model = Gpt().to(device)
    return _training(model, device, call=torch.compile(model, fullgraph=True))


@job
def dynamic(device: torch.device) -> Job:
    model = Gpt().to(device)
    return _training(model, device, call=torch.compile(model, dynamic=True), lengths=(LENGTH, LENGTH - 2))


@job
def recompiled(device: torch.device) -> Job:
    """Another length at each step: static shapes first, then a dynamic one."""
    model = Llama().to(device)
    return _training(model, device, call=torch.compile(model), lengths=(8, 6, 5, 7))


@job
def max_autotune(device: torch.device) -> Job:
    model = Llama().to(device)
    return _training(model, device, call=torch.compile(model, mode="max-autotune-no-cudagraphs"))


@job
def cuda_graphs(device: torch.device) -> Job:
    model = Llama().to(device)
    return _training(model, device, call=torch.compile(model, mode="reduce-overhead"))


@job
def regional(device: torch.device) -> Job:
    """Regional compilation: one compiled code for all blocks, through a region that is marked."""
    if not hasattr(torch.compiler, "nested_compile_region"):
        raise NotImplementedError("this torch has no nested_compile_region")
    model = Gpt().to(device)
    model.around = torch.compiler.nested_compile_region(lambda block, x: block(x))
    return _training(model, device, call=torch.compile(model, fullgraph=True))


@job
def graph_breaks(device: torch.device) -> Job:
    model = Gpt(breaks=True).to(device)
    return _training(model, device, call=torch.compile(model))


@job
def disabled_block(device: torch.device) -> Job:
    """A block that is never compiled, in a model that is."""
    model = Gpt().to(device)
    model.blocks[0].forward = torch.compiler.disable(model.blocks[0].forward)
    return _training(model, device, call=torch.compile(model))


@job
def checkpoint_inside(device: torch.device) -> Job:
    model = Gpt().to(device)
    model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    return _training(model, device, call=torch.compile(model))


@job
def checkpoint_outside(device: torch.device) -> Job:
    model = Gpt().to(device)
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block)
    model.around = lambda block, x: checkpoint(block, x, use_reentrant=False)
    return _training(model, device)


@job
def autograd_function(device: torch.device) -> Job:
    """A Function of the user's inside the compiled model, and one outside."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * ctx.saved_tensors[0].cos()

    model = Llama().to(device)
    model.blocks[0].register_forward_hook(lambda module, args, result: Scaled.apply(result))
    compiled = torch.compile(model)
    return _training(model, device, call=lambda tokens: Scaled.apply(compiled(tokens)))


def _compiled_backward(loss: torch.Tensor) -> None:
    from torch._dynamo import compiled_autograd

    with compiled_autograd._enable(torch.compile(backend="inductor")):
        loss.backward()


@job
def compiled_autograd(device: torch.device) -> Job:
    model = Llama().to(device)
    return _training(model, device, call=torch.compile(model), backward=_compiled_backward)


@job
def compiled_autograd_eager(device: torch.device) -> Job:
    """The forward pass is not compiled, its backward is."""
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))
    model.append(nn.Linear(WIDTH, VOCABULARY))
    return _training(model.to(device), device, backward=_compiled_backward)


@job
def flex_attention(device: torch.device) -> Job:
    from torch.nn.attention.flex_attention import flex_attention as attend

    compiled = torch.compile(attend)

    def causal(score: torch.Tensor, b: Any, h: Any, q: Any, k: Any) -> torch.Tensor:
        return torch.where(q >= k, score, -float("inf"))

    @torch.no_grad()
    def step(index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        q, k, v = (torch.randn(1, 2, 32, 16, generator=generator).to(device) for _ in range(3))
        return compiled(q, k, v, score_mod=causal).sum()

    return Job(step, [])


@job
def exported(device: torch.device) -> Job:
    """A module that `torch.export` has made, eager and compiled."""
    model = Gpt().to(device).eval()
    program = torch.export.export(model, (_tokens(device, 0)[:, :-1],)).module()
    compiled = torch.compile(program)

    @torch.no_grad()
    def step(index: int) -> torch.Tensor:
        tokens = _tokens(device, index)[:, :-1]
        return program(tokens).sum() + compiled(tokens).sum()

    return Job(step, [model])


@job
def packaged(device: torch.device) -> Job:
    """A module that AOTInductor has compiled ahead of time."""
    model = Llama().to(device).eval()
    with torch.no_grad():
        program = torch.export.export(model, (_tokens(device, 0)[:, :-1],))
        loaded = torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))

    @torch.no_grad()
    def step(index: int) -> torch.Tensor:
        return loaded(_tokens(device, index)[:, :-1]).sum()

    return Job(step, [model])


@job
def data_parallel(device: torch.device) -> Job:
    """DDP around a compiled model; each process is a rank."""
    with _group(device):
        model = Gpt().to(device)
        parallel = nn.parallel.DistributedDataParallel(model)
        return _training(model, device, call=torch.compile(parallel))


@job
def fully_sharded(device: torch.device) -> Job:
    """FSDP2 over blocks that are compiled; each process is a rank."""
    from torch.distributed.fsdp import fully_shard

    with _group(device):
        model = Llama().to(device)
        for block in model.blocks:
            block.compile()
            fully_shard(block)
        fully_shard(model)
        return _training(model, device)


DISTRIBUTED = ("data_parallel", "fully_sharded")


@contextmanager
def _group(device: torch.device) -> Iterator[None]:
    """Have a process group: of the processes that torchrun has started, or of this one."""
    if not torch.distributed.is_initialized():
        here = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        for name, value in here.items():
            os.environ.setdefault(name, value)
        torch.distributed.init_process_group("gloo" if device.type == "cpu" else "nccl")
    yield


# Observing ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """The facts of one run of a job that must be the same with and without capture."""

    bits: dict[str, str]  # a hash of each loss, gradient, parameter, state
    counters: dict[str, dict[str, int]]  # torch's own
    frames: list[list[Any]]  # of each compiled frame: its name and the counts of its operators, inputs and guards
    ours: list[str] = field(default_factory=list)  # frames of numscope's that Dynamo saw

    def differences(self, plain: Seen) -> list[str]:
        """Return what is not as in the plain run, a sentence each."""
        found = [f"bits of {name}" for name, bits in plain.bits.items() if self.bits.get(name) != bits]
        for group in sorted({*plain.counters, *self.counters}):
            mine, other = self.counters.get(group, {}), plain.counters.get(group, {})
            found += [
                f"{group}.{name.splitlines()[0][:80]} {mine.get(name, 0)} for {other.get(name, 0)}"
                for name in sorted({*mine, *other})
                if mine.get(name, 0) != other.get(name, 0)
            ]
        if self.frames != plain.frames:
            found.append(
                f"frames {len(self.frames)} for {len(plain.frames)}: {_first_unlike(self.frames, plain.frames)}"
            )
        return found + [f"Dynamo saw {name}" for name in self.ours]


def _without_address(text: str) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def _first_unlike(mine: list[list[Any]], other: list[list[Any]]) -> str:
    for one, two in zip(mine, other):
        if one != two:
            return "; ".join(f"{a} for {b}"[:200] for a, b in zip(one, two) if a != b)
    return f"{mine[len(other) :] or other[len(mine) :]}"


def _hash(tensor: torch.Tensor) -> str:
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(bytes(data.tolist())).hexdigest()[:16]


def _frames() -> list[list[Any]]:
    """Return the compiled frames as torch's metrics have them, without what is a time or a text of another process."""
    names = ("co_name", "cache_size", "guard_count", "graph_op_count", "graph_node_count", "graph_input_count",
             "recompile_reason", "fail_reason", "is_forward", "inductor_fx_remote_cache_hit_count")  # fmt: skip
    metrics = torch._dynamo.utils.get_compilation_metrics()
    return [[_without_address(str(getattr(one, name, None))) for name in names] for one in metrics]


def _ours() -> list[str]:
    """Return the functions of numscope's that Dynamo was asked to compile, or compiled."""
    frames = torch._dynamo.convert_frame
    seen = [code() for codes in (frames.input_codes, frames.output_codes) for code in codes.seen]
    return sorted(
        {f"{Path(c.co_filename).name}:{c.co_name}" for c in seen if c is not None and _is_ours(c.co_filename)}
    )


def _is_ours(file: str) -> bool:
    return f"{os.sep}numscope{os.sep}" in file and "site-packages/torch" not in file


def observe(
    name: str, device: torch.device, capture: Callable[[list[nn.Module]], Any] | None = None, order: str = "before"
) -> Seen:
    """Run a job; `capture` makes the capture around it, which begins before the first step, after it, or for two steps."""
    from torch._dynamo.utils import clear_compilation_metrics, counters

    torch._dynamo.reset()
    gc.collect()
    counters.clear()
    clear_compilation_metrics()
    torch.manual_seed(0)
    capturing: Any = None
    bits: dict[str, str] = {}
    watched: list[nn.Module] = []
    if capture is not None and order == "before":  # as `numscope run`: nothing is compiled, no model is known
        capturing = capture([])
        capturing.start()
    running = JOBS[name](device)
    watched = running.models
    gradients: list[torch.Tensor] = []
    _before_zero_grad(running.optimizer, lambda: gradients.extend(
        p.grad.detach().clone() for model in watched for p in model.parameters() if p.grad is not None
    ))  # fmt: skip
    for index in range(STEPS):
        if capture is not None and index == 1 and order in ("after", "between"):
            capturing = capture(watched)
            capturing.start()
        gradients.clear()
        bits[f"loss {index}"] = _hash(running.step(index))
        bits[f"gradients {index}"] = hashlib.sha256("".join(map(_hash, gradients)).encode()).hexdigest()[:16]
        if capturing is not None:
            capturing.step()
            if order == "between" and index == 2:
                capturing.stop()
                capturing = None
    if capturing is not None:
        capturing.stop()
    for number, model in enumerate(watched):
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        bits |= {f"state {number}.{key.replace('_orig_mod.', '')}": _hash(value) for key, value in state.items()}
    if running.optimizer is not None:
        values = [v for state in running.optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
        bits["optimizer"] = hashlib.sha256("".join(map(_hash, values)).encode()).hexdigest()[:16]
    bits["random"] = _hash(torch.random.get_rng_state())
    counted = {
        group: {_without_address(name): value for name, value in values.items()}
        for group, values in counters.items()
        if values
    }
    return Seen(bits, counted, _frames(), _ours())


def _before_zero_grad(optimizer: Any, work: Callable[[], None]) -> None:
    """Do some work before an optimizer forgets the gradients."""
    if optimizer is None:
        return
    forget = optimizer.zero_grad

    def zero_grad() -> None:
        work()
        forget()

    optimizer.zero_grad = zero_grad


@contextmanager
def cache(kept: Path | None = None) -> Iterator[Path]:
    """Have a folder of its own for Inductor's caches; `kept`: one that stays."""
    with nullcontext(kept) if kept is not None else tempfile.TemporaryDirectory() as folder:
        before = {name: os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        os.environ.update({name: str(Path(folder, name)) for name in before})
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


class Plain:
    """The results of jobs without capture, each run once with empty caches and once with full ones."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[str, Seen] = {}

    def __call__(self, name: str) -> Seen:
        """Return what a job does with full caches; raise where it does not do the same twice."""
        if name not in self._known:
            cold = observe(name, self._device)
            self._known[name] = warm = observe(name, self._device)
            changed = [key for key, value in cold.bits.items() if warm.bits[key] != value]
            if changed:
                raise RuntimeError(f"{name} is not the same twice without capture: {', '.join(changed)}")
        return self._known[name]


def captured(name: str, device: torch.device, folder: Path, level: str, twins: bool, order: str) -> Seen:
    """Run a job under capture."""
    import numscope as ns
    from numscope.capture.torch import native

    begun: list[Any] = []

    def capture(models: list[nn.Module]) -> Any:
        begun.append(ns.capture(folder, models or None, level=level, on_error="raise"))
        return begun[-1]

    with nullcontext() if twins else native.without(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return observe(name, device, capture, order)
        finally:  # a job that raises must not spoil the next
            for one in begun:
                one.close()


@dataclass(frozen=True)
class Result:
    """One cell of the matrix."""

    job: str
    level: str
    twins: bool
    order: str
    differences: list[str]
    seconds: float


class Cell(NamedTuple):
    """One cell of the matrix: how a job is captured."""

    job: str
    level: str
    twins: bool
    order: str


def cells(jobs: Sequence[str], levels: Sequence[str], twins: Sequence[bool], orders: Sequence[str]) -> list[Cell]:
    """Return the cells, each way of capturing for all jobs before the next; the jobs begin with different ways."""
    ways = [(level, one, order) for order in orders for one in twins for level in levels]
    turns = range(len(ways))
    return [Cell(name, *ways[(turn + at) % len(ways)]) for turn in turns for at, name in enumerate(jobs)]


def run_cell(cell: Cell, plain: Plain, device: torch.device) -> Result:
    """Run one cell."""
    begun = time.perf_counter()
    try:
        expected = plain(cell.job)
    except Exception as error:
        why = f"cannot be run here: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        return Result(cell.job, "plain", False, "", [why], 0.0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            seen = captured(cell.job, device, Path(folder, "run"), cell.level, cell.twins, cell.order)
            differences = seen.differences(expected)
        except Exception as error:
            differences = [f"raised {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"]
    return Result(*cell, differences, time.perf_counter() - begun)


def table(results: Sequence[Result]) -> str:
    """Return the matrix as a table in Markdown: a row for each job, a column for each level."""
    levels = [level for level in LEVELS if any(result.level == level for result in results)]
    lines = [f"| job | {' | '.join(levels)} |", "|---" * (len(levels) + 1) + "|"]
    for name in dict.fromkeys(result.job for result in results):
        mine = [result for result in results if result.job == name]
        if mine[0].level == "plain":
            lines.append(f"| {name} | {mine[0].differences[0]}" + " |" * len(levels))
            continue
        cells = []
        for level in levels:
            some = [result for result in mine if result.level == level]
            bad = [result for result in some if result.differences]
            cells.append("same" if not bad else f"{len(bad)} of {len(some)} differ: {bad[0].differences[0]}"[:100])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix, print it, and return 1 where a job is disturbed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--twins", nargs="+", choices=("on", "off"), default=["on", "off"])
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no cell after this time")
    parser.add_argument("--out", type=Path, help="write the results as JSON; go on where it ends")
    parser.add_argument("--caches", type=Path, help="a folder for Inductor's caches that stays")
    parser.add_argument("--observe", choices=JOBS, help="run one job, as a script, and write what is held of it")
    given = parser.parse_args(arguments)
    if given.observe:
        given.out.write_text(json.dumps(asdict(observe(given.observe, torch.device(given.device)))))
        return 0
    device, begun = torch.device(given.device), time.perf_counter()
    results: list[Result] = []
    if given.out and given.out.exists():
        results = [Result(**one) for one in json.loads(given.out.read_text())["results"]]
    done = {Cell(one.job, one.level, one.twins, one.order) for one in results}
    not_here = {one.job for one in results if one.level == "plain"}
    plain = Plain(device)
    with cache(given.caches):
        for cell in cells(given.jobs, given.levels, [twins == "on" for twins in given.twins], given.orders):
            if cell in done or cell.job in not_here:
                continue
            if time.perf_counter() - begun > given.seconds:
                break
            result = run_cell(cell, plain, device)
            results.append(result)
            if result.level == "plain":
                not_here.add(result.job)
            told = "; ".join(result.differences[:4]) or "same"
            words = f"{cell.job} {cell.level} {'twins' if cell.twins else 'python'} {cell.order}"
            print(f"{words} {result.seconds:.1f} s: {told}", file=sys.stderr, flush=True)
            if given.out:
                machine = {"torch": torch.__version__, "python": sys.version.split()[0], "device": given.device}
                given.out.write_text(json.dumps({**machine, "results": [asdict(one) for one in results]}, indent=1))
    print(table(results))
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return int(any(result.differences and result.level != "plain" for result in results))


if __name__ == "__main__":
    sys.exit(main())
