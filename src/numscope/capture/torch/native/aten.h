/* A dispatched operator: its name, its stack or its forward operator, its inputs and its results. As aten.py does it. */

#pragma once
#include "modules.h"

/* The number of a new view of a tensor, as Tensors.look_up. Views that the same operation (`how`) makes of tensors of one
   layout have one layout, which is found once; the address is asked for each view. */
static PyObject *looked_up_view(PyObject *tensors, PyObject *tensor, PyObject *base, PyObject *how) {
    Ref key(from_address(base)), own(from_address(tensor));
    Ref known(found(Tensors_cached(tensors), key));
    Py_XINCREF(known.p);
    if (!is_a(known, given.KnownTensor) || referent(KnownTensor_tensor(known)) != base || !is_plain(tensor) || !is_simple(impl_of(tensor)))
        return looked_up(tensors, tensor, base);
    PyObject *views = Layout_views(KnownTensor_layout(known));
    Ref view(found(views, how)), content(held(KnownTensor_content(known)));
    Py_XINCREF(view.p);
    uint64_t at = reinterpret_cast<uint64_t>(impl_of(tensor)->data());
    uint64_t data = reinterpret_cast<uint64_t>(PyLong_AsVoidPtr(KnownTensor_data_ptr(known)));
    if (!is_a(view, given.View) || !is_a(FIELD(view, View, layout), given.Layout)) {
        Ref number(looked_up(tensors, tensor, base));
        PyObject *entry = found(Tensors_cached(tensors), own);
        int same = is_a(entry, given.KnownTensor) ? PyObject_RichCompareBool(KnownTensor_content(entry), content, Py_EQ) : 0;
        must(same);
        /* Without data there is no distance. `how` does not tell apart views that differ in a later dimension. */
        if (same && data && impl_of(tensor)->dim() <= LONGEST) {
            Ref learned(record(given.View, held(KnownTensor_layout(entry)), integer(static_cast<int64_t>(at - data))));
            must(PyDict_SetItem(views, how, learned));
        }
        return number.give();
    }
    PyObject *layout = FIELD(view, View, layout);
    if (at != data + static_cast<uint64_t>(number_of(FIELD(view, View, distance)))) return looked_up(tensors, tensor, base);
    PyObject *before = found(Layout_numbers(layout), content);
    Ref number(before ? held(before) : recorded(Tensors__recorder(tensors), layout, content, tensor, at, false));
    if (!before) must(PyDict_SetItem(Layout_numbers(layout), content, number));
    Ref made(new_known(tensor, at, KnownTensor_storage(known), layout));
    cache(tensors, own, made, KnownTensor_version(known), content, number);
    return number.give();
}

/* An operator that has begun. */
struct BegunOperator {
    Ref order, arguments;
    Inputs inputs{false};
};

static PyObject *next_name(PyObject *names_of) {
    PyObject *iterator = Names_coming(names_of), *name = Py_TYPE(iterator)->tp_iternext(iterator);
    if (name) return name;
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) throw Raised();
        PyErr_Clear();
    }
    return method(names_of, names.next);
}

/* What belongs to an operator that runs in the engine: the forward operator whose node that is. */
static PyObject *owner_of(PyObject *mode, PyObject *order, PyObject *thread) {
    Ref node(must(PyObject_CallNoArgs(given.current_node)));
    if (number_of(thread) || node == Py_None) return method(mode, names._link, order, thread);
    Ref sequence(method(node, names._sequence_nr));
    PyObject *owner = found(AtenMode__owners(mode), sequence);
    return held(owner ? owner : minus_one);
}

static void begin_operator(
    PyObject *mode, PyObject *watch, PyObject *state, PyObject *operation, PyObject *args, PyObject *kwargs, bool in_engine,
    BegunOperator &call) {
    PyObject *recorder = Watch_recorder(watch), *stack = State_stack(state);
    if (number_of(AtenMode__epoch(mode)) != number_of(Recorder_epoch(recorder)))
        Ref done(method(mode, names._begin_step, Recorder_epoch(recorder)));
    Ref thread(thread_of(watch, state));
    PyObject *parent = innermost(stack, Watch_outside(watch));
    PyObject *series = in_engine ? Operator_backward(operation) : Operator_forward(operation);
    Ref kept(held(parent)), name(next_name(series)), order(next_of(Recorder_orders(recorder))), forward, site;
    if (in_engine) {
        forward = owner_of(mode, order, thread);
        site = held(minus_one);
    } else {
        forward = held(minus_one);
        Ref sequence(integer(number_from(given.sequence) - 1 + number_of(thread) * number_of(given.THREAD)));
        must(PyDict_SetDefault(AtenMode__owners(mode), sequence, order));
        site = site_of(watch, Open_site(parent), reinterpret_cast<PyObject *>(PyEval_GetFrame()));
    }
    call.order = held(order);
    call.inputs.take(watch, order, args, kwargs);
    call.arguments = arguments_of(watch, call.inputs.positional, call.inputs.named);
    CallColumns columns(watch, state, Watch_aten_kind(watch));
    columns[CallRow::order] = order;
    columns[CallRow::name] = name;
    columns[CallRow::module] = Open_module(parent);
    columns[CallRow::module_class] = Open_module_class(parent);
    columns[CallRow::phase] = in_engine ? Watch_backward_phase(watch) : Watch_forward_phase(watch);
    columns[CallRow::parent] = Open_order(parent);
    columns[CallRow::forward] = forward;
    columns[CallRow::arguments] = call.arguments;
    columns[CallRow::stack] = site;
    columns.add_to(Recorder_call_rows(recorder));
    if (!in_engine) call.inputs.note(watch, series, name, order);
}

