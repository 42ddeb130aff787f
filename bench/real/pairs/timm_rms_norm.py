"""timm's RmsNorm divided by the standard deviation, and not by the root of the mean square."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("timm==1.0.12", "timm==1.0.13", ("huggingface-hub==0.26.5",), ())
BUG = Bug(
    "https://github.com/huggingface/pytorch-image-models/issues/2380",
    (r"(fast_norm|norm)\.py:(forward|rms_norm|fast_rms_norm)",),
    (r"torch\.var\(x|fast_rms_norm\(x",),
)


def main():
    import importlib.util
    import sys
    import types

    import torch
    from torch import nn

    # torchvision's compiled operators belong to another build of torch: only timm's layers are loaded, which need one class.
    spec = importlib.util.find_spec("timm")
    sys.modules["timm"] = package = types.ModuleType("timm")
    package.__path__ = spec.submodule_search_locations
    sys.modules["torchvision.ops.misc"] = vision = types.ModuleType("torchvision.ops.misc")
    vision.FrozenBatchNorm2d = nn.BatchNorm2d
    sys.modules["torchvision"] = sys.modules["torchvision.ops"] = vision
    from timm.layers.norm import RmsNorm

    model = nn.Sequential(nn.Linear(16, 32), RmsNorm(32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(2):
        loss = model(torch.randn(6, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
