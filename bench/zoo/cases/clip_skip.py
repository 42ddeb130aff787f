"""A diffusion model was trained on the text encoder's last but one hidden state and is given the last."""

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, call

ORIGIN = Truth(
    (
        call("Functional.linear"),
        Answer(r"Module\.\S*Linear\.forward\.\d+"),
        Answer(r"Data\.\S*Linear\S*", ("data",)),
    ),
    ("semantic", "input"),
    step=0,
)


@torch.no_grad()
def main(variant):
    torch.manual_seed(0)
    config = CLIPTextConfig(
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        vocab_size=40,
        max_position_embeddings=10,
        eos_token_id=2,
        initializer_range=0.5,
        initializer_factor=10.0,
    )
    encoder, to_key = CLIPTextModel(config).eval(), nn.Linear(16, 8)
    out = encoder(torch.randint(3, 40, (2, 7)), output_hidden_states=True)
    states = out.hidden_states[-1 if variant == "target" else -2]
    keys = to_key(states)  # origin
    return keys.flatten().tolist()


if __name__ == "__main__":
    run(main)
