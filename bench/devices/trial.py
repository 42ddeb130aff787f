"""Pairs of runs of six models that no rule was made with, in legitimately other ways, clean and with planted faults.

python -m bench.devices.trial FOLDER [--half first|second] [--only GLOB] [--keep stats|tensors] [--wrong]

The faults were written before any pair was judged; rules may be made with the first half, the second says what they do
on what nobody has looked at. A fault stands on a line that ends with `# fault NAME`, or in the module that is named.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import math
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import numscope as ns


@dataclass(frozen=True)
class Way:
    """How a job computes."""

    dtype: str = "float32"
    attention: str = "sdpa"
    autocast: bool = False


PLAIN, EAGER, LOW, LOW_EAGER = Way(), Way(attention="eager"), Way("bfloat16"), Way("bfloat16", "eager")
WAYS = {
    "precision": (LOW, PLAIN),
    "attention": (PLAIN, EAGER),
    "attention, bfloat16": (LOW_EAGER, LOW),
    "autocast": (Way(autocast=True), PLAIN),
}


class Model(nn.Module):
    """A model with its data, that returns a loss."""

    def loss(self) -> torch.Tensor:
        """Return the loss of one batch."""
        raise NotImplementedError


# Models of transformers -----------------------------------------------------------------------------------------------


class Library(Model):
    """A model of transformers, from its configuration."""

    def __init__(self, made: nn.Module, given: dict[str, Any], labels: bool = True) -> None:
        super().__init__()
        self.made, self.given, self.labels = made, given, labels

    def loss(self) -> torch.Tensor:
        dtype = next(p.dtype for p in self.made.parameters())
        given = {name: x.to(dtype) if x.is_floating_point() else x for name, x in self.given.items()}
        if not self.labels:
            return self.made(**given, return_loss=True).loss.float()  # type: ignore[no-any-return]
        logits = self.made(**given).logits[:, :-1].flatten(0, 1).float()
        wanted = self.given.get("decoder_input_ids", self.given["input_ids"])[:, 1:].flatten()
        return F.cross_entropy(logits, wanted)


def cohere(way: Way) -> Model:
    from transformers import CohereConfig, CohereForCausalLM

    config = CohereConfig(
        vocab_size=200,
        hidden_size=64,
        intermediate_size=144,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_qk_norm=True,
        logit_scale=0.25,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    config._attn_implementation = way.attention
    return Library(CohereForCausalLM(config), {"input_ids": torch.randint(3, 200, (2, 20))})


def clip(way: Way) -> Model:
    from transformers import CLIPConfig, CLIPModel

    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={**size, "vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98, "bos_token_id": 1},
        vision_config={**size, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    for part in (config, config.text_config, config.vision_config):
        part._attn_implementation = way.attention
    tokens = torch.randint(3, 97, (6, 12))
    tokens[:, -1] = 98
    given = {"input_ids": tokens, "pixel_values": torch.randn(6, 3, 32, 32), "attention_mask": torch.ones_like(tokens)}
    given["attention_mask"][0, :3] = 0
    return Library(CLIPModel(config), given, labels=False)


def deepseek(way: Way) -> Model:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        vocab_size=160,
        hidden_size=64,
        intermediate_size=144,
        moe_intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=8,
        kv_lora_rank=24,
        q_lora_rank=32,
        qk_rope_head_dim=8,
        v_head_dim=16,
        qk_nope_head_dim=16,
        n_group=4,
        topk_group=2,
        num_experts_per_tok=3,
        first_k_dense_replace=1,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    config._attn_implementation = way.attention
    model = DeepseekV3ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("gate.weight"):  # which are zero at first: all routes would be ties
            nn.init.normal_(parameter, std=0.3)
    return Library(model, {"input_ids": torch.randint(3, 160, (2, 20))})


def bart(way: Way) -> Model:
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(
        vocab_size=150,
        d_model=64,
        encoder_layers=3,
        decoder_layers=3,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_position_embeddings=48,
        dropout=0.0,
        scale_embedding=True,
    )
    config._attn_implementation = way.attention
    tokens = torch.randint(3, 150, (2, 18))
    mask = torch.ones_like(tokens)
    mask[1, -5:] = 0
    given = {"input_ids": tokens, "attention_mask": mask, "decoder_input_ids": torch.randint(3, 150, (2, 14))}
    return Library(BartForConditionalGeneration(config), given)


# Models written by hand -----------------------------------------------------------------------------------------------


class Messages(nn.Module):
    """Messages along edges, weighted by a softmax over those that arrive at a node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.value, self.score = nn.Linear(2 * width, width), nn.Linear(2 * width, 1)
        self.update = nn.GRUCell(width, width)
        self.slope = 0.2

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        both = torch.cat((self.norm(x)[source], x[target]), -1)
        scores = F.leaky_relu(self.score(both), self.slope)
        top = torch.full((len(x), 1), float("-inf"), dtype=scores.dtype)
        top = top.scatter_reduce(0, target[:, None], scores.detach(), "amax")
        weights = (scores - top[target]).exp()
        total = torch.zeros(len(x), 1, dtype=weights.dtype).index_add(0, target, weights)
        shares = weights / (total[target] + 1e-9)
        messages = F.elu(self.value(both)) * shares
        arrived = torch.zeros_like(x).index_add(0, target, messages.to(x.dtype))
        return x + self.update(arrived, x)


