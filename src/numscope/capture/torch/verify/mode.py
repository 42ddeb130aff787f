"""The mode that holds calls against exact arithmetic: a TorchDispatchMode below the one that records.

It sees each operator with what it is given and what it makes, in forward, in backward and in an optimizer's step. Elements
are read through memory, and computed with by numpy: the device whose kernels are in question takes no part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from numscope.capture.torch.levels.compiled import is_in_compiled_backward, is_tracing
from numscope.capture.torch.levels.function_names import Function
from numscope.capture.torch.own_code import OwnComputation, OwnOperators
from numscope.capture.torch.slots import Arguments, Keywords
from numscope.capture.torch.verify.judging import Found, Judge
from numscope.capture.torch.verify.lens import Array, Read, all_of, elements, is_readable, part
from numscope.capture.torch.verify.rules import (  # noqa: F401 – each registers its rules
    attention,
    convolutions,
    derivatives,
    indexing,
    losses,
    norms,
    pooling,
    products,
    rows,
)
from numscope.capture.torch.verify.rules.optimizers import foreach
from numscope.capture.torch.verify.rules.references import HOLDERS, Prepare, beside, check_readable, reference_of
from numscope.capture.torch.verify.rules.registry import NotVerifiedError, OperatorCall, Registered, dtype_of, rule_of
from numscope.capture.torch.verify.sampling import Sampling
from numscope.capture.torch.watch import Watch
from numscope.core.dtypes import unit_roundoff
from numscope.core.operators import Rounding, Trait, operator

_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_sequence = torch._C._autograd._get_sequence_nr
_grad_is_on = torch.is_grad_enabled
_function_modes = torch._C._len_torch_function_stack
OUR_TYPES = {torch.Tensor, torch.nn.Parameter}
_IDLE = frozenset(
    """
    detach alias lift_fresh _unsafe_view _reshape_alias view_as_real view_as_complex set_data resize set_ resize_
    empty empty_like new_empty empty_strided new_empty_strided empty_permuted _local_scalar_dense is_same_size
    _efficientzerotensor record_stream is_pinned unsafe_split unsafe_split_with_sizes unsafe_chunk arange
    _linalg_check_errors _assert_async
    """.split()
)


class Known(NamedTuple):
    """The facts about an operator that are asked at each call."""

    name: str
    overload: str
    names: tuple[str, ...]  # of its arguments
    defaults: tuple[tuple[str, Any], ...]
    writes: tuple[str, ...]  # arguments that it writes to
    returns_own: bool  # its results are new tensors, not arguments
    rule: Registered | None
    reason: str  # why there is none
    idle: bool  # it computes nothing


class Where(NamedTuple):
    """The recorded call that an operator belongs to."""

    call: int  # its order, or -1
    backward: bool  # … or the backward call of that one


class VerifyMode(TorchDispatchMode):
    """Holds each operator against exact arithmetic while it is on the mode stack."""

    def __init__(self, watch: Watch, judge: Judge, share: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._judge = judge
        self._share = share
        self._known: dict[Any, Known] = {}
        self._lock = threading.Lock()
        self._owners: dict[int, int] = {}  # sequence number of an autograd node → order of the call that made it
        self._epoch = -1
        self._place = 0
        self._optimizer = -1  # order of the optimizer's step that runs
        HOLDERS.add(self)

    supports_higher_order_operators = True  # else torch refuses them under a mode

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Any:
        """Run an operator, and compute a sample of what it makes again."""
        watch = self._watch
        kwargs = kwargs or {}
        if isinstance(func, torch._ops.HigherOrderOperator):  # torch has taken the mode off for what it calls
            return func(*args, **kwargs)
        if watch.thread.here.busy or not watch.on:
            return run(func, args, kwargs)
        if types and not OUR_TYPES.issuperset(types):
            return NotImplemented  # a subclass is made of tensors: its own operators are seen
        known = self._known.get(func) or self._know(func)
        if known.idle or is_in_compiled_backward() or is_tracing():
            return run(func, args, kwargs)
        checked: _Checked | None = None
        where = self._where()
        with OwnComputation(watch, "verify"):
            checked = self._begin(known, args, kwargs, where)
        result = run(func, args, kwargs)
        if checked is not None:
            with OwnOperators(watch, "verify"):
                checked.end(result)
        return result

    def hold(self, name: str, given: Sequence[torch.Tensor], prepare: Prepare) -> Callable[[object], None] | None:
        """Read what a function with a reference is given; return what is told its result."""
        watch = self._watch
        if watch.thread.here.busy or not watch.on or is_tracing():
            return None
        where = self._where()
        place = self._place
        self._place += 1
        if self._share < 1 and Sampling(watch.recorder.step, place).random.random() >= self._share:
            return None
        judge, exact = self._judge, None
        with OwnComputation(watch, "verify"):
            try:
                check_readable(given)
                exact = prepare(_read([all_of(one) for one in given]))
            except NotVerifiedError as why:
                judge.none(where.call, where.backward, place, name, f"{name}: {why}")
            except Exception as error:  # of the user's reference
                judge.none(
                    where.call, where.backward, place, name, f"{name}: its reference failed: {type(error).__name__}"
                )
        if exact is None:
            return None

        def end(result: object) -> None:
            with OwnComputation(watch, "verify"):
                outs = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
                try:
                    check_readable(outs)
                    parts = beside(outs, _read([all_of(one) for one in outs]), exact)
                except NotVerifiedError as why:
                    judge.none(where.call, where.backward, place, name, f"{name}: {why}")
                    return
                if parts:
                    coarsest = max((dtype_of(one) for one in given if one.dim()), key=unit_roundoff, default="")
                    found = Found(where.call, where.backward, place, name, str(outs[0].device), tuple(parts), coarsest)
                    judge.judge(found, None)

        return end

    # Which operator -----------------------------------------------------------------------------------------------

    def _know(self, func: Any) -> Known:
        schema = func._schema
        namespace, _, op = schema.name.partition("::")
        writes = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        single = op[:-1] if writes and op.endswith("_") and not op.startswith("__") else op
        name = single if namespace == "aten" else f"{namespace}::{op}"
        traits = operator(single).traits
        idle = func.is_view or name in _IDLE or namespace in ("prim", "prims", "profiler", "c10d", "_c10d_functional")
        idle = idle or Trait.UNINITIALIZED in traits or Trait.VIEW in traits
        reason, found = "", None
        if namespace == "aten":
            found = rule_of(name)
            if found is None and (function := foreach(name)) is not None:
                found = Registered(function, 1, False)
        if (reference := reference_of(func, name)) is not None:
            found = Registered(reference, 1, False)
        if found is None:
            random = operator(single).rounding is Rounding.RANDOM
            reason = f"{name}: it draws numbers" if random else f"{name}: no rule for it"
        arguments = tuple(a.name for a in schema.arguments)
        defaults = tuple((a.name, a.default_value) for a in schema.arguments if a.has_default_value())
        own = not (schema.returns and schema.returns[0].alias_info is not None) and bool(schema.returns)
        made = Known(name, func._overloadname, arguments, defaults, writes, own, found, reason, idle)
        with self._lock:
            return self._known.setdefault(func, made)

    # One call -----------------------------------------------------------------------------------------------------

    def _begin(self, known: Known, args: Arguments, kwargs: Keywords, where: Where) -> _Checked | None:
        watch = self._watch
        recorder = watch.recorder
        place = self._place
        self._place += 1
        sampling = Sampling(recorder.step, place)
        if self._share < 1 and sampling.random.random() >= self._share:
            return None
        if known.rule is None:
            self._judge.none(where.call, where.backward, place, known.name, known.reason)
            return None
        given = dict(known.defaults)
        given.update(zip(known.names, args))
        given.update(kwargs)
        checked = _Checked(self._judge, known, given, sampling, where, place)
        if known.writes:
            with OwnOperators(self._watch):
                checked.begin()
        return checked

    def _where(self) -> Where:
        """Return the recorded call that runs: by the node that runs, in backward."""
        state = self._watch.thread.here
        recorder = self._watch.recorder
        if self._epoch != recorder.epoch:
            self._epoch, self._place = recorder.epoch, 0
            self._owners.clear()
            self._judge.begin_step(recorder.step)
        if _task() == -1:
            order = state.calling
            if order < 0:
                order = state.stack[-1].order if state.stack else -1
            if _grad_is_on():
                self._owners.setdefault(_sequence() - 1, order)
            return Where(order, False)
        node = _node()
        if state.calling >= 0:  # a function of the user's own in backward, or a checkpoint's forward part again
            if _grad_is_on():
                self._owners.setdefault(_sequence() - 1, state.calling)
            return Where(state.calling, False)
        return Where(self._owners.get(node._sequence_nr(), -1) if node is not None else -1, True)


def run(func: Function, args: Arguments, kwargs: Keywords) -> Any:
    """Run an operator as it would run without us: a function mode sees those alone that Python has called."""
    if not _function_modes():
        return func(*args, **kwargs)
    with torch._C.DisableTorchFunction():
        return func(*args, **kwargs)


class _Checked:
    """An operator's call on its way through its rule."""

    __slots__ = ("_asked", "_done", "_given", "_judge", "_known", "_place", "_sampling", "_steps", "_where", "call")

    def __init__(
        self, judge: Judge, known: Known, given: dict[str, Any], sampling: Sampling, where: Where, place: int
    ) -> None:
        self._judge = judge
        self._known = known
        self._given = given
        self._sampling = sampling
        self._where = where
        self._place = place
        self._steps: Any = None
        self._asked: Sequence[Read] = ()
        self._done = False
        self.call: OperatorCall | None = None

    def begin(self) -> None:
        """Read what the call is given, before it may write over it."""
        made = None if self._known.returns_own else [self._given[name] for name in self._known.writes]
        if made is not None and len(made) >= 1 and isinstance(made[0], (list, tuple)):
            made = list(made[0])
        if made is None:  # its results are not known yet: a rule that needs them comes too late
            return
        self._run(made, True)

    def _run(self, made: Sequence[Any], writes: bool) -> None:
        known = self._known
        assert known.rule is not None
        self.call = OperatorCall(known.name, known.overload, self._given, made, writes)
        try:
            self._steps = known.rule.rule(self.call, self._sampling)
            self._asked = next(self._steps)
            for _ in range(known.rule.inputs):
                self._asked = self._steps.send(_read(self._asked))
        except StopIteration:
            self._done = True  # nothing to compare: it is empty
        except NotVerifiedError as why:
            self._none(str(why))
        except (ValueError, IndexError, KeyError, TypeError, RuntimeError, MemoryError) as error:
            self._none(f"the rule failed: {type(error).__name__}")

    def end(self, result: object) -> None:
        """Read what the call has made, and judge."""
        known = self._known
        if self.call is None:
            values = list(result) if isinstance(result, (tuple, list)) else [result]
            self._run([value for value in values if value is not None or len(values) > 1], False)
        if self._done or self._steps is None:
            return
        try:
            self._steps.send(_read(self._asked))
        except StopIteration as stop:
            parts = stop.value
        except NotVerifiedError as why:
            self._none(str(why))
            return
        except (ValueError, IndexError, KeyError, TypeError, RuntimeError, MemoryError) as error:
            self._none(f"the rule failed: {type(error).__name__}")
            return
        else:
            return
        if not parts:
            return
        assert self.call is not None
        where = self._where
        again = None if known.writes else self._again
        device = str(self.call.out.device) if isinstance(self.call.out, torch.Tensor) else "cpu"
        self._judge.judge(
            Found(where.call, where.backward, self._place, known.name, device, tuple(parts), _coarsest(self._given)),
            again,
        )

    def _again(self) -> Sequence[Any]:
        """Compute all of the output again."""
        rule = self._known.rule
        assert rule is not None
        assert self.call is not None
        sampling = Sampling(self._sampling.step, self._sampling.place, full=True)
        steps = rule.rule(self.call, sampling)
        asked = next(steps)
        try:
            while True:
                asked = steps.send(_read(asked))
        except StopIteration as stop:
            return list(stop.value)

    def _none(self, reason: str) -> None:
        self._done = True
        self._judge.none(
            self._where.call, self._where.backward, self._place, self._known.name, f"{self._known.name}: {reason}"
        )


def _coarsest(given: Mapping[str, Any]) -> str:
    """Return the dtype of the least digits among what a call is given; empty where none is of floating point."""
    names = [dtype_of(value) for value in given.values() if isinstance(value, torch.Tensor) and value.dim()]
    return max(names, key=unit_roundoff, default="")


def _read(reads: Sequence[Read]) -> list[Array]:
    for read in reads:
        if not is_readable(read.tensor):
            raise NotVerifiedError(f"{dtype_of(read.tensor)} in a layout of its own")
    return [elements(read) if read.tensor.is_cpu else _from_device(read) for read in reads]


def _from_device(read: Read) -> Array:
    moved = part(read).cpu()
    return elements(Read(moved, tuple(type(read.box[0])(0, 1, size) for size in moved.shape) if read.box else ()))
