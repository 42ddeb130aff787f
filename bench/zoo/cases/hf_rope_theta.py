"""A Llama from a config in which the base of the rotary frequencies fell back to its default."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from bench.zoo.script import run
from bench.zoo.truth import Answer, Truth, parameter

ORIGIN = Truth(
    (
        parameter("inv_freq"),
        parameter("rotary_emb.inv_freq"),
        parameter("original_inv_freq"),
        Answer(r"Tensor\.(__)?r?pow(__)?\.\d+\.forward", marker=None),  # base ** (arange / dim), in the library
        Answer(r"Torch\.pow\.\d+\.forward", marker=None),
    ),
    ("parameter", "semantic"),
    step=0,
    repair=(r"(base |=)500000 \(now 10000\)",),
)


def main(variant):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    theta = 10000.0 if variant == "target" else 500000.0
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, **rope, max_position_embeddings=64))
    model.eval()
    tokens = torch.randint(0, 64, (2, 7))
    with torch.no_grad():
        out = model.generate(tokens, max_new_tokens=4, do_sample=False, pad_token_id=0)
        logits = model(out).logits
    return [*out[:, -4:].flatten().tolist(), logits.norm().item(), logits[0, -1, 0].item()]


if __name__ == "__main__":
    run(main)
