"""The tracker of non-finite values on small sequences of events, each with the sentence of non-finite.md that it shows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from numscope.nonfinite.rule import Counts, State
from numscope.nonfinite.tracker import (
    LIVE,
    RECORDED_RUN,
    Adapter,
    FoundOrigin,
    OwnCode,
    ParameterOwner,
    Setting,
    StepDetails,
    TrackedCall,
    Tracker,
)

CLEAN = Counts(elements=4)
NAN = Counts(nan=4, elements=4)
UP = Counts(posinf=4, elements=4)
DOWN = Counts(neginf=1, elements=4)
BOTH = pytest.mark.parametrize("setting", [LIVE, RECORDED_RUN], ids=["live", "recorded"])


@dataclass(eq=False)
class Call:
    """A call, by its operator."""

    op: str
    kind: str = "api"
    order: int = 0
    in_backward: bool = False
    unmeasured: str = ""
    outer: Call | None = None
    forward: Call | None = None  # where its backward part is a call of its own
    calling: Call | None = None  # the module in whose own code it was called
    flows: bool = True
    wrong: TrackedCall | None = None


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor; its key stands for its content, or for its memory."""

    slot: str
    key: Hashable
    counts: Counts
    parameter: str = ""


@dataclass
class Job(Adapter[Call, Tensor]):
    """A job or a run whose events are written by hand."""

    setting: Setting
    world: int = 1
    allowed: tuple[str, ...] = ()
    states: dict[Hashable, State] = field(default_factory=dict)
    origins: list[FoundOrigin[Call, Tensor]] = field(default_factory=list)
    came_in: list[str] = field(default_factory=list)  # reasons of what other ranks' values have brought
    inherited: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tracker = Tracker(self, self.setting, self.world)
        self.tracker.begin_step(0)

    @property
    def reasons(self) -> list[str]:
        return [origin.reason for origin in self.origins]

    def run(self, op: str, taken: Sequence[Tensor], made: Sequence[Tensor], **more: object) -> Call:
        """Have a forward call judged; `more` is of the call."""
        call = Call(op, **more)  # type: ignore[arg-type]
        self.tracker.forward(call, taken, made)
        return call

    def name(self, call: Call, phase: str) -> str:
        return call.op

    def key(self, tensor: Tensor) -> Hashable:
        return tensor.key

    def state(self, tensor: Tensor) -> State | None:
        return self.states.get(tensor.key)

    def mark(self, tensor: Tensor, state: State, call: Call) -> None:
        self.states[tensor.key] = state

    def is_parameter(self, tensor: Tensor) -> bool:
        return bool(tensor.parameter)

    def enclosing(self, call: Call) -> Iterable[Call]:
        outer = call.outer
        while outer is not None:
            yield outer
            outer = outer.outer

    def outlook(self, call: Call, made: Sequence[Tensor]) -> State:
        return "wrong" if call.flows or any(tensor.counts.nan for tensor in made) else "doubtful"

    def forward_part(self, call: Call) -> Call | None:
        return call.forward

    def is_aside(self, call: Call) -> bool:
        return False

    def owner(self, call: Call, tensor: Tensor, inputs: Sequence[Tensor]) -> ParameterOwner[Call, Tensor] | None:
        return ParameterOwner(call, tensor.slot, tensor.parameter, inputs) if tensor.parameter else None

    def own_code(self, call: Call, phase: str) -> OwnCode[Call]:
        return OwnCode(call.calling, call)

    def is_allowed(self, call: Call, name: str) -> bool:
        return call.op in self.allowed

    def is_gradient(self, tensor: Tensor) -> bool:
        return str(tensor.key).startswith("gradient")

    def found(self, origin: FoundOrigin[Call, Tensor]) -> None:
        self.origins.append(origin)

    def arrived(self, origin: FoundOrigin[Call, Tensor]) -> None:
        self.came_in.append(origin.reason)

    def inherits(self, call: Call, cause: Tensor | None, otherwise: TrackedCall | None) -> None:
        self.inherited.append(call.op)

    def inherits_from(self, call: Call, maker: TrackedCall | None) -> None:
        self.inherited.append(call.op)


