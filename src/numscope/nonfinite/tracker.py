"""The state machine that follows NaN and infinities through calls: which call made them, and which only passed them on.

Events come in the order in which calls ended. The guard feeds them from live tensors, `numscope check` from the tables of a
run; each is an `Adapter` that answers what only it can know. `Setting` has what is judged differently on purpose.

The rule for a single call is `rule.judge`; docs/explanation/non-finite.md says all of it in words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from numscope.core.names import label_of
from numscope.core.report import Origin
from numscope.nonfinite import sentences
from numscope.nonfinite.rule import Counts, Ruling, State, Value, chooses, is_mask, judge
from numscope.nonfinite.sentences import RECORDED, WATCHED, Words


class TrackedCall(Protocol):
    """A call whose tensors are tracked. Where backward parts are recorded by themselves, each is a call of its own."""

    wrong: TrackedCall | None  # the call whose forward part went wrong: this call, or the last such call inside it

    @property
    def op(self) -> str:
        """The operator, or the class of the module."""

    @property
    def kind(self) -> str:
        """The kind, as in a run's table of calls."""

    @property
    def order(self) -> int:
        """The place among the calls that began; 0 where the chain of calls is not asked for."""

    @property
    def in_backward(self) -> bool:
        """Tell whether the autograd engine runs a forward call: a recomputation, or the user's own backward function."""

    @property
    def unmeasured(self) -> str:
        """The slot of the first input that was not measured, empty for none."""


class TrackedTensor(Protocol):
    """A tensor in a slot of a call."""

    @property
    def slot(self) -> str:
        """The slot: `input.0`, `parameters.weight`."""

    @property
    def counts(self) -> Counts:
        """The numbers of elements that are not finite."""


C = TypeVar("C", bound=TrackedCall)
T = TypeVar("T", bound=TrackedTensor)


@dataclass(frozen=True)
class Setting:
    """How live values and recorded values are judged differently, on purpose.

    `contents`: a tensor's key stands for one content, known within a step. Then what is of unknown origin is taken as wrong
    once anything has gone wrong, and as a constant where such a constant was made: a write gives a tensor another key.
    Live, a key stands for memory, which keeps its state over steps and may be written over: a mask that was used stays
    meant, and what was given to an origin is wrong from then on.

    `gathered`: parameters of other ranks are gathered for a module and gone when it is done. Once a parameter is wrong, no
    call of a job of several ranks can be blamed. In a run those parameters are recorded, or said to be unmeasured.

    `forgets_passes`: a backward pass does not know what an earlier one of the step has added to a parameter's gradient, so
    that any forward call that went wrong explains it. In a run all passes of a step are known.
    """

    words: Words
    contents: bool
    gathered: bool
    forgets_passes: bool


LIVE = Setting(WATCHED, contents=False, gathered=True, forgets_passes=True)
RECORDED_RUN = Setting(RECORDED, contents=True, gathered=False, forgets_passes=False)


@dataclass(eq=False)
class FoundOrigin(Generic[C, T]):
    """An origin: the call that made a NaN or an infinity, or the first that was given one."""

    call: C
    phase: str  # of the event that shows the value
    kind: str
    slot: str
    counts: Counts
    reason: str
    step: int
    shown_at: C  # the call whose line is reported
    inputs: Sequence[T]
    outputs: Sequence[T]
    finer: str = ""  # how to get the line inside the call
    stray: bool = False  # made by no recorded call: perhaps by another rank
    report: Origin = field(init=False)  # the adapter's description of the origin


@dataclass(frozen=True)
class OwnCode(Generic[C]):
    """A module's own code, invisible where only modules are watched; it called `called` with its non-finite result."""

    outer: C | None  # the module; None: the code outside all modules
    called: C


@dataclass(frozen=True)
class ParameterOwner(Generic[C, T]):
    """The module whose parameter was not finite from the start."""

    call: C
    slot: str
    name: str
    inputs: Sequence[T]  # of the call, each in the module's slot where it is one of its parameters


