"""Memory that nothing was written to yet, on its way through calls that look at it or fill it.

FSDP asks for memory, looks at it in parts, has its own operators fill it, frees it and gives it memory anew. What such a
tensor holds before it is filled is no number of the job's: it differs from run to run, and must not be measured. But
memory may also be filled by what torch does not know of (numpy, a raw kernel): so a blank tensor that goes into a call that
computes is measured all the same.
"""

from __future__ import annotations

from numscope.capture.torch.names import Api
from numscope.capture.torch.tensors import address_of
from numscope.capture.torch.values import Slot
from numscope.capture.torch.watch import Watch


def passes_blank(
    watch: Watch, api: Api, inputs: list[Slot], versions: list[int | None], rows: list[int], outputs: list[Slot]
) -> list[Slot]:
    """Take away what was measured of inputs that held nothing yet, and that the call only looked at or filled.

    They are known by an output in the same memory; `versions` are the inputs' from before the call, `rows` their rows.
    Return the outputs that hold something; the others are recorded as they are.
    """
    given = {address_of(tensor) for _, tensor in outputs}
    found = False
    for (_, tensor), version, place in zip(inputs, versions, range(2, len(rows), 4)):
        if rows[place] >= 0 and watch.tensors.was_blank(tensor, version) and address_of(tensor) in given:
            rows[place : place + 2] = -1, watch.uninitialized
            found = True
    if not found:
        return outputs
    if api.views:
        return []
    if api.fills_a_part:
        whole = max(tensor.numel() for _, tensor in outputs)
        return [(slot, tensor) for slot, tensor in outputs if tensor.numel() < whole]
    for _, tensor in outputs:
        watch.tensors.written(tensor)
    return outputs
