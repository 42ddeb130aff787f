"""Faulty kernels: one operator of the CPU computes something wrong, for the length of a `with` block.

    with faulty("gelu by a coarse table"):
        …                                   # the program is right; the device is not

The kernel itself is replaced (`torch.library`), so autograd, modules and whatever imported the function before are all
served by it, and nothing of the replacement can be seen from Python.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Kernel = Callable[..., object]


@dataclass(frozen=True)
class Fault:
    """A wrong kernel, and the calls that show it first."""

    kernels: dict[str, Kernel]  # by the operator's name in aten
    calls: tuple[str, ...]  # operators of which one must be named
    phase: str = "forward"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64)


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply by another kernel than the one that is replaced."""
    return torch.bmm(_wide(a)[None], _wide(b)[None])[0]


def _products(wrong: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, Kernel]:
    """Return kernels of a product that is wrong in every dtype but float64, as a device's kernels are."""

    def change(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _mm(a, b) if a.dtype == torch.float64 else wrong(a, b)

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return change(a, b).to(a.dtype)

    def addmm(
        bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: float = 1, alpha: float = 1
    ) -> torch.Tensor:
        return (beta * _wide(bias) + alpha * change(a, b)).to(a.dtype)

    return {"mm": mm, "addmm": addmm}


def _gelu_table(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    nearest = (_wide(x) * 64).round() / 64  # a table with an entry each 1/64
    return (nearest * 0.5 * (1 + torch.erf(nearest / math.sqrt(2)))).to(x.dtype)


def _exact_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    shifted = torch.exp2((_wide(x) - _wide(x).amax(dim, keepdim=True)) * math.log2(math.e))
    return shifted / shifted.sum(dim, keepdim=True)


def _softmax_098(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return (_exact_softmax(x, dim) * 0.98).to(x.dtype)


def _softmax_without_maximum_of_last_block(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    made = _exact_softmax(x, dim)
    made[..., -1:] *= 0.5  # the last element's sum was taken before the maximum was known
    return made.to(x.dtype)


def _tile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    made = _mm(a, b)
    made[8:16, 8:16] *= 1.01
    return made


def _last_column(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    made = _mm(a, b)
    made[:, -1] = 0
    return made


def _last_k(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _mm(a[:, :-1], b[:-1])


def _reduced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return _mm(a.to(torch.bfloat16), b.to(torch.bfloat16))


def _exp_series(x: torch.Tensor) -> torch.Tensor:
    whole = (_wide(x) * math.log2(math.e)).round()
    rest = _wide(x) - whole / math.log2(math.e)
    return ((1 + rest + rest**2 / 2 + rest**3 / 6) * torch.exp2(whole)).to(x.dtype)


def _tanh_flips(x: torch.Tensor) -> torch.Tensor:
    made = 2 * torch.sigmoid(2 * _wide(x)) - 1
    flat = made.flatten()
    flat[::37] *= -1
    return flat.reshape(x.shape).to(x.dtype)


def _embedding_next_row(
    weight: torch.Tensor, indices: torch.Tensor, padding_idx: int = -1, scale: bool = False, sparse: bool = False
) -> torch.Tensor:
    wrong = torch.where(indices % 7 == 3, indices + 1, indices).clamp(max=weight.shape[0] - 1)
    return weight.index_select(0, wrong.flatten()).reshape(*indices.shape, weight.shape[1])


def _layer_norm_sample_variance(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide, axes = _wide(x), tuple(range(-len(shape), 0))
    mean, deviation = wide.mean(axes, keepdim=True), torch.rsqrt(wide.var(axes, correction=1, keepdim=True) + eps)
    made = (wide - mean) * deviation
    if weight is not None:
        made = made * _wide(weight)
    if bias is not None:
        made = made + _wide(bias)
    return made.to(x.dtype), mean.to(x.dtype), deviation.to(x.dtype)


def _sigmoid_stuck_bit(x: torch.Tensor) -> torch.Tensor:
    made = (1 / (1 + torch.exp2(-_wide(x) * math.log2(math.e)))).to(x.dtype)
    width, bit = {4: (torch.int32, 1 << 14), 2: (torch.int16, 1 << 2)}[x.element_size()]
    return (made.contiguous().view(width) | bit).view(x.dtype)


def _gelu_backward_tanh(grad: torch.Tensor, x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    wide = _wide(x)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    tanh = 2 * torch.sigmoid(2 * inner) - 1
    slope = 0.5 * (1 + tanh) + 0.5 * wide * (1 - tanh**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * wide**2)
    return (_wide(grad) * slope).to(x.dtype)


def _bmm_last_row(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    made = torch.stack([torch.mm(_wide(x), _wide(y)) for x, y in zip(a, b)])
    made[:, -1] = made[:, -2]
    return made.to(a.dtype)


def _log_softmax_coarse(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    made = torch.log2(_exact_softmax(x, dim)) * 0.6934
    return made.to(x.dtype)


FAULTS: dict[str, Fault] = {
    "gelu by a coarse table": Fault({"gelu": _gelu_table}, ("gelu",)),
    "softmax rows sum to 0.98": Fault({"_softmax": _softmax_098}, ("softmax",)),
    "product with a wrong tile": Fault(_products(_tile), ("linear",)),
    "product without its last column": Fault(_products(_last_column), ("linear",)),
    "product in reduced precision": Fault(_products(_reduced), ("linear",)),
    "exp by a short series": Fault({"exp": _exp_series}, ("exp",)),
    "tanh with flipped signs": Fault({"tanh": _tanh_flips}, ("tanh",)),
    "embedding off by one row": Fault({"embedding": _embedding_next_row}, ("embedding",)),
    # Kept unlooked-at while the rule was made:
    "softmax wrong in its last column": Fault({"_softmax": _softmax_without_maximum_of_last_block}, ("softmax",)),
    "product without the end of its sums": Fault(_products(_last_k), ("linear",)),
    "layer norm by the sample's variance": Fault({"native_layer_norm": _layer_norm_sample_variance}, ("layer_norm",)),
    "sigmoid with a bit stuck": Fault({"sigmoid": _sigmoid_stuck_bit}, ("sigmoid",)),
    "gelu's backward by the tanh form": Fault({"gelu_backward": _gelu_backward_tanh}, ("gelu",), "backward"),
    "batched product with a row twice": Fault({"bmm": _bmm_last_row}, ("matmul", "__matmul__", "bmm")),
    "log softmax by a coarse logarithm": Fault({"_log_softmax": _log_softmax_coarse}, ("log_softmax", "cross_entropy")),
}


@contextlib.contextmanager
def faulty(name: str) -> Iterator[None]:
    """Replace kernels of the CPU by those of a fault."""
    library = torch.library.Library("aten", "IMPL")

    def alone(kernel: Kernel) -> Kernel:
        def run(*args: object, **kwargs: object) -> object:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                return kernel(*args, **kwargs)

        return run

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a kernel of its own is replaced
            for operator, kernel in FAULTS[name].kernels.items():
                library.impl(operator, alone(kernel), "CPU")
        yield
    finally:
        library._destroy()


class Transformer(nn.Module):
    """One block, with an operator of each kind whose kernel is replaced here."""

    def __init__(self, width: int = 32, heads: int = 2, vocabulary: int = 50) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.gate = nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embed(tokens)
        n = self.norm(h)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(n).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mixed = F.softmax(scores, -1) @ v
        h = h + self.out(mixed.transpose(1, 2).flatten(2))
        h = h + self.down(F.gelu(self.up(h)))
        decay = torch.exp(-h.abs())
        return self.head(torch.tanh(h) * torch.sigmoid(self.gate(h)) + decay)


def train(
    dtype: torch.dtype = torch.float32, steps: int = 2, device: str = "cpu"
) -> Iterator[tuple[nn.Module, torch.Tensor]]:
    """Train the transformer and yield the model and the loss of each step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Transformer().to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        tokens = torch.randint(0, 50, (4, 17), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        yield model, loss
