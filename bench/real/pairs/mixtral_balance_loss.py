"""Mixtral's auxiliary loss was the softmax of the chosen logits, and averaged over the wrong axis."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases("transformers==4.36.2", "transformers==4.37.2", ("huggingface-hub==0.26.5", "tokenizers==0.15.2"))
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/28115",
    (r"modeling_mixtral\.py:load_balancing_loss_func",),
    (r"load_balancing_loss_func|torch\.topk\(gate_logits|concatenated_gate_logits",),
)


def main():
    import torch
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.1,
        attn_implementation="eager",
    )
    model = MixtralForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens = torch.randint(0, 97, (2, 12))
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
