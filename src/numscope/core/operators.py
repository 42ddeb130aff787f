"""The one table of operators: how each rounds, and its other traits, whatever tool or framework recorded it.

Every operator stands in one row, by its canonical name: `__iadd__`, `add_`, `add.Tensor` and `Torch.add` are all `add`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Flag, IntEnum, auto
from functools import cache, reduce
from operator import or_


class Rounding(IntEnum):
    """The effect of an operator's own rounding, and of an error in its inputs, on its result: one rule each in compare."""

    OTHER = 0
    MOVE = 1  # its elements are elements of its inputs, or constants: exact where the inputs are
    LIPSCHITZ = 2  # elementwise, of a bounded slope: an absolute error does not grow
    PRODUCT = 3  # sums of products
    SUM = 4  # a reduction by addition
    NORMALISE = 5  # subtracts a mean, divides by a deviation
    EXPONENTIAL = 6  # an absolute error in is a relative error out
    STEEP = 7  # division, logarithm, powers: relative errors grow near zero
    DISCRETE = 8  # an arbitrarily small error flips the result
    RANDOM = 9  # draws numbers
    CREATE = 10  # makes a tensor of arguments alone
    COMMUNICATE = 11  # collectives: a kind of call, so that no name has it
    SCALE = 12  # elementwise products
    CHANNELWISE = 14  # normalises channels: statistics of whole images, added up in the order of the memory layout
    GATED = 13  # mixes values by shares or gates that it computes inside: attention, recurrent layers
    FOURIER = 15  # a transform that keeps norms up to one factor, in log n stages


IDLE = (Rounding.MOVE, Rounding.CREATE)  # compute nothing
MULTIPLIES = (Rounding.PRODUCT, Rounding.GATED)  # sums of products: settings like TF32 and split sums are about them


class Trait(Flag):
    """A property of an operator besides how it rounds."""

    # Data
    VIEW = auto()  # its result shows its argument's memory (or a copy, where no view can be had); all move data
    LAZY_VIEW = auto()  # a view whose elements are other numbers than lie in memory
    MOVES = auto()  # views, copies, casts, selects or joins what it is given, and computes nothing
    UNINITIALIZED = auto()  # returns memory that nothing was written to yet
    FILLS_PART = auto()  # fills a rank's own part of the memory that it returns
    OVERWRITES = auto()  # writes over its first argument without reading it
    WRITES_PART = auto()  # writes to a part of its first argument, and leaves the rest as it was
    UNVERSIONED_WRITES = auto()  # writes to arguments (running statistics) without raising their version counters
    EXPOSES = auto()  # hands out memory that can then be written to without raising the version counter
    EXPOSES_STORAGE = auto()  # exposes, but hands out the storage object alone
    SOURCE = auto()  # its result depends on no recorded tensor
    # Arithmetic
    COMMUTATIVE = auto()
    AVERAGES = auto()  # divides its sum by the number of terms
    KINKED = auto()  # its gradient multiplies by a mask, which an arbitrarily small error flips
    SIGN_LIKE = auto()  # divides each element by its own size, as Adam does: rounding decides the sign of one near zero
    LIST_BY_ELEMENT = auto()  # maps a list, each tensor by itself, and enlarges no relative error
    RANKS = auto()  # returns places among all others: the more elements, the nearer the next
    # Non-finite values
    FROM_CONSTANTS = auto()  # makes a tensor of constants: a NaN there does no harm before something takes it
    FILLS_IN = auto()  # puts in a value: where a dump does not tell the value, infinities count as intended
    TURNS_SIGN = auto()  # can make +inf of -inf
    ADDS = auto()  # a mask of the smallest finite number overflows here to -inf, which is its purpose
    CHOOSES = auto()  # compares, chooses or counts: an infinity need not reach its result
    TRANSMITS = auto()  # its result, and its gradient, are not finite wherever anything given to it is not
    WORKSPACE = auto()  # its second result is a workspace for its backward, in which infinities stand for "none"
    # Capture from torch
    UNRECORDED = auto()  # as a function: computes no numbers, or returns what it was given
    UNRECORDED_ATEN = auto()  # as an aten operator
    ATTRIBUTE = auto()  # an attribute of Tensor that computes one; all other attributes are no calls
    CALLS_ITSELF = auto()  # a Python function of nn.functional that calls nothing but the operator of its name


NONE = Trait(0)


# Libraries of operators that bring tensors from one rank to another, or arrange them for that.
BETWEEN_RANKS = frozenset({"fsdp", "c10d", "c10d_functional", "_c10d_functional"})


