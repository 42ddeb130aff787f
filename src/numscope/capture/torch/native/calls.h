/* A call of a torch function: its stack, its inputs, its results. As api.py, inputs.py and sites.py do it. */

#pragma once
#include "backward.h"

/* The number of the stack that ends in a frame; as Sites.intern. */
static PyObject *site_of(PyObject *watch, PyObject *base, PyObject *start) {
    if (!Watch_stacks.is_set(watch)) return held(minus_one);
    PyObject *sites = Recorder_sites(Watch_recorder(watch));
    PyObject *node = found(Sites__ids(sites), base), *boundaries = Sites__boundaries(sites);
    bool inside = number_of(base) >= 0;
    Ref frame(start ? held(start) : nullptr);
    while (node && frame.p) {
        PyFrameObject *here = reinterpret_cast<PyFrameObject *>(frame.p);
        PyCodeObject *code = PyFrame_GetCode(here);
        Ref key(PyLong_FromVoidPtr(code));
        Py_DECREF(code); /* the frame has it */
        must(key.p);
        if (inside) {
            int ends = PySet_Contains(boundaries, key);
            must(ends);
            if (ends) break;
        }
        node = found(node, key);
        if (!node) break;
#if PY_VERSION_HEX >= 0x030B0000
        Ref instruction(integer(PyFrame_GetLasti(here)));
#else
        Ref instruction(must(PyObject_GetAttrString(frame, "f_lasti")));
#endif
        node = found(node, instruction);
        frame = reinterpret_cast<PyObject *>(PyFrame_GetBack(here));
    }
    PyObject *number = node ? found(node, minus_one) : nullptr;
    return number ? held(number) : method(sites, names._add, start ? start : Py_None, base);
}

/* Where the gradient of an input will go. */
static void aimed(PyObject *targets, PyObject *tensor, const c10::TensorImpl *impl, PyObject *out) {
    if (!impl->requires_grad()) return;
    Ref key(attribute(tensor, names.grad_fn));
    if (key == Py_None) {
        must(PyDict_SetItem(targets, given.LEAVES, Py_True));
        key = from_address(tensor);
    } else {
        Ref place(attribute(tensor, names.output_nr));
        if (number_of(place)) key = tuple(key.give(), place.give());
    }
    if (found(targets, key)) Ref done(called(given.aim_again, targets, key.p, out));
    else must(PyDict_SetItem(targets, key, out));
}

/* Whether a value is a list or tuple of integers alone: a shape, dimensions. */
static bool are_integers(PyObject *value) {
    if (!PyTuple_Check(value) && !PyList_CheckExact(value)) return false;
    for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(value); k++)
        if (!PyLong_CheckExact(PySequence_Fast_GET_ITEM(value, k))) return false;
    return true;
}

/* One of a call's values: the row of a tensor, or what else is noted; as Inputs.find and Inputs.measure. */
static void taken(
    PyObject *watch, PyObject *order, PyObject *group, PyObject *value, PyObject *place, PyObject *others, PyObject *rows,
    PyObject *targets) {
    PyObject *kind = reinterpret_cast<PyObject *>(Py_TYPE(value));
    PyObject *slot = FIELD(place, Place, slot), *name = FIELD(place, Place, name);
    if (kind == given.Tensor || kind == given.Parameter) {
        Ref number, note;
        note_or(watch, number, note, [&] { return number_in(Watch_tensors(watch), value); });
        extend(rows, order, slot, number.p, note.p);
        if (targets != Py_None) aimed(targets, value, impl_of(value), FIELD(place, Place, gradient));
        return;
    }
    int simple = PySet_Contains(given.SIMPLE, kind);
    must(simple);
    if (simple || are_integers(value)) {
        Ref one(tuple(held(name), held(value)));
        append(others, one);
        return;
    }
    Ref more(method(watch, names.flatten_one, group, name, value, others));
    if (PyList_GET_SIZE(more.p)) {
        Ref numbers(method(watch, names.rows, order, more.p));
        extend_by(rows, numbers);
        if (targets != Py_None) Ref done(called(given.aim, watch, targets, more.p));
    }
}

