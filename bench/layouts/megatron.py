"""megatron-core's own GPTModel on gloo: tensor and sequence parallel, dense and with experts; clean, and with real faults.

    python -m bench.layouts.jobs OUT mcore mcore_tp mcore_sp …

Version 0.16.1 has four faults of Megatron-LM issue 7452 in what it does by itself; the clean jobs repair them, and each
faulty job leaves one in. Nothing of it needs a GPU but the name of the device: `torch.cuda.current_device` is "cpu" here.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

import numscope as ns

STEPS, BATCH, LENGTH, WIDTH, HEADS, VOCABULARY, EXPERTS = 2, 4, 16, 32, 4, 64, 4

LAYOUTS = ("mcore", "mcore_moe", "mcore_tp", "mcore_sp", "mcore_moe_sp", "mcore_moe_tokens", "mcore_moe_mesh@4")
FAULTS: dict[str, tuple[str, ...]] = {
    "mcore_tp": ("sinks_not_in_norm", "tanh"),
    "mcore_sp": ("norms_not_reduced", "sinks_not_in_norm"),
    "mcore_moe_tokens": ("local_count_overwritten",),
    "mcore_moe_mesh@4": ("mask_of_another_group",),
}


def train(layout: str, fault: str, path: str) -> None:
    """Train a layout's model, with one fault or none."""
    with _without_cuda():
        _train(layout, fault, path)


@contextlib.contextmanager
def _without_cuda() -> Iterator[None]:
    """Let Megatron take the CPU for its device, and its random states for torch's."""
    from megatron.core.tensor_parallel import random as states
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    class Tracker:
        def fork(self, name: str = "") -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def is_initialized(self) -> bool:
            return True

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", return_value="cpu"))
        stack.enter_context(mock.patch.object(WrappedTorchNorm, "__new__", _norm))
        stack.enter_context(mock.patch.object(states, "_CUDA_RNG_STATE_TRACKER", Tracker()))
        stack.enter_context(mock.patch.object(states, "_CUDA_RNG_STATE_TRACKER_INITIALIZED", True))
        yield


def _norm(kind: type, config: Any, hidden_size: int, eps: float = 1e-5, **others: Any) -> nn.LayerNorm:
    """Return torch's norm with the marks that Apex's has, without which Megatron takes it for none of sequence parallelism."""
    norm = nn.LayerNorm(hidden_size, eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def _train(layout: str, fault: str, path: str) -> None:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate

    world = dist.get_world_size()
    is_moe, is_mesh = "moe" in layout, "mesh" in layout
    tp = 2 if is_mesh else world
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp)
    groups = _mesh() if is_mesh else None
    tp_group = groups.tp if groups is not None else parallel_state.get_tensor_model_parallel_group()
    per_token = layout == "mcore_moe_tokens"
    with _repaired(fault, tp_group):
        model = _model(tp, "sp" in layout or (is_moe and tp > 1), is_moe, per_token, groups)
        _mark_sinks(model, fault)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with ns.capture(path, model, on_error="raise") as cap:
            for ids, labels, padding in _batches():
                if groups is not None:
                    part = groups.dp.rank()
                    ids, labels, padding = (one.chunk(2)[part] for one in (ids, labels, padding))
                positions = torch.arange(LENGTH).expand(len(ids), LENGTH)
                future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)[None, None]
                more = {"padding_mask": padding} if is_moe else {}
                losses = model(ids, positions, future, labels=labels, **more)
                losses = losses * padding if is_moe else losses
                (losses.sum() if per_token else losses.mean()).backward()
                _reduce(model, fault, tp_group, groups, padding.sum() if per_token else None)
                _clip(model, tp_group, param_is_not_tensor_parallel_duplicate)
                optimizer.step()
                optimizer.zero_grad()
                cap.step()
    parallel_state.destroy_model_parallel()
    if not is_moe:
        return
    from megatron.core.transformer.moe.moe_utils import clear_aux_losses_tracker

    clear_aux_losses_tracker()


def _model(tp: int, sequence_parallel: bool, is_moe: bool, per_token: bool, groups: Any) -> nn.Module:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts: dict[str, Any] = {}
    if is_moe:
        experts = {
            "num_moe_experts": EXPERTS,
            "moe_router_topk": 2,
            "moe_aux_loss_coeff": 0.1,
            "moe_router_load_balancing_type": "aux_loss",
            "moe_token_dispatcher_type": "allgather",
            "add_bias_linear": False,
            "calculate_per_token_loss": per_token,
        }
    config = TransformerConfig(
        num_layers=2,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        use_cpu_initialization=True,
        tensor_model_parallel_size=tp,
        sequence_parallel=sequence_parallel and tp > 1,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        softmax_type="learnable",
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        **experts,
    )
    torch.manual_seed(0)
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=EXPERTS if is_moe else None),
        VOCABULARY,
        LENGTH,
        share_embeddings_and_output_weights=True,
        **({"pg_collection": groups} if groups is not None else {}),
    )
    # Sinks are drawn on each rank by itself: give each the part of one draw.
    rank = groups.tp.rank() if groups is not None else dist.get_rank()
    with torch.no_grad():
        for number, sink in enumerate(_sinks(model)):
            whole = torch.randn(HEADS, generator=torch.Generator().manual_seed(number))
            sink.copy_(whole.chunk(tp)[rank])
    return model