def x(key: Hashable, counts: Counts = CLEAN, slot: str = "input.0", parameter: str = "") -> Tensor:
    """A tensor that goes into a call."""
    return Tensor(slot, key, counts, parameter)


def y(key: Hashable, counts: Counts, slot: str = "output.0") -> Tensor:
    """A tensor that comes out of a call."""
    return Tensor(slot, key, counts)


# Forward --------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_call_with_finite_inputs_is_the_origin_and_what_takes_its_output_inherits(setting: Setting) -> None:
    """finite | NaN or infinity | an **origin**; one is non-finite for a reason that is known | **inherited**."""
    job = Job(setting)
    job.run("exp", [x("a")], [y("b", NAN)])
    job.run("mul", [x("b", NAN)], [y("c", NAN)])
    assert job.reasons == ["exp turned finite inputs into 4 NaN of 4 elements"]
    assert job.inherited == ["mul"]


@BOTH
def test_an_overflow_to_infinity_is_an_origin(setting: Setting) -> None:
    """finite | NaN or infinity | an **origin**."""
    job = Job(setting)
    job.run("mul", [x("a"), x("b", slot="input.1")], [y("c", UP)])
    assert job.reasons == ["mul turned finite inputs into 4 +inf of 4 elements"]


@BOTH
def test_a_mask_is_meant_and_stays_so_until_it_makes_a_nan(setting: Setting) -> None:
    """Infinities that were meant | infinities of the same sign | **meant**; | NaN | an **origin**."""
    job = Job(setting)
    job.run("add", [x("scores"), x("mask", DOWN, "input.1")], [y("masked", DOWN)])
    assert job.states["masked"] == "meant"
    assert job.origins == []
    job.run("softmax", [x("masked", DOWN)], [y("weights", NAN)])
    assert job.reasons == ["softmax made 4 NaN of 4 elements out of infinities: input.0 has 1 -inf of 4 elements"]


@BOTH
def test_data_with_a_mask_is_silent_and_data_with_nan_is_an_origin_once(setting: Setting) -> None:
    """One came from outside with NaN or +inf: that data is the **origin**; -inf alone is a mask."""
    job = Job(setting)
    for _ in range(2):
        job.tracker.data(Call("data", "data"), [y("mask", DOWN), y("batch", NAN, "output.1")])
    assert [(origin.kind, origin.slot) for origin in job.origins] == [("data", "output.1")]


@BOTH
def test_a_parameter_that_held_it_from_the_start_is_named(setting: Setting) -> None:
    """One came from outside with NaN or +inf | anything non-finite | that parameter is the **origin**."""
    job = Job(setting)
    job.run("linear", [x("a"), x("w", NAN, "input.1", "fc.weight")], [y("b", NAN)])
    assert job.reasons == ["the parameter fc.weight holds 4 NaN of 4 elements before anything computes with it"]
    assert (job.origins[0].kind, job.origins[0].slot) == ("parameter", "input.1")


@BOTH
def test_what_nobody_has_made_is_named_where_it_is_taken(setting: Setting) -> None:
    """One came from outside with NaN or +inf | anything non-finite | that data is the **origin**."""
    job = Job(setting)
    job.run("mul", [x("a", NAN)], [y("b", NAN)])
    assert job.reasons[0].startswith("input.0 of mul holds 4 NaN of 4 elements on entry")
    assert job.origins[0].stray


