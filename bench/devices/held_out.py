"""Pairs of runs of further public architectures on the CPU, recorded on the spot: clean, and with a fault in one layer.

python -m bench.devices.held_out FOLDER [--half first|second] [--only GLOB] [--keep tensors]

Rules are made with the corpus and the first half; the second half says what they do on what nobody has looked at.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import re
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import numscope as ns

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _SMALL | {"num_key_value_heads": 2}
_QUIET = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FIRST = ("Mistral", "GPTNeoX", "Phi3", "Electra")
SECOND = ("Olmo2", "StableLm", "Qwen3", "Glm", "Phi")
_SETTINGS: dict[str, dict[str, Any]] = {
    "Mistral": _GROUPED | {"sliding_window": None},
    "GPTNeoX": _SMALL | _QUIET,
    "Phi3": _GROUPED | {"resid_pdrop": 0.0},
    "Electra": _SMALL | _NO_DROPOUT | {"embedding_size": 64},
    "Olmo2": _GROUPED,
    "StableLm": _GROUPED | _QUIET,
    "Qwen3": _GROUPED | {"head_dim": 16},
    "Glm": _GROUPED | {"head_dim": 16, "attention_dropout": 0.0},
    "Phi": _GROUPED | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0},
}
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer)\.2\.")  # the faulty one


@dataclass(frozen=True)
class Way:
    """How a job computes."""

    dtype: str = "float32"
    attention: str = "sdpa"
    autocast: bool = False
    threads: int = 1


PLAIN, EAGER, LOW, LOW_EAGER = Way(), Way(attention="eager"), Way("bfloat16"), Way("bfloat16", "eager")
LEGITIMATE = {
    "threads": (Way(threads=2), PLAIN),
    "precision": (LOW, PLAIN),
    "precision, eager": (LOW_EAGER, EAGER),
    "autocast": (Way(autocast=True), PLAIN),
    "attention": (PLAIN, EAGER),
    "attention, bfloat16": (LOW, LOW_EAGER),
    "bfloat16": (Way("bfloat16", threads=2), LOW),
    "bfloat16, eager": (Way("bfloat16", "eager", threads=2), LOW_EAGER),
}


# Faults ---------------------------------------------------------------------------------------------------------------


def _named(model: torch.nn.Module, *words: str) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the modules of the faulty layer whose class name has one of these words."""
    for path, module in model.named_modules():
        if _LAYER.search(f"{path}.") and any(word in type(module).__name__ for word in words):
            yield path, module


def eps(model: torch.nn.Module) -> str:
    path, norm = next(_named(model, "Norm"))
    name = "eps" if hasattr(norm, "eps") else "variance_epsilon"
    setattr(norm, name, 1e-3)
    return path


def activation(model: torch.nn.Module) -> str:
    for path, module in model.named_modules():
        if _LAYER.search(f"{path}."):
            for name in ("act_fn", "act", "activation_fn", "intermediate_act_fn"):
                if hasattr(module, name):
                    now = getattr(module, name)
                    gated = "SiLU" in type(now).__name__ or "silu" in str(now)
                    other: Callable[[torch.Tensor], torch.Tensor] = _quick if gated else _tanh
                    delattr(module, name)
                    setattr(module, name, other)
                    return path
    raise LookupError


def _tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")  # fault activation


def _quick(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.02 * x)  # fault activation


def scale(model: torch.nn.Module) -> str:
    path, module = next((p, m) for p, m in _named(model, "Attention") if hasattr(m, "scaling"))
    module.scaling = module.scaling * 0.97  # type: ignore[operator, assignment]
    return path


def softmax_low(model: torch.nn.Module) -> str:
    path, module = next((p, m) for p, m in _named(model, "Attention") if hasattr(m, "config") and hasattr(m, "scaling"))
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("low", _low)
    config = copy.copy(module.config)
    config._attn_implementation_internal = "low"  # type: ignore[union-attr, assignment]
    module.config = config
    return path


