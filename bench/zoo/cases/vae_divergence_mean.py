"""The divergence is averaged over the latent dimensions instead of summed."""

import torch
import torch.nn.functional as F

from bench.zoo.models.sequence import VAE
from bench.zoo.models.training import parameter_norm
from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Tensor.(mean|sum)"), extra("Tensor.mean"), missing("Tensor.sum")),
    ("semantic",),
    step=0,
    repair=("sum in place of mean",),
)


def main(variant):
    torch.manual_seed(0)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(8, 48, generator=torch.Generator().manual_seed(1))
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        reconstruction, mean, log_variance = model(x)
        terms = 1 + log_variance - mean.pow(2) - log_variance.exp()
        if variant == "target":
            rows = terms.mean(-1)  # origin
        else:
            rows = terms.sum(-1)  # missing
        loss = F.mse_loss(reconstruction, x) - 0.005 * rows.mean()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return [*values, parameter_norm(model)]


if __name__ == "__main__":
    run(main)
