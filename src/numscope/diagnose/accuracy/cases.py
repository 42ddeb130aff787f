"""How each operator of the table of operators is called: a function, and the floating-point tensors that it is given.

What is not in the list computes nothing (views, copies, comparisons, settings), or draws numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from numscope.diagnose.accuracy.data import Data, Form


class Call(NamedTuple):
    """A function, and the tensors of float64 that it is given."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


Build = Callable[[Data], Call]
Draw = Callable[[Data], tuple[torch.Tensor, ...]]
_BUILDS: dict[str, Build] = {}


def operators() -> tuple[str, ...]:
    """Return the operators that are measured."""
    return tuple(_BUILDS)


def dtypes(operator: str) -> tuple[torch.dtype, ...]:
    """Return the dtypes of the inputs that an operator is measured with."""
    return (torch.float8_e4m3fn,) if operator == "_scaled_mm" else (torch.float32, torch.bfloat16, torch.float16)


def call(operator: str, data: Data) -> Call:
    """Return one call of an operator."""
    return _BUILDS[operator](data)


def _case(*names: str) -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        for name in names:
            _BUILDS[name] = build
        return build

    return add


def _each(draw: Callable[[Data], torch.Tensor], **functions: Callable[..., Any]) -> None:
    """Add functions of one tensor."""

    def build(function: Callable[..., Any]) -> Build:
        return lambda data: Call(function, (draw(data),))

    for name, function in functions.items():
        _BUILDS[name] = build(function)


def _two(draw: Draw, **functions: Callable[..., Any]) -> None:
    """Add functions of several tensors."""

    def build(function: Callable[..., Any]) -> Build:
        return lambda data: Call(function, draw(data))

    for name, function in functions.items():
        _BUILDS[name] = build(function)


# Elementwise ----------------------------------------------------------------------------------------------------------

_each(
    lambda data: data.real(),
    gelu=F.gelu,
    silu=F.silu,
    elu=F.elu,
    leaky_relu=F.leaky_relu,
    hardsigmoid=F.hardsigmoid,
    hardswish=F.hardswish,
    selu=F.selu,
    sigmoid=torch.sigmoid,
    tanh=torch.tanh,
    mish=F.mish,
    softplus=F.softplus,
    softsign=F.softsign,
    celu=F.celu,
    tanhshrink=F.tanhshrink,
    erf=torch.erf,
    logsigmoid=F.logsigmoid,
    sin=torch.sin,
    cos=torch.cos,
    atan=torch.atan,
    square=torch.square,
    expm1=torch.expm1,
    sinh=torch.sinh,
    cosh=torch.cosh,
    glu=F.glu,
    relu=F.relu,
    relu6=F.relu6,
    hardtanh=F.hardtanh,
    abs=torch.abs,
    clamp=lambda x: torch.clamp(x, -0.5, 0.5),
    threshold=lambda x: F.threshold(x, 0.125, 0.0),
    clamp_min=lambda x: torch.clamp_min(x, 0.125),
    clamp_max=lambda x: torch.clamp_max(x, 0.125),
    amax=lambda x: x.amax(-1),
    amin=lambda x: x.amin(-1),
    max=lambda x: x.max(-1).values,
    min=lambda x: x.min(-1).values,
    round=torch.round,
    floor=torch.floor,
    ceil=torch.ceil,
    trunc=torch.trunc,
    sign=torch.sign,
    frac=torch.frac,
    rrelu=lambda x: F.rrelu(x, training=False),
)
_each(lambda data: data.logits(), exp=torch.exp, exp2=torch.exp2)
_each(lambda data: data.inside(), asin=torch.asin, acos=torch.acos, erfinv=torch.erfinv, tan=torch.tan)
_each(
    lambda data: data.positive(),
    sqrt=torch.sqrt,
    rsqrt=torch.rsqrt,
    log=torch.log,
    log2=torch.log2,
    log10=torch.log10,
    log1p=torch.log1p,
    reciprocal=torch.reciprocal,
)
_two(
    lambda data: (x := data.real(), data.opposite(x)),
    add=torch.add,
    sub=lambda x, y: x - (-y),
    rsub=lambda x, y: torch.rsub(-x, y),
)
_two(
    lambda data: (x := data.real(), data.factor(*x.shape)),
    mul=torch.mul,
    hypot=torch.hypot,
    logaddexp=torch.logaddexp,
    lerp=lambda x, y: torch.lerp(x, y, 0.3),
    maximum=torch.maximum,
    minimum=torch.minimum,
    fmax=torch.fmax,
    fmin=torch.fmin,
    atan2=torch.atan2,
    prelu=lambda x, y: F.prelu(x, y[0, :1].abs()),
)
_two(
    lambda data: (data.real(), data.positive()),
    div=torch.div,
    rdiv=lambda x, y: x.__truediv__(y),
    fmod=torch.fmod,
    remainder=torch.remainder,
    floor_divide=torch.floor_divide,
)
_two(lambda data: (data.positive(), data.real()), pow=torch.pow)
_two(
    lambda data: (data.real(), data.factor(data.rows, data.depth), data.positive()),
    addcmul=lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    addcdiv=lambda x, y, z: torch.addcdiv(x, y, z, value=0.5),
)
_two(lambda data: (data.normal(data.rows), data.normal(data.depth)), outer=torch.outer, ger=torch.ger)

