"""ERGAS multiplied by the ratio, where it divides."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("torchmetrics==1.3.2", "torchmetrics==1.4.0", ("lightning-utilities==0.11.9",), ())
BUG = Bug(
    "https://github.com/Lightning-AI/torchmetrics/pull/2498",
    (r"ergas\.py:_ergas_compute",),
    (r"100 [*/] ratio",),
)


def main():
    import torch
    from torch import nn
    from torchmetrics.functional.image import error_relative_global_dimensionless_synthesis as ergas

    model = nn.Conv2d(3, 3, 3, padding=1)
    for _ in range(2):
        images = torch.rand(2, 3, 16, 16)
        loss = ergas(model(images) + 1.0, images + 1.0)
        loss.backward()


if __name__ == "__main__":
    run(main)
