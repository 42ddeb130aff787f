/* A dispatched operator: its name, its stack or its forward operator, its inputs and its results. As aten.py does it. */

#pragma once
#include "modules.h"
#include <marshal.h>

/* The number of a new view of a tensor; `known`: what is known of that, or null. As Tensors.look_up_view. */
static PyObject *looked_up_view(PyObject *tensors, PyObject *tensor, PyObject *base, PyObject *known, PyObject *how) {
    if (!known) {
        Ref key(from_address(base));
        known = found(Tensors_cached(tensors), key);
    }
    bool usual = is_a(known, given.KnownTensor) && referent(KnownTensor_tensor(known)) == base && is_plain(tensor) &&
        is_simple(impl_of(tensor));
    if (!usual) return called(given.look_up_view, tensors, tensor, base, known ? known : Py_None, how);
    Ref kept(held(known));
    PyObject *view = found(Layout_views(KnownTensor_layout(known)), how);
    if (!is_record(view, 2) || !is_a(PyTuple_GET_ITEM(view, 0), given.Layout))
        return called(given.look_up_view, tensors, tensor, base, known, how);
    Ref kept_view(held(view));
    PyObject *layout = PyTuple_GET_ITEM(view, 0), *content = KnownTensor_content(known); /* a View: layout, distance */
    uint64_t at = reinterpret_cast<uint64_t>(impl_of(tensor)->data());
    uint64_t data = reinterpret_cast<uint64_t>(PyLong_AsVoidPtr(KnownTensor_data_ptr(known)));
    if (at != data + static_cast<uint64_t>(number_of(PyTuple_GET_ITEM(view, 1)))) return looked_up(tensors, tensor, base);
    Ref kept_content(held(content));
    PyObject *before = found(Layout_numbers(layout), content);
    Ref number(before ? held(before) : recorded(Tensors__recorder(tensors), layout, content, tensor, at, false));
    if (!before) must(PyDict_SetItem(Layout_numbers(layout), content, number));
    Ref made(new_known(tensor, at, KnownTensor_storage(known), layout)), own(from_address(tensor));
    cache(tensors, own, made, KnownTensor_version(known), content, number);
    return number.give();
}

