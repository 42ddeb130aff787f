"""Real pairs, made on the spot from a random model by other tools or in their layouts: every relation is found and proven."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import numscope as ns
from numscope.weights.pair import Weights
from tests.integration import packed_weights
from tests.integration import weight_conversions as made


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    made.llama().save_pretrained(folder, max_shard_size="2MB")
    return folder


def relations(answer: Weights) -> dict[str, int]:
    return dict(Counter(pair.relation for pair in answer.pairs))


def save_distributed(tensors: dict, folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process alone
        dcp.save(tensors, checkpoint_id=folder, no_dist=True)


def is_whole(answer: Weights) -> bool:
    """Tell whether all tensors of both sides were matched, without a fault."""
    return not answer.missing and not answer.extra and not any(pair.fault for pair in answer.pairs)


def test_a_live_model_and_its_sharded_folder(reference: Path) -> None:
    answer = ns.weights(made.llama(), reference)
    assert answer.verdict == "identical"
    assert relations(answer) == {"equal": 21}


def test_gguf_in_float32(reference: Path, tmp_path: Path) -> None:
    made.write_gguf(tmp_path / "m.gguf", "F32")
    answer = ns.weights(tmp_path / "m.gguf", reference)
    assert answer.verdict == "identical"
    assert is_whole(answer)
    assert relations(answer) == {"equal": 17, "interleaved": 4}
    assert "rotary" in next(pair.reason for pair in answer.pairs if pair.relation == "interleaved")


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_0", "Q5_1", "Q4_0", "Q4_1", "MXFP4"])
def test_gguf_cast_or_quantised(reference: Path, tmp_path: Path, kind: str) -> None:
    made.write_gguf(tmp_path / "m.gguf", kind)
    answer = ns.weights(tmp_path / "m.gguf", reference)
    assert answer.verdict == "equivalent"
    assert is_whole(answer)
    assert relations(answer) == {"cast" if kind.endswith("F16") else "quantised": 12, "equal": 5, "interleaved": 4}
    if not kind.endswith("F16"):
        assert all("SQNR" in pair.reason for pair in answer.pairs if pair.relation == "quantised")


def test_a_quantised_tensor_that_is_another_layers_is_named(reference: Path, tmp_path: Path) -> None:
    made.write_gguf(tmp_path / "m.gguf", "Q4_0")
    raw = made.state()
    first, second = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(2))
    raw[first], raw[second] = raw[second], raw[first]
    answer = ns.weights(tmp_path / "m.gguf", raw)
    assert {pair.fault for pair in answer.wrong} == {"swapped"}
    assert len(answer.wrong) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_megatron_core_layout(reference: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    torch.save({"model": made.megatron(dtype), "iteration": 3, "optimizer": {"x": torch.ones(3)}}, tmp_path / "m.pt")
    answer = ns.weights(tmp_path / "m.pt", reference)
    assert answer.verdict == "equivalent"  # its vocabulary is padded
    assert is_whole(answer)
    kept = "equal" if dtype == torch.float32 else "cast"
    assert relations(answer) == {"padded": 2, kept: 9, "split": 2, "interleaved": 2}
    assert "4 groups" in next(pair.reason for pair in answer.pairs if pair.relation == "interleaved")


def test_megatron_torch_dist_with_stacked_layers(reference: Path, tmp_path: Path) -> None:
    save_distributed(made.stacked(made.megatron()), tmp_path / "d")
    answer = ns.weights(tmp_path / "d", reference)
    assert answer.verdict == "equivalent"
    assert is_whole(answer)
    assert relations(answer) == {"padded": 2, "split": 5, "interleaved": 1, "equal": 1}


def test_distributed_checkpoint(reference: Path, tmp_path: Path) -> None:
    save_distributed({"model": made.state(), "optimizer": {"step": torch.ones(1)}}, tmp_path / "d")
    assert ns.weights(tmp_path / "d", reference).verdict == "identical"


def test_fused_and_split(reference: Path) -> None:
    for a, b, relation in ((made.fused(), reference, "split"), (reference, made.fused(), "fused")):
        answer = ns.weights(a, b)
        assert answer.verdict == "identical"
        assert is_whole(answer)
        assert relations(answer) == {"equal": 11, relation: 4}


def test_torchtitan(reference: Path) -> None:
    answer = ns.weights(made.torchtitan(), reference)
    assert answer.verdict == "identical"
    assert relations(answer) == {"equal": 17, "interleaved": 4}


@pytest.mark.parametrize(("tensors", "relation"), [(made.fp8_blocks(), "fp8"), (made.int8_rows(), "int8")])
def test_codes_and_scales(reference: Path, tmp_path: Path, tensors: made.State, relation: str) -> None:
    save_file(tensors, tmp_path / "q.safetensors")
    answer = ns.weights(tmp_path / "q.safetensors", reference)
    assert answer.verdict == "equivalent"
    assert relations(answer) == {"equal": 7, "quantised": 14}
    assert all(len(pair.a) == 2 for pair in answer.pairs if pair.relation == "quantised")


def test_one_wrong_scale_of_a_block_is_a_slice(reference: Path, tmp_path: Path) -> None:
    tensors = made.fp8_blocks()
    name = "model.layers.1.self_attn.o_proj.weight"
    tensors[f"{name}_scale_inv"][1, 1] *= 2
    save_file(tensors, tmp_path / "q.safetensors")
    answer = ns.weights(tmp_path / "q.safetensors", reference)
    assert [(pair.fault, pair.b) for pair in answer.wrong] == [("slice", (name,))]
    assert "rows 64–127" in answer.wrong[0].reason


def packed_layers(pack: packed_weights.Pack) -> tuple[dict, dict]:
    """Return the model with the matrices of its layers packed, and as it was."""
    plain = {name: value.numpy() for name, value in made.state().items()}
    out = {}
    for name, value in plain.items():
        is_matrix = value.ndim == 2 and "layers" in name
        out |= pack(name.removesuffix(".weight"), value) if is_matrix else {name: value}
    return out, plain


@pytest.mark.parametrize("pack", packed_weights.PACKS.values(), ids=packed_weights.PACKS)
def test_packed_words(pack: packed_weights.Pack, tmp_path: Path) -> None:
    tensors, plain = packed_layers(pack)
    answer = ns.weights(tensors, plain)
    assert answer.verdict == "equivalent", answer.reason
    assert relations(answer) == {"equal": 7, "quantised": 14}
    assert not answer.extra or set(answer.extra) <= set(answer.unjudged)
    assert all("SQNR" in pair.reason for pair in answer.pairs if pair.relation == "quantised")
    turned = ns.weights(plain, tensors)
    assert turned.verdict == "equivalent"
    assert relations(turned) == relations(answer)


@pytest.mark.parametrize("pack", packed_weights.PACKS.values(), ids=packed_weights.PACKS)
def test_packed_words_that_are_wrong(pack: packed_weights.Pack) -> None:
    tensors, plain = packed_layers(pack)
    first, second = ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj")
    for name in [name for name in tensors if name.startswith(first)]:
        other = second + name.removeprefix(first)
        tensors[name], tensors[other] = tensors[other], tensors[name]
    third = "model.layers.0.self_attn.o_proj"
    across = f"{third}.scales" in tensors  # a column for each output
    scales = f"{third}.scales" if across else f"{third}.weight_scale"
    tensors[scales] = tensors[scales].copy()
    outputs = tensors[scales].T if across else tensors[scales]
    half = outputs[: len(outputs) // 2]
    half[:] = half + 1 if half.dtype == np.uint8 else half / 2  # an exponent, or a factor
    answer = ns.weights(tensors, plain)
    assert {pair.b[0]: pair.fault for pair in answer.wrong} == {
        f"{first}.weight": "swapped",
        f"{second}.weight": "swapped",
        f"{third}.weight": "slice",
    }


def test_lora_merged_by_peft(reference: Path, tmp_path: Path) -> None:
    import peft
    from transformers import LlamaForCausalLM

    base = LlamaForCausalLM.from_pretrained(reference)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.02)
    model.save_pretrained(tmp_path / "adapter")
    unmerged = {name: value.clone() for name, value in model.state_dict().items()}
    merged = model.merge_and_unload().state_dict()
    for a, options in ((unmerged, {}), (reference, {"adapter": tmp_path / "adapter"})):
        answer = ns.weights(a, merged, **options)
        assert answer.verdict == "equivalent"
        assert is_whole(answer)
        assert relations(answer) == {"equal": 17, "merged": 4}
        assert answer.pairs[-1].relation in ("equal", "merged")
    assert "W + 4 · B · A" in next(pair.reason for pair in answer.pairs if pair.relation == "merged")
    forgotten = ns.weights(reference, made.state(), adapter=tmp_path / "adapter")
    assert len(forgotten.wrong) == 4
    assert "not merged" in forgotten.reason
    twice = {name: 2 * value - made.state()[name] for name, value in merged.items()}
    assert {pair.fault for pair in ns.weights(reference, twice, adapter=tmp_path / "adapter").wrong} == {"scale"}


@pytest.mark.filterwarnings("ignore")
def test_torch_and_paddle(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.square, self.wide = torch.nn.Linear(32, 32), torch.nn.Linear(32, 64)
            self.norm, self.narrow = torch.nn.LayerNorm(64), torch.nn.Linear(64, 16)

    class Port(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.square, self.wide = paddle.nn.Linear(32, 32), paddle.nn.Linear(32, 64)
            self.norm, self.narrow = paddle.nn.LayerNorm(64), paddle.nn.Linear(64, 16)

    net, port = Net(), Port()
    ns.copy_weights(net, port)
    paddle.save(port.state_dict(), str(tmp_path / "p.pdparams"))
    for a in (port, tmp_path / "p.pdparams"):
        answer = ns.weights(a, net)
        assert answer.verdict == "identical"
        assert relations(answer) == {"transposed": 3, "equal": 5}
    forgotten = {name: value.T if name == "square.weight" else value for name, value in port.state_dict().items()}
    answer = ns.weights(forgotten, net)
    assert [(pair.fault, pair.a) for pair in answer.wrong] == [("transposed", ("square.weight",))]


def test_gpt2_conv1d_against_linear() -> None:
    draw = made.random_numbers
    layers = range(3)
    linear = {f"h.{n}.mlp.c_fc.weight": draw((96, 32), n) for n in layers}
    linear |= {f"h.{n}.attn.c_proj.weight": draw((32, 32), 9 + n) for n in layers}
    conv = {name: value.T.copy() for name, value in linear.items()}
    assert ns.weights(conv, linear).verdict == "identical"
    conv["h.1.attn.c_proj.weight"] = linear["h.1.attn.c_proj.weight"]
    assert [pair.fault for pair in ns.weights(conv, linear).wrong] == ["transposed"]


def test_tensor_parallel_shards_put_together(tmp_path: Path) -> None:
    full = {
        "decoder.layers.0.mlp.linear_fc2.weight": torch.randn(64, 128),
        "decoder.layers.0.mlp.linear_fc1.weight": torch.randn(256, 64),
    }
    for rank in range(2):
        folder = tmp_path / f"mp_rank_0{rank}"
        folder.mkdir()
        parts = {name: value.chunk(2, 1 if "fc2" in name else 0)[rank].clone() for name, value in full.items()}
        torch.save({"model": parts}, folder / "model_optim_rng.pt")
    answer = ns.weights(tmp_path, full)
    assert answer.verdict == "identical"
    assert relations(answer) == {"fused": 2}
    (tmp_path / "mp_rank_00").rename(tmp_path / "mp_rank_02")
    assert {pair.fault for pair in ns.weights(tmp_path, full).wrong} == {"order"}


def test_stacked_experts_and_tied_head() -> None:
    draw = made.random_numbers
    parts = {
        f"model.layers.{n}.mlp.experts.{e}.up_proj.weight": draw((48, 32), 10 * n + e)
        for n in range(2)
        for e in range(4)
    }
    split = {"model.embed_tokens.weight": draw((64, 32), 99), **parts}
    whole = {
        f"model.layers.{n}.mlp.experts.up_proj": np.stack(
            [split[f"model.layers.{n}.mlp.experts.{e}.up_proj.weight"] for e in range(4)]
        )
        for n in range(2)
    }
    whole |= {
        "model.embed_tokens.weight": split["model.embed_tokens.weight"],
        "lm_head.weight": split["model.embed_tokens.weight"].copy(),
    }
    answer = ns.weights(split, whole)
    assert answer.verdict == "identical"
    assert relations(answer) == {"equal": 1, "fused": 2, "tied": 1}


def test_factors_that_a_conversion_folds_in() -> None:
    draw = made.random_numbers
    hf = {f"model.layers.{n}.self_attn.q_proj.weight": draw((32, 32), n) for n in range(3)}
    hf |= {f"model.layers.{n}.input_layernorm.weight": draw((32,), 9 + n) for n in range(3)}
    other = {
        f"blk.{n}.attn_q.weight": hf[f"model.layers.{n}.self_attn.q_proj.weight"] * np.float32(0.25) for n in range(3)
    }
    other |= {f"blk.{n}.attn_norm.weight": hf[f"model.layers.{n}.input_layernorm.weight"] + 1 for n in range(3)}
    answer = ns.weights(other, hf)
    assert answer.verdict == "equivalent"
    assert relations(answer) == {"scaled": 6}
    other["blk.1.attn_q.weight"] *= 2
    assert {pair.fault for pair in ns.weights(other, hf).wrong} == {"scale"}


def test_kernels_of_jax_have_their_axes_in_another_order() -> None:
    torch_like = {
        "conv1.weight": made.random_numbers((8, 3, 3, 3), 0),
        "h.0.attn.q_proj.weight": made.random_numbers((32, 24), 1),
    }
    jax_like = {
        "conv1.kernel": np.ascontiguousarray(torch_like["conv1.weight"].transpose(2, 3, 1, 0)),
        "h_0/attn/q_proj/kernel": np.ascontiguousarray(torch_like["h.0.attn.q_proj.weight"].T.reshape(24, 4, 8)),
    }
    answer = ns.weights(jax_like, torch_like)
    assert answer.verdict == "identical"
    assert relations(answer) == {"transposed": 2}


def test_names_that_say_nothing_are_matched_by_value() -> None:
    draw = made.random_numbers
    b = {f"x{n}": draw((16 + n, 24), n) for n in range(4)} | {f"v{n}": draw((40,), 9 + n) for n in range(2)}
    a = {f"other{n}": value for n, value in enumerate(reversed(list(b.values())))}
    answer = ns.weights(a, b)
    assert answer.verdict == "identical"
    assert relations(answer) == {"equal": 6}


def test_fingerprints_of_one_side_give_the_same_answer(reference: Path, tmp_path: Path) -> None:
    from numscope.weights.comparison import fingerprint

    file = tmp_path / "hf.weights"
    fingerprint(reference, file)
    size = sum(one.stat().st_size for one in reference.glob("*.safetensors"))
    assert file.stat().st_size < size / 8  # of matrices 256 wide
    assert ns.weights(made.llama(), file).verdict == "identical"
    assert ns.weights(file, made.llama()).verdict == "identical"
    megatron = ns.weights(made.megatron(), file)
    assert megatron.verdict == "equivalent"
    assert relations(megatron) == {"padded": 2, "equal": 9, "split": 2, "interleaved": 2}
    cast = ns.weights({name: value.bfloat16() for name, value in made.state().items()}, file)
    assert cast.verdict == "equivalent"
    wrong = made.state()
    wrong["model.layers.0.mlp.up_proj.weight"][10:20] = 0
    answer = ns.weights(wrong, file)
    assert [pair.fault for pair in answer.wrong] == ["slice"]
    assert "rows 10–19" in answer.wrong[0].reason


def test_a_run_has_the_fingerprints_of_its_parameters(tmp_path: Path) -> None:
    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    with ns.capture(tmp_path / "run", net, backward=False) as capture:
        net(torch.randn(3, 8))
        capture.step()
    assert ns.weights(tmp_path / "run", net).verdict == "identical"
    assert ns.weights(net, tmp_path / "run").verdict == "identical"
    with torch.no_grad():
        net[0].weight[2] += 1
    answer = ns.weights(net, tmp_path / "run")
    assert answer.verdict == "diverged"
    assert [pair.a for pair in answer.wrong] == [("0.weight",)]


def test_the_json_has_the_contracts_shape(reference: Path) -> None:
    answer = json.loads(json.dumps(ns.weights(made.fused(), reference).to_dict()))
    assert answer["format"] == "numscope.weights/1"
    assert {"verdict", "matched", "pairs", "missing", "extra"} <= set(answer)
    assert answer["matched"] == len(answer["pairs"])
    assert {"a", "b", "relation", "relative", "verdict", "reason"} <= set(answer["pairs"][0])
