"""Two gloo ranks: DDP, FSDP2 with DTensor parameters, collectives with and without waiting; plain and captured."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn

import numscope as ns


def build(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(kind, out, name=None, scale=1.0, **settings):
    model = build(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    losses = []

    def step():
        loss = (model(torch.randn(3, 4)) * scale).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        waiting = dist.all_reduce(mean, op=dist.ReduceOp.MAX, async_op=True)
        waiting.wait()
        losses.append(mean)

    if out is None:
        step()
        step()
    else:
        settings = {"keep": "tensors", **settings}
        with ns.capture(os.path.join(out, name or kind), model, on_error="raise", **settings) as cap:
            for _ in range(2):
                step()
                cap.step()
    local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return losses + [p.detach().clone() for p in local]


def work(rank, world, port, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for kind in ("ddp", "fsdp2"):
        plain, captured = train(kind, None), train(kind, out)
        assert all(torch.equal(a, b) for a, b in zip(plain, captured)), kind
        train(kind, out, f"{kind}-again")
        for name, scale in (("aten", 1.0), ("aten-again", 1.0), ("aten-wrong", 1.01)):
            operators = train(kind, out, f"{kind}-{name}", scale, level="aten", keep="stats")
            assert scale != 1 or all(torch.equal(a, b) for a, b in zip(plain, operators)), kind
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2, int(sys.argv[1]), sys.argv[2]), nprocs=2)
