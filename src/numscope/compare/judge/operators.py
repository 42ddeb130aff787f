"""What kind of thing each operator does to its inputs: the one table that the noise rule and the judge read.

Names are canonical: `Tensor.__iadd__`, `Tensor.add_`, `Torch.add` and `Aten.add.Tensor` are all `add`.
"""

from __future__ import annotations

import re

MOVE = 1  # the same elements elsewhere: exact where the inputs are
LIPSCHITZ = 2  # elementwise, error in bounds error out in absolute terms
PRODUCT = 3  # multilinear: products and sums of products
SUM = 4  # a reduction by addition
NORMALISE = 5  # subtracts a mean and divides by a deviation
EXPONENTIAL = 6  # an absolute error in is a relative error out
STEEP = 7  # division, logarithm, powers: relative errors grow near zero
DISCRETE = 8  # an arbitrarily small error in can flip the output
RANDOM = 9  # draws numbers
CREATE = 10  # makes a tensor from arguments alone
COMMUNICATE = 11  # collectives
SCALE = 12  # elementwise products
OTHER = 0
IDLE = (MOVE, CREATE)  # compute nothing

_words = str.split

_MOVE = _words(
    """view reshape permute transpose contiguous clone to detach cat concat concatenate stack split chunk unbind
    index_select gather embedding expand expand_as unsqueeze squeeze flatten unflatten pad getitem setitem
    roll flip repeat repeat_interleave t T mT swapaxes movedim narrow select take take_along_dim index_put
    index_copy scatter copy cpu cuda float half bfloat16 double type type_as view_as reshape_as diagonal tril
    triu masked_select masked_fill where slice as_strided broadcast_to tile hstack vstack dstack
    pixel_shuffle pixel_unshuffle unfold max_unpool2d data alias lift_fresh _to_copy _reshape_alias
    _unsafe_view set_data requires_grad_ retain_grad grad channel_shuffle identity zero fill relu rot90
    split_with_sizes tensor_split constant_pad_nd detach_ item tolist numpy index resize_as abs neg hardtanh
    clamp clip clamp_min clamp_max maximum minimum max_pool2d max_pool1d max_pool3d adaptive_max_pool2d amax
    amin max min relu6 threshold from_numpy as_tensor nan_to_num zero_ fill_ masked_scatter"""
)
_LIPSCHITZ = _words(
    """gelu silu mish tanh sigmoid leaky_relu elu selu celu softplus hardswish hardsigmoid sin cos atan add sub
    rsub sum_to_size lerp log_sigmoid logsigmoid softsign prelu logaddexp hypot erf tanhshrink"""
)
_SCALE = _words("""mul outer square addcmul glu ger""")
_PRODUCT = _words(
    """linear matmul mm bmm addmm baddbmm addbmm addmv mv dot einsum conv1d conv2d conv3d conv_transpose1d
    conv_transpose2d conv_transpose3d convolution kron bilinear tensordot inner vdot
    scaled_dot_product_attention multi_head_attention_forward lstm gru rnn_tanh rnn_relu lstm_cell gru_cell
    addr cdist embedding_bag prod cumprod chain_matmul _scaled_mm _grouped_mm"""
)
_SUM = _words(
    """sum mean cumsum avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d interpolate upsample index_add scatter_add scatter_reduce norm vector_norm mse_loss
    l1_loss smooth_l1_loss var std var_mean std_mean nansum nanmean grid_sample trace"""
)
_NORMALISE = _words(
    """layer_norm batch_norm group_norm instance_norm rms_norm normalize native_layer_norm native_group_norm
    native_batch_norm local_response_norm cosine_similarity"""
)
_EXPONENTIAL = _words(
    """exp expm1 exp2 softmax log_softmax softmin logsumexp cross_entropy nll_loss sinh cosh gumbel_softmax
    binary_cross_entropy_with_logits kl_div binary_cross_entropy logcumsumexp"""
)
_STEEP = _words(
    """div true_divide truediv reciprocal rsqrt sqrt log log2 log10 log1p pow tan asin acos atan2 remainder fmod
    floor_divide rpow rdiv addcdiv det inverse solve erfinv"""
)
_DISCRETE = _words(
    """argmax argmin topk sort argsort eq ne lt le gt ge round floor ceil trunc sign sgn one_hot isnan isinf
    isfinite logical_and logical_or logical_not logical_xor nonzero unique bincount histc searchsorted
    bucketize kthvalue median mode long int bool frac heaviside any all count_nonzero equal allclose isclose"""
)
_RANDOM = _words(
    """dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout feature_dropout native_dropout
    rand randn randint randperm rand_like randn_like randint_like bernoulli multinomial normal uniform
    exponential poisson rrelu cauchy geometric log_normal random trunc_normal kaiming_uniform kaiming_normal
    xavier_uniform xavier_normal orthogonal"""
)
_CREATE = _words(
    """zeros ones full arange linspace empty eye zeros_like ones_like full_like empty_like new_zeros new_ones
    new_full new_empty tensor logspace meshgrid new_tensor scalar_tensor"""
)

_TABLE = {
    name: kind
    for kind, names in (
        (MOVE, _MOVE),
        (LIPSCHITZ, _LIPSCHITZ),
        (PRODUCT, _PRODUCT),
        (SUM, _SUM),
        (NORMALISE, _NORMALISE),
        (EXPONENTIAL, _EXPONENTIAL),
        (STEEP, _STEEP),
        (DISCRETE, _DISCRETE),
        (RANDOM, _RANDOM),
        (CREATE, _CREATE),
        (SCALE, _SCALE),
    )
    for name in names
}

