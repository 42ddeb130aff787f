"""One job in several layouts: one process, DDP, FSDP2, tensor parallel, pipeline, micro batches; with and without a fault."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import numscope as ns

STEPS = 2


class Mlp(nn.Module):
    def __init__(self, approximate="none"):
        super().__init__()
        self.up, self.down, self.approximate = nn.Linear(16, 32), nn.Linear(32, 16), approximate

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate=self.approximate))


class Net(nn.Module):
    def __init__(self, approximate="none"):
        super().__init__()
        self.enter, self.norm = nn.Linear(6, 16), nn.LayerNorm(16)
        self.mlp, self.head = Mlp(approximate), nn.Linear(16, 3)
        self.shift = nn.Parameter(
            torch.zeros(1)
        )  # has no effect: its gradient is rounding alone, as a key's bias has it

    def forward(self, x):
        h = torch.tanh(self.enter(x)) + self.shift
        h = h - h.mean(-1, keepdim=True)
        return self.head(h + self.mlp(self.norm(h)))


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def net(approximate="none"):
    torch.manual_seed(0)
    return Net(approximate)


def batches(parts=1, part=0, pieces=1):
    """Return the data as a loader gives it: made outside of what is captured."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(8, 6, generator=generator)
        y = x[:, :3].argmax(1)
        yield list(zip(x.chunk(parts)[part].chunk(pieces), y.chunk(parts)[part].chunk(pieces)))


def train(path, model, parts=1, part=0, pieces=1, synced=True, after=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with ns.capture(path, model, on_error="raise") as cap:
        for batch in batches(parts, part, pieces):
            optimizer.zero_grad()
            for number, (x, y) in enumerate(batch):
                waits = not synced and number < len(batch) - 1
                with model.no_sync() if waits else contextlib.nullcontext():
                    (F.cross_entropy(model(x), y) / len(batch)).backward()
            if after is not None:
                after(model)
            optimizer.step()
            cap.step()


def reduced(mean=True, without=""):
    def after(model):
        for name, parameter in model.named_parameters():
            if name != without:
                dist.all_reduce(parameter.grad)
                if mean:
                    parameter.grad.div_(dist.get_world_size())

    return after


def train_loaded(path, indices):
    """Train with samples that are chosen and put together within what is captured, as a loader without workers does it."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with ns.capture(path, model, on_error="raise") as cap:
        for batch in batches():
            ((x, y),) = batch
            optimizer.zero_grad()
            for number, part in enumerate(indices):
                given = torch.stack([x[i] for i in part]), torch.stack([y[i] for i in part])
                with model.no_sync() if number < len(indices) - 1 else contextlib.nullcontext():
                    (F.cross_entropy(model(given[0]), given[1]) / len(indices)).backward()
            optimizer.step()
            cap.step()


def alone(out):
    train(os.path.join(out, "one"), net())
    train(os.path.join(out, "micro"), net(), pieces=4)
    wrapped = net()
    wrapped.norm = Wrapped(wrapped.norm)
    train(os.path.join(out, "wrapped"), wrapped)


def tensor_parallel(approximate="none"):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = net(approximate)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model.mlp, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sharded(eps=1e-5):
    from torch.distributed.fsdp import fully_shard

    model = net()
    model.norm.eps = eps
    fully_shard(model.mlp)
    return fully_shard(model)


def pipeline(path, rank, rounded=False):
    whole = net()
    stage = nn.ModuleDict(
        {"enter": whole.enter} if rank == 0 else {"norm": whole.norm, "mlp": whole.mlp, "head": whole.head}
    )
    if rank == 0:
        stage.shift = whole.shift
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-2)
    with ns.capture(path, stage, on_error="raise") as cap:
        for batch in batches():
            optimizer.zero_grad()
            ((x, y),) = batch
            if rank == 0:
                h = torch.tanh(stage["enter"](x)) + stage.shift
                h = h - h.mean(-1, keepdim=True)
                dist.send(h.detach(), 1)
                gradient = torch.empty_like(h)
                dist.recv(gradient, 1)
                h.backward(gradient)
            else:
                h = torch.empty(8, 16)
                dist.recv(h, 0)
                h.requires_grad_()
                F.cross_entropy(stage["head"](h + stage["mlp"](stage["norm"](h))), y).backward()
                dist.send(h.grad.bfloat16().float() if rounded else h.grad, 0)
            optimizer.step()
            cap.step()


def work(rank, world, store, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    share = {"parts": world, "part": rank}
    jobs = {
        "ddp": lambda path: train(path, DistributedDataParallel(net()), **share),
        "tanh": lambda path: train(path, DistributedDataParallel(net("tanh")), **share),
        "forgot": lambda path: train(path, net(), **share),
        "forgot_one": lambda path: train(path, net(), after=reduced(without="norm.weight"), **share),
        "summed": lambda path: train(path, net(), after=reduced(mean=False), **share),
        "overlap": lambda path: train(path, DistributedDataParallel(net()), world, 0),
        "each": lambda path: train(path, DistributedDataParallel(net()), pieces=2, **share),
        "last": lambda path: train(path, DistributedDataParallel(net()), pieces=2, synced=False, **share),
        "halves": lambda path: train_loaded(path, [[range(4), range(4, 8)][rank]]),
        "turns": lambda path: train_loaded(path, [range(2 * rank, 2 * rank + 2), range(2 * rank + 4, 2 * rank + 6)]),
        "sharded": lambda path: train(path, sharded(), **share),
        "sharded_eps": lambda path: train(path, sharded(1e-2), **share),
        "tensor": lambda path: train(path, tensor_parallel()),
        "tensor_again": lambda path: train(path, tensor_parallel()),
        "tensor_tanh": lambda path: train(path, tensor_parallel("tanh")),
        "pipeline": lambda path: pipeline(path, rank),
        "pipeline_rounded": lambda path: pipeline(path, rank, rounded=True),
    }
    for name, job in jobs.items():
        job(os.path.join(out, name))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    alone(sys.argv[1])
    mp.spawn(work, (2, os.path.join(sys.argv[1], "store"), sys.argv[1]), nprocs=2)