class Graph(Model):
    """A graph network that is read out by attention from a few learned queries."""

    def __init__(self, way: Way, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(6, width)
        self.layers = nn.ModuleList(Messages(width) for _ in range(4))
        self.queries, self.key = nn.Parameter(torch.randn(3, width)), nn.Linear(width, width)
        self.head = nn.Linear(3 * width, 5)
        self.eager = way.attention == "eager"
        self.nodes = torch.randn(40, 6)
        self.edges = torch.stack((torch.randint(40, (160,)), torch.arange(160) % 40))
        self.wanted = torch.randint(5, (4,))

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.embed(nodes))
        for layer in self.layers:
            x = layer(x, edges)
        graphs = x.view(4, 10, -1)
        keys, queries = self.key(graphs), self.queries.expand(4, -1, -1)
        if self.eager:
            scores = queries @ keys.transpose(1, 2) / math.sqrt(keys.shape[-1])
            read = scores.softmax(-1) @ graphs.to(keys.dtype)
        else:
            read = F.scaled_dot_product_attention(queries.to(keys.dtype), keys, graphs.to(keys.dtype))
        return self.head(read.flatten(1))

    def loss(self) -> torch.Tensor:
        logits = self(self.nodes.to(self.queries.dtype), self.edges)
        return F.cross_entropy(logits.float(), self.wanted)