@dataclass(frozen=True)
class StepDetails(Generic[T]):
    """The surroundings of one parameter in an optimizer's step that went wrong."""

    sentence: str = ""
    finer: str = ""
    inputs: Sequence[T] = ()
    outputs: Sequence[T] = ()


class Adapter(ABC, Generic[C, T]):
    """The questions that the tracker asks of whoever feeds it."""

    modules_only = False  # the code between modules is not watched

    @abstractmethod
    def name(self, call: C, phase: str) -> str:
        """Return a call's name in a phase."""

    @abstractmethod
    def key(self, tensor: T) -> Hashable:
        """Return the key of a tensor's content, or of its memory."""

    @abstractmethod
    def state(self, tensor: T) -> State | None:
        """Return the state that a tensor was marked with, or None."""

    @abstractmethod
    def mark(self, tensor: T, state: State, call: C) -> None:
        """Remember a tensor's state, and the first call that showed it."""

    @abstractmethod
    def is_parameter(self, tensor: T) -> bool:
        """Tell whether a tensor is a parameter of a module."""

    @abstractmethod
    def enclosing(self, call: C) -> Iterable[C]:
        """Return the calls that a call runs inside, the innermost first."""

    @abstractmethod
    def outlook(self, call: C, made: Sequence[T]) -> State:
        """Tell what becomes of non-finite results that a call made from right inputs.

        "wrong": it does harm; "meant": it comes to nothing; "doubtful": the future has to tell.
        """

    @abstractmethod
    def forward_part(self, call: C) -> C | None:
        """Return the forward part of a call's backward part."""

    @abstractmethod
    def is_aside(self, call: C) -> bool:
        """Tell whether a call runs outside all modules, with no gradient flowing through it."""

    @abstractmethod
    def owner(self, call: C, tensor: T, inputs: Sequence[T]) -> ParameterOwner[C, T] | None:
        """Return the module whose parameter a tensor is, or None where it is none."""

    @abstractmethod
    def own_code(self, call: C, phase: str) -> OwnCode[C]:
        """Return the module whose own code called a module."""

    @abstractmethod
    def found(self, origin: FoundOrigin[C, T]) -> None:
        """Take an origin."""

    @abstractmethod
    def arrived(self, origin: FoundOrigin[C, T]) -> None:
        """Take an origin that came in from another rank."""

    def describe(self, origin: FoundOrigin[C, T]) -> None:
        """Set an origin's report while its tensors still exist; a later event may decide whether the origin counts."""

    def is_allowed(self, call: C, name: str) -> bool:
        """Tell whether the user allows a call's non-finite results."""
        return False

    def is_gradient(self, tensor: T) -> bool:
        """Tell whether a tensor is a parameter's gradient, which a reduction over ranks may have written."""
        return False

    def is_skipped(self, origin: FoundOrigin[C, T]) -> bool:
        """Tell whether a loss scaler is known to have skipped the step of an origin."""
        return False

    def wrong_inside(self, optimizer: C) -> C | None:
        """Return a call that went wrong inside an optimizer's step (in its closure, say)."""
        return None

    def inherits(self, call: C, cause: T | None, otherwise: TrackedCall | None) -> None:
        """Note that a call inherits from an input, or from another call where no call is known to have made the input."""

    def inherits_from(self, call: C, maker: TrackedCall | None) -> None:
        """Note that a call inherits from another call."""


