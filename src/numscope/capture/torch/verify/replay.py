"""Each operator made twice on the same inputs: other bits are the work of a race, or of a device that corrupts data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from numscope.capture.torch.levels.compiled import is_in_compiled_backward, is_tracing
from numscope.capture.torch.levels.function_names import Function
from numscope.capture.torch.own_code import OwnOperators
from numscope.capture.torch.slots import Arguments, Keywords
from numscope.capture.torch.verify.judging import CheckRow
from numscope.capture.torch.verify.lens import all_of, elements, is_readable
from numscope.capture.torch.verify.mode import OUR_TYPES, Known, VerifyMode, Where, run
from numscope.capture.torch.verify.rules.registry import dtype_of

# Those that torch's documentation names as non-deterministic on a GPU: they add in the order in which threads come.
_KNOWN = frozenset(
    """
    index_add index_put _index_put_impl scatter_add scatter_reduce embedding_dense_backward bincount histc cumsum
    upsample_bilinear2d_backward upsample_bicubic2d_backward grid_sampler_2d_backward max_pool3d_with_indices_backward
    avg_pool3d_backward _adaptive_avg_pool2d_backward nll_loss2d_forward _embedding_bag_backward kthvalue median
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward convolution_backward
    """.split()
)


class ReplayMode(VerifyMode):
    """Makes each operator that draws no numbers and writes over nothing a second time, and compares the bits."""

    def __torch_dispatch__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        """Run an operator twice; the job gets what the first has made."""
        watch = self._watch
        kwargs = kwargs or {}
        if watch.thread.here.busy or not watch.on:
            return run(func, args, kwargs)
        if types and not OUR_TYPES.issuperset(types):
            return NotImplemented
        known = self._known.get(func) or self._know(func)
        if known.idle or is_in_compiled_backward() or is_tracing():
            return run(func, args, kwargs)
        where = self._where()
        result = run(func, args, kwargs)
        with OwnOperators(watch, "verify"):
            self._compare(func, known, args, kwargs, where, result)
        return result

    def _compare(self, func: Any, known: Known, args: Arguments, kwargs: Keywords, where: Where, result: Any) -> None:
        place = self._place
        self._place += 1
        if known.writes or torch.Tag.nondeterministic_seeded in func.tags or func.namespace != "aten":
            why = (
                "it writes over what it is given" if known.writes else "it draws numbers, or is no operator of torch's"
            )
            self._judge.none(where.call, where.backward, place, known.name, f"{known.name}: {why}")
            return
        again = func(*args, **kwargs)
        first, second = (
            [x for x in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(x, torch.Tensor)]
            for made in (result, again)
        )
        off = total = 0
        squared = norm = 0.0
        for one, other in zip(first, second):
            if not (is_readable(one) and is_readable(other)):
                continue
            a, b = (elements(all_of(x if x.is_cpu else x.cpu())).astype(np.float64) for x in (one, other))
            differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
            off, total = off + int(differs.sum()), total + a.size
            with np.errstate(all="ignore"):
                squared += float(np.nansum(np.square(a - b)))
                norm += float(np.nansum(np.square(a)))
        if not total:
            return
        device = str(first[0].device)
        if off and known.name in _KNOWN and not first[0].is_cpu:
            self._judge.none(
                where.call, where.backward, place, known.name, f"{known.name}: known to be non-deterministic"
            )
            return
        told = {"kind": "replay", "elements": total, "off": off}
        self._judge.add(
            CheckRow(
                where.call if where.call >= 0 else None,
                where.backward,
                place,
                known.name,
                dtype_of(first[0]),
                device,
                "exact",
                None,
                total,
                off,
                (squared / norm) ** 0.5 if norm else 0.0,
                0.0,
                float(off),
                0.0,
                json.dumps(told) if off else None,
            )
        )
