"""Compiled against eager, clean: `python -m bench.compiled_pairs [--models …] [--dtypes …] [--device …] [--out F]`.

Small models of `transformers`, built from their configurations, train a step compiled and a step eagerly. The compiled run
is looked into, so that what differs is judged kernel by kernel: each pair must be equivalent, and not because nothing was
looked at: every region was examined, and no kernel of it was left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.compiled import cache

STEPS = 1
_SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _model(auto: str, kind: str, **changes: Any) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **changes)
    return getattr(transformers, auto).from_config(config)  # type: ignore[no-any-return]


def _causal(kind: str, **changes: Any) -> Callable[[], nn.Module]:
    return lambda: _model("AutoModelForCausalLM", kind, **{**_SIZES, **changes})


MODELS: dict[str, Callable[[], nn.Module]] = {
    "llama": _causal("llama", num_key_value_heads=2),
    "qwen3": _causal("qwen3", num_key_value_heads=2, head_dim=8),
    "gemma2": _causal("gemma2", num_key_value_heads=2, head_dim=8),
    "gpt2": _causal("gpt2", n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "opt": _causal("opt", ffn_dim=64, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0),
    "bert": lambda: _model("AutoModelForMaskedLM", "bert", **_SIZES, **_NO_DROPOUT),
    "vit": lambda: _model(
        "AutoModelForImageClassification",
        "vit",
        image_size=16,
        patch_size=4,
        **_NO_DROPOUT,
        **{
            name: size
            for name, size in _SIZES.items()
            if name.endswith(("size", "layers", "heads")) and name != "vocab_size"
        },
    ),
    "t5": lambda: _model(
        "AutoModelForSeq2SeqLM",
        "t5",
        vocab_size=97,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    ),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Pair:
    """What was found of one pair."""

    model: str
    dtype: str
    recorded: str  # the verdict by what is recorded at the regions' boundaries
    verdict: str  # with a look inside
    kernels: int
    lacks: tuple[str, ...]
    wrong: tuple[str, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Tell whether the pair is equivalent, and all of it was looked at."""
        return self.verdict in ("equivalent", "identical") and self.kernels > 0 and not self.lacks and not self.wrong


def train(name: str, dtype: torch.dtype, device: str, is_compiled: bool, folder: Path) -> None:
    """Train a model under capture."""
    import numscope as ns

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MODELS[name]().to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    call = torch.compile(model) if is_compiled else model
    inside = "inside" if is_compiled else "boundary"
    with ns.capture(folder, model, level="module", compiled=inside, on_error="raise") as capture:
        for _ in range(STEPS):
            if name == "vit":
                pixels = torch.randn(2, 3, 16, 16, generator=generator).to(device, dtype)
                loss = call(pixel_values=pixels).logits.float().square().mean()
            else:
                tokens = torch.randint(3, 97, (2, 12), generator=generator).to(device)
                loss = call(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            capture.step()


def run(name: str, dtype: str, device: str, folder: Path) -> Pair:
    """Make a pair and judge it."""
    import numscope as ns
    from numscope.compare.comparison import compare
    from numscope.diagnose.regions.examine import examine
    from numscope.diagnose.regions.recorded import RecordedRegions

    begun = time.perf_counter()
    with cache(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(name, DTYPES[dtype], device, True, folder / "target")
        train(name, DTYPES[dtype], device, False, folder / "reference")
    recorded = compare(folder / "target", folder / "reference")
    report = ns.diagnose(recorded)
    seen = examine(RecordedRegions(ns.open_run(folder / "target"), 0))
    kernels = sum(finding.kind == "kernel" for finding in seen.findings)
    wrong = tuple(finding.sentence() for finding in seen.wrong)
    seconds = time.perf_counter() - begun
    return Pair(name, dtype, recorded.verdict, report.verdict, kernels, seen.lacks, wrong, seconds)


def table(pairs: Sequence[Pair]) -> str:
    """Return the pairs as a table in Markdown."""
    lines = [
        "| model | dtype | by the boundary | with a look inside | kernels | not looked at |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.model} | {one.dtype} | {one.recorded} | {one.verdict} | {one.kernels} | {'; '.join(one.lacks)} |"
        for one in pairs
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pairs, print them, and return 1 where one is not clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the results as JSON; go on where it ends")
    given = parser.parse_args(arguments)
    pairs: list[Pair] = []
    if given.out and given.out.exists():
        pairs = [Pair(**one) for one in json.loads(given.out.read_text())["pairs"]]
    done = {(one.model, one.dtype) for one in pairs}
    for name in given.models:
        for dtype in given.dtypes:
            if (name, dtype) in done:
                continue
            with tempfile.TemporaryDirectory() as folder:
                pairs.append(run(name, dtype, given.device, Path(folder)))
            print(f"{pairs[-1]}", file=sys.stderr, flush=True)
            if given.out:
                machine = {"torch": torch.__version__, "device": given.device}
                given.out.write_text(json.dumps({**machine, "pairs": [asdict(one) for one in pairs]}, indent=1))
    print(table(pairs))
    return int(not all(one.is_clean for one in pairs))


if __name__ == "__main__":
    sys.exit(main())