/* The interned text of a call's other arguments, where values like these were seen before; as Values.arguments. */
static PyObject *arguments_of(PyObject *watch, PyObject *positional, PyObject *named) {
    Py_ssize_t count = PyList_GET_SIZE(positional), all = count + PyList_GET_SIZE(named);
    if (!all) return held(minus_one);
    Ref key(must(PyTuple_New(1 + 3 * all)));
    Py_ssize_t at = 0;
    PyTuple_SET_ITEM(key.p, at++, integer(count));
    for (Py_ssize_t k = 0; k < all; k++) {
        PyObject *pair = k < count ? PyList_GET_ITEM(positional, k) : PyList_GET_ITEM(named, k - count);
        PyObject *value = PyTuple_GET_ITEM(pair, 1), *kind = reinterpret_cast<PyObject *>(Py_TYPE(value));
        int exact = PySet_Contains(given.EXACT, kind);
        must(exact);
        double number = !exact && PyFloat_CheckExact(value) ? PyFloat_AS_DOUBLE(value) : 0;
        Ref told;
        if (exact || (number != 0 && number == number)) told = held(value);
        else if (are_integers(value)) told = must(PySequence_Tuple(value));
        else return method(watch, names.arguments, positional, named);
        PyTuple_SET_ITEM(key.p, at++, held(PyTuple_GET_ITEM(pair, 0)));
        PyTuple_SET_ITEM(key.p, at++, held(kind));
        PyTuple_SET_ITEM(key.p, at++, told.give());
    }
    PyObject *text = found(Watch__argument_ids(watch), key);
    return text ? held(text) : method(watch, names.arguments, positional, named);
}

/* Whether one name begins with the other, lines below them aside. */
static bool same_name(PyObject *one, PyObject *two) {
    Py_ssize_t lengths[2];
    const char *texts[2];
    PyObject *both[2] = {one, two};
    for (int k = 0; k < 2; k++) {
        texts[k] = PyUnicode_AsUTF8AndSize(both[k], &lengths[k]);
        if (!texts[k]) throw Raised();
        while (lengths[k] && texts[k][0] == '_') texts[k]++, lengths[k]--;
        while (lengths[k] && texts[k][lengths[k] - 1] == '_') lengths[k]--;
    }
    return !std::memcmp(texts[0], texts[1], static_cast<size_t>(std::min(lengths[0], lengths[1])));
}

static bool is_traced() { /* as is_tracing in compiled.py */
    Ref compiling(attribute(given.compiler, names._is_compiling_flag));
    if (compiling == Py_True || number_from(given.modes)) return is_true_of(given.is_tracing);
    return is_true_of(given.traced);
}

/* The next number of a series in this step; as Series.next. */
static PyObject *next_in(PyObject *series, PyObject *epoch) {
    PyObject *now = Series_now(series);
    if (number_of(FIELD(now, Numbering, epoch)) != number_of(epoch)) {
        Ref fresh(record(given.Numbering, held(epoch), called(given.count), must(PyList_New(0))));
        Locked locked(Series__lock(series));
        if (number_of(FIELD(Series_now(series), Numbering, epoch)) != number_of(epoch)) Series_now.put(series, fresh.give());
        now = Series_now(series);
    }
    if (!PyList_GET_SIZE(FIELD(now, Numbering, given_back))) return next_of(FIELD(now, Numbering, numbers));
    return method(series, names.next, epoch);
}

static PyObject *name_in(PyObject *series, PyObject *known, PyObject *number, PyObject *phase) {
    int64_t place = number_of(number);
    if (place < PyList_GET_SIZE(known)) return held(PyList_GET_ITEM(known, place));
    return phase ? method(series, names.name, number, phase) : method(series, names.name, number);
}