@BOTH
def test_a_modules_own_code_is_named_where_only_modules_are_seen(setting: Setting) -> None:
    """What the code between modules makes shows in the next module: the origin is the module whose code it was."""
    job = Job(setting)
    inner = Call("inner", "module", calling=Call("outer", "module"))
    job.tracker.forward(inner, [x("a", NAN)], [y("b", NAN)])
    assert job.reasons[0].startswith(
        "outer made 4 NaN of 4 elements in code of its own, before it called inner with it"
    )
    assert (job.origins[0].call.op, job.origins[0].shown_at.op) == ("outer", "inner")


@BOTH
def test_calls_around_the_innermost_inherit(setting: Setting) -> None:
    """**The innermost call** is the origin of what is made inside a call; modules and composites around it inherit."""
    job = Job(setting)
    outer = Call("block", "module")
    job.run("exp", [x("a")], [y("b", NAN)], outer=outer)
    job.tracker.forward(outer, [x("a")], [y("c", NAN)])
    assert len(job.origins) == 1
    assert job.inherited == ["block"]


@BOTH
def test_a_constant_of_nan_counts_where_a_call_computes_with_it(setting: Setting) -> None:
    """A NaN made as a constant does no harm until a call computes with it; that call is the origin."""
    job = Job(setting)
    job.tracker.forward(Call("full"), [], [y("empty", NAN)], [math.nan])
    job.run("clone", [x("empty", NAN)], [y("copy", NAN)])
    assert job.origins == []
    job.run("add", [x("a"), x("copy", NAN, "input.1")], [y("b", NAN)])
    assert job.reasons == ["a constant of NaN enters add as input.1, and the output has 4 NaN of 4 elements"]


@BOTH
def test_a_constant_of_nan_in_a_parameter_is_the_parameters(setting: Setting) -> None:
    """Where it was written into a parameter, the parameter is."""
    job = Job(setting)
    job.tracker.forward(Call("fill_"), [], [y("w", NAN)], [math.nan])
    job.run("linear", [x("a"), x("w", NAN, "input.1", "fc.weight")], [y("b", NAN)])
    job.run("tanh", [x("b", NAN)], [y("c", NAN)])
    assert [(origin.kind, origin.reason) for origin in job.origins] == [
        ("parameter", "the parameter fc.weight holds 4 NaN of 4 elements before anything computes with it")
    ]


def test_what_the_user_allows_is_meant() -> None:
    """Infinities are meant where the user lists the call in `allow=`; what is made of them may still be wrong."""
    job = Job(LIVE, allowed=("log",))
    job.run("log", [x("a")], [y("b", DOWN)])
    assert job.origins == []
    job.run("softmax", [x("b", DOWN)], [y("c", NAN)])
    assert [origin.call.op for origin in job.origins] == ["softmax"]


def test_an_input_that_was_not_measured_is_said_and_explains_what_follows_something_wrong() -> None:
    """A call whose input could not be measured is an origin only where nothing before it was wrong, and says so."""
    job = Job(RECORDED_RUN)
    job.run("relu", [x("a")], [y("b", NAN)], unmeasured="input.1")
    job.run("tanh", [x("c")], [y("d", NAN)], unmeasured="input.1")
    assert job.reasons == ["relu made 4 NaN of 4 elements; its input.1 was not measured"]
    assert job.inherited == ["tanh"]


# Infinities that come to nothing --------------------------------------------------------------------------------------


def doubtful() -> Job:
    job = Job(LIVE)
    job.run("log", [x("distance")], [y("far", DOWN)], flows=False)
    assert job.origins == []
    return job


def test_an_infinity_that_is_only_chosen_between_comes_to_nothing() -> None:
    """It was **no origin** if calls only compare it or choose, and nothing is left of it when the model is done."""
    job = doubtful()
    job.run("where", [x("near"), x("far", DOWN, "input.1")], [y("bucket", CLEAN)])
    job.tracker.end_model()
    assert (job.origins, job.states["far"]) == ([], "meant")