def _sinks(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name.endswith("softmax_offset")]


def _mark_sinks(model: nn.Module, fault: str) -> None:
    """Say that sinks are cut, which Megatron forgets: ranks but the first are then left out of the norm of all gradients."""
    from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes

    for sink in _sinks(model) if fault != "sinks_not_in_norm" else ():
        set_tensor_model_parallel_attributes(sink, True, 0, 1)


@contextlib.contextmanager
def _repaired(fault: str, tp_group: dist.ProcessGroup) -> Iterator[None]:
    """Repair what 0.16.1 does wrong, but for the fault that is wanted; or break what it does right."""
    from megatron.core import tensor_parallel
    from megatron.core.transformer.moe import router

    counted: Callable[..., Any] = router.get_tokens_per_expert_and_token_count
    scattered: Callable[..., Tensor] = tensor_parallel.scatter_to_sequence_parallel_region

    def counts(routing_map: Tensor, reduce_group: Any, topk: int, with_padding_mask: bool = False) -> Any:
        own = routing_map.sum() / topk if with_padding_mask else routing_map.shape[0]
        of_expert, _, total = counted(routing_map, reduce_group, topk, with_padding_mask)
        return of_expert, own, total

    def scatter(x: Tensor, group: Any = None) -> Tensor:
        return scattered(x, group=tp_group if group is None else group)

    with contextlib.ExitStack() as stack:
        if fault != "local_count_overwritten":
            stack.enter_context(mock.patch.object(router, "get_tokens_per_expert_and_token_count", counts))
        if fault != "mask_of_another_group":
            stack.enter_context(mock.patch.object(tensor_parallel, "scatter_to_sequence_parallel_region", scatter))
        if fault == "tanh":
            tanh = lambda x: nn.functional.gelu(x, approximate="tanh")  # noqa: E731
            stack.enter_context(mock.patch("torch.nn.functional.gelu", tanh))
        yield


def _mesh() -> Any:
    """Return groups of four ranks in which tensor parallel ranks are not neighbours, as Megatron's own global ones are."""
    from megatron.core.process_groups_config import ProcessGroupCollection

    def group(sets: list[list[int]], name: str) -> dist.ProcessGroup:
        made, _ = dist.new_subgroups_by_enumeration(sets, group_desc=name)
        return made

    alone = group([[0], [1], [2], [3]], "mesh_alone")
    tp, dp = group([[0, 2], [1, 3]], "mesh_tp"), group([[0, 1], [2, 3]], "mesh_dp")
    return ProcessGroupCollection(
        tp=tp, dp=dp, pp=alone, cp=alone, ep=alone, dp_cp=dp, tp_cp=tp, tp_ep=tp, expt_tp=tp, expt_dp=dp,
        tp_dp_cp=dist.group.WORLD, tp_ep_pp=tp, embd=None, pos_embd=None, mp=tp,
    )  # fmt: skip


def _reduce(model: nn.Module, fault: str, tp_group: dist.ProcessGroup, groups: Any, tokens: Tensor | None) -> None:
    """Add and average the gradients as Megatron's finalize_model_grads does."""
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        if getattr(parameter, "sequence_parallel", False) and fault != "norms_not_reduced":
            dist.all_reduce(parameter.grad, group=tp_group)
        if groups is not None:
            dist.all_reduce(parameter.grad, group=groups.dp)
            parameter.grad /= groups.dp.size()
        if tokens is not None:
            parameter.grad /= tokens


def _clip(model: nn.Module, tp_group: dist.ProcessGroup, is_counted: Callable[..., bool]) -> None:
    """Scale the gradients so that their norm over all ranks is at most 1."""
    own = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    counted = [
        parameter.grad
        for parameter in model.parameters()
        if parameter.grad is not None and is_counted(parameter, tp_group)
    ]
    total = cast(Tensor, sum((one.square().sum() for one in counted), torch.zeros(())))
    dist.all_reduce(total, group=tp_group)
    for one in own:
        one *= (1.0 / (total.sqrt() + 1e-6)).clamp(max=1.0)


def _batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        there = torch.arange(LENGTH) < torch.tensor([16, 13, 9, 12])[:, None]
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), there


def is_there() -> bool:
    """Tell whether megatron-core is installed."""
    from importlib.util import find_spec

    return find_spec("megatron") is not None and find_spec("megatron.core") is not None and os.name == "posix"