# In backward these multiply by a mask that an arbitrarily small error in can flip.
KINKED = frozenset(
    _words(
        """relu relu6 abs hardtanh clamp clip clamp_min clamp_max maximum minimum max_pool2d max_pool1d max_pool3d
    leaky_relu adaptive_max_pool2d amax amin max min threshold topk sort where prelu elu hardswish
    hardsigmoid l1_loss smooth_l1_loss rrelu masked_fill median kthvalue"""
    )
)

# Divide each element by its own size, as Adam and its kin do: the sign of one that is zero but for rounding is a full step.
EQUALISING = frozenset(_words("addcdiv _foreach_addcdiv _fused_adam _fused_adamw _fused_adagrad"))

# Of lists, of which no element knows of the others, and which cannot enlarge a relative error.
ELEMENT_BY_ELEMENT = frozenset(_words("_foreach_norm _foreach_mul _foreach_div"))

# Functions of one dtype's exact elements whose result is the same to the bit on every kernel.
EXACT = MOVE

_ALIASES = {
    "iadd": "add",
    "radd": "add",
    "isub": "sub",
    "imul": "mul",
    "rmul": "mul",
    "multiply": "mul",
    "itruediv": "div",
    "truediv": "div",
    "rtruediv": "rdiv",
    "true_divide": "div",
    "divide": "div",
    "subtract": "sub",
    "rpow": "pow",
    "ipow": "pow",
    "imatmul": "matmul",
    "rmatmul": "matmul",
    "concat": "cat",
    "concatenate": "cat",
    "neg": "neg",
    "invert": "logical_not",
    "and": "logical_and",
    "or": "logical_or",
    "xor": "logical_xor",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "clip": "clamp",
    "absolute": "abs",
    "greater": "gt",
    "less": "lt",
    "special_expit": "sigmoid",
    "special_softmax": "softmax",
    "special_log_softmax": "log_softmax",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
}
# Write over their first argument without reading it: what it held before, often memory nobody set, means nothing.
FILLS = frozenset(
    _words(
        """normal uniform kaiming_uniform kaiming_normal xavier_uniform xavier_normal trunc_normal orthogonal
    constant ones zeros zero fill copy exponential random eye dirac sparse log_normal cauchy geometric
    new_empty empty_like zeros_like ones_like full_like rand_like randn_like randint_like"""
    )
)
# Make tensors of nothing that a run records: whatever ran before them, they begin anew.
SOURCES = frozenset(_CREATE) | FILLS | frozenset(_words("rand randn randint randperm from_numpy"))
SOURCES -= frozenset(("meshgrid", "copy"))
COMMUTATIVE = frozenset(_words("add mul maximum minimum logical_and logical_or logical_xor eq ne"))
_INPLACE = re.compile(r"(?<=[a-zA-Z0-9])_$")


def canonical(op: str) -> str:
    """Return an operator's one name: without overload, in-place mark, dunder or alias."""
    op = op.partition(".")[0]
    if op.startswith("__") and op.endswith("__"):
        op = op[2:-2]
    op = _INPLACE.sub("", op)
    return _ALIASES.get(op, op)


def classify(op: str) -> int:
    """Return the kind of a canonical operator."""
    return _TABLE.get(op, OTHER)


_MODULES = {
    "Linear": "linear",
    "Embedding": "embedding",
    "LayerNorm": "layer_norm",
    "RMSNorm": "rms_norm",
    "GroupNorm": "group_norm",
    "BatchNorm1d": "batch_norm",
    "BatchNorm2d": "batch_norm",
    "BatchNorm3d": "batch_norm",
    "SyncBatchNorm": "batch_norm",
    "InstanceNorm1d": "instance_norm",
    "InstanceNorm2d": "instance_norm",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "Conv3d": "conv3d",
    "ConvTranspose1d": "conv_transpose1d",
    "ConvTranspose2d": "conv_transpose2d",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "GELU": "gelu",
    "SiLU": "silu",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "LeakyReLU": "leaky_relu",
    "Dropout": "dropout",
    "Dropout1d": "dropout",
    "Dropout2d": "dropout",
    "AlphaDropout": "dropout",
    "Identity": "identity",
    "Flatten": "flatten",
    "MaxPool1d": "max_pool1d",
    "MaxPool2d": "max_pool2d",
    "AvgPool2d": "avg_pool2d",
    "AdaptiveAvgPool2d": "adaptive_avg_pool2d",
    "CrossEntropyLoss": "cross_entropy",
    "MSELoss": "mse_loss",
    "LSTM": "lstm",
    "GRU": "gru",
    "Upsample": "interpolate",
}


def operator_of_module(class_name: str) -> str:
    """Return the operator that a module of torch's own is, or its class where it is none."""
    return _MODULES.get(class_name, class_name)


_IN_PLACE = re.compile(r"\w+\.(\w*[^_]_|__i\w+__)\.\d+\.")


def writes_into_its_input(name: str, arguments: str) -> bool:
    """Return whether a call of this name, with these recorded arguments, works in place."""
    return _IN_PLACE.match(name) is not None or '"inplace": true' in arguments
