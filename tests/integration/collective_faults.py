"""Two gloo ranks: a collective that is missing, doubled, or gives the right numbers in the wrong way; and the same without the fault."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import numscope as ns


def reduced(x, op=dist.ReduceOp.SUM):
    y = x.clone()
    dist.all_reduce(y, op=op)
    return y


def gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def scattered(x, order):
    out = torch.empty(x.shape[0] // 2, *x.shape[1:])
    chunks = list(x.chunk(2))
    dist.reduce_scatter(out, [chunks[i].contiguous() for i in order])
    return out


FAULTS = {  # target, reference
    "missing": (lambda x: x * 1, lambda x: reduced(x)),
    "doubled": (lambda x: reduced(reduced(x)), lambda x: reduced(x)),
    "sum_for_mean": (lambda x: reduced(x) * 1, lambda x: reduced(x) / dist.get_world_size()),
    "mean_for_sum": (lambda x: reduced(x) / dist.get_world_size(), lambda x: reduced(x)),
    "times_n": (lambda x: reduced(x * dist.get_world_size()), lambda x: reduced(x)),
    "max_for_sum": (lambda x: reduced(x, dist.ReduceOp.MAX), lambda x: reduced(x)),
    "concat_order": (lambda x: torch.cat(gathered(x)[::-1], 0), lambda x: torch.cat(gathered(x), 0)),
    "concat_axis": (lambda x: torch.cat(gathered(x), 1), lambda x: torch.cat(gathered(x), 0)),
    "shards_permuted": (lambda x: scattered(x, (1, 0)), lambda x: scattered(x, (0, 1))),
    "other_shard": (lambda x: reduced(x).chunk(2)[1 - dist.get_rank()], lambda x: reduced(x).chunk(2)[dist.get_rank()]),
    "not_gathered": (lambda x: torch.cat([x, x], 0), lambda x: torch.cat(gathered(x), 0)),
}


class Net(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.up, self.down, self.mix = nn.Linear(6, 8), nn.Linear(8, 6), mix

    def forward(self, x):
        h = self.mix(torch.tanh(self.up(x)))
        return self.down(h.reshape(-1, 8))


def work(rank, world, port, out, names):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for name in names:
        for side, mix in zip(("target", "reference"), FAULTS[name]):
            torch.manual_seed(0)
            model = Net(mix)
            torch.manual_seed(10 + rank)
            x = torch.randn(4, 6)
            path = os.path.join(out, name, side)
            with torch.no_grad(), ns.capture(path, model, keep="tensors", on_error="raise", backward=False):
                model(x)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (2, int(sys.argv[1]), sys.argv[2], sys.argv[3:] or list(FAULTS)), nprocs=2)