@dataclass(frozen=True)
class Operator:
    """One operator of the table."""

    name: str = ""
    rounding: Rounding = Rounding.OTHER
    traits: Trait = NONE


UNKNOWN = Operator()

# Rounding, traits, and the operators that have them, with their other names: `name=alias,alias`.
_TABLE = """
    Views
move         view moves                       : view view_as reshape_as _unsafe_view _reshape_alias flatten unflatten ravel
move         view moves                       : transpose=swapaxes,swapdims t permute movedim expand expand_as broadcast_to
move         view moves                       : squeeze unsqueeze narrow slice as_strided diagonal unfold
move         view moves                       : split split_with_sizes tensor_split chunk unbind
move         view moves chooses               : getitem select
move         view moves transmits             : reshape contiguous
move         view moves attribute             : T mT
other        attribute                        : H mH real imag
move         view moves unrecorded unrecorded_aten : detach
move         view moves unrecorded_aten       : alias lift_fresh
other        lazy_view                        : _conj _neg_view

    Copies, casts, selections, joins
move         moves transmits                  : clone cat=concat,concatenate stack float double half bfloat16
move         moves                            : hstack vstack dstack cpu cuda type_as identity roll flip rot90
move         moves                            : repeat repeat_interleave tile pixel_shuffle pixel_unshuffle channel_shuffle
move         moves                            : take_along_dim
move         moves chooses                    : to _to_copy index index_select gather take masked_select
move         moves chooses unrecorded         : type
move         moves chooses overwrites writes_part : copy
move         moves unrecorded                 : pin_memory
move                                          : embedding grad max_unpool2d resize_as set_data
discrete     chooses                          : bool byte char short int long

    Writes into a tensor
move         chooses fills_in writes_part     : setitem
move         chooses fills_in overwrites source : fill
move         chooses overwrites source        : zero
move         chooses fills_in adds kinked writes_part : masked_fill
move         fills_in writes_part             : index_fill masked_scatter
move         writes_part                      : index_copy index_put scatter
move         chooses fills_in adds kinked     : where
move         fills_in                         : pad constant_pad_nd tril triu
other        fills_part                       : all_gather_copy_in

    New tensors
create       source uninitialized             : empty
create       source uninitialized overwrites  : empty_like new_empty
other        uninitialized                    : empty_strided empty_permuted new_empty_strided new
create       source                           : arange linspace logspace new_ones new_zeros
create       source overwrites                : eye ones ones_like zeros zeros_like
create       source from_constants            : full new_full new_tensor scalar_tensor tensor
create       source from_constants overwrites : full_like
create                                        : meshgrid
move         source from_constants            : from_numpy
move         from_constants                   : as_tensor asarray
other        source overwrites                : constant dirac sparse

    Random numbers
random       source                           : rand randn randint randperm
random       source overwrites                : rand_like randn_like randint_like random uniform normal log_normal exponential
random       source overwrites                : cauchy geometric trunc_normal orthogonal kaiming_uniform kaiming_normal
random       source overwrites                : xavier_uniform xavier_normal
random                                        : bernoulli multinomial poisson alpha_dropout dropout1d dropout2d dropout3d
random                                        : native_dropout feature_dropout feature_alpha_dropout
random       calls_itself                     : dropout
random       kinked                           : rrelu

    Piecewise linear
move         kinked calls_itself              : relu relu6
move         kinked                           : hardtanh threshold max_pool1d max_pool2d max_pool3d adaptive_max_pool2d
move         kinked chooses                   : clamp=clip clamp_min clamp_max amax amin max min
move         kinked chooses commutative       : maximum minimum fmax fmin
move         kinked turns_sign                : abs=absolute
move         turns_sign transmits             : neg=negative
move         chooses                          : nan_to_num

    Elementwise, of a bounded slope
lipschitz    adds commutative transmits       : add=iadd,radd
lipschitz    adds turns_sign transmits        : sub=isub,subtract
lipschitz    turns_sign transmits             : rsub
lipschitz    transmits                        : gelu
lipschitz    transmits calls_itself           : silu
lipschitz    kinked calls_itself              : elu leaky_relu
lipschitz    kinked                           : hardsigmoid hardswish prelu
lipschitz    calls_itself                     : selu
lipschitz                                     : sigmoid=special_expit tanh mish softplus softsign celu tanhshrink erf
lipschitz                                     : log_sigmoid logsigmoid logaddexp hypot lerp sin cos atan
scale        commutative turns_sign transmits : mul=imul,rmul,multiply
scale                                         : square outer ger addcmul glu

    Exponentials, and what is steep near zero
exponential  calls_itself                     : softmax=_softmax,special_softmax log_softmax=_log_softmax,special_log_softmax
exponential                                   : exp exp2 expm1 sinh cosh softmin logsumexp logcumsumexp gumbel_softmax kl_div
exponential                                   : cross_entropy nll_loss binary_cross_entropy
exponential                                   : binary_cross_entropy_with_logits
steep        turns_sign                       : div=itruediv,truediv,true_divide,divide pow=rpow,ipow reciprocal
steep                                         : rdiv=rtruediv floor_divide remainder fmod sqrt rsqrt log log2 log10 log1p
steep                                         : tan asin acos atan2 erfinv det inverse solve
steep        sign_like                        : addcdiv
other        sign_like                        : _foreach_addcdiv _fused_adam _fused_adamw _fused_adagrad
other        list_by_element                  : _foreach_norm _foreach_mul _foreach_div

    Products, sums, norms
product      transmits                        : linear
product      turns_sign transmits             : matmul=imatmul,rmatmul mm bmm
product      adds                             : addmm addbmm baddbmm
gated        adds                             : scaled_dot_product_attention
gated                                         : multi_head_attention_forward lstm lstm_cell gru gru_cell rnn_tanh rnn_relu
product                                       : addmv addr mv dot vdot inner einsum tensordot kron bilinear chain_matmul cdist
product                                       : conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
product                                       : convolution embedding_bag prod cumprod _scaled_mm _grouped_mm
sum          adds transmits                   : sum
sum          averages                         : mean nanmean std_mean var_mean mse_loss avg_pool1d avg_pool2d avg_pool3d
sum          averages                         : adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
sum          averages kinked                  : l1_loss smooth_l1_loss
sum                                           : nansum sum_to_size cumsum trace norm vector_norm std var
sum                                           : interpolate upsample grid_sample
sum                                           : index_add scatter_add scatter_reduce
normalise    transmits calls_itself           : layer_norm rms_norm
channelwise  calls_itself                     : group_norm
channelwise  unversioned_writes               : batch_norm instance_norm native_batch_norm
other        unversioned_writes               : _native_batch_norm_legit cudnn_batch_norm
channelwise                                   : native_group_norm
normalise                                     : native_layer_norm normalize local_response_norm
normalise                                     : cosine_similarity
other        workspace                        : ctc_loss cudnn_ctc_loss

    Fourier transforms
fourier                                       : fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn hfft ihfft
fourier                                       : _fft_c2c _fft_r2c _fft_c2r

    Discrete choices
discrete     commutative chooses              : eq ne=not_equal
discrete     chooses                          : gt=greater ge=greater_equal lt=less le=less_equal all any argmax argmin
discrete     chooses                          : isnan isinf isposinf isneginf isfinite signbit round floor ceil
discrete     chooses ranks                    : argsort bucketize searchsorted
discrete     chooses kinked                   : sort topk
discrete     kinked                           : median kthvalue
discrete     commutative                      : logical_and=and logical_or=or logical_xor=xor
discrete     turns_sign                       : sign
discrete                                      : logical_not=invert sgn trunc frac heaviside one_hot mode nonzero count_nonzero
discrete                                      : bincount histc unique isclose
discrete     unrecorded                       : equal allclose

    Values and memory of a tensor, handed out
move         unrecorded                       : item tolist retain_grad
move         unrecorded exposes               : data numpy
other        unrecorded exposes               : data_ptr apply_ map_ __array__ __dlpack__ __cuda_array_interface__
other        unrecorded exposes exposes_storage : storage untyped_storage
other        exposes                          : map2_

    Questions about a tensor, and settings
other        unrecorded                       : size dim ndimension numel nelement stride element_size storage_offset
other        unrecorded                       : is_contiguous is_floating_point is_complex is_signed is_pinned is_shared
other        unrecorded                       : is_set_to is_tensor is_storage is_nonzero is_inference is_conj is_neg
other        unrecorded                       : is_coalesced is_distributed is_same _is_view get_device dim_order as_subclass
other        unrecorded                       : has_names refine_names rename rename_ align_to sparse_dim dense_dim
other        unrecorded                       : _dimI _dimV _nnz _indices _values _nested_tensor_size _make_subclass
other        unrecorded                       : _has_compatible_shallow_copy_type has_torch_function _assert _assert_async
other        unrecorded                       : requires_grad_ detach_ share_memory_ record_stream register_hook
other        unrecorded                       : register_post_accumulate_grad_hook result_type can_cast promote_types
other        unrecorded                       : get_default_dtype broadcast_shapes manual_seed seed get_rng_state
other        unrecorded                       : set_rng_state is_grad_enabled is_inference_mode_enabled set_grad_enabled
other        unrecorded                       : __len__ __hash__ __repr__ __format__ __str__ __bool__ __int__ __float__
other        unrecorded                       : __index__ __contains__ __iter__ __dir__ __reduce__ __reduce_ex__
other        unrecorded                       : __deepcopy__ __dlpack_device__
other        unrecorded unrecorded_aten       : is_same_size _wrap_tensor_autograd
other        unrecorded_aten                  : _local_scalar_dense sym_size sym_numel sym_stride barrier
other        unrecorded_aten                  : monitored_barrier_ check_for_nan
"""


