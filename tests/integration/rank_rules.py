"""Small jobs of two ranks on gloo, each clean or with one broken rule between the ranks: `python rank_rules.py OUT`."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

import numscope as ns

STEPS, WIDTH = 5, 16


class Sum(torch.autograd.Function):
    """The sum over the ranks of what each has a part of; its gradient is passed on."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class Copy(torch.autograd.Function):
    """The identity; its gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Net(nn.Module):
    """A residual block with dropouts; `cut` over the ranks, or whole on each."""

    def __init__(self, cut, fault):
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.fault = cut, fault
        self.enter, self.norm = nn.Linear(8, WIDTH), nn.LayerNorm(WIDTH)
        up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        if cut:
            rank, part = dist.get_rank(), 2 * WIDTH
            with torch.no_grad():
                up.weight = nn.Parameter(up.weight.chunk(2)[rank].clone())
                up.bias = nn.Parameter(up.bias.chunk(2)[rank].clone())
                down.weight = nn.Parameter(down.weight[:, rank * part : (rank + 1) * part].clone())
        self.up, self.down = up, down
        self.generators = [torch.Generator(), torch.Generator()]  # of what is cut, of what is whole

    def forward(self, x):
        x = self.enter(x)
        h = self.norm(x)
        if self.cut and self.fault != "gradient_in_parts":
            h = Copy.apply(h)
        h = self.up(h).tanh()
        h = self.dropout(h, 0)
        h = F.linear(h, self.down.weight)
        h = Sum.apply(h) if self.cut else h
        return x + self.dropout(h + self.down.bias, 1)

    def dropout(self, x, which):
        """Drop a fifth of the elements, by the random state of what is cut or of what is whole."""
        if self.fault not in ("", "same_dropout", "other_dropout"):
            return x
        generator = self.generators[which]
        state = torch.get_rng_state()
        torch.set_rng_state(generator.get_state())
        x = F.dropout(x, 0.2)
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(state)
        return x


def train(path, cut, fault):
    rank = dist.get_rank()
    model = Net(cut, fault)
    if fault in ("same_dropout", "other_dropout", ""):
        model.generators[0].manual_seed(5 if fault == "same_dropout" else 5 + rank)
        model.generators[1].manual_seed(9 + rank if fault == "other_dropout" or not cut else 9)
    if fault == "another_start" and rank == 1:
        with torch.no_grad():
            model.enter.weight[0, 0] += 1
    rate = 2e-3 if fault == "rate" and rank == 1 else 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    data = torch.Generator().manual_seed(3 + (0 if cut or fault == "same_data" else rank))
    if fault == "state":  # as of a checkpoint of which one rank has read another part
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        with torch.no_grad():
            for parameter in model.parameters():
                optimizer.state[parameter]["exp_avg"] *= 1 + rank
    with ns.capture(path, model, on_error="raise") as cap:
        for step in range(STEPS):
            if step == 2 and fault == "written" and rank == 1:
                with torch.no_grad():
                    model.up.weight[3, 3] *= 4
            x = torch.randn(16, 8, generator=data)
            model(x).square().mean().backward()
            for name, parameter in model.named_parameters():
                if fault == "not_reduced" and name == "norm.weight":
                    continue
                if not cut:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= 2
            optimizer.step()
            optimizer.zero_grad()
            cap.step()


class First(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(32, WIDTH)

    def forward(self, ids):
        return self.tokens(ids)


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = nn.Parameter(First().tokens.weight.detach().clone())

    def forward(self, x):
        return self.head(x)


def stages(path, fault):
    """Train two stages whose first and last table are tied."""
    rank = dist.get_rank()
    model = Last() if rank else First()
    (table,) = model.parameters()
    optimizer = torch.optim.SGD([table], 0.1)
    generator = torch.Generator().manual_seed(2)
    with ns.capture(path, model, on_error="raise") as cap:
        for _ in range(STEPS):
            ids = torch.randint(32, (8,), generator=generator)
            if rank:
                x = torch.empty(8, WIDTH)
                dist.recv(x, 0)
                x.requires_grad_()
                F.cross_entropy(model(x), ids).backward()
                dist.send(x.grad, 0)
            else:
                x = model(ids)
                dist.send(x.detach(), 1)
                g = torch.empty_like(x)
                dist.recv(g, 1)
                x.backward(g)
            if fault != "untied":
                dist.all_reduce(table.grad)
            optimizer.step()
            optimizer.zero_grad()
            cap.step()


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.norm = nn.Linear(8, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(self.enter(x))


def statistics(path, fault):
    """Train replicas of a batch norm."""
    model = nn.parallel.DistributedDataParallel(Counted(), broadcast_buffers=fault != "own_statistics")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    with ns.capture(path, model, on_error="raise") as cap:
        for _ in range(STEPS):
            model(torch.randn(16, 8, generator=generator)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            cap.step()


class Wide(nn.Module):
    """Two layers, of which 7 rows do not divide by 2."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 7)

    def forward(self, x):
        return self.down(self.up(x).tanh())