@pytest.mark.parametrize("made", [CLEAN, NAN])
def test_an_infinity_that_is_computed_with_was_an_origin(made: Counts) -> None:
    """It was **an origin** as soon as a call computes with it, or it becomes a NaN: the call that made it is named."""
    job = doubtful()
    job.run("mul", [x("far", DOWN)], [y("product", made)], flows=False)
    assert [origin.call.op for origin in job.origins] == ["log"]


def test_an_infinity_that_is_left_over_was_an_origin() -> None:
    """It was **an origin** if it is in the model's result."""
    job = doubtful()
    job.tracker.end_model()
    assert [origin.call.op for origin in job.origins] == ["log"]


def test_the_origin_in_doubt_keeps_all_that_its_call_made() -> None:
    """The origin's tensors are its inputs and outputs, the finite ones too."""
    job = Job(LIVE)
    job.run("log", [x("a")], [y("b", DOWN), y("c", CLEAN, "output.1")], flows=False)
    job.tracker.end_model()
    assert [tensor.slot for tensor in job.origins[0].outputs] == ["output.0", "output.1"]


# Backward -------------------------------------------------------------------------------------------------------------


def backward(job: Job, op: str, came: Counts, went: Counts, forward: Call | None = None, **more: object) -> None:
    call = Call(op, forward=forward, **more)  # type: ignore[arg-type]
    incoming, outgoing = x(f"into {op}", came), y(f"out of {op}", went)
    job.tracker.backward(call, [incoming], [outgoing])


@BOTH
def test_a_backward_part_of_finite_gradients_is_an_origin_and_the_pass_inherits(setting: Setting) -> None:
    """Finite | NaN or infinity | an **origin**; **a step that is wrong already** explains what is of unknown origin."""
    job = Job(setting)
    backward(job, "sqrt", CLEAN, NAN)
    backward(job, "add", NAN, NAN)  # a sum of gradients is a new tensor
    assert job.reasons == ["sqrt turned finite gradients into 4 NaN of 4 elements"]
    assert job.inherited == ["add"]


@BOTH
def test_what_comes_back_from_a_forward_that_went_wrong_is_inherited(setting: Setting) -> None:
    """**Backward** inherits whatever comes back from a forward that went wrong."""
    job = Job(setting)
    exp = job.run("exp", [x("a")], [y("b", NAN)])
    backward(job, "exp", CLEAN, NAN, forward=exp)
    assert len(job.origins) == 1
    assert job.inherited == ["exp"]


@BOTH
def test_a_gradient_that_was_given_to_backward_is_named(setting: Setting) -> None:
    """One came from outside with NaN | anything non-finite | it is the **origin**."""
    job = Job(setting)
    backward(job, "mul", NAN, NAN)
    assert job.reasons[0].startswith("the gradient that comes into mul has 4 NaN of 4 elements")
    assert job.reasons[0].endswith("it comes from a sum that overflowed, or it was given to backward")


def test_a_new_pass_does_not_inherit_from_the_one_before() -> None:
    """One fault, one origin, for each pass: the next one may go wrong by itself."""
    job = Job(LIVE)
    backward(job, "sqrt", CLEAN, NAN)
    job.tracker.new_pass()
    backward(job, "norm", CLEAN, UP)
    assert [origin.call.op for origin in job.origins] == ["sqrt", "norm"]


@BOTH
def test_a_checkpoint_that_runs_again_on_the_way_back_inherits(setting: Setting) -> None:
    """**Backward** inherits …; so does what a checkpoint runs again."""
    job = Job(setting)
    job.run("exp", [x("a")], [y("b", NAN)])
    job.run("exp", [x("a again")], [y("b again", NAN)], in_backward=True)
    assert len(job.origins) == 1


@BOTH
def test_the_loss_that_a_pass_starts_from_is_named_where_no_call_was_seen(setting: Setting) -> None:
    """At level `module` the code between modules is not seen."""
    job = Job(setting)
    loss = Call("backward")
    job.tracker.loss(loss, [x("loss", NAN)])
    backward(job, "linear", CLEAN, NAN)
    assert job.reasons[0].startswith("the loss that backward starts from holds 4 NaN of 4 elements")


