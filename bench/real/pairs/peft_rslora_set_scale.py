"""set_scale divided by the rank, and not by its root, where the adapter is rank-stabilised."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "peft==0.17.1",
    "peft==0.18.0",
    ("transformers==4.53.3", "huggingface-hub==0.34.4", "tokenizers==0.21.4", "accelerate==1.10.1", "psutil==7.2.2"),
    (),
)
BUG = Bug(
    "https://github.com/huggingface/peft/issues/2733",
    (r"layer\.py:forward: .*scaling",),
    (
        r"math\.sqrt\(self\.r\[adapter\]\)",
        r"self\.scaling\[adapter\] = scale \* self\.lora_alpha",
    ),
)


def main():
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 32)
            self.second = nn.Linear(32, 8)

        def forward(self, x):
            return self.second(torch.relu(self.first(x)))

    config = LoraConfig(r=4, lora_alpha=8, target_modules=["first", "second"], use_rslora=True, init_lora_weights=False)
    model = get_peft_model(Net(), config)
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 0.5)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    for _ in range(2):
        loss = model(torch.randn(6, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
