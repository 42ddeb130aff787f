"""OFT's Neumann series had its last term twice of another power."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "peft==0.17.1",
    "peft==0.18.0",
    ("transformers==4.53.3", "huggingface-hub==0.34.4", "tokenizers==0.21.4", "accelerate==1.10.1", "psutil==7.2.2"),
    (),
)
BUG = Bug(
    "https://github.com/huggingface/peft/pull/2805",
    (r"layer\.py:_cayley_batch",),
    (r"range\(3, num_neumann_terms|Q_power",),
)


def main():
    import torch
    from peft import OFTConfig, get_peft_model
    from torch import nn

    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    config = OFTConfig(
        r=0,
        oft_block_size=4,
        target_modules=["0", "2"],
        init_weights=False,
        use_cayley_neumann=True,
        num_cayley_neumann_terms=5,
    )
    model = get_peft_model(model, config)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    for _ in range(2):
        loss = model(torch.randn(6, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