struct Dispatched {
    Ref order, rows, arguments;
    Ref known; /* what is known of the last tensor it was given, if that is cached */
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

static PyObject *text_of(PyObject *mode, PyObject *operation, PyObject *args, PyObject *others, PyObject *last) {
    Ref both;
    if (PyList_GET_SIZE(others)) {
        both = must(PyList_New(0));
        extend(both, others, last);
    }
    Ref key(PyMarshal_WriteObjectToString(both.p ? both.p : last, 2)); /* it tells types and signs apart, or refuses */
    if (key.p) {
        PyObject *text = found(Operator_texts(operation), key);
        if (text) return held(text);
    } else {
        if (!PyErr_ExceptionMatches(PyExc_ValueError)) throw Raised();
        PyErr_Clear();
    }
    return method(mode, names._arguments, operation, args, others, last);
}

/* One of an operator's values that is no plain tensor. */
static void other_value(
    PyObject *watch, PyObject *state, PyObject *value, PyObject *slot, PyObject *others, Dispatched &call) {
    int simple = PySet_Contains(given.SIMPLE, reinterpret_cast<PyObject *>(Py_TYPE(value)));
    must(simple);
    if (simple) {
        Py_ssize_t place = PySequence_Index(Watch_inputs(watch), slot);
        if (place < 0) throw Raised();
        Ref one(tuple(held(PyList_GET_ITEM(given.NUMBERS, place)), held(value)));
        append(others, one);
    } else if (value != given.ABSENT) {
        Ref more(called(given.nested_rows, watch, state, call.order.p, slot, value, others));
        extend_by(call.rows, more);
    }
}

static void begin_operator(
    PyObject *mode, PyObject *watch, PyObject *state, PyObject *operation, PyObject *args, PyObject *kwargs, bool in_engine,
    Dispatched &call) {
    PyObject *recorder = Watch_recorder(watch), *tensors = Watch_tensors(watch), *stack = State_stack(state);
    if (number_of(AtenMode__epoch(mode)) != number_of(Recorder_epoch(recorder)))
        Ref done(method(mode, names._begin_step, Recorder_epoch(recorder)));
    Ref thread(thread_of(watch, state));
    PyObject *parent = innermost(stack, AtenMode__outside(mode));
    Ref kept(held(parent)), name(next_name(in_engine ? Operator_backward(operation) : Operator_forward(operation)));
    Ref order(next_of(Recorder_orders(recorder))), forward, site;
    if (in_engine) {
        forward = owner_of(mode, order, thread);
        site = held(minus_one);
    } else {
        forward = held(minus_one);
        int64_t number = number_from(given.sequence) - 1 + number_of(thread) * number_of(given.THREAD);
        Ref sequence(integer(number));
        must(PyDict_SetDefault(AtenMode__owners(mode), sequence, order));
        site = site_of(watch, Open_site(parent), reinterpret_cast<PyObject *>(PyEval_GetFrame()));
    }
    call.rows = must(PyList_New(0));
    call.order = held(order);
    Ref others(must(PyList_New(0)));
    Ref arranged(Operator_in_order.is_set(operation) ? held(args) : method(operation, names.arranged, args));
    Ref values(must(PySequence_Fast(arranged, "arguments")));
    PyObject *slots = Operator_slots(operation), *cached = Tensors_cached(tensors);
    Py_ssize_t shown = std::min(PySequence_Fast_GET_SIZE(values.p), PyList_GET_SIZE(slots));
    for (Py_ssize_t k = 0; k < shown; k++) {
        PyObject *value = PySequence_Fast_GET_ITEM(values.p, k), *slot = PyList_GET_ITEM(slots, k);
        call.known = nullptr;
        if (!is_plain(value)) {
            other_value(watch, state, value, slot, others, call);
            continue;
        }
        if (is_simple(impl_of(value))) {
            Ref key(from_address(value));
            PyObject *known = known_of(cached, key, value, impl_of(value));
            if (known) {
                extend(call.rows, order.p, slot, KnownTensor_number(known), minus_one);
                call.known = held(known);
                continue;
            }
        }
        Ref number, note;
        note_or(watch, number, note, [&] { return looked_up(tensors, value, Py_None); });
        extend(call.rows, order.p, slot, number.p, note.p);
    }
    int64_t most = number_of(Operator_tensors(operation));
    if (kwargs) {
        Ref text(called(given.named_rows, watch, state, operation, order.p, args, others.p, kwargs, call.rows.p));
        call.arguments = text.give();
    } else if (PyList_GET_SIZE(others.p) || PySequence_Fast_GET_SIZE(values.p) > most) {
        Ref last(must(PySequence_GetSlice(arranged, most, PySequence_Fast_GET_SIZE(values.p))));
        call.arguments = text_of(mode, operation, args, others, last);
    } else {
        call.arguments = held(minus_one);
    }
    extend(
        Recorder_call_rows(recorder), order.p, name.p, AtenMode__kind(mode), Open_module(parent), Open_module_class(parent),
        in_engine ? Watch_backward_phase(watch) : Watch_forward_phase(watch), Open_order(parent), forward.p, call.arguments.p, site.p,
        Py_False, minus_one, thread.p);
    if (!in_engine) {
        Ref count(integer(PyList_GET_SIZE(call.rows.p)));
        extend(Executions_log(Watch_executions(watch)), Operator_forward(operation), name.p, order.p, count.p, call.rows.p);
    }
}

static void end_operator(
    PyObject *watch, PyObject *state, PyObject *operation, PyObject *args, PyObject *result, Dispatched &call) {
    bool aliases = Operator_aliases.is_set(operation);
    bool plain = reinterpret_cast<PyObject *>(Py_TYPE(result)) == given.Tensor;
    if (!plain || (aliases && !is_plain(PyTuple_GET_ITEM(args, 0)))) {
        Ref more(called(given.result_rows, watch, state, operation, call.order.p, args, result));
        extend_by(call.rows, more);
        return;
    }
    PyObject *tensors = Watch_tensors(watch);
    Ref number, note;
    note_or(watch, number, note, [&]() -> PyObject * {
        if (!aliases) return looked_up(tensors, result, Py_None);
        Ref how(must(PyNumber_Add(Operator_key(operation), call.arguments)));
        return looked_up_view(tensors, result, PyTuple_GET_ITEM(args, 0), call.known, how);
    });
    extend(call.rows, call.order.p, Watch_first_output(watch), number.p, note.p);
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
            asked.is_plain() && !Watch_asks.is_set(watch) &&
            !PySet_GET_SIZE(Tensors_uninitialized(Watch_tensors(watch))) && State_optimizer_step.is_none(state) && Watch_forward_on.is_set(watch) &&
            !number_from(given.functions);
        if (ordinary) {
            in_engine = number_from(given.task) != -1;
            ordinary = !(in_engine && c10::GradMode::is_enabled());
        }
    });
    if (!well) return nullptr;
    if (!ordinary) return asked.by(given.call_operator);
    Dispatched call;
    Ref kept(held(operation));
    State_busy.put(state, held(Py_True));
    well = is_done([&] { begin_operator(mode, watch, state, operation, asked.args, asked.kwargs, in_engine, call); });
    if (!well) {
        call.order = nullptr;
        well = is_done([&] { fault(watch, Api_head(operation)); });
    }
    State_busy.put(state, held(Py_False));
    if (!well) return nullptr;
    Ref result(asked.done(Operator_call(operation)));
    if (!call.order.p) return result.give();
    PyObject *recorder = Watch_recorder(watch);
    if (!result.p) {
        PyObject *kind, *value, *trace;
        PyErr_Fetch(&kind, &value, &trace);
        is_done([&] { extend_by(Recorder_slot_rows(recorder), call.rows); });
        PyErr_Restore(kind, value, trace);
        return nullptr;
    }
    State_busy.put(state, held(Py_True));
    well = is_done([&] { end_operator(watch, state, operation, asked.args, result, call); });
    if (!well) well = is_done([&] { fault(watch, Api_head(operation)); });
    bool added = is_done([&] {
        extend_by(Recorder_slot_rows(recorder), call.rows);
        if (PyList_GET_SIZE(Recorder_slot_rows(recorder)) > number_of(Recorder_full(recorder)))
            Ref done(method(mode, names._flush, Api_head(operation)));
    });
    State_busy.put(state, held(Py_False));
    return well && added ? result.give() : nullptr;
}