static void end_operator(PyObject *watch, PyObject *operation, PyObject *args, PyObject *result, BegunOperator &call) {
    bool aliases = Operator_aliases.is_set(operation) && PyTuple_GET_SIZE(args);
    PyObject *base = aliases ? PyTuple_GET_ITEM(args, 0) : Py_None, *tensors = Watch_tensors(watch);
    if (!is_a(result, given.Tensor) || (aliases && !is_plain(base))) {
        Ref slots(method(watch, names.flatten_output, result));
        Ref more(method(watch, names.rows, call.order.p, slots.p, Py_False, Py_False, base));
        extend_by(call.inputs.rows, more);
        return;
    }
    Ref number, note;
    note_or(watch, number, note, [&]() -> PyObject * {
        if (!aliases) return looked_up(tensors, result, Py_None);
        Ref how(must(PyNumber_Add(Operator_key(operation), call.arguments)));
        return looked_up_view(tensors, result, base, how);
    });
    extend(call.inputs.rows, call.order.p, Watch_first_output(watch), number.p, note.p);
}

/* Whether the backward of a compiled region runs, whose inside is left alone; as is_in_compiled_backward in compiled.py. */
static bool is_in_compiled_backward() {
    Ref node(must(PyObject_CallNoArgs(given.current_node)));
    return !std::strcmp(Py_TYPE(node)->tp_name, "CompiledFunctionBackward");
}

/* AtenMode.__torch_dispatch__(mode, func, types, args, kwargs): ordinary operators here, all others by Python's. */
static PyObject *call_operator(PyObject *, PyObject *const *all, Py_ssize_t count) {
    Asked asked(all, count);
    PyObject *mode = asked.mode, *watch = AtenMode__watch(mode), *operation = nullptr;
    Ref state;
    bool ordinary = false, in_engine = false, well = is_done([&] {
        Ref key(from_address(asked.func));
        operation = found(AtenMode__operators(mode), key);
        if (!is_a(operation, given.Operator)) return;
        state = state_of(Watch_thread(watch));
        ordinary = Operator_ordinary.is_set(operation) && !State_busy.is_set(state) && Watch_on.is_set(watch) &&
            asked.is_plain() && !Watch_asks.is_set(watch) && !PySet_GET_SIZE(Tensors_uninitialized(Watch_tensors(watch))) &&
            State_optimizer_step.is_none(state) && Watch_forward_on.is_set(watch) && !number_from(given.functions) &&
            !number_from(given.modes);
        if (ordinary) {
            in_engine = number_from(given.task) != -1;
            ordinary = !(in_engine && (c10::GradMode::is_enabled() || is_in_compiled_backward()));
        }
    });
    if (!well) return nullptr;
    if (!ordinary) return asked.by(given.call_operator);
    BegunOperator call;
    Ref kept(held(operation));
    {
        OwnCode own(state);
        well = is_done([&] { begin_operator(mode, watch, state, operation, asked.args, asked.kwargs, in_engine, call); });
        if (!well) {
            call.order = nullptr;
            well = is_done([&] { fault(watch, Api_head(operation)); });
        }
    }
    if (!well) return nullptr;
    Ref result(asked.done(Operator_call(operation)));
    if (!call.order.p) return result.give();
    PyObject *recorder = Watch_recorder(watch);
    if (!result.p) {
        ErrorAside error;
        if (!is_done([&] { extend_by(Recorder_slot_rows(recorder), call.inputs.rows); })) PyErr_Clear();
        return nullptr;
    }
    OwnCode own(state);
    well = is_done([&] { end_operator(watch, operation, asked.args, result, call); });
    if (!well) well = is_done([&] { fault(watch, Api_head(operation)); });
    bool added = is_done([&] {
        extend_by(Recorder_slot_rows(recorder), call.inputs.rows);
        flush_if_full(watch, recorder);
    }) || is_done([&] { fault(watch, Api_head(operation)); });
    return well && added ? result.give() : nullptr;
}