/* A call's inputs as they are before the call; as Inputs of inputs.py, with nothing in `slots`. */
struct Inputs {
    Ref positional, named, rows, targets;
    explicit Inputs(bool follows)
        : positional(must(PyList_New(0))), named(must(PyList_New(0))), rows(must(PyList_New(0))),
          targets(follows ? must(PyDict_New()) : held(Py_None)) {}
    explicit Inputs(PyObject *object) /* what it adds is added to Python's object */
        : positional(held(Inputs_positional(object))), named(held(Inputs_named(object))), rows(held(Inputs_rows(object))),
          targets(held(Inputs_targets(object))) {}
    static bool follows(PyObject *watch) { return Watch_record_backward.is_set(watch) && c10::GradMode::is_enabled(); }
    PyObject *object() const {
        Ref object(made(given.Inputs));
        Inputs_positional.put(object, held(positional));
        Inputs_named.put(object, held(named));
        Inputs_slots.put(object, must(PyList_New(0)));
        Inputs_rows.put(object, held(rows));
        Inputs_targets.put(object, held(targets));
        return object.give();
    }
    void take(PyObject *watch, PyObject *order, PyObject *args, PyObject *kwargs) {
        PyObject *places = Watch_places(watch);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(args); k++)
            taken(watch, order, names.input, PyTuple_GET_ITEM(args, k), PyList_GET_ITEM(places, k), positional, rows, targets);
        if (!kwargs || !PyDict_GET_SIZE(kwargs)) return;
        Ref told(must(PySequence_Tuple(kwargs)));
        PyObject *known = found(Watch__keywords(watch), told);
        Ref where(known ? held(known) : method(watch, names.keywords, kwargs));
        PyObject *key, *value;
        Py_ssize_t at = 0;
        for (Py_ssize_t k = 0; PyDict_Next(kwargs, &at, &key, &value); k++)
            taken(watch, order, names.kwargs, value, PyList_GET_ITEM(where.p, k), named, rows, targets);
    }
    void note(PyObject *watch, PyObject *series, PyObject *number, PyObject *order) { /* an Execution, as Executions.note */
        Ref length(integer(PyList_GET_SIZE(rows.p)));
        extend(Executions_log(Watch_executions(watch)), series, number, order, length.p, rows.p);
    }
    bool aims() const { return targets != Py_None && PyDict_GET_SIZE(targets.p); }
};

/* Inputs.take(inputs, watch, order, args, kwargs) */
static PyObject *take(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
        PyObject *watch = args[1], *positional = args[3], *keywords = args[4];
        check(watch, given.Watch);
        bool usual = Watch_calm.is_set(watch) && PyTuple_CheckExact(positional) && PyDict_CheckExact(keywords) &&
            PyTuple_GET_SIZE(positional) <= POSITIONS;
        if (!usual) return called(given.take, args[0], watch, args[2], positional, keywords);
        Inputs(args[0]).take(watch, args[2], positional, keywords);
        return held(Py_None);
    });
}

/* A call that has begun, as `_begin` of api.py leaves it. */
struct Begun {
    explicit Begun(PyObject *watch) : inputs(Inputs::follows(watch)) {}
    Inputs inputs;
    Ref order, row, series, number, parent;
    int64_t first = -1;
    PyObject *object() const {
        return record(
            given.BegunCall, held(row), inputs.object(), held(series), held(number), held(parent), held(Py_None), integer(first));
    }
};

static void begin(PyObject *watch, PyObject *state, PyObject *api, PyObject *args, PyObject *kwargs, Begun &call) {
    PyObject *recorder = Watch_recorder(watch), *stack = State_stack(state), *series = Api_series(api);
    call.series = held(series);
    call.number = next_in(series, Recorder_epoch(recorder));
    Ref name(name_in(series, Series_forward(series), call.number, nullptr));
    PyObject *parent = innermost(stack, Watch_outside(watch));
    call.parent = held(parent);
    Ref order(next_of(Recorder_orders(recorder)));
    Ref site(site_of(watch, Open_site(parent), reinterpret_cast<PyObject *>(PyEval_GetFrame())));
    call.inputs.take(watch, order, args, kwargs);
    Ref arguments(arguments_of(watch, call.inputs.positional, call.inputs.named));
    call.inputs.note(watch, series, call.number, order);
    CallColumns columns(watch, state, Watch_api_kind(watch));
    columns[CallRow::order] = order;
    columns[CallRow::name] = name;
    columns[CallRow::module] = Open_module(parent);
    columns[CallRow::module_class] = Open_module_class(parent);
    columns[CallRow::phase] = Watch_forward_phase(watch);
    columns[CallRow::parent] = Open_order(parent);
    columns[CallRow::arguments] = arguments;
    columns[CallRow::stack] = site;
    call.row = columns.row();
    if (call.inputs.aims()) call.first = number_from(given.sequence);
    call.order = order.give();
}

