"""A GPT-2 from a config whose activation was mapped to the exact GELU instead of the tanh form it was trained with."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, module

PATH = "transformer.h.0.mlp.act"
ORIGIN = Truth(
    (
        module(PATH, r"\w*Activation"),
        # The first operation of the one or the other form, in the library.
        Answer(r"(Functional|Torch|Tensor)\.\w+\.\d+\.forward", module=PATH, marker=None),
        Answer(r"(Functional|Torch|Tensor)\.\w+\.\d+\.forward", ("extra", "missing"), PATH, marker=None),
    ),
    ("semantic",),
    step=0,
    repair=(r"approximate='tanh' \(now 'none'\)",),
)


def main(variant):
    torch.manual_seed(0)
    activation = "gelu" if variant == "target" else "gelu_new"
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 24, "vocab_size": 64, "n_positions": 32, "initializer_range": 0.4}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(activation_function=activation, **sizes, **drops))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        tokens = torch.randint(0, 64, (2, 12))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