def _low(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if mask is not None:
        scores = scores + mask
    shares = F.softmax(scores.bfloat16(), dim=-1).to(query.dtype)  # fault softmax_low
    return torch.matmul(shares, value).transpose(1, 2).contiguous(), shares


def variance(model: torch.nn.Module) -> str:
    path, norm = next(_named(model, "RMSNorm"))
    norm.forward = types.MethodType(_variance, norm)  # type: ignore[method-assign]
    return path


def _variance(self: Any, x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    spread = wide.var(-1, keepdim=True, unbiased=False)  # fault variance
    return self.weight * (wide * torch.rsqrt(spread + self.variance_epsilon)).to(x.dtype)  # fault variance


def cast_order(model: torch.nn.Module) -> str:
    path, norm = next(_named(model, "RMSNorm"))
    norm.forward = types.MethodType(_cast_order, norm)  # type: ignore[method-assign]
    return path


def _cast_order(self: Any, x: torch.Tensor) -> torch.Tensor:
    spread = x.pow(2).mean(-1, keepdim=True)  # fault cast_order
    return self.weight * (x * torch.rsqrt(spread + self.variance_epsilon)).to(x.dtype)  # fault cast_order


def linear_low(model: torch.nn.Module) -> str:
    path, linear = next(
        (p, m) for p, m in model.named_modules() if _LAYER.search(f"{p}.") and type(m).__name__ == "Linear"
    )
    linear.forward = types.MethodType(_linear_low, linear)  # type: ignore[method-assign]
    return path


def _linear_low(self: Any, x: torch.Tensor) -> torch.Tensor:
    bias = None if self.bias is None else self.bias.bfloat16()  # fault linear_low
    return F.linear(x.bfloat16(), self.weight.bfloat16(), bias).to(x.dtype)  # fault linear_low


def label_smoothing(model: torch.nn.Module) -> str:
    return ""  # in the loss


# fault → what plants it, and against which ways it can be seen at all
FAULTS: dict[str, tuple[Callable[[torch.nn.Module], str], tuple[str, ...]]] = {
    "eps": (eps, tuple(LEGITIMATE)),
    "activation": (activation, tuple(LEGITIMATE)),
    "scale": (scale, tuple(LEGITIMATE)),
    "softmax_low": (softmax_low, ("precision, eager", "bfloat16, eager")),
    "variance": (variance, tuple(LEGITIMATE)),
    "cast_order": (cast_order, ("bfloat16", "bfloat16, eager", "attention, bfloat16")),
    "linear_low": (linear_low, ("threads", "attention")),
    "label_smoothing": (label_smoothing, tuple(LEGITIMATE)),
}


# Jobs -----------------------------------------------------------------------------------------------------------------


def record(name: str, way: Way, fault: str, folder: Path, keep: str) -> str | None:
    """Record a job; return the faulty module's path, None where the architecture has no place for the fault."""
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(way.threads)
    kind = "MaskedLM" if name == "Electra" else "CausalLM"
    config = getattr(transformers, f"{name}Config")(**_SETTINGS[name])
    config._attn_implementation = way.attention
    model = getattr(transformers, f"{name}For{kind}")(config)
    with torch.no_grad():
        for parameter in model.parameters():  # a trained model's norms and biases are no ones and zeros
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.randint(3, 256, (2, 24))
    model = model.to(getattr(torch, way.dtype)).train()
    where: str | None = ""
    if fault:
        try:
            where = FAULTS[fault][0](model)
        except (StopIteration, LookupError):
            return None
    if folder.exists():
        return where
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    precision: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if way.autocast:
        precision = torch.autocast("cpu", torch.bfloat16)
    with ns.capture(folder, model, keep=keep, overwrite=True, on_error="raise") as cap:
        for _ in range(1 if keep == "tensors" else 2):
            with precision:
                logits = model(input_ids=tokens).logits
                loss = _loss(logits, tokens, fault)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            cap.step()
    torch.set_num_threads(1)
    return where


def _loss(logits: torch.Tensor, tokens: torch.Tensor, fault: str) -> torch.Tensor:
    given, wanted = logits[:, :-1].reshape(-1, 256).float(), tokens[:, 1:].reshape(-1)
    if fault == "label_smoothing":
        return F.cross_entropy(given, wanted, label_smoothing=0.01)  # fault label_smoothing
    return F.cross_entropy(given, wanted)


def _is_right(origin: dict[str, Any], fault: str, where: str) -> bool:
    source = origin.get("source") or {}
    if Path(source.get("file", "")).name == Path(__file__).name:
        lines = Path(__file__).read_text(encoding="utf-8").splitlines()
        return lines[source["line"] - 1].endswith(f"# fault {fault}")
    module = origin.get("module") or ""
    return bool(where) and module.startswith(where) and origin.get("phase") == "forward"


def main() -> int:
    """Record, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.devices.held_out", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("first", "second"), default="first")
    parser.add_argument("--only", default="*")
    parser.add_argument("--keep", default="stats")
    parser.add_argument("--wrong", action="store_true")
    options = parser.parse_args()
    clean = alarms = faults = detected = right = 0
    for name in FIRST if options.half == "first" else SECOND:
        for fault in ("", *FAULTS):
            for against, (target, reference) in LEGITIMATE.items():
                label = f"{name} {fault or 'clean'}: {against}"
                if not fnmatch.fnmatch(label, options.only) or (fault and against not in FAULTS[fault][1]):
                    continue
                if fault == "softmax_low" and target.attention != "eager":
                    continue
                folders = [
                    options.folder / f"{name}-{way.dtype}-{way.attention}-{way.autocast:d}-{way.threads}-{one}"
                    for way, one in ((target, fault), (reference, ""))
                ]
                where = record(name, target, fault, folders[0], options.keep)
                if where is None:
                    continue
                record(name, reference, "", folders[1], options.keep)
                found = ns.compare(*folders)
                report = (ns.diagnose(found) if options.keep == "tensors" else found.report).to_dict()
                origin = report["origin"] or {}
                diverged = report["verdict"] == "diverged"
                ok = (diverged and _is_right(origin, fault, where)) if fault else not diverged
                clean += not fault
                alarms += bool(not fault and diverged)
                faults += bool(fault)
                detected += bool(fault and diverged)
                right += bool(fault and ok)
                if not (ok and options.wrong):
                    at = f"{origin.get('call', '')} {origin.get('reason', '')}"
                    print(f"{'ok ' if ok else 'BAD'} {label}: {report['verdict']} {at}"[:300], flush=True)
    print(f"clean: {clean}, alarms {alarms}; faults: {faults}, detected {detected}, origin right {right}")
    return int(alarms > 0 or right < faults)


if __name__ == "__main__":
    sys.exit(main())
