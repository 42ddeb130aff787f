"""A Llama with eager attention against the same with torch's fused one: rounding, or a bug?"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import numscope as ns


def run(path: str, attention: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation=attention,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tokens = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(1))
    with ns.capture(path, model, keep="tensors", overwrite=True):
        model(input_ids=tokens, labels=tokens).loss.backward()


run("runs/eager", "eager")
run("runs/sdpa", "sdpa")
comparison = ns.compare("runs/sdpa", "runs/eager")
print(comparison.verdict)
print(comparison.report.reason)
