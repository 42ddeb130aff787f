"""Data parallel on two ranks, with other gradient buckets."""

import torch

from bench.zoo.models.classic import ClassicGPT
from bench.zoo.models.ranks import launch
from bench.zoo.models.training import token_batches, train
from bench.zoo.script import run

CONTROL = True


def job(rank, variant):
    torch.manual_seed(0)
    size = 1e-3 if variant == "target" else 25
    model = torch.nn.parallel.DistributedDataParallel(ClassicGPT(layers=1), bucket_cap_mb=size)
    return train(model, token_batches(2, seed=3 + rank))


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
