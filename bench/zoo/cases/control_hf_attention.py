"""A Llama with the library's sdpa attention against its eager one, decoding greedily and then training."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.zoo.script import run

CONTROL = True


def main(variant):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        vocab_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="sdpa" if variant == "target" else "eager",
    )
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, 64, (2, 7))
    out = model.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    values = []
    for _ in range(2):
        loss = model(input_ids=out, labels=out).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        values.append(loss.item())
    return values


if __name__ == "__main__":
    run(main)