# Loss scales ----------------------------------------------------------------------------------------------------------


def test_gradients_that_overflow_under_a_loss_scale_are_forgiven_with_the_skipped_step() -> None:
    """**A GradScaler's skipped steps** are shown as skipped, not as faults."""
    job = Job(LIVE)
    job.tracker.set_scaled(True, False)
    backward(job, "mul", CLEAN, UP)
    job.tracker.settle()
    assert job.origins == []
    job.tracker.new_pass()
    backward(job, "sqrt", CLEAN, NAN)  # the scale is no longer in force
    assert [origin.call.op for origin in job.origins] == ["sqrt"]


@pytest.mark.parametrize(("gradient", "origins"), [(NAN, ["mul"]), (CLEAN, [])])
def test_a_step_that_takes_the_gradients_makes_the_first_overflow_an_origin(
    gradient: Counts, origins: list[str]
) -> None:
    """A loss scale of your own: gradients count when an optimizer takes them."""
    job = Job(LIVE)
    job.tracker.set_always_scaled(True)
    backward(job, "mul", CLEAN, UP)
    job.tracker.new_pass()
    backward(job, "sqrt", CLEAN, NAN)
    job.tracker.stepping([x("gradient", gradient, "parameters_grad.weight")])
    assert [origin.call.op for origin in job.origins] == origins


def test_a_forward_nan_is_an_origin_under_a_loss_scale_too() -> None:
    """Only what a loss scale can have done is forgiven."""
    job = Job(LIVE)
    job.tracker.set_scaled(True, False)
    job.run("log", [x("a")], [y("b", NAN)])
    assert [origin.call.op for origin in job.origins] == ["log"]


# Optimizers -----------------------------------------------------------------------------------------------------------


def step(job: Job, gradient: Counts = CLEAN, before: Counts = CLEAN, after: Counts = NAN) -> None:
    given = [x("w", before, "parameters.weight"), x("g", gradient, "parameters_grad.weight")]
    job.tracker.stepping(given)
    details = lambda label: StepDetails[Tensor](f"; there {label} is 0")  # noqa: E731
    job.tracker.optimizer(Call("Adam", "optimizer"), given, [y("w", after, "output.weight")], details)


@BOTH
def test_an_optimizers_step_that_divides_by_zero_is_an_origin_with_what_is_known_of_it(setting: Setting) -> None:
    """Finite | NaN or infinity | an **origin**."""
    job = Job(setting)
    step(job)
    assert job.reasons == [
        "Adam turned finite parameters, gradients and state into 4 NaN of 4 elements in weight; there weight is 0"
    ]


@BOTH
def test_a_step_that_takes_a_wrong_gradient_inherits(setting: Setting) -> None:
    """**A step that is wrong already** explains what is of unknown origin in it."""
    job = Job(setting)
    backward(job, "sqrt", CLEAN, NAN)
    step(job, gradient=NAN)
    assert [origin.call.op for origin in job.origins] == ["sqrt"]


@BOTH
def test_a_state_that_nobody_made_wrong_is_named(setting: Setting) -> None:
    """One came from outside with NaN: it is the **origin**."""
    job = Job(setting)
    given = [x("m", NAN, "state.weight.exp_avg")]
    job.tracker.optimizer(Call("Adam", "optimizer"), given, [y("w", NAN, "output.weight")])
    assert "4 NaN of 4 elements before Adam, and" in job.reasons[0]
    assert job.origins[0].slot == "state.weight.exp_avg"