class Doubt(Generic[T]):
    """Infinities that may come to nothing: the logarithm of a distance 0, of which an attention layer makes a position.

    They were made inside a model, no gradient flows through them, and they are no NaN. Calls that only compare them, choose
    between them and others, or turn them into integers do no harm. The first call that computes with them, a gradient that
    flows through what became of them, a NaN, or one that is left over when the model is done: then their maker was an origin.
    """

    __slots__ = ("_contents", "_key", "_left", "tensors")

    def __init__(self, made: Sequence[T], key: Callable[[T], Hashable], contents: bool) -> None:
        self.tensors = list(made)
        self._key = key
        self._contents = contents
        self._left = {key(tensor) for tensor in made}  # tensors that no call has taken yet

    @property
    def left_over(self) -> bool:
        """Tell whether a tensor is left that no call took."""
        return bool(self._left)

    def does_harm(self, op: str, taken: set[Hashable], made: Sequence[T], flows: bool = False) -> bool:
        """Tell whether a call that took some of the tensors did harm; `made` are its non-finite results."""
        doubtful = {self._key(tensor) for tensor in self.tensors}
        # Memory that a call with finite results has taken may have been written over since.
        if taken.isdisjoint(doubtful if made or self._contents else self._left):
            return False
        if flows or any(tensor.counts.nan for tensor in made) or not (made or chooses(op)):
            return True
        self._left -= taken
        new = [tensor for tensor in made if not (self._contents and self._key(tensor) in doubtful)]
        self.tensors += new
        self._left |= {self._key(tensor) for tensor in new}
        return False


@dataclass(frozen=True, eq=False)
class _Waiting(Generic[C, T]):
    """An origin that is in doubt."""

    origin: FoundOrigin[C, T]
    doubt: Doubt[T]


