"""Makes torch_dist/, model_optim_rng.pt and hugging_face.safetensors: a small Megatron-core model, on the CPU.

python make_megatron.py FOLDER     with megatron-core 0.16.1 (pip install --no-deps) and torch
"""

import os
import sys
from pathlib import Path

import torch

HIDDEN, HEADS, GROUPS, LAYERS = 16, 4, 2, 2


def model() -> torch.nn.Module:
    """Return a GPT model of Megatron's, whose norms are not all ones."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel()
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        ffn_hidden_size=32,
        num_attention_heads=HEADS,
        num_query_groups=GROUPS,
        use_cpu_initialization=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        pipeline_dtype=torch.float32,
        gradient_accumulation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
    )
    torch.manual_seed(5)
    made = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=24,
        max_sequence_length=32,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    for parameter in made.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def hugging_face(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same weights as Hugging Face names and splits them."""
    out = {
        "model.embed_tokens.weight": state["embedding.word_embeddings.weight"],
        "lm_head.weight": state["output_layer.weight"],
        "model.norm.weight": state["decoder.final_layernorm.weight"],
    }
    for layer in range(LAYERS):
        there, here = f"decoder.layers.{layer}", f"model.layers.{layer}"
        per = HEADS // GROUPS
        qkv = state[f"{there}.self_attention.linear_qkv.weight"].view(GROUPS, per + 2, HIDDEN // HEADS, HIDDEN)
        out[f"{here}.self_attn.q_proj.weight"] = qkv[:, :per].reshape(-1, HIDDEN)
        out[f"{here}.self_attn.k_proj.weight"] = qkv[:, per].reshape(-1, HIDDEN)
        out[f"{here}.self_attn.v_proj.weight"] = qkv[:, per + 1].reshape(-1, HIDDEN)
        out[f"{here}.self_attn.o_proj.weight"] = state[f"{there}.self_attention.linear_proj.weight"]
        gate, up = state[f"{there}.mlp.linear_fc1.weight"].chunk(2)
        out[f"{here}.mlp.gate_proj.weight"], out[f"{here}.mlp.up_proj.weight"] = gate, up
        out[f"{here}.mlp.down_proj.weight"] = state[f"{there}.mlp.linear_fc2.weight"]
        out[f"{here}.input_layernorm.weight"] = state[f"{there}.input_layernorm.weight"]
        out[f"{here}.post_attention_layernorm.weight"] = state[f"{there}.pre_mlp_layernorm.weight"]
    return {name: value.detach().contiguous().clone() for name, value in out.items()}


def main(out: Path) -> None:
    from safetensors.torch import save_file

    # Megatron's checkpoints ask for a GPU that writing them does not need.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    from megatron.core import dist_checkpointing

    made = model()
    (out / "torch_dist").mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(made.sharded_state_dict(prefix=""), str(out / "torch_dist"))
    torch.save({"model": made.state_dict(), "iteration": 1, "checkpoint_version": 3.0}, out / "model_optim_rng.pt")
    save_file(hugging_face(made.state_dict()), out / "hugging_face.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
