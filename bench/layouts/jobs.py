"""One tiny GPT in many layouts on gloo: one process, DDP, FSDP2, tensor, sequence, context, vocabulary and expert parallel, and
a pipeline; each clean, and with one planted fault at a time.

    python -m bench.layouts.jobs OUT [NAME…]      # NAME: a layout, or layout.fault

The hand-written layouts compute what one process does, with the collectives of Megatron: each fault is one line of it.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn

import numscope as ns
from bench.layouts import megatron

STEPS, BATCH, LENGTH, WIDTH, HEADS, VOCABULARY, EXPERTS = 2, 4, 16, 32, 4, 64, 2


@dataclass
class Job:
    """How a job is cut, and the fault that is planted in it."""

    layout: str = "one"
    fault: str = ""
    rank: int = 0
    world: int = 1

    def has(self, fault: str) -> bool:
        return self.fault == fault

    def cut(self, layout: str) -> bool:
        return self.layout == layout


class _Copy(torch.autograd.Function):
    """The identity; its gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        g = g.clone()
        dist.all_reduce(g)
        return g


class _Sum(torch.autograd.Function):
    """The sum over the ranks; its gradient is passed on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class _Gather(torch.autograd.Function):
    """The parts of all ranks along dimension 1; the gradient is cut again, and summed where the ranks use them apart."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, reverse: bool = False, apart: bool = True) -> Tensor:
        ctx.apart = apart
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts[::-1] if reverse else parts, 1)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        parts = [part.contiguous() for part in g.chunk(dist.get_world_size(), 1)]
        if not ctx.apart:
            return parts[dist.get_rank()], None, None
        out = torch.empty_like(parts[0])
        dist.reduce_scatter(out, parts)
        return out, None, None


class _ReduceScatter(torch.autograd.Function):
    """The sum over the ranks, cut along dimension 1; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [part.contiguous() for part in x.chunk(dist.get_world_size(), 1)]
        out = torch.empty_like(parts[0])
        dist.reduce_scatter(out, parts)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, g.contiguous())
        return torch.cat(parts, 1)


class _Exchange(torch.autograd.Function):
    """Sends tokens to the ranks of their experts; the gradient takes the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: list[int], taken: list[int]) -> Tensor:
        ctx.sizes = given, taken
        out = x.new_empty(sum(taken), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), taken, given)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        given, taken = ctx.sizes
        out = g.new_empty(sum(given), g.shape[1])
        dist.all_to_all_single(out, g.contiguous(), given, taken)
        return out, None, None


def zigzag(length: int, world: int, rank: int) -> Tensor:
    """Return the positions that a rank holds: a chunk of the front and its mirror image of the back."""
    chunks = torch.arange(length).chunk(2 * world)
    return torch.cat([chunks[rank], chunks[2 * world - 1 - rank]])


