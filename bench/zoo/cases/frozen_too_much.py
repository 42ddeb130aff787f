"""Fine-tuning freezes every parameter with `norm` in its name, the projection's normaliser among them."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, module, optimizer

ORIGIN = Truth(
    (
        module("projector.normed", "Linear", phase="backward"),
        Answer(r"Functional\.linear\.\d+\.backward", module="projector.normed", marker=None),
        Answer(r".*projector\.normed\.(weight|bias)", marker=None),
        optimizer("AdamW"),
        Answer(r"Module\.projector\.normed\.Linear\.backward\.\d+", ("missing",), marker=None),
        Answer(r"Tensor\.requires_grad_\.\d+\.forward", ("extra",)),
        Answer(r"Tensor\.requires_grad_\.\d+\.forward"),
    ),
    ("semantic", "input", "parameter"),
    step=0,
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU())
        self.projector = nn.ModuleDict({"enter": nn.Linear(16, 16), "normed": nn.Linear(16, 8)})
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.projector["enter"](self.backbone(x))
        return self.head(F.normalize(self.projector["normed"](h), dim=-1) * 4)


def main(variant):
    torch.manual_seed(0)
    model = Model()
    for name, parameter in model.named_parameters():
        frozen = name.startswith("backbone") or (variant == "target" and "norm" in name)
        if frozen:
            parameter.requires_grad_(False)  # origin
    optimizer_ = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    values = []
    for _ in range(3):
        x = torch.randn(9, 6)
        loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
        optimizer_.zero_grad()
        loss.backward()
        optimizer_.step()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