class Residual(nn.Module):
    """Two convolutions with the time step added between them."""

    def __init__(self, width: int, out: int, steps: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, out)
        self.conv1, self.conv2 = nn.Conv2d(width, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time, self.skip = nn.Linear(steps, 2 * out), nn.Conv2d(width, out, 1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(t))[..., None, None].chunk(2, 1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class Cross(nn.Module):
    """Attention from pixels to a text."""

    def __init__(self, width: int, text: int, eager: bool) -> None:
        super().__init__()
        self.norm, self.q = nn.GroupNorm(4, width), nn.Linear(width, width)
        self.kv, self.out, self.eager = nn.Linear(text, 2 * width), nn.Linear(width, width), eager
        self.scale = (width // 2) ** -0.5

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        batch, width, height, _ = x.shape
        q = self.q(self.norm(x).flatten(2).transpose(1, 2))
        k, v = self.kv(text).chunk(2, -1)
        q, k, v = (y.unflatten(-1, (2, -1)).transpose(1, 2) for y in (q, k, v))
        if self.eager:
            mixed = (q * self.scale @ k.transpose(-1, -2)).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        return x + mixed.transpose(1, 2).reshape(batch, width, height, -1)


class Denoiser(Model):
    """A small U-Net that predicts the noise of an image, given its time step and a text."""

    def __init__(self, way: Way, width: int = 16) -> None:
        super().__init__()
        eager = way.attention == "eager"
        self.first, self.width = nn.Conv2d(3, width, 3, padding=1), width
        self.down1, self.down2 = Residual(width, width, width), Residual(width, 2 * width, width)
        self.cross1, self.cross2 = Cross(2 * width, 24, eager), Cross(2 * width, 24, eager)
        self.middle = Residual(2 * width, 2 * width, width)
        self.up2, self.up1 = Residual(4 * width, width, width), Residual(2 * width, width, width)
        self.last = nn.Conv2d(width, 3, 3, padding=1)
        self.image, self.noise = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)
        self.text, self.step = torch.randn(2, 7, 24), torch.tensor([130, 777])

    def times(self, step: torch.Tensor) -> torch.Tensor:
        """Return the step as sines and cosines."""
        half = self.width // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half) / half)
        angles = step[:, None].float() * frequencies
        return torch.cat((angles.cos(), angles.sin()), -1)

    def forward(self, noisy: torch.Tensor, step: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        t = self.times(step).to(noisy.dtype)
        one = self.down1(self.first(noisy), t)
        two = self.cross1(self.down2(F.avg_pool2d(one, 2), t), text)
        x = self.cross2(self.middle(two, t), text)
        x = self.up2(torch.cat((x, two), 1), t)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.last(F.silu(self.up1(torch.cat((x, one), 1), t)))

    def loss(self) -> torch.Tensor:
        kept = torch.cos(self.step / 1000 * math.pi / 2)[:, None, None, None]
        noisy = kept * self.image + torch.sqrt(1 - kept**2) * self.noise
        dtype = self.first.weight.dtype
        return F.mse_loss(self(noisy.to(dtype), self.step, self.text.to(dtype)).float(), self.noise)


# Faults ---------------------------------------------------------------------------------------------------------------
# Each plants itself and returns the path of the module that is at fault, "" where its line is marked here.


def _method(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    setattr(module, name, types.MethodType(function, module))


def cohere_eps(model: Any) -> str:
    model.made.model.layers[2].input_layernorm.variance_epsilon = 1e-3
    return "made.model.layers.2.input_layernorm"


def cohere_scale(model: Any) -> str:
    model.made.model.layers[2].self_attn.scaling *= 0.97
    return "made.model.layers.2.self_attn"


def cohere_gate(model: Any) -> str:
    def forward(self: Any, x: Any) -> Any:
        gate = self.gate_proj(x)
        return self.down_proj(gate * torch.sigmoid(1.02 * gate) * self.up_proj(x))  # fault cohere_gate

    _method(model.made.model.layers[1].mlp, "forward", forward)
    return "made.model.layers.1.mlp"


def cohere_logits(model: Any) -> str:
    model.made.logit_scale = 0.24
    return "made"


def clip_scale(model: Any) -> str:
    model.made.vision_model.encoder.layers[1].self_attn.scale *= 0.97
    return "made.vision_model.encoder.layers.1.self_attn"


def clip_gelu(model: Any) -> str:
    def gelu(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)  # fault clip_gelu

    mlp = model.made.text_model.encoder.layers[1].mlp
    del mlp.activation_fn
    mlp.activation_fn = gelu
    return "made.text_model.encoder.layers.1.mlp"


def clip_positions(model: Any) -> str:
    def forward(self: Any, input_ids: Any = None, position_ids: Any = None, inputs_embeds: Any = None) -> Any:
        places = self.position_ids[:, 1 : input_ids.shape[-1] + 1]  # fault clip_positions
        return self.token_embedding(input_ids) + self.position_embedding(places)  # fault clip_positions

    _method(model.made.text_model.embeddings, "forward", forward)
    return "made.text_model.embeddings"


def clip_norm(model: Any) -> str:
    model.made.vision_model.encoder.layers[1].layer_norm2.eps = 1e-3
    return "made.vision_model.encoder.layers.1.layer_norm2"


def graph_slope(model: Any) -> str:
    model.layers[2].slope = 0.25
    return "layers.2"


def graph_edges(model: Any) -> str:
    plain = Messages.forward

    def forward(self: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return plain(self, x, edges.flip(0))  # fault graph_edges

    _method(model.layers[2], "forward", forward)
    return ""


def graph_degree(model: Any) -> str:
    def forward(self: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        both = torch.cat((self.norm(x)[source], x[target]), -1)
        scores = F.leaky_relu(self.score(both), self.slope)
        top = torch.full((len(x), 1), float("-inf"), dtype=scores.dtype)
        top = top.scatter_reduce(0, target[:, None], scores.detach(), "amax")
        weights = (scores - top[target]).exp()
        total = torch.ones(len(x), 1, dtype=weights.dtype).index_add(0, target, weights)  # fault graph_degree
        shares = weights / (total[target] + 1e-9)
        messages = F.elu(self.value(both)) * shares
        arrived = torch.zeros_like(x).index_add(0, target, messages.to(x.dtype))
        return x + self.update(arrived, x)

    _method(model.layers[1], "forward", forward)
    return ""


def graph_detached(model: Any) -> str:
    plain = Messages.forward

    def forward(self: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return x + (plain(self, x, edges) - x).detach()  # fault graph_detached

    _method(model.layers[2], "forward", forward)
    return ""


def deepseek_factor(model: Any) -> str:
    model.made.model.layers[2].mlp.gate.routed_scaling_factor = 2.4
    return "made.model.layers.2.mlp.gate"


def deepseek_shares(model: Any) -> str:
    model.made.model.layers[1].mlp.gate.norm_topk_prob = False
    return "made.model.layers.1.mlp.gate"


def deepseek_eps(model: Any) -> str:
    model.made.model.layers[1].self_attn.kv_a_layernorm.variance_epsilon = 1e-4
    return "made.model.layers.1.self_attn.kv_a_layernorm"


def deepseek_rotation(model: Any) -> str:
    attention = model.made.model.layers[1].self_attn
    attention.config = copy.copy(attention.config)
    attention.config.rope_interleave = False
    return "made.model.layers.1.self_attn"


def bart_offset(model: Any) -> str:
    model.made.model.decoder.embed_positions.offset = 1
    return "made.model.decoder.embed_positions"


def bart_tanh(model: Any) -> str:
    def tanh(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")  # fault bart_tanh

    layer = model.made.model.decoder.layers[1]
    del layer.activation_fn
    layer.activation_fn = tanh
    return "made.model.decoder.layers.1"


def bart_scale(model: Any) -> str:
    model.made.model.encoder.embed_tokens.embed_scale = 7.9
    return "made.model.encoder.embed_tokens"


def bart_cross(model: Any) -> str:
    model.made.model.decoder.layers[1].encoder_attn.scaling *= 0.97
    return "made.model.decoder.layers.1.encoder_attn"


def denoiser_times(model: Any) -> str:
    def times(self: Any, step: torch.Tensor) -> torch.Tensor:
        half = self.width // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half) / (half - 1))  # fault denoiser_times
        angles = step[:, None].float() * frequencies
        return torch.cat((angles.cos(), angles.sin()), -1)

    _method(model, "times", times)
    return ""


def denoiser_groups(model: Any) -> str:
    model.up2.norm2.num_groups = 8
    return "up2.norm2"


def denoiser_modulation(model: Any) -> str:
    def forward(self: Any, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        shift, scale = self.time(F.silu(t))[..., None, None].chunk(2, 1)  # fault denoiser_modulation
        h = self.norm2(h) * (1 + scale) + shift  # fault denoiser_modulation
        return self.skip(x) + self.conv2(F.silu(h))

    _method(model.middle, "forward", forward)
    return ""


def denoiser_cross(model: Any) -> str:
    model.cross2.scale *= 0.97
    return "cross2"


@dataclass(frozen=True)
class Trial:
    """A model and its faults."""

    make: Callable[[Way], Model]
    faults: tuple[Callable[[Any], str], ...]


FIRST = {
    "cohere": Trial(cohere, (cohere_eps, cohere_scale, cohere_gate, cohere_logits)),
    "clip": Trial(clip, (clip_scale, clip_gelu, clip_positions, clip_norm)),
    "graph": Trial(Graph, (graph_slope, graph_edges, graph_degree, graph_detached)),
}
SECOND = {
    "deepseek": Trial(deepseek, (deepseek_factor, deepseek_shares, deepseek_eps, deepseek_rotation)),
    "bart": Trial(bart, (bart_offset, bart_tanh, bart_scale, bart_cross)),
    "denoiser": Trial(Denoiser, (denoiser_times, denoiser_groups, denoiser_modulation, denoiser_cross)),
}


# Jobs -----------------------------------------------------------------------------------------------------------------


def record(trial: Trial, way: Way, fault: Callable[[Any], str] | None, folder: Path, keep: str) -> str:
    """Record a job; return the faulty module's path."""
    torch.manual_seed(0)
    model = trial.make(way)
    with torch.no_grad():
        for parameter in model.parameters():  # a trained model's norms and biases are no ones and zeros
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model = model.to(getattr(torch, way.dtype)).train()
    where = fault(model) if fault is not None else ""
    if folder.exists():
        return where
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    precision: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if way.autocast:
        precision = torch.autocast("cpu", torch.bfloat16)
    with ns.capture(folder, model, keep=keep, on_error="raise") as cap:
        for _ in range(1 if keep == "tensors" else 2):
            with precision:
                loss = model.loss()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            cap.step()
    return where


def _is_right(origin: dict[str, Any], fault: str, where: str) -> bool:
    source = origin.get("source") or {}
    if Path(source.get("file", "")).name == Path(__file__).name:
        lines = Path(__file__).read_text(encoding="utf-8").splitlines()
        if lines[source["line"] - 1].endswith(f"# fault {fault}"):
            return True
    module = origin.get("module") or ""
    return bool(where) and module.startswith(where) and origin.get("phase") == "forward"


def main() -> int:
    """Record, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.devices.trial", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("first", "second"), default="first")
    parser.add_argument("--only", default="*")
    parser.add_argument("--keep", default="tensors", choices=("stats", "tensors"))
    parser.add_argument("--wrong", action="store_true", help="print what is judged wrongly alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    clean = alarms = faults = detected = right = 0
    begin = time.perf_counter()
    for name, trial in (FIRST if options.half == "first" else SECOND).items():
        for fault in (None, *trial.faults):
            called = fault.__name__ if fault is not None else "clean"
            for against, (target, reference) in WAYS.items():
                label = f"{name} {called}: {against}"
                if not fnmatch.fnmatch(label, options.only):
                    continue
                folders = [
                    options.folder / f"{name}-{way.dtype}-{way.attention}-{way.autocast:d}-{one}-{options.keep}"
                    for way, one in ((target, called), (reference, "clean"))
                ]
                where = record(trial, target, fault, folders[0], options.keep)
                record(trial, reference, None, folders[1], options.keep)
                report = ns.compare(*folders).report.to_dict()
                origin = report["origin"] or {}
                diverged = report["verdict"] == "diverged"
                ok = not diverged if fault is None else diverged and _is_right(origin, called, where)
                clean += fault is None
                alarms += bool(fault is None and diverged)
                faults += fault is not None
                detected += bool(fault is not None and diverged)
                right += bool(fault is not None and ok)
                if not (ok and options.wrong):
                    at = f"{origin.get('call', '')} {origin.get('module')} {origin.get('reason', '')}"
                    print(f"{'ok ' if ok else 'BAD'} {label}: {report['verdict']} {at}"[:300], flush=True)
    print(f"clean: {clean}, alarms {alarms}; faults: {faults}, detected {detected}, origin right {right}")
    print(f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return int(alarms > 0 or right < faults)


if __name__ == "__main__":
    sys.exit(main())
