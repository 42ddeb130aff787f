"""ImageGPT's norms took the data of their weights, which then had no gradients."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.48.3", "transformers==4.49.0", ("huggingface-hub==0.26.5", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/35907",
    (
        r"modeling_imagegpt\.py:forward",
        r"^$",
    ),
    (r"self\.weight(\.data)?",),
)


def main():
    import torch
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

    config = ImageGPTConfig(
        vocab_size=33, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = ImageGPTForCausalImageModeling(config)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.randint(0, 32, (2, 12))
    for _ in range(2):
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    run(main)
