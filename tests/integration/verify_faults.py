"""More faulty kernels, and jobs that run them: faults that a device may have, and differences that are none.

Each is a kernel of the CPU, replaced as in `device_faults.py`, and a small job that uses it. The first half was looked at
while the rules were made; the second was not until they were done.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

Kernel = Callable[..., object]
Job = Callable[[int], object]


@dataclass(frozen=True)
class Case:
    """A wrong kernel, a job of a step, and the operators of which one must be named; none where it is no fault."""

    kernels: dict[str, Callable[[], Kernel]]
    job: Job
    named: tuple[str, ...]
    steps: int = 2
    backward: bool = False


def _seeded(step: int) -> torch.Generator:
    return torch.Generator().manual_seed(100 + step)


def _rand(step: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=_seeded(step)).to(dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(_wide(a)[None], _wide(b)[None])[0]


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view({4: torch.int32, 2: torch.int16}[x.element_size()])


# Kernels ---------------------------------------------------------------------------------------------------------------


def _flipped_bit() -> Kernel:
    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = _product(a, b).to(a.dtype).contiguous()
        _bits(made)[made.shape[0] // 3, made.shape[1] // 2] ^= 1 << 27
        return made

    return mm


def _truncating_add() -> Kernel:
    def add(a: torch.Tensor, b: torch.Tensor | float, alpha: float = 1) -> torch.Tensor:
        made = torch.sub(_wide(a), b if not isinstance(b, torch.Tensor) else _wide(b), alpha=-alpha).to(torch.float32)
        if a.dtype != torch.bfloat16:
            return made.to(a.dtype)
        return (made.view(torch.int32) & -65536).view(torch.float32).to(torch.bfloat16)

    return add


def _flushing_mul() -> Kernel:
    def mul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = torch.div(_wide(a), 1 / _wide(b) if isinstance(b, torch.Tensor) else 1 / b).to(a.dtype)
        return torch.where(made.abs() < torch.finfo(made.dtype).tiny, torch.zeros_like(made), made)

    return mul


def _dirty_padding() -> Kernel:
    def pad(x: torch.Tensor, size: list[int], value: float = 0.0) -> torch.Tensor:
        made = torch.zeros((*x.shape[:-1], x.shape[-1] + size[0] + size[1]), dtype=x.dtype)
        made[..., size[0] : size[0] + x.shape[-1]] = x
        made[..., -1] = 1e-3
        return made

    return pad


def _fast_reciprocal() -> Kernel:
    def reciprocal(x: torch.Tensor) -> torch.Tensor:
        coarse = torch.div(torch.ones_like(x), x).to(torch.bfloat16).to(x.dtype)
        return coarse * (2 - x * coarse)  # one step of Newton's, where two are needed

    return reciprocal


def _other_order() -> Kernel:
    def total(
        x: torch.Tensor, dim: list[int] | None = None, keepdim: bool = False, dtype: object = None
    ) -> torch.Tensor:
        axis = dim[0] if dim else -1
        parts = x.float().unbind(axis)
        made = parts[-1]
        for one in reversed(parts[:-1]):
            made = torch.sub(made, one, alpha=-1)
        return made.to(x.dtype).unsqueeze(axis) if keepdim else made.to(x.dtype)

    return total


def _silu_slope() -> Kernel:
    def backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return grad * torch.sigmoid(x)

    return backward


def _race() -> Kernel:
    calls = itertools.count()

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = _product(a, b)
        if next(calls) % 5 == 3:
            made[:16, :16] = _product(a[:16, : a.shape[1] // 2], b[: a.shape[1] // 2, :16])
        return made.to(a.dtype)

    return mm


def _short_cat() -> Kernel:
    def cat(tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
        made = torch.empty((sum(len(one) for one in tensors), *tensors[0].shape[1:]), dtype=tensors[0].dtype)
        at = 0
        for one in tensors:
            made[at : at + len(one)] = one
            at += len(one)
        made[-1] = made[-2]
        return made

    return cat


def _losing_embedding_gradient() -> Kernel:
    def backward(grad: torch.Tensor, indices: torch.Tensor, rows: int, padding: int, scale: bool) -> torch.Tensor:
        made = torch.zeros(rows, grad.shape[-1], dtype=grad.dtype)
        made[indices.reshape(-1)] = grad.reshape(-1, grad.shape[-1])  # of several additions to a row the last remains
        return made

    return backward


# Unlooked-at until the rules were done:


def _mean_of_fewer() -> Kernel:
    def mean(x: torch.Tensor, dim: list[int] | None, keepdim: bool = False, dtype: object = None) -> torch.Tensor:
        return (x.sum(dim, keepdim) / (x.shape[dim[0] if dim else -1] - 1)).to(x.dtype)

    return mean


def _coarse_rsqrt() -> Kernel:
    def rsqrt(x: torch.Tensor) -> torch.Tensor:
        half = (x.view(torch.int32) >> 1).neg() + 0x5F3759DF
        made = half.view(torch.float32)
        return made * (1.5 - 0.5 * x * made * made)

    return rsqrt


def _layer_norm_gradient() -> Kernel:
    def backward(
        grad: torch.Tensor,
        x: torch.Tensor,
        shape: list[int],
        mean: torch.Tensor,
        rstd: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        mask: list[bool],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        normal = (x - mean) * rstd
        scaled = grad * weight
        made = rstd * (scaled - scaled.mean(-1, keepdim=True))  # the second mean is forgotten
        return made, (grad * normal).sum((0, 1)), grad.sum((0, 1))

    return backward


def _adam_without_correction() -> Kernel:
    def step(
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        m: list[torch.Tensor],
        v: list[torch.Tensor],
        *_: object,
        **options: float,
    ) -> None:
        for p, g, first, second in zip(params, grads, m, v):
            first.mul_(options["beta1"]).add_(g, alpha=1 - options["beta1"])
            second.mul_(options["beta2"]).addcmul_(g, g, value=1 - options["beta2"])
            p.mul_(1 - options["lr"] * options["weight_decay"])
            p.addcdiv_(first, second.sqrt().add_(options["eps"]), value=-options["lr"])

    return step


def _narrow_copy() -> Kernel:
    def copy(x: torch.Tensor, *, dtype: torch.dtype | None = None, **_: object) -> torch.Tensor:
        made = torch.empty_like(x, dtype=dtype or x.dtype)
        bits = torch.bitwise_and(x.contiguous().view(torch.int32), torch.full_like(x, -65536, dtype=torch.int32)).view(
            torch.float32
        )
        made.copy_(bits if x.dtype == torch.float32 and dtype == torch.bfloat16 else x)
        return made

    return copy


def _causal_off_by_one() -> Kernel:
    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        p: float = 0.0,
        causal: bool = False,
        *,
        attn_mask: object = None,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = _wide(q) @ _wide(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1)
        scores = scores.masked_fill(~ones, -math.inf)
        made = torch.softmax(scores, -1) @ _wide(v)
        return made.to(q.dtype).transpose(1, 2).contiguous().transpose(1, 2), scores.logsumexp(-1).float()

    return attention


def _conv_edge() -> Kernel:
    def convolution(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, stride: list[int], padding: list[int], *_: object
    ) -> torch.Tensor:
        columns = F.unfold(
            F.pad(_wide(x), (padding[1], padding[1], padding[0], padding[0]), mode="replicate"), tuple(w.shape[2:])
        )
        made = (_wide(w).flatten(1) @ columns).unflatten(-1, (x.shape[2], x.shape[3]))
        return made.to(x.dtype)

    return convolution


def _stale_batch_statistics() -> Kernel:
    def norm(
        x: torch.Tensor,
        w: torch.Tensor,
        b: torch.Tensor,
        mean: object,
        var: object,
        training: bool,
        momentum: float,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        half = x[: len(x) // 2]
        m, v = half.mean((0, 2, 3)), half.var((0, 2, 3), correction=0)
        made = (x - m[:, None, None]) * torch.rsqrt(v + eps)[:, None, None] * w[:, None, None] + b[:, None, None]
        return made, m, torch.rsqrt(v + eps)

    return norm


def _topk_of_the_first_half() -> Kernel:
    def topk(
        x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[torch.Tensor, ...]:
        made = torch.sort(x[..., : x.shape[-1] // 2], dim=-1, descending=True)
        return made.values[..., :k].contiguous(), made.indices[..., :k].contiguous()

    return topk


def _lost_carry() -> Kernel:
    def cumsum(x: torch.Tensor, dim: int, *, dtype: object = None) -> torch.Tensor:
        made = torch.empty_like(x)
        half = x.shape[-1] // 2
        for part in (slice(0, half), slice(half, None)):
            made[..., part] = x[..., part] @ torch.ones(half, half).triu()
        return made

    return cumsum


def _sequential_mm() -> Kernel:
    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made = torch.zeros(a.shape[0], b.shape[1])
        for k in range(a.shape[1]):
            made = made + a[:, k : k + 1] * b[k : k + 1]
        return made

    return mm


def _relu_job(step: int) -> torch.Tensor:
    x, w = _rand(step, 40, 24).requires_grad_(), _rand(step + 50, 24, 48).requires_grad_()
    return torch.relu(x @ w).sum()


def _adam(step: int) -> torch.Tensor:
    p = torch.nn.Parameter(_rand(0, 64, 32))
    stepper = torch.optim.AdamW([p], lr=0.01, fused=True)
    p.grad = _rand(step, 64, 32)
    stepper.step()
    return p.detach().sum()


def _batch_norm(step: int) -> torch.Tensor:
    return F.batch_norm(_rand(step, 4, 6, 9, 9) * 3 + 1, None, None, torch.ones(6), torch.zeros(6), True)


def _pool_without_the_last_column() -> Kernel:
    def pool(x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
        made, places = torch.ops.aten.max_pool3d_with_indices(x[:, :, None], (1, *kernel), (1, *(stride or kernel)))
        made, places = made[:, :, 0].contiguous(), places[:, :, 0].contiguous()
        made[..., -1] = made[..., 0]
        return made, places

    return pool


def _average_that_counts_padding() -> Kernel:
    def pool(x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        made = torch.ops.aten.avg_pool3d(x[:, :, None], (1, *kernel), (1, *(stride or kernel)), (0, *padding))
        return made[:, :, 0].contiguous()

    return pool


def _pool_gradients_that_overwrite() -> Kernel:
    def backward(grad, x, kernel, stride, padding, dilation, ceil_mode, indices):
        made = torch.zeros_like(x)
        made.flatten(2).scatter_(2, indices.flatten(2), grad.flatten(2))
        return made

    return backward


CASES: dict[str, Case] = {
    "a maximum that forgets the last column": Case(
        {"max_pool2d_with_indices": _pool_without_the_last_column},
        lambda s: F.max_pool2d_with_indices(_rand(s, 3, 5, 12, 12), 3, 2),
        ("max_pool2d_with_indices",),
    ),
    "an average that counts padding": Case(
        {"avg_pool2d": _average_that_counts_padding},
        lambda s: F.avg_pool2d(_rand(s, 3, 5, 12, 12) + 1, 3, 2, 1, count_include_pad=False),
        ("avg_pool2d",),
    ),
    "gradients of a maximum that overwrite each other": Case(
        {"max_pool2d_with_indices_backward": _pool_gradients_that_overwrite},
        lambda s: F.max_pool2d(_rand(s, 3, 5, 12, 12).requires_grad_(), 3, 1).square().sum(),
        ("max_pool2d_with_indices_backward",),
        backward=True,
    ),
    "one flipped bit in a large product": Case(
        {"mm": _flipped_bit}, lambda s: _rand(s, 600, 64) @ _rand(s, 64, 700), ("mm",)
    ),
    "addition that truncates in bfloat16": Case(
        {"add.Tensor": _truncating_add},
        lambda s: _rand(s, 64, 64, dtype=torch.bfloat16) + _rand(s + 1, 64, 64, dtype=torch.bfloat16),
        ("add",),
    ),
    "subnormal products flushed to zero": Case(
        {"mul.Tensor": _flushing_mul}, lambda s: (_rand(s, 50, 50) * 1e-20) * (_rand(s + 1, 50, 50) * 1e-19), ("mul",)
    ),
    "padding that was never written": Case(
        {"constant_pad_nd": _dirty_padding}, lambda s: F.pad(_rand(s, 9, 30), (1, 2)), ("constant_pad_nd",)
    ),
    "reciprocal with one step of Newton's": Case(
        {"reciprocal": _fast_reciprocal}, lambda s: (2 + _rand(s, 70, 70).abs()).reciprocal(), ("reciprocal",)
    ),
    "a sum in another order": Case({"sum.dim_IntList": _other_order}, lambda s: _rand(s, 30, 500).sum(-1), ()),
    "the slope of silu without its second term": Case(
        {"silu_backward": _silu_slope},
        lambda s: F.silu(_rand(s, 40, 50).requires_grad_()).sum(),
        ("silu_backward",),
        backward=True,
    ),
    "a race that comes and goes": Case(
        {"mm": _race}, lambda s: _rand(s, 64, 64) @ _rand(s + 9, 64, 64), ("mm",), steps=8
    ),
    "a join that repeats its last row but one": Case(
        {"cat": _short_cat}, lambda s: torch.cat([_rand(s, 30, 40), _rand(s + 1, 34, 40)]), ("cat",), steps=6
    ),
    "gradients of an embedding that overwrite each other": Case(
        {"embedding_dense_backward": _losing_embedding_gradient},
        lambda s: F.embedding(torch.arange(60) % 7, _rand(s, 9, 16).requires_grad_()).square().sum(),
        ("embedding_dense_backward",),
        backward=True,
    ),
    # Unlooked-at until the rules were done:
    "a mean of one too few": Case({"mean.dim": _mean_of_fewer}, lambda s: _rand(s, 30, 300).mean(-1), ("mean",)),
    "an inverse root by a bit trick": Case(
        {"rsqrt": _coarse_rsqrt}, lambda s: (1 + _rand(s, 40, 80).abs()).rsqrt(), ("rsqrt",)
    ),
    "the gradient of layer norm without a term": Case(
        {"native_layer_norm_backward": _layer_norm_gradient},
        lambda s: (
            F.layer_norm(
                _rand(s, 4, 12, 32).requires_grad_(),
                (32,),
                torch.ones(32).requires_grad_(),
                torch.zeros(32).requires_grad_(),
            )
            .pow(3)
            .sum()
        ),
        ("native_layer_norm_backward",),
        backward=True,
    ),
    "fused Adam without bias correction": Case({"_fused_adamw_": _adam_without_correction}, _adam, ("_fused_adamw",)),
    "a cast that cuts digits off": Case(
        {"_to_copy": _narrow_copy}, lambda s: _rand(s, 60, 60).to(torch.bfloat16), ("_to_copy",)
    ),
    "causal attention that sees one key too many": Case(
        {"_scaled_dot_product_flash_attention_for_cpu": _causal_off_by_one},
        lambda s: F.scaled_dot_product_attention(*(_rand(s + i, 2, 2, 24, 16) for i in range(3)), is_causal=True),
        ("_scaled_dot_product_flash_attention_for_cpu",),
    ),
    "a convolution that repeats its edge": Case(
        {
            "convolution_overrideable": _conv_edge,
            "mkldnn_convolution": _conv_edge,
            "convolution": _conv_edge,
            "_convolution": _conv_edge,
        },
        lambda s: F.conv2d(_rand(s, 2, 4, 12, 12), _rand(s, 8, 4, 3, 3), padding=1),
        ("convolution",),
        steps=6,
    ),
    "batch statistics of half of the batch": Case(
        {"native_batch_norm": _stale_batch_statistics}, _batch_norm, ("native_batch_norm",)
    ),
    "top-k of the first half": Case({"topk": _topk_of_the_first_half}, lambda s: _rand(s, 20, 90).topk(5), ("topk",)),
    "a running sum that loses its carry": Case(
        {"cumsum": _lost_carry}, lambda s: _rand(s, 20, 256).cumsum(-1), ("cumsum",)
    ),
    "a product added up one by one": Case(
        {"mm": _sequential_mm}, lambda s: _rand(s, 40, 512).abs() @ _rand(s, 512, 30).abs(), ()
    ),
}


@contextlib.contextmanager
def replaced(kernels: dict[str, Callable[[], Kernel]]) -> Iterator[None]:
    """Replace kernels of the CPU."""
    library = torch.library.Library("aten", "IMPL")

    def alone(kernel: Kernel) -> Kernel:
        def run(*args: object, **kwargs: object) -> object:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                return kernel(*args, **kwargs)

        return run

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for operator, make in kernels.items():
                library.impl(operator, alone(make()), "CPU")
        yield
    finally:
        library._destroy()


def run_case(case: Case, step: int) -> None:
    """Do one step of a case's job."""
    torch.set_num_threads(1)
    made = case.job(step)
    if case.backward and isinstance(made, torch.Tensor):
        made.backward()