# Fourier transforms; complex numbers are shown as pairs of real ones ---------------------------------------------------

_each(
    lambda data: data.real(),
    fft=lambda x: torch.view_as_real(torch.fft.fft(x)),
    ifft=lambda x: torch.view_as_real(torch.fft.ifft(x).resolve_conj()),
    rfft=lambda x: torch.view_as_real(torch.fft.rfft(x)),
    irfft=lambda x: torch.fft.irfft(torch.view_as_complex(x.unflatten(-1, (-1, 2)))),
)
_each(
    lambda data: data.real(2, 4, 16, 16),
    fft2=lambda x: torch.view_as_real(torch.fft.fft2(x)),
    rfft2=lambda x: torch.view_as_real(torch.fft.rfft2(x)),
)

# Sums -----------------------------------------------------------------------------------------------------------------

_each(
    lambda data: data.real(),
    sum=lambda x: x.sum(-1),
    mean=lambda x: x.mean(-1),
    nansum=lambda x: torch.nansum(x, -1),
    nanmean=lambda x: torch.nanmean(x, -1),
    cumsum=lambda x: x.cumsum(-1),
    vector_norm=lambda x: torch.linalg.vector_norm(x, dim=-1),
    norm=lambda x: x.norm(dim=-1),
    trace=lambda x: x[:, : x.shape[0]].trace(),
    sum_to_size=lambda x: x.sum_to_size(x.shape[0], 1),
    _foreach_norm=lambda x: torch._foreach_norm([x])[0],
)
_each(
    lambda data: data.shifted(),
    std=lambda x: x.std(-1),
    var=lambda x: x.var(-1),
    std_mean=lambda x: torch.std_mean(x, -1),
    var_mean=lambda x: torch.var_mean(x, -1),
)
_two(
    lambda data: (data.real(), data.normal(data.rows, data.depth)),
    mse_loss=F.mse_loss,
    l1_loss=F.l1_loss,
    smooth_l1_loss=F.smooth_l1_loss,
)
_each(
    lambda data: data.real(2, 4, 64),
    avg_pool1d=lambda x: F.avg_pool1d(x, 8),
    adaptive_avg_pool1d=lambda x: F.adaptive_avg_pool1d(x, 5),
    max_pool1d=lambda x: F.max_pool1d(x, 4),
)
_each(
    lambda data: data.real(2, 4, 16, 16),
    avg_pool2d=lambda x: F.avg_pool2d(x, 4),
    adaptive_avg_pool2d=lambda x: F.adaptive_avg_pool2d(x, 3),
    interpolate=lambda x: F.interpolate(x, size=(23, 23), mode="bilinear"),
    upsample=lambda x: F.interpolate(x, size=(7, 7), mode="bicubic"),
    max_pool2d=lambda x: F.max_pool2d(x, 2),
    adaptive_max_pool2d=lambda x: F.adaptive_max_pool2d(x, 3),
)
_each(
    lambda data: data.real(2, 3, 8, 8, 8),
    avg_pool3d=lambda x: F.avg_pool3d(x, 2),
    adaptive_avg_pool3d=lambda x: F.adaptive_avg_pool3d(x, 3),
    max_pool3d=lambda x: F.max_pool3d(x, 2),
)
_two(
    lambda data: (data.real(2, 4, 16, 16), data.inside(2, 9, 9, 2)),
    grid_sample=lambda x, grid: F.grid_sample(x, grid, align_corners=False),
)