@BOTH
def test_a_call_inside_the_users_optimizer_tells_the_line_of_its_step(setting: Setting) -> None:
    """An optimizer's step is one call; its line is that of the first call inside it that went wrong."""
    job = Job(setting)
    job.tracker.stepping([])
    job.tracker.set_inside_optimizer(True)
    job.run("div", [x("a")], [y("b", NAN)])
    job.tracker.set_inside_optimizer(False)
    job.tracker.optimizer(Call("Mine", "optimizer"), [], [y("w", NAN, "output.weight")])
    assert [(origin.call.op, origin.shown_at.op) for origin in job.origins] == [("Mine", "div")]
    assert "Mine (div inside it) turned finite" in job.reasons[0]


# Ranks ----------------------------------------------------------------------------------------------------------------


@BOTH
def test_what_a_collective_brings_is_inherited_from_another_rank(setting: Setting) -> None:
    """**Another rank.** What it sent through a collective is inherited from there."""
    job = Job(setting, world=2)
    call = Call("all_reduce", "collective")
    job.tracker.collective(call, "forward", [x("bucket")], [y("bucket", NAN)])
    step(job, gradient=NAN)
    assert job.origins == []
    assert job.came_in[0] == "all_reduce gave 4 NaN of 4 elements, and this rank's own part was finite"


def test_a_collective_of_one_rank_can_only_have_made_it() -> None:
    """Finite | NaN or infinity | an **origin**."""
    job = Job(LIVE)
    job.tracker.collective(Call("all_reduce", "collective"), "forward", [x("a")], [y("a", UP)], alone=True)
    assert job.reasons == ["all_reduce turned finite values into 4 +inf of 4 elements"]


@BOTH
def test_a_mask_may_be_broadcast(setting: Setting) -> None:
    """Infinities that were meant | infinities of the same sign | **meant**."""
    job = Job(setting, world=2)
    job.tracker.data(Call("data", "data"), [y("mask", DOWN)])
    job.tracker.collective(Call("broadcast", "collective"), "forward", [x("mask", DOWN)], [y("mask", DOWN)])
    assert (job.origins, job.came_in) == ([], [])


def test_a_gradient_that_ddp_has_reduced_unseen_came_from_another_rank() -> None:
    """… and so is a parameter's gradient that this rank's own backward made finite: DDP's reducer brought it."""
    job = Job(LIVE, world=2)
    job.run("_foreach_norm", [x("gradient of w", NAN)], [y("norm", NAN)])
    assert job.origins == []
    assert "this rank's own backward was finite" in job.came_in[0]


def test_gathered_parameters_explain_what_follows_once_one_is_wrong() -> None:
    """Parameters of other ranks are gathered for a module and gone when it is done: no call can be blamed."""
    job = Job(LIVE, world=2)
    backward(job, "sqrt", CLEAN, NAN)
    step(job, gradient=NAN)
    job.tracker.begin_step(1)
    job.run("linear", [x("a")], [y("b", NAN)])
    assert [origin.call.op for origin in job.origins] == ["sqrt"]


# Steps ----------------------------------------------------------------------------------------------------------------


def test_live_memory_keeps_its_state_over_steps() -> None:
    """Live, a key stands for memory: what is wrong in one step explains what takes it in the next."""
    job = Job(LIVE)
    job.run("exp", [x("a")], [y("cache", NAN)])
    job.tracker.begin_step(1)
    job.run("add", [x("b"), x("cache", NAN, "input.1")], [y("c", NAN)])
    assert len(job.origins) == 1


def test_once_a_run_is_wrong_what_is_of_unknown_origin_has_it_from_there() -> None:
    """Recorded, a key stands for a content of one step: once anything went wrong, the unknown is taken as wrong."""
    job = Job(RECORDED_RUN)
    job.run("exp", [x("a")], [y("b", NAN)])
    job.states.clear()  # as the adapter does
    job.tracker.begin_step(1)
    job.run("linear", [x("c"), x("w", NAN, "input.1", "fc.weight")], [y("d", NAN)])
    assert len(job.origins) == 1
    assert job.inherited == ["linear"]
