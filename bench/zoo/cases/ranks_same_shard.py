"""Both ranks train on the first shard of the data: the sampler was not told the rank. DDP does the rest."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bench.zoo.models.ranks import WORLD, launch
from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call, data

# The rows that the loader takes or puts together, or the model's first input.
ORIGIN = Truth(
    (data(), call("Tensor.getitem"), Answer(r"Torch\.(stack|tensor)\.\d+\.forward")),
    ("input", "semantic"),
    step=0,
    rank=1,
    repair=(r"index 0 \(now 10\)",),
)


def job(rank, variant):
    torch.manual_seed(0)
    rows = torch.randn(16, 6, generator=torch.Generator().manual_seed(9))
    dataset = TensorDataset(rows, rows.sum(1).gt(0).long())
    shard = 0 if variant == "target" else rank
    sampler = DistributedSampler(dataset, num_replicas=WORLD, rank=shard, shuffle=True, seed=4)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    values = []
    for x, y in loader:  # origin
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def main(variant):
    return launch(job, variant)


if __name__ == "__main__":
    run(main)
