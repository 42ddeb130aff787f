"""ConvNeXt V2 normalised by the spectral norm of each image, and not by the norm of each channel."""

from bench.real.pair import Bug, Releases, run

RELEASES = Releases(
    "transformers==4.51.3", "transformers==4.52.4", ("huggingface-hub==0.34.4", "tokenizers==0.21.4"), ()
)
BUG = Bug(
    "https://github.com/huggingface/transformers/pull/38042",
    (r"modeling_convnextv2\.py:forward: .*norm\(",),
    (r"torch\.linalg\.(vector_)?norm\(",),
)


def main():
    import torch
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    config = ConvNextV2Config(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32, num_labels=5)
    model = ConvNextV2ForImageClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    images = torch.randn(2, 3, 32, 32)
    model(pixel_values=images, labels=torch.tensor([1, 3])).loss.backward()


if __name__ == "__main__":
    run(main)
