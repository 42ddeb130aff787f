"""A diffusion model is trained with the linear noise schedule where it should be the scaled linear one."""

import torch
import torch.nn.functional as F
from torch import nn

from bench.zoo.script import run
from bench.zoo.truth import Truth, call, extra, missing

ORIGIN = Truth(
    (call("Torch.linspace"), call("Tensor.(pow|square)"), extra("Torch.linspace"), missing("Tensor.(pow|square)")),
    ("semantic",),
    step=0,
)


def alphas_cumprod(schedule, start=0.00085, end=0.012, steps=100):
    if schedule == "linear":
        betas = torch.linspace(start, end, steps)  # origin
    else:
        betas = torch.linspace(start**0.5, end**0.5, steps) ** 2  # missing
    return (1.0 - betas).cumprod(0)


class Denoiser(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.net = nn.ModuleDict(
            {
                "stem": nn.Conv2d(3, width, 3, padding=1),
                "down": nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, 2, 1)),
                "mid": nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
                "up": nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)),
                "head": nn.Conv2d(2 * width, 3, 1),
            }
        )
        self.width = width

    def forward(self, sample, timestep):
        half = self.width // 2
        angles = timestep[:, None].float() * torch.exp(-torch.arange(half) * (9.21 / half))
        emb = self.time(torch.cat([angles.cos(), angles.sin()], dim=1))[:, :, None, None]
        skip = self.net["stem"](sample)
        h = self.net["mid"](self.net["down"](skip) + emb)
        return self.net["head"](torch.cat([self.net["up"](h), skip], dim=1))


def main(variant):
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    alphas = alphas_cumprod("linear" if variant == "target" else "scaled_linear")
    values = []
    for _ in range(2):
        images = torch.rand(4, 3, 8, 8) * 2 - 1
        noise = torch.randn_like(images)
        timesteps = torch.randint(0, 100, (4,))
        a = alphas[timesteps].view(-1, 1, 1, 1)
        noisy = a.sqrt() * images + (1 - a).sqrt() * noise
        loss = F.mse_loss(model(sample=noisy, timestep=timesteps), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
