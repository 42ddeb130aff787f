"""Names of several conventions say the same: the role, the layer and the expert."""

from __future__ import annotations

import pytest

from numscope.weights.matching.names import Key, parts_of, read

SAME = {
    Key("attention.q.weight", (3,)): [
        "model.layers.3.self_attn.q_proj.weight",
        "blk.3.attn_q.weight",
        "layers.3.attention.wq.weight",
        "module.decoder.layers.3.self_attention.linear_q.weight",
        "encoder.layer.3.attention.self.query.weight",
        "_orig_mod.model.layers.3.self_attn.q_proj.weight",
    ],
    Key("attention.qkv.weight", (0,)): [
        "transformer.h.0.attn.c_attn.weight",
        "decoder.layers.0.self_attention.linear_qkv.weight",
        "gpt_neox.layers.0.attention.query_key_value.weight",
        "blocks.0.attn.qkv.weight",
        "blk.0.attn_qkv.weight",
    ],
    Key("mlp.down.weight", (7,)): [
        "model.layers.7.mlp.down_proj.weight",
        "layers.7.feed_forward.w2.weight",
        "blk.7.ffn_down.weight",
        "decoder.layers.7.mlp.linear_fc2.weight",
        "blocks.7.mlp.fc2.weight",
    ],
    Key("norm.mlp.weight", (1,)): [
        "model.layers.1.post_attention_layernorm.weight",
        "blk.1.ffn_norm.weight",
        "decoder.layers.1.mlp.linear_fc1.layer_norm_weight",
        "decoder.layers.1.pre_mlp_layernorm.weight",
    ],
    Key("experts.up.weight", (2, 5)): [
        "model.layers.2.mlp.experts.5.up_proj.weight",
        "model.layers.2.block_sparse_moe.experts.5.w3.weight",
        "decoder.layers.2.mlp.experts.local_experts.5.up_proj.weight",
    ],
    Key("embedding.weight", ()): [
        "model.embed_tokens.weight",
        "tok_embeddings.weight",
        "token_embd.weight",
        "transformer.wte.weight",
        "embedding.word_embeddings.weight",
    ],
}


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, names in SAME.items() for name in names])
def test_a_name_says_its_role(key: Key, name: str) -> None:
    assert read(name) == key


def test_a_fused_role_has_its_parts_in_the_order_of_its_name() -> None:
    assert parts_of("attention.qkv.bias") == ("attention.q.bias", "attention.k.bias", "attention.v.bias")
    assert parts_of("mlp.down.weight") == ()
