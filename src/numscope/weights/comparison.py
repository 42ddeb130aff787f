"""`ns.weights(a, b)`: which tensors of two sets of weights belong together, by what relation, and which are wrong.

answer = ns.weights("converted/", "original/")
answer.verdict, answer.reason, answer.pairs[0].relation
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from numscope.weights.judge.adapters import factor_of
from numscope.weights.judge.pairs import Examiner
from numscope.weights.matching.components import by_name
from numscope.weights.matching.map_file import load_map
from numscope.weights.matching.quantised import logical
from numscope.weights.pair import Weights
from numscope.weights.sources import Source, open_weights
from numscope.weights.tensor import Tensor

Progress = Callable[[int, int], None]  # elements done, and of how many


def weights(
    a: Source,
    b: Source,
    *,
    map: str | os.PathLike[str] | None = None,
    earlier: Source | Sequence[Source] = (),
    adapter: Source | None = None,
    progress: Progress | None = None,
) -> Weights:
    """Compare the weights A, under suspicion, with the reference B; return the answer.

    Either may be a file or folder of weights, a run, a model in memory, a mapping of names to arrays, or a `.weights`
    file of fingerprints. `earlier` are checkpoints that A's tensors may have been left from; `adapter` is a LoRA adapter
    of A's that B has merged.
    """
    ours, theirs = logical(open_weights(a)), logical(open_weights(b))
    factor = None
    if adapter is not None:
        ours += open_weights(adapter)
        factor = factor_of(Path(adapter)) if isinstance(adapter, (str, os.PathLike)) else None
    older = earlier if isinstance(earlier, (list, tuple)) else [earlier]
    rules = load_map(map) if map is not None else None
    examiner = Examiner(ours, theirs, [logical(open_weights(one)) for one in older], progress, factor)
    components = rules.components(ours, theirs) if rules is not None else by_name(ours, theirs)
    return examiner.answer(components, name_of(a), name_of(b))


def name_of(source: Source) -> str:
    """Return what to call a source."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    path = getattr(source, "path", None)
    return str(path) if path is not None else type(source).__name__


def fingerprint(source: Source, path: str | os.PathLike[str], progress: Progress | None = None) -> int:
    """Write the fingerprints of a set of weights to a `.weights` file; return the number of tensors."""
    from numscope.weights.sources.fingerprint_file import write

    tensors = logical(open_weights(source))
    total, done = sum(tensor.size for tensor in tensors), 0

    def advance(tensor: Tensor) -> None:
        nonlocal done
        done += tensor.size
        if progress is not None:
            progress(done, total)

    write(path, tensors, advance)
    return len(tensors)