class Tracker(Generic[C, T]):
    """Judges the calls of one rank that show a non-finite value, one after another, and reports the origins."""

    def __init__(self, adapter: Adapter[C, T], setting: Setting, world: int = 1) -> None:
        self.world = world  # ranks of the job
        self.step = 0
        self.origins = 0  # those that count, and those that wait for a loss scale
        self.doubts: list[_Waiting[C, T]] = []
        self._adapter = adapter
        self._setting = setting
        self._words = setting.words
        # Of this step:
        self.wrong_forward: TrackedCall | None = None  # the last call whose forward part went wrong
        self.wrong_backward: TrackedCall | None = None  # the last call whose gradients went wrong in this pass
        self._last_origin = -1  # the step of the last origin
        self._constants: set[State] = set()  # states of the constants that were made: NaN, or +inf that is meant
        self._made_in_backward: set[Hashable] = set()  # results of calls in the user's own backward functions
        # Of all steps:
        self._arrivals = 0  # of values from other ranks
        self._came_in_before = False  # values of other ranks did, in an earlier step
        self._wrong_parameter = False  # an optimizer's step left one
        # Optimizers and loss scales:
        self._scaled = self._always_scaled = False  # gradients may overflow; the step is then skipped
        self._scaling = False  # the loss is being scaled
        self._unsettled: list[FoundOrigin[C, T]] = []  # origins that a skipped step would excuse
        self._origins_before = 0  # when the last optimizer's step began
        self._inside_optimizer = False  # an optimizer of the user's own runs
        self._hint: FoundOrigin[C, T] | None = None  # the first origin inside that step, which has the line to report

    # Forward --------------------------------------------------------------------------------------------------------

    def forward(
        self, call: C, inputs: Sequence[T], outputs: Sequence[T], constants: Iterable[float] | None = ()
    ) -> None:
        """Judge a forward call from its tensors before and after; `constants` are the numbers among its arguments."""
        made = [tensor for tensor in outputs if not tensor.counts.clean]
        if not made:
            self.took(call, inputs)
            return
        given = self._values(inputs)
        if self._was_reduced(call, inputs, given):
            self._mark(made, "wrong", call)
            return
        name = self._adapter.name(call, "forward")
        shown = [Value(tensor.slot, tensor.counts) for tensor in made]
        result = judge(call.op, given, shown, constants, aside=self._adapter.is_aside(call))
        if result.answer in ("origin", "entered") and self._adapter.is_allowed(call, name):
            result = Ruling("meant", result.output, result.cause)
        if result.answer in ("meant", "constant", "ignored"):
            self._take_as_meant(call, result, inputs, made)
            return
        if result.answer == "handed on" or self._is_doubtful(call, result, name, inputs, outputs):
            return  # the call that computes with it will tell
        before, about = self.wrong_forward, self._is_about()
        # A call inside it, the first execution of what runs again, the pass whose gradients autograd.grad gives back.
        explained = (
            call.wrong
            or (self.wrong_forward if call.in_backward else None)
            or (self.wrong_backward if call.op == "grad" else None)
        )
        self._went_wrong(call)
        self._mark(made, "wrong", call)
        if call.in_backward:
            self._made_in_backward.update(self._adapter.key(tensor) for tensor in made)
        cause = next((tensor for tensor, value in zip(inputs, given) if value is result.cause), None)
        if result.answer == "inherited":
            self._adapter.inherits(call, cause, self.wrong_backward)
            return
        if explained is not None:
            self._adapter.inherits_from(call, explained)
            return
        if self._is_gathered() or (call.unmeasured and before is not None):
            self._adapter.inherits_from(call, before)  # the nearest maker that is known
            return
        if not self._setting.contents:
            dirty = [t for t, value in zip(inputs, given) if not value.counts.clean and value.state != "meant"]
            self._mark(dirty, "wrong", call)
        if result.answer == "entered" and cause is not None:
            self._mark([cause], "wrong", call)
            if self._setting.contents or not about:
                self._enter(call, cause, inputs, outputs)
            return
        constant = result.cause is not None and result.cause.state == "constant"
        if cause is not None and constant and self._adapter.owner(call, cause, inputs) is not None:
            self._mark([cause], "wrong", call)  # a parameter that was written to
            self._enter(call, cause, inputs, outputs)
            return
        assert result.output is not None
        reason = sentences.made(name, result, call.unmeasured)
        self._tell(self._origin(call, "forward", result.output.slot, result.output.counts, reason, inputs, outputs))

    def data(self, call: C, outputs: Sequence[T]) -> None:
        """Judge the data that enters the model."""
        for tensor in outputs:
            counts = tensor.counts
            state = self._adapter.state(tensor)
            if counts.clean or state == "meant":
                continue
            if state == "wrong":
                self._adapter.inherits(call, tensor, None)
                continue
            if is_mask(counts) or self._adapter.is_allowed(call, self._adapter.name(call, "input")):
                self._mark([tensor], "meant", call)
                continue
            self._mark([tensor], "wrong", call)
            reason = sentences.data(counts)
            self._tell(self._origin(call, "input", tensor.slot, counts, reason, [], outputs, kind="data"))

    def runs_again(self, call: C, outputs: Sequence[T]) -> None:
        """Take a recomputation of a call that went wrong: its results are no news."""
        self._mark([tensor for tensor in outputs if not tensor.counts.clean], "wrong", call)
        call.wrong = call
        self._note_wrong_forward(call)

    def shows_again(self, call: C) -> None:
        """Take a call that returns a result of a call inside it or before it."""
        self._went_wrong(call)

    def end_model(self) -> None:
        """End a root module's call: doubtful values that are still alive count, the rest came to nothing."""
        waiting, self.doubts = self.doubts, []
        for item in waiting:
            if not item.doubt.left_over:
                self._mark(item.doubt.tensors, "meant", item.origin.call)
        self._settle_doubts([item for item in waiting if item.doubt.left_over])

    def took(self, call: C, inputs: Iterable[T]) -> None:
        """Take a call with finite results."""
        if self.doubts:
            self.took_keys(call.op, {self._adapter.key(tensor) for tensor in inputs})

    def took_keys(self, op: str, taken: set[Hashable]) -> None:
        """Take a call with finite results: if it computes with doubtful values, they do harm."""
        self._settle_doubts([item for item in self.doubts if item.doubt.does_harm(op, taken, [])])

    def _take_as_meant(self, call: C, result: Ruling, inputs: Sequence[T], made: Sequence[T]) -> None:
        state: State = "constant" if result.answer == "constant" else "meant"
        if result.answer == "meant" and not self._setting.contents:
            self._mark([tensor for tensor in inputs if not tensor.counts.clean], "meant", call)
        self._mark(made, state, call)
        if state == "constant" or any(tensor.counts.posinf for tensor in made):
            self._constants.add(state)

    def _is_doubtful(self, call: C, result: Ruling, name: str, inputs: Sequence[T], outputs: Sequence[T]) -> bool:
        """Tell whether a call's non-finite results do no harm, or none yet, and note the tensors to follow."""
        made = [tensor for tensor in outputs if not tensor.counts.clean]
        if result.answer == "entered":
            return False
        taken: Sequence[T] = ()
        if result.answer == "inherited":
            if result.cause is None or result.cause.state != "doubtful":
                return False
            taken = inputs
        elif any(call is outer for item in self.doubts for outer in self._adapter.enclosing(item.origin.call)):
            taken = made  # made by a call inside this one
        outlook = self._adapter.outlook(call, made)
        if taken:
            keys = {self._adapter.key(tensor) for tensor in taken}
            harmful = [item for item in self.doubts if item.doubt.does_harm(call.op, keys, made, outlook == "wrong")]
            self._settle_doubts(harmful)
            if harmful:
                return False
            outlook = "doubtful"
        elif outlook == "doubtful":
            assert result.output is not None
            reason = sentences.made(name, result, call.unmeasured)
            output = result.output
            origin = self._origin(call, "forward", output.slot, output.counts, reason, inputs, outputs)
            self.doubts.append(_Waiting(origin, Doubt(made, self._adapter.key, self._setting.contents)))
        if outlook != "wrong":
            self._mark(made, outlook, call)
        return outlook != "wrong"

    def _settle_doubts(self, harmful: list[_Waiting[C, T]]) -> None:
        """Report the origins that were in doubt."""
        self.doubts = [item for item in self.doubts if item not in harmful]
        for item in harmful:
            self._went_wrong(item.origin.call)
            self._mark(item.doubt.tensors, "wrong", item.origin.call)
            self._tell_now(item.origin)

    def _was_reduced(self, call: C, inputs: Sequence[T], given: Sequence[Value]) -> bool:
        """Tell whether a call takes a parameter's gradient that no call of this rank made wrong."""
        if self.world == 1:
            return False
        unknown = [t for t, value in zip(inputs, given) if value.state == "unknown" and not value.counts.clean]
        if not any(self._adapter.is_gradient(tensor) for tensor in unknown):
            return False
        if not (self._is_about() or self._scaled):
            reason = sentences.reduced_gradient(unknown[0].slot, unknown[0].counts)
            self._arrive(call, "forward", unknown[0], reason)
        self._mark(unknown, "wrong", call)
        return True

    def _enter(self, call: C, cause: T, inputs: Sequence[T], outputs: Sequence[T]) -> None:
        """Judge a value older than every recorded call: a parameter's, unwatched code's, or the data's."""
        if not self._setting.contents and (self._arrivals or self._is_gathered()):
            return  # an earlier wrong value comes back, perhaps through an unwatched copy of a shard
        counts = cause.counts
        owner = self._adapter.owner(call, cause, inputs)
        if owner is not None:
            reason = sentences.parameter(owner.name, counts)
            origin = self._origin(owner.call, "forward", owner.slot, counts, reason, owner.inputs, outputs, "parameter")
            self._tell(origin)
            return
        name = self._adapter.name(call, "forward")
        code = self._adapter.own_code(call, "forward")
        if code.outer is not None:
            outer, called = self._adapter.name(code.outer, "forward"), self._adapter.name(code.called, "forward")
            reason = sentences.own_code(self._words, outer, called, counts)
            origin = self._origin(
                code.outer, "forward", cause.slot, counts, reason, inputs, outputs, shown_at=code.called
            )
            self._tell(origin)
            return
        reason = sentences.on_entry(self._words, name, cause.slot, counts)
        self._tell(self._origin(call, "forward", cause.slot, counts, reason, inputs, outputs, "data", stray=True))

    # Backward -------------------------------------------------------------------------------------------------------

    def backward(
        self,
        call: C,
        incoming: Sequence[T],
        outgoing: Sequence[T],
        runs_forward: bool = False,
        added_up: bool = False,
    ) -> None:
        """Judge the gradients that came into a call and those that left it.

        `runs_forward`: a forward call that runs in backward; `added_up`: the gradients are sums over the whole pass.
        """
        adapter = self._adapter
        made = [tensor for tensor in outgoing if not tensor.counts.clean]
        dirty = next((tensor for tensor in incoming if not tensor.counts.clean), None)
        if not made and (outgoing or dirty is None):
            return
        state = adapter.state(dirty) if dirty is not None else None
        on_the_way = any(adapter.key(tensor) in self._made_in_backward for tensor in made)
        self._mark(made, "wrong", call)
        known, self.wrong_backward = self.wrong_backward, call
        forward = adapter.forward_part(call)
        went_wrong = forward.wrong if forward is not None else None
        if went_wrong is not None and went_wrong is forward:
            adapter.inherits_from(call, went_wrong)
        elif known is not None and (added_up or known.order > call.order):  # the gradients flow in two passes
            adapter.inherits_from(call, known)
        elif self.wrong_forward is not None and (runs_forward or (added_up and self._setting.forgets_passes)):
            adapter.inherits_from(call, self.wrong_forward)
        elif dirty is not None and (known is not None or self.wrong_forward is not None or state == "wrong"):
            # A sum of gradients is a new tensor: only this very pass tells that one of its parts was wrong.
            adapter.inherits(call, dirty, known or self.wrong_forward)
        elif went_wrong is not None or on_the_way or self._is_gathered():
            adapter.inherits_from(call, went_wrong)
        elif adapter.is_allowed(call, name := adapter.name(call, "backward")):
            return
        elif dirty is not None:
            self._came_in(call, dirty, incoming, outgoing)
        else:
            reason = sentences.gradient(name, made[0].counts)
            self._tell(self._origin(call, "backward", made[0].slot, made[0].counts, reason, incoming, outgoing))

    def loss(self, call: C, inputs: Sequence[T]) -> None:
        """Judge the start of a backward pass, where calls outside modules are not watched."""
        for tensor in inputs:
            counts = tensor.counts
            if counts.clean or self.wrong_forward is not None or self._adapter.state(tensor) in ("wrong", "meant"):
                continue
            self._mark([tensor], "wrong", call)
            reason = sentences.loss(self._words, self._adapter.name(call, "forward"), counts)
            self._tell(self._origin(call, "forward", tensor.slot, counts, reason, inputs, []), may_be_skipped=True)
            self.wrong_forward = call

    def new_pass(self) -> None:
        """Begin another forward pass, and with it another backward pass."""
        self.wrong_backward = None
        self._made_in_backward.clear()

    def _came_in(self, call: C, gradient: T, incoming: Sequence[T], outgoing: Sequence[T]) -> None:
        """Judge a wrong gradient that no call is known to have made."""
        adapter, counts = self._adapter, gradient.counts
        code = adapter.own_code(call, "backward")
        called, name = code.called, adapter.name(code.called, "backward")
        if code.outer is not None:
            reason = sentences.own_code_backward(self._words, adapter.name(code.outer, "backward"), name, counts)
            origin = self._origin(
                code.outer, "backward", gradient.slot, counts, reason, incoming, outgoing, shown_at=called
            )
        else:
            reason = sentences.gradient_on_entry(self._words, name, counts, adapter.modules_only)
            origin = self._origin(called, "backward", gradient.slot, counts, reason, incoming, outgoing, stray=True)
        self._tell(origin)

    # Ranks ----------------------------------------------------------------------------------------------------------

    def collective(self, call: C, phase: str, inputs: Sequence[T], outputs: Sequence[T], alone: bool = False) -> None:
        """Judge a collective: a value that this rank did not give, another rank did, unless this one is `alone` in its group.

        Of a run all ranks are judged together afterwards, which tells whether a collective brought something or made it.
        """
        made = [tensor for tensor in outputs if not tensor.counts.clean]
        if not made:
            return
        dirty = [tensor for tensor in inputs if not tensor.counts.clean]
        if dirty and all(self.state(tensor) == "meant" for tensor in dirty):
            self._mark(made, "meant", call)
            return
        # Contents: an unknown tensor, such as a bucket of gradients, inherits from the pass in which the collective runs.
        known, self.wrong_backward = self.wrong_backward, call
        unknown = next((tensor for tensor in dirty if self.state(tensor) == "unknown"), None)
        self._mark(made, "wrong", call)
        if unknown is not None and known is None:
            self._enter(call, unknown, inputs, outputs)
        elif dirty:
            self._adapter.inherits(call, dirty[0], None)
        elif not alone:
            reason = sentences.received(self._adapter.name(call, "forward"), made[0].counts)
            self._arrive(call, phase, made[0], reason)
        else:
            reason = sentences.collective(self._adapter.name(call, "forward"), made[0].counts)
            self._tell(self._origin(call, phase, made[0].slot, made[0].counts, reason, inputs, outputs))

    def _arrive(self, call: C, phase: str, tensor: T, reason: str) -> None:
        """Note that another rank's values came in."""
        self._arrivals += 1
        self._adapter.arrived(self._origin(call, phase, tensor.slot, tensor.counts, reason, (), (), "collective"))

    def _is_gathered(self) -> bool:
        """Tell whether the value may have come in with a parameter that was gathered from other ranks and freed again."""
        return self._setting.gathered and self._wrong_parameter and self.world > 1

    # Steps, optimizers, loss scales ---------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Begin a step: what follows belongs to it."""
        self.end_model()
        self.new_pass()
        self.step = step
        self.wrong_forward = None
        self._constants.clear()
        self._came_in_before = self._came_in_before or self._arrivals > 0

    def optimizer(
        self,
        call: C,
        inputs: Sequence[T],
        outputs: Sequence[T],
        details: Callable[[str], StepDetails[T]] = lambda label: StepDetails(),
    ) -> None:
        """Judge an optimizer's step from parameters and gradients before it, and parameters after it.

        `details` tells more of the step of one parameter, where that is what went wrong.
        """
        adapter = self._adapter
        made = [tensor for tensor in outputs if not tensor.counts.clean]
        if not made:
            return
        self._wrong_parameter = True
        bad, counts = made[0], made[0].counts
        label = label_of(bad.slot)
        own = [t for t in inputs if not t.counts.clean and f"{label_of(t.slot)}.".startswith(f"{label}.")]
        is_known = any(self.state(tensor) == "wrong" for tensor in own) or (own and self._is_about())
        inside = adapter.wrong_inside(call)
        self._mark(made, "wrong", call)
        name = adapter.name(call, "forward")
        if inside is not None:
            adapter.inherits_from(call, inside)
        elif is_known:
            adapter.inherits(call, own[0], self.wrong_backward)
        elif (self.origins > self._origins_before and self._hint is None) or adapter.is_allowed(call, name):
            return  # a call inside it went wrong, or its result is allowed
        elif own and own[0].slot.startswith("parameters_grad") and self.world > 1:
            self._arrive(call, "optimizer", own[0], sentences.reduced_gradient(label, own[0].counts))
        elif own:
            reason = sentences.before_step(self._words, name, own[0].slot, label, own[0].counts)
            self._tell(self._origin(call, "optimizer", own[0].slot, own[0].counts, reason, inputs, outputs))
        else:
            more, hint = details(label), self._hint
            at = hint.call if hint is not None else call
            within = adapter.name(at, hint.phase) if hint is not None else ""
            reason = sentences.step(name, within, label, counts, more.sentence)
            before = {t.slot: t for t in more.inputs} | {t.slot: t for t in inputs if t.slot.endswith(f".{label}")}
            after = [
                *(t for t in outputs if t.slot == bad.slot),
                *more.outputs,
            ]  # of a whole model, only the tensors that went wrong
            origin = self._origin(
                call, "optimizer", bad.slot, counts, reason, list(before.values()), after, None, at, more.finer
            )
            self._tell(origin)

    def set_inside_optimizer(self, inside: bool) -> None:
        """Begin or end a step of the user's own optimizer: an origin inside gives the step's origin its line."""
        self._inside_optimizer = inside
        if inside:
            self._hint = None

    def set_always_scaled(self, scaled: bool) -> None:
        """Say whether the user scales the loss by hand."""
        self._scaled = self._always_scaled = scaled

    def set_scaled(self, scaled: bool, scaling: bool) -> None:
        """Say whether gradients are scaled from here on, and whether the loss is being scaled."""
        self._scaled, self._scaling = scaled, scaling

    def settle(self) -> None:
        """Drop the origins that wait for a loss scale: the step was skipped, or its gradients are of no concern."""
        self._unsettled.clear()
        self._scaled, self._scaling = self._always_scaled, False

    def stepping(self, given: Sequence[T]) -> None:
        """Begin an optimizer's step: origins that wait for a loss scale count if the step takes their gradients."""
        self._origins_before = self.origins
        if all(tensor.counts.clean for tensor in given if tensor.slot.startswith("parameters_grad")):
            self.settle()
            return
        waiting, self._unsettled = self._unsettled, []
        for origin in waiting[:1]:
            self._tell_now(origin)

    # States of tensors ----------------------------------------------------------------------------------------------

    def _values(self, tensors: Iterable[T]) -> list[Value]:
        return [Value(tensor.slot, tensor.counts, self.state(tensor)) for tensor in tensors]

    def state(self, tensor: T) -> State:
        """Return why a tensor is not finite, as far as the calls before tell."""
        known = self._adapter.state(tensor)
        if known is not None:
            return known
        counts, contents = tensor.counts, self._setting.contents
        if contents and not is_mask(counts) and self._is_about():
            return "wrong"
        if self._adapter.is_parameter(tensor):
            return "parameter"
        constant: State = "constant" if counts.nan else "meant"
        return constant if contents and constant in self._constants else "unknown"

    def _is_about(self) -> bool:
        """Tell whether anything has gone wrong from which a tensor of unknown origin would inherit."""
        if self.wrong_backward is not None:
            return True
        if self._setting.contents:
            return self.origins > 0 or self._came_in_before
        return self.wrong_forward is not None or self._last_origin == self.step

    def _mark(self, tensors: Iterable[T], state: State, call: C) -> None:
        for tensor in tensors:
            self._adapter.mark(tensor, state, call)

    def _went_wrong(self, call: C) -> None:
        """Remember that a forward call went wrong, and that the calls around it inherit from it."""
        call.wrong = call
        self._note_wrong_forward(call)
        for outer in self._adapter.enclosing(call):
            if outer.wrong is not outer:
                outer.wrong = call

    def _note_wrong_forward(self, call: C) -> None:
        if self.wrong_forward is None or self.wrong_forward.order <= call.order:
            self.wrong_forward = call

    # Origins --------------------------------------------------------------------------------------------------------

    def _origin(
        self,
        call: C,
        phase: str,
        slot: str,
        counts: Counts,
        reason: str,
        inputs: Sequence[T],
        outputs: Sequence[T],
        kind: str | None = None,
        shown_at: C | None = None,
        finer: str = "",
        stray: bool = False,
    ) -> FoundOrigin[C, T]:
        """Return an origin, described while its tensors still exist; `shown_at`: the call whose line is reported."""
        origin = FoundOrigin(
            call,
            phase,
            kind or call.kind,
            slot,
            counts,
            reason,
            self.step,
            shown_at or call,
            inputs,
            outputs,
            finer,
            stray,
        )
        self._adapter.describe(origin)
        return origin

    def _tell(self, origin: FoundOrigin[C, T], may_be_skipped: bool = False) -> None:
        """Report an origin, or let it wait where `may_be_skipped` says that a loss scale may explain it."""
        if self._adapter.is_skipped(origin):
            self._came_in_before = False
            return
        self.origins += 1
        self._last_origin = self.step
        if self._scaled and (origin.phase == "backward" or self._scaling or may_be_skipped):
            self._unsettled.append(origin)
        else:
            self._tell_now(origin)

    def _tell_now(self, origin: FoundOrigin[C, T]) -> None:
        if self._inside_optimizer:
            self._hint = self._hint or origin
        else:
            self._adapter.found(origin)