static void end(PyObject *watch, Begun &call, PyObject *result) {
    PyObject *recorder = Watch_recorder(watch);
    extend_by(Recorder_call_rows(recorder), call.row);
    Ref number, note;
    note_or(watch, number, note, [&] { return looked_up(Watch_tensors(watch), result, Py_None); });
    extend(call.inputs.rows, call.order.p, Watch_first_output(watch), number.p, note.p);
    extend_by(Recorder_slot_rows(recorder), call.inputs.rows);
    if (call.first >= 0 && impl_of(result)->requires_grad()) {
        Ref node(attribute(result, names.grad_fn));
        if (node != Py_None && sequence_of(node) >= call.first) {
            Ref name(name_in(call.series, Series_backward(call.series), call.number, names.backward));
            Ref backward(backward_call(watch, name, call.row, call.order, Open_backward(call.parent)));
            Ref incoming(tuple(attribute(result, names.output_nr), held(backward), held(Watch_first_gradient(watch))));
            attach_one(watch, backward, incoming, node, call.inputs.targets, call.first);
        }
    }
    flush_if_full(watch, recorder);
}

/* ApiMode.__torch_function__(mode, func, types, args, kwargs): usual calls here, all others by Python's. */
static PyObject *call_function(PyObject *, PyObject *const *all, Py_ssize_t count) {
    Asked asked(all, count);
    PyObject *mode = asked.mode, *watch = ApiMode__watch(mode), *api = nullptr;
    Ref state;
    bool usual = false, well = is_done([&] {
        api = found(ApiMode__known(mode), asked.func);
        if (!is_a(api, given.Api)) api = nullptr;
        if (!api || Api_plain.is_set(api)) return;
        state = state_of(ApiMode__thread(mode));
        PyObject *stack = State_stack(state);
        usual = Api_usual.is_set(api) && !State_busy.is_set(state) && Watch_on.is_set(watch) && Watch_calm.is_set(watch) && asked.is_plain() &&
            !Watch_asks.is_set(watch) && !PySet_GET_SIZE(Tensors_uninitialized(Watch_tensors(watch))) && State_quiet.is_none(state) &&
            Watch_forward_on.is_set(watch) && !Api_series.is_none(api) && !is_traced() && !number_from(given.functions) &&
            number_from(given.task) == -1 && PyTuple_GET_SIZE(asked.args) <= POSITIONS;
        if (usual && PyList_GET_SIZE(stack)) {
            PyObject *op = Open_op(innermost(stack, nullptr));
            usual = !(PyUnicode_GET_LENGTH(op) && same_name(op, Api_op(api)));
        }
    });
    if (!well) return nullptr;
    if (api && Api_plain.is_set(api)) return asked.done(asked.func);
    if (!usual) return asked.by(given.call_function);
    Begun call(watch);
    Ref kept(held(api));
    {
        OwnCode own(state);
        well = is_done([&] { begin(watch, state, api, asked.args, asked.kwargs, call); });
        if (!well) {
            call.order = nullptr;
            well = is_done([&] { fault(watch, Api_head(api)); });
        }
    }
    if (!well) return nullptr;
    Ref result(asked.done(asked.func));
    if (!call.order.p) return result.give();
    if (!result.p) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
        ErrorAside error;
        bool told = is_done([&] { Ref done(called(given.raised, watch, api, call.row.p, call.inputs.rows.p, error.value)); });
        if (!told) error.replace();
        return nullptr;
    }
    if (!is_a(result, given.Tensor)) {
        well = is_done([&] {
            Ref begun(call.object()), done(called(given.end_call, watch, api, begun.p, Py_None, result.p));
        });
        return well ? result.give() : nullptr;
    }
    OwnCode own(state);
    well = is_done([&] { end(watch, call, result); }) || is_done([&] { fault(watch, Api_head(api)); });
    return well ? result.give() : nullptr;
}