def _read(table: str) -> tuple[dict[str, Operator], dict[str, str]]:
    """Return the operators of a table by name, and the names behind its aliases."""
    operators: dict[str, Operator] = {}
    aliases: dict[str, str] = {}
    for line in table.splitlines():
        facts, colon, names = line.partition(":")
        if not colon:
            continue
        rounding, *traits = facts.upper().split()
        flags = reduce(or_, (Trait[trait] for trait in traits), NONE)
        for entry in names.split():
            name, _, others = entry.partition("=")
            assert name not in operators, f"{name} stands twice in the table of operators"
            operators[name] = Operator(name, Rounding[rounding], flags)
            aliases |= dict.fromkeys(others.split(",") if others else (), name)
    return operators, aliases


OPERATORS, _ALIASES = _read(_TABLE)

# Paddle's names that torch spells otherwise, or gives another meaning.
_FROM_PADDLE = {
    "transpose": "permute",
    "astype": "to",
    "cast": "to",
    "tile": "repeat",
    "unstack": "unbind",
    "take_along_axis": "gather",
    "put_along_axis": "scatter",
    "swish": "silu",
    "softmax_with_cross_entropy": "cross_entropy",
    "greater_than": "gt",
    "less_than": "lt",
    "equal": "eq",
    "mod": "remainder",
    "floor_mod": "remainder",
    "add_n": "sum",
    "upsample": "interpolate",
    "gaussian": "randn",
    "standard_normal": "randn",
}

