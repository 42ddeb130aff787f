"""Data parallel over two processes, or one process with the whole batch.

--wrong: the ranks' gradients are added, not averaged.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def work(rank: int, ranks: int, wrong: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29671", RANK=str(rank), WORLD_SIZE=str(ranks))
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        batch = torch.randn(8, 8).chunk(ranks)[rank]
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters() if ranks > 1 else ():
            dist.all_reduce(parameter.grad)
            if not wrong:
                parameter.grad /= ranks
        optimizer.step()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--wrong", action="store_true")
    args = parser.parse_args()
    if args.ranks == 1:
        work(0, 1, False)
    else:
        mp.spawn(work, (args.ranks, args.wrong), args.ranks)