def pieces(path, way):
    """Keep the tensors of a model that a library cuts over the ranks."""
    model, rank = Wide(), dist.get_rank()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(4))
    if way == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    elif way == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    elif way == "mesh":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    elif way == "marks":  # as Megatron and Transformer Engine leave them
        group = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
        model.up.weight = nn.Parameter(model.up.weight.detach().chunk(2)[rank].clone())
        model.up.bias = nn.Parameter(model.up.bias.detach().chunk(2)[rank].clone())
        model.down.weight = nn.Parameter(model.down.weight.detach().chunk(2, 1)[rank].clone())
        for parameter, dimension in ((model.up.weight, 0), (model.up.bias, 0), (model.down.weight, 1)):
            parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dimension, 1
        model.down.bias.sequence_parallel = False
        model.up.tp_group = model.down.tp_group = group
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ns.capture(path, model, keep="tensors", on_error="raise") as cap:
        if way == "marks":
            h = Sum.apply(F.linear(torch.tanh(model.up(x)), model.down.weight)) + model.down.bias
            h.square().mean().backward()
        else:
            model(x).square().mean().backward()
        optimizer.step()
        cap.step()


WRONG = {  # what a backend gives on rank 1, where it is at fault
    "reduce_scatter": ("reduce_scatter", lambda args: args[0][0]),
    "none": ("", None),
}


def collectives(path, which):
    """Call each collective once, one of them with a backend that gives something else."""
    method, result = WRONG[which]
    kind, rank = dist.ProcessGroup, dist.get_rank()
    original = getattr(kind, method) if method else None

    def wrong(group, *args, **kwargs):
        work = original(group, *args, **kwargs)
        work.wait()
        if rank == 1:
            result(args).view(-1)[0] += 1
        return work

    if method:
        setattr(kind, method, wrong)
    torch.manual_seed(rank)
    x, parts = torch.randn(8, 3), [torch.randn(4, 3) for _ in range(2)]
    try:
        with ns.capture(path, on_error="raise") as cap:
            dist.reduce_scatter(torch.empty(4, 3), parts)
            dist.reduce_scatter_tensor(torch.empty(4, 3), x)
            dist.all_gather_into_tensor(torch.empty(16, 3), x)
            dist.all_gather([torch.empty(8, 3), torch.empty(8, 3)], x)
            cap.step()
    finally:
        if method:
            setattr(kind, method, original)


JOBS = {
    **{f"collectives.{which}": (collectives, which) for which in WRONG},
    **{f"pieces.{way}": (pieces, way) for way in ("one", "fsdp2", "fsdp1", "mesh", "marks")},
    "dp": (train, False, ""),
    "tp": (train, True, ""),
    "stages": (stages, ""),
    "statistics": (statistics, ""),
    **{f"dp.{fault}": (train, False, fault) for fault in ("same_data", "not_reduced", "rate", "state", "written", "another_start")},
    **{f"tp.{fault}": (train, True, fault) for fault in ("same_dropout", "other_dropout", "gradient_in_parts")},
    "stages.untied": (stages, "untied"),
    "statistics.own_statistics": (statistics, "own_statistics"),
}  # fmt: skip


def run(rank, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    for name, (job, *arguments) in JOBS.items():
        dist.barrier()
        job(os.path.join(out, name), *arguments)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run, (sys.argv[1],), nprocs=2)