_MODULES = {
    **dict.fromkeys(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), "batch_norm"),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d"), "instance_norm"),
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "AlphaDropout"), "dropout"),
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "AvgPool2d": "avg_pool2d",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "ConvTranspose1d": "conv_transpose1d",
    "ConvTranspose2d": "conv_transpose2d",
    "CrossEntropyLoss": "cross_entropy",
    "Embedding": "embedding",
    "Flatten": "flatten",
    "GELU": "gelu",
    "GRU": "gru",
    "GroupNorm": "group_norm",
    "Identity": "identity",
    "LSTM": "lstm",
    "LayerNorm": "layer_norm",
    "LeakyReLU": "leaky_relu",
    "Linear": "linear",
    "LogSoftmax": "log_softmax",
    "MSELoss": "mse_loss",
    "MaxPool1d": "max_pool1d",
    "MaxPool2d": "max_pool2d",
    "RMSNorm": "rms_norm",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "Tanh": "tanh",
    "Upsample": "interpolate",
}

_TRAILING_MARK = re.compile(r"(?<=[a-zA-Z0-9])_$")
_NO_WRITES = ("__invert__", "__index__", "__int__", "__iter__")


def canonical(op: str) -> str:
    """Return an operator's one name: without overload, in-place mark or dunder, and none of its aliases."""
    op = op.partition(".")[0]
    if op.startswith("__") and op.endswith("__"):
        op = op[2:-2]
    op = _TRAILING_MARK.sub("", op)
    return _ALIASES.get(op, op)


def canonical_of_paddle(op: str) -> str:
    """Return torch's name for an operator of Paddle's, or the name as it is where torch has no other."""
    return _FROM_PADDLE.get(op.rstrip("_"), op)


def operator_of_module(class_name: str) -> str:
    """Return the operator that a module class of torch's computes, or the class itself where it is none."""
    return _MODULES.get(class_name, class_name)


@cache
def operator(op: str) -> Operator:
    """Return the row of an operator, by any of its spellings; a row of exactly that spelling comes first."""
    return OPERATORS.get(op) or OPERATORS.get(canonical(op), UNKNOWN)


@cache
def names_with(trait: Trait) -> frozenset[str]:
    """Return the canonical names of the operators that have a trait, or one of several."""
    return frozenset(name for name, row in OPERATORS.items() if row.traits & trait)


def writes_in_place(op: str) -> bool:
    """Return whether an operator so spelled writes to its first argument: `add_`, `__iadd__`, `__setitem__`."""
    if op.startswith("__"):
        return op == "__setitem__" or (op.startswith("__i") and op not in _NO_WRITES)
    return op.endswith("_") and not op.endswith("__")
