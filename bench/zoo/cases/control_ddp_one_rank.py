"""DistributedDataParallel of one rank against none."""

import torch
import torch.distributed as dist

from bench.zoo.models.gpt import GPT
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    model = GPT()
    if variant == "reference":
        return train(model, token_batches(2))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return train(torch.nn.parallel.DistributedDataParallel(model), token_batches(2))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