@_case("index_add", "scatter_add", "scatter_reduce")
def _scattered(data: Data) -> Call:
    rows = data.integers(4, data.depth)

    def add(x: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
        return x.index_add(1, rows.to(x.device), terms)

    return Call(add, (data.normal(data.rows, 4), data.real()))


_each(
    lambda data: data.normal(4, 12, 12) + 8.0 * torch.eye(12, dtype=torch.float64),
    inverse=torch.linalg.inv,
    det=torch.linalg.det,
)
_two(
    lambda data: (data.normal(4, 12, 12) + 8.0 * torch.eye(12, dtype=torch.float64), data.normal(4, 12, 3)),
    solve=torch.linalg.solve,
)


@_case("embedding_bag")
def _bag(data: Data) -> Call:
    rows = data.integers(64, 8, min(data.depth, 64))
    return Call(lambda table: F.embedding_bag(rows.to(table.device), table, mode="sum"), (data.normal(64, 16),))


@_case("dropout")
def _masked(data: Data) -> Call:
    kept = (data.uniform(data.rows, data.depth) > 0.1).double() / 0.9
    return Call(lambda x: x * kept.to(x.device, x.dtype), (data.real(),))


_each(
    lambda data: data.normal(data.depth),  # for its dtype and device alone
    linspace=lambda x: torch.linspace(-1.0, 1.0, x.numel(), dtype=x.dtype, device=x.device),
    logspace=lambda x: torch.logspace(-2.0, 0.0, x.numel(), dtype=x.dtype, device=x.device),
    arange=lambda x: torch.arange(0.0, 1.0, 1.0 / x.numel(), dtype=x.dtype, device=x.device),
    full=lambda x: torch.full_like(x, 0.1),
)


@_case("embedding", "index_select", "gather")
def _rows(data: Data) -> Call:
    rows = data.integers(16, 4, data.depth)
    return Call(lambda table: F.embedding(rows.to(table.device), table), (data.real(16, 32),))


# Products -------------------------------------------------------------------------------------------------------------

_WIDE = 24  # columns of a product


def _matrices(data: Data) -> tuple[torch.Tensor, ...]:
    return data.real(data.rows, data.depth), data.factor(data.depth, _WIDE, dim=0)


def _transposed(data: Data) -> tuple[torch.Tensor, ...]:
    x, w = _matrices(data)
    return x, w.t().contiguous()


def _batches(data: Data) -> tuple[torch.Tensor, ...]:
    return data.real(2, data.rows, data.depth), data.factor(2, data.depth, _WIDE, dim=1)


def _with(term: Callable[[Data], torch.Tensor], terms: Draw) -> Draw:
    return lambda data: (term(data), *terms(data))


def _narrow_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float64:
        return x @ w.t()
    one = torch.ones((), device=x.device)
    return torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _vectors(data: Data) -> tuple[torch.Tensor, ...]:
    return data.real(data.depth), data.factor(data.depth)


_two(
    _matrices,
    matmul=torch.matmul,
    mm=torch.mm,
    tensordot=lambda x, w: torch.tensordot(x, w, 1),
    chain_matmul=torch.mm,
    einsum=lambda x, w: torch.einsum("mk,kn->mn", x, w),
)
_two(_transposed, inner=torch.inner, cdist=lambda x, w: torch.cdist(x, w))
_two(lambda data: (*_transposed(data), data.normal(_WIDE)), linear=F.linear)
_two(lambda data: (data.real(32, data.depth), data.factor(32, data.depth)), _scaled_mm=_narrow_product)
_two(_batches, bmm=torch.bmm)
_two(_with(lambda data: data.normal(data.rows, _WIDE), _matrices), addmm=torch.addmm)
_two(_with(lambda data: data.normal(2, data.rows, _WIDE), _batches), baddbmm=torch.baddbmm)
_two(_with(lambda data: data.normal(data.rows, _WIDE), _batches), addbmm=torch.addbmm)
_two(_vectors, dot=torch.dot, vdot=torch.vdot)
_two(lambda data: (data.real(data.rows, data.depth), data.factor(data.depth)), mv=torch.mv)
_two(
    lambda data: (data.normal(data.rows), data.real(data.rows, data.depth), data.factor(data.depth)), addmv=torch.addmv
)
_two(lambda data: (data.normal(data.rows, 32), data.normal(data.rows), data.normal(32)), addr=torch.addr)
_two(lambda data: (data.real(4, 8), data.normal(3, 5)), kron=torch.kron)
_two(
    lambda data: (data.real(data.rows, 32), data.factor(data.rows, 16), data.normal(6, 32, 16)),
    bilinear=F.bilinear,
)
_each(lambda data: data.positive(data.rows, 16) ** 0.2, prod=lambda x: x.prod(-1), cumprod=lambda x: x.cumprod(-1))


def _channels(data: Data) -> int:
    return max(4, data.depth // 16)


_two(
    lambda data: (data.real(2, _channels(data), 32), data.normal(6, _channels(data), 3)),
    conv1d=lambda x, w: F.conv1d(x, w, padding=1),
)
_two(
    lambda data: (data.real(2, _channels(data), 8, 8), data.normal(6, _channels(data), 3, 3), data.normal(6)),
    conv2d=lambda x, w, b: F.conv2d(x, w, b, padding=1),
    convolution=lambda x, w, b: F.conv2d(x, w, b, stride=2),
)
_two(
    lambda data: (data.real(2, 8, 4, 4, 4), data.normal(6, 8, 3, 3, 3)),
    conv3d=lambda x, w: F.conv3d(x, w, padding=1),
    conv_transpose3d=lambda x, w: F.conv_transpose3d(x, w.transpose(0, 1).contiguous()),
)
_two(
    lambda data: (data.real(2, _channels(data), 16), data.normal(_channels(data), 6, 4)),
    conv_transpose1d=lambda x, w: F.conv_transpose1d(x, w, stride=2),
)
_two(
    lambda data: (data.real(2, _channels(data), 8, 8), data.normal(_channels(data), 6, 4, 4)),
    conv_transpose2d=lambda x, w: F.conv_transpose2d(x, w, stride=2),
)


def _attended(data: Data) -> tuple[torch.Tensor, ...]:
    length = 256 if data.form is Form.LONG else 24
    q, k, v = (data.normal(2, 2, length, 32) for _ in range(3))
    if data.form is Form.CANCELLING:
        return q, k, torch.cat([v[:, :, ::2], data.opposite(v[:, :, ::2])], 2)
    return (4.0 * q, k, v) if data.form is Form.SCALED else (q, k, v)


_two(
    _attended,
    scaled_dot_product_attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
)


def _recurrent(gates: int, name: str) -> None:
    """Add a recurrent layer and its cell."""

    def weights(data: Data, width: int) -> tuple[torch.Tensor, ...]:
        shapes = (gates * width, width), (gates * width, width), (gates * width,), (gates * width,)
        return tuple(data.normal(*shape) / width**0.5 for shape in shapes)

    def layer(data: Data) -> Call:
        width, length = 32, 48 if data.form is Form.LONG else 6
        states = 2 if name == "lstm" else 1

        def run(x: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
            zero = x.new_zeros(1, x.shape[1], width)
            state = (zero, zero) if states == 2 else zero
            function = getattr(torch, name)
            made: torch.Tensor = function(x, state, list(weight), True, 1, 0.0, torch.is_grad_enabled(), False, False)[
                0
            ]
            return made

        return Call(run, (data.real(length, 4, width), *weights(data, width)))

    _BUILDS[name] = layer


_recurrent(4, "lstm")
_recurrent(3, "gru")
_recurrent(1, "rnn_tanh")
_recurrent(1, "rnn_relu")


@_case("lstm_cell", "gru_cell")
def _cell(data: Data) -> Call:
    w = 32
    inputs = (data.real(4, w), data.normal(4, w), data.normal(3 * w, w) / w**0.5, data.normal(3 * w, w) / w**0.5)
    return Call(lambda x, h, a, b: torch.gru_cell(x, h, a, b), inputs)


# Normalisations, exponentials, losses ---------------------------------------------------------------------------------

_two(
    lambda data: (data.shifted(), 1.0 + 0.1 * data.normal(data.depth), data.normal(data.depth)),
    layer_norm=lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    native_layer_norm=lambda x, w, b: torch.native_layer_norm(x, w.shape, w, b, 1e-5)[0],
)
_two(
    lambda data: (data.shifted(), 1.0 + 0.1 * data.normal(data.depth)),
    rms_norm=lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
)


def _channels_and_scale(data: Data) -> tuple[torch.Tensor, ...]:
    """Return channels in a row, or images in the layout `channels_last`, for which kernels are others."""
    if data.form in (Form.LONG, Form.CANCELLING):
        shape = (8, 8, 32, 32) if data.form is Form.LONG else (4, 8, 16, 16)
        x = data.shifted(*shape).contiguous(memory_format=torch.channels_last)
    else:
        x = data.shifted(4, 8, data.depth)
    return x, 1.0 + 0.1 * data.normal(8), data.normal(8)


_two(
    _channels_and_scale,
    group_norm=lambda x, w, b: F.group_norm(x, 2, w, b),
    native_group_norm=lambda x, w, b: F.group_norm(x, 4, w, b),
    batch_norm=lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    native_batch_norm=lambda x, w, b: torch.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5)[0],
    instance_norm=lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
)
_each(
    lambda data: data.shifted(4, 8, 64),
    normalize=lambda x: F.normalize(x, dim=-1),
    local_response_norm=lambda x: F.local_response_norm(x, 3),
)
_two(
    lambda data: (data.real(), data.factor(data.rows, data.depth)),
    cosine_similarity=lambda x, y: F.cosine_similarity(x, y, dim=-1),
)
_each(
    lambda data: data.logits(),
    softmax=lambda x: x.softmax(-1),
    log_softmax=lambda x: x.log_softmax(-1),
    softmin=lambda x: F.softmin(x, -1),
    logsumexp=lambda x: x.logsumexp(-1),
    logcumsumexp=lambda x: x.logcumsumexp(-1),
)


@_case("cross_entropy", "nll_loss")
def _labelled(data: Data) -> Call:
    labels = data.integers(data.depth, data.rows)
    return Call(lambda x: F.cross_entropy(x, labels.to(x.device)), (data.logits(),))


_two(
    lambda data: (data.logits().log_softmax(-1), data.logits().softmax(-1)),
    kl_div=lambda x, y: F.kl_div(x, y, reduction="batchmean"),
)
_two(
    lambda data: (data.logits(), data.uniform(data.rows, data.depth)),
    binary_cross_entropy_with_logits=F.binary_cross_entropy_with_logits,
)
_two(
    lambda data: (0.01 + 0.98 * data.uniform(data.rows, data.depth), data.uniform(data.rows, data.depth)),
    binary_cross_entropy=F.binary_cross_entropy,
)
_each(
    lambda data: data.real(),
    sort=lambda x: x.sort(-1).values,
    topk=lambda x: x.topk(4, -1).values,
    median=lambda x: x.median(-1).values,
)