class Attention(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, heads = job, HEADS // (job.world if job.layout in ("tp", "sp") else 1)
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(WIDTH, heads * WIDTH // HEADS) for _ in range(3))
        self.out = nn.Linear(heads * WIDTH // HEADS, WIDTH)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        job = self.job
        if job.cut("sp"):
            x = _Gather.apply(x, job.has("gathered_in_reverse"))
        elif job.cut("tp"):
            x = x if job.has("gradient_not_reduced") else _Copy.apply(x)
        q, k, v = (layer(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        everywhere = positions
        if job.cut("cp"):
            k, v = (_Gather.apply(part.transpose(1, 2)).transpose(1, 2) for part in (k, v))
            everywhere = torch.cat([zigzag(LENGTH, job.world, rank) for rank in range(job.world)])
        elif job.cut("sp"):
            everywhere = positions = torch.arange(LENGTH)
        width = WIDTH if job.has("scale_of_all_heads") else WIDTH // HEADS
        scores = q @ k.transpose(-2, -1) / math.sqrt(width)
        if job.has("mask_in_local_order"):
            positions, everywhere = torch.arange(len(positions)), torch.arange(len(everywhere))
        scores = scores.masked_fill(positions[:, None] < everywhere[None, :], float("-inf"))
        h = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return joined(job, self.out, h)


def joined(job: Job, layer: nn.Linear, h: Tensor) -> Tensor:
    """Return the result of a layer whose inputs are cut over the ranks: the bias is added once."""
    if not (job.cut("tp") or job.cut("sp")):
        return layer(h)
    if job.has("bias_on_every_rank"):
        return _Sum.apply(F.linear(h, layer.weight, layer.bias))
    part = F.linear(h, layer.weight)
    if job.cut("sp"):
        return _ReduceScatter.apply(part) + layer.bias
    if job.has("not_reduced"):
        return part + layer.bias
    return _Sum.apply(_Sum.apply(part) if job.has("reduced_twice") else part) + layer.bias


class Mlp(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, width = job, 2 * WIDTH // (job.world if job.layout in ("tp", "sp") else 1)
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        job = self.job
        x = _Gather.apply(x) if job.cut("sp") else _Copy.apply(x) if job.cut("tp") else x
        h = F.gelu(self.up(x), approximate=approximation(job))
        if job.has("mlp_off_on_rank_1") and job.rank == 1:
            h = h * 1.01
        return joined(job, self.down, h)


def approximation(job: Job) -> str:
    return "tanh" if job.has("tanh") or (job.has("tanh_on_rank_1") and job.rank == 1) else "none"


class Moe(nn.Module):
    """Two experts, one of which each token is sent to; expert parallel, each lies on a rank of its own."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job, self.gate = job, nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleDict(
            {str(i): Mlp(Job("one", job.fault, i)) for i in range(EXPERTS) if job.layout != "ep" or i == job.rank}
        )

    def forward(self, x: Tensor) -> Tensor:
        job, tokens = self.job, x.flatten(0, 1)
        share, chosen = self.gate(tokens).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        given = torch.bincount(chosen, minlength=EXPERTS).tolist()
        h = tokens[order]
        if job.cut("ep"):
            counts = torch.tensor(given)
            taken = torch.empty_like(counts)
            dist.all_to_all_single(taken, counts)
            h = _Exchange.apply(h, given, taken.tolist())
            h = self.experts[str(job.rank)](h)
            h = _Exchange.apply(h, taken.tolist(), given)
        else:
            h = torch.cat([self.experts[str(i)](part) for i, part in enumerate(h.split(given))])
        if job.has("tokens_not_put_back"):
            back = h
        else:
            back = torch.zeros_like(h).index_copy(0, order, h)
        if not job.has("gate_forgotten"):
            back = back * share[:, None]
        return back.view_as(x)


class Block(nn.Module):
    def __init__(self, job: Job, moe: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH, eps=1e-3 if job.has("eps") else 1e-5), Attention(job)
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), Moe(job) if moe else Mlp(job)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), positions)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, job: Job, moe: bool = False) -> None:
        super().__init__()
        self.job = job
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(job, moe) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY // (job.world if job.cut("vp") else 1), bias=False)

    def positions(self) -> Tensor:
        job = self.job
        if job.cut("cp"):
            if job.has("positions_not_zigzag"):
                return torch.arange(LENGTH).chunk(job.world)[job.rank]
            return zigzag(LENGTH, job.world, job.rank)
        if job.cut("sp"):
            return torch.arange(LENGTH).chunk(job.world)[0 if job.has("positions_of_rank_0") else job.rank]
        return torch.arange(LENGTH)

    def forward(self, ids: Tensor) -> Tensor:
        positions = self.positions()
        x = self.tokens(ids) + self.places(positions)
        for block in self.blocks:
            x = block(x, positions)
        x = self.norm(x)
        if self.job.cut("sp"):
            x = _Gather.apply(x, False, False)
        if self.job.cut("vp"):
            x = _Copy.apply(x)
        return self.head(x)


def loss_of(job: Job, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy over the tokens that this rank is given; of vocabulary parallel logits, over all."""
    if not job.cut("vp"):
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return loss * 2 if job.has("loss_doubled") else loss
    size = logits.shape[-1]
    begin = job.rank * size + (1 if job.has("range_off_by_one") else 0)
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    shifted = logits - highest[..., None]
    mine = (labels >= begin) & (labels < begin + size)
    place = torch.where(mine, labels - begin, 0)
    wanted = torch.where(mine, shifted.gather(-1, place[..., None])[..., 0], 0.0)
    wanted = wanted if job.has("wanted_not_reduced") else _Sum.apply(wanted)
    total = shifted.exp().sum(-1)
    total = total if job.has("total_not_reduced") else _Sum.apply(total)
    return (total.log() - wanted).mean()


def whole(moe: bool = False, fault: str = "") -> Gpt:
    torch.manual_seed(0)
    return Gpt(Job(fault=fault), moe)


_CUT_ROWS = ("q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias", "up.weight", "up.bias")
_CUT_COLUMNS = ("out.weight", "down.weight")


def built(job: Job) -> Gpt:
    """Return the model of a rank with its part of the weights of the whole."""
    moe = job.layout in ("ep", "moe")
    source, model = whole(moe).state_dict(), Gpt(job, moe)
    part = (1 - job.rank) if job.has("shard_of_the_other_rank") else job.rank
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            value = source[name]
            if job.layout in ("tp", "sp") and name.endswith(_CUT_ROWS):
                value = value.chunk(job.world, 0)[part if name.endswith("q.weight") else job.rank]
            elif job.layout in ("tp", "sp") and name.endswith(_CUT_COLUMNS):
                value = value.chunk(job.world, 1)[job.rank]
            elif job.cut("vp") and name == "head.weight":
                value = value.chunk(job.world, 0)[job.rank]
            parameter.copy_(value)
    return model


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def share(job: Job, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a rank is given of a batch."""
    if job.cut("fsdp_tp"):
        part = 0 if job.has("data_of_rank_0") else job.rank // (job.world // 2)
        return ids.chunk(2)[part], labels.chunk(2)[part]
    if job.layout in ("ddp", "fsdp", "fsdp1", "hsdp", "ep"):
        part = 0 if job.has("data_of_rank_0") else job.rank
        return ids.chunk(job.world)[part], labels.chunk(job.world)[part]
    if job.cut("cp"):
        positions = zigzag(LENGTH, job.world, job.rank)
        return ids[:, positions], labels[:, positions]
    if job.cut("sp"):
        return ids.chunk(job.world, 1)[job.rank], labels
    return ids, labels


def _mean(model: nn.Module, job: Job, names: Callable[[str], bool], divide: bool = True) -> None:
    for name, parameter in model.named_parameters():
        if names(name) and parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            if divide:
                parameter.grad /= job.world


def after_backward(job: Job, model: nn.Module) -> None:
    """Reduce the gradients as each hand-written layout must."""
    if job.cut("cp"):
        _mean(model, job, lambda name: True, divide=not job.has("summed_for_mean"))
    elif job.cut("ep"):
        _mean(model, job, lambda name: "experts" not in name)
        for name, parameter in model.named_parameters():
            if "experts" in name and not job.has("experts_not_divided"):
                parameter.grad /= job.world
    elif job.cut("sp") and not job.has("norms_not_reduced"):
        # What each rank computes of its own part of the sequence adds up; the cut weights saw the whole sequence.
        _mean(model, job, _is_of_a_part, divide=False)


def _is_of_a_part(name: str) -> bool:
    """Return whether each rank computes a parameter's gradient from its own part of the sequence."""
    return "norm" in name or name.endswith(("out.bias", "down.bias", "places.weight", "tokens.weight"))


def flip(model: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("blocks.1.mlp.up.weight"):
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                local.view(-1)[3] *= 4.0


def train(job: Job, path: str) -> None:
    model: nn.Module = built(job)
    if job.cut("ddp") and not job.has("not_synchronised"):
        model = nn.parallel.DistributedDataParallel(model)
        if job.has("summed_for_mean"):
            model.register_comm_hook(None, _summed)
    elif job.cut("fsdp"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = (
            MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) if job.has("reduced_in_bf16") else MixedPrecisionPolicy()
        )
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif job.cut("hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, job.world // 2), mesh_dim_names=("replicate", "shard"))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif job.cut("fsdp_tp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2, job.world // 2), mesh_dim_names=("dp", "tp"))
        for block in model.blocks:
            parallelize_module(block.mlp, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    elif job.cut("dtensor"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (job.world,))
        for block in model.blocks:
            parallelize_module(block.mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    rate = 2e-2 if job.has("rate_on_rank_1") and job.rank == 1 else 1e-2
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with ns.capture(path, model, on_error="raise") as cap:
        for number, (ids, labels) in enumerate(batches()):
            if number == 1 and job.has("bit_flip_on_rank_1") and job.rank == 1:
                flip(model)
            ids, labels = share(job, ids, labels)
            if job.has("labels_off_on_rank_1") and job.rank == 1:
                labels = labels.roll(1, 1)
            loss_of(job, model(ids), labels).backward()
            after_backward(job, model)
            if job.has("clipped_on_rank_1") and job.rank == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            cap.step()


def _summed(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return work.then(lambda done: done.value()[0])


class Stage(nn.Module):
    """A half of the model; its modules have the names that they have in the whole."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        model = built(Job("one", "", 0))
        self.job = job
        first = job.rank == 0
        if first:
            self.tokens, self.places = model.tokens, model.places
        self.blocks = nn.ModuleDict({str(job.rank): model.blocks[job.rank]})
        for part in self.blocks[str(job.rank)].modules():
            if isinstance(part, (Attention, Mlp)):
                part.job = job
        if not first:
            self.norm, self.head = model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(LENGTH)
        if self.job.rank == 0:
            x = self.tokens(x) + self.places(positions)
            if self.job.has("rounded_between_stages"):
                x = x.bfloat16().float()
        x = self.blocks[str(self.job.rank)](x, positions)
        return x if self.job.rank == 0 else self.head(self.norm(x))


def pipeline(job: Job, path: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    model = Stage(job)
    if job.has("norm_eps") and job.rank == 1:
        model.norm.eps = 1e-3
    parts = 1 if job.cut("stages") else 2
    stage = PipelineStage(model, job.rank, job.world, torch.device("cpu"))

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    kind = Schedule1F1B if job.cut("1f1b") else ScheduleGPipe
    schedule = kind(stage, parts, loss_fn=loss, scale_grads=not job.has("micro_batches_summed"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with ns.capture(path, model, on_error="raise") as cap:
        for ids, labels in batches():
            schedule.step(ids) if job.rank == 0 else schedule.step(target=labels)
            optimizer.step()
            optimizer.zero_grad()
            cap.step()


CLEAN = ("one", "moe", "ddp", "fsdp", "dtensor", "tp", "sp", "vp", "cp", "ep", "gpipe", "1f1b")
# Of four processes: each against one process, and against some of two.
CLEAN_OF_FOUR = ("ddp@4", "fsdp@4", "hsdp@4", "fsdp_tp@4", "tp@4", "sp@4", "vp@4", "cp@4")
FAULTS: dict[str, tuple[str, ...]] = {
    "ddp": (
        "tanh", "tanh_on_rank_1", "not_synchronised", "summed_for_mean", "data_of_rank_0", "bit_flip_on_rank_1",
        "rate_on_rank_1", "eps", "loss_doubled", "labels_off_on_rank_1", "scale_of_all_heads",
    ),
    "fsdp": ("loss_doubled", "data_of_rank_0", "eps", "bit_flip_on_rank_1", "tanh_on_rank_1", "reduced_in_bf16"),
    "dtensor": ("tanh", "scale_of_all_heads", "eps"),
    "tp": (
        "not_reduced", "reduced_twice", "bias_on_every_rank", "gradient_not_reduced", "shard_of_the_other_rank",
        "scale_of_all_heads", "tanh_on_rank_1", "mlp_off_on_rank_1",
    ),
    "sp": ("norms_not_reduced", "gathered_in_reverse", "positions_of_rank_0", "tanh"),
    "vp": ("range_off_by_one", "total_not_reduced", "wanted_not_reduced"),
    "cp": ("positions_not_zigzag", "mask_in_local_order", "summed_for_mean"),
    "ep": ("tokens_not_put_back", "tanh_on_rank_1", "gate_forgotten", "experts_not_divided"),
    "gpipe": ("norm_eps", "micro_batches_summed", "rounded_between_stages", "tanh", "tanh_on_rank_1"),
    "1f1b": ("norm_eps", "tanh_on_rank_1"),
    "hsdp@4": ("tanh_on_rank_1", "loss_doubled", "labels_off_on_rank_1"),
    "fsdp_tp@4": ("eps", "scale_of_all_heads", "loss_doubled", "data_of_rank_0"),
    "tp@4": ("not_reduced", "mlp_off_on_rank_1"),
    "sp@4": ("norms_not_reduced", "tanh"),
    "ddp@4": ("summed_for_mean", "labels_off_on_rank_1", "not_synchronised"),
}  # fmt: skip


def run(rank: int, world: int, out: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=world)
    for name in names:
        layout, _, fault = name.partition(".")
        layout = layout.removesuffix("~").partition("@")[0]
        job = Job(layout, fault, rank, world)
        path = os.path.join(out, name)
        dist.barrier()
        if layout.startswith("mcore"):
            megatron.train(layout, fault, path)
        else:
            (pipeline if layout in ("gpipe", "1f1b", "stages") else train)(job, path)
        dist.barrier()
    dist.destroy_process_group()


def main(out: str, names: list[str]) -> None:
    """Run the jobs of these names, all of them where none is named, in two or four processes."""
    Path(out).mkdir(parents=True, exist_ok=True)
    names = names or [
        *CLEAN,
        *CLEAN_OF_FOUR,
        *(f"{layout}.{fault}" for layout, faults in FAULTS.items() for fault in faults),
    ]
    torch.set_num_threads(1)
    alone = [name for name in names if name in ("one", "moe")]
    for name in alone:
        train(Job(name), os.path.join(out, name))
    Path(out, "store").unlink(missing_ok=True)
    for world in (1, 2, 4):
        if many := [name for name in names if name not in alone and world_of(name) == world]:
            mp.spawn(run, (world, out, many), nprocs=world)
        Path(out, "store").unlink(missing_ok=True)


def world_of(name: str) -> int:
    """Return how many processes a job of this name has: `ddp@4`, `tp@4.tanh`; two where it does not say."""
    layout, _, number = name.partition(".")[0].removesuffix("~").partition("@")
    return int(number or (1 if layout in ("mcore", "mcore_moe") else 2))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
