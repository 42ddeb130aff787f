"""LoKr's product was not scaled by alpha over the rank."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "peft==0.13.2",
    "peft==0.14.0",
    ("transformers==4.46.3", "huggingface-hub==0.26.5", "tokenizers==0.20.3", "accelerate==1.1.1", "psutil==7.2.2"),
    (),
)
BUG = Bug(
    "https://github.com/huggingface/peft/pull/2133",
    (r"layer\.py:(get_delta_weight|make_kron)",),
    (r"make_kron\(w1, w2",),
)


def main():
    import torch
    from peft import LoKrConfig, get_peft_model
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    model = get_peft_model(model, LoKrConfig(r=4, alpha=8, target_modules=["0", "2"], init_weights=False))
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    for _ in range(2):
        loss = model(torch.randn(6, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
