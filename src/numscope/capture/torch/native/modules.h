/* A module's call: its inputs, parameters and buffers, its result. As modules.py does it. */

#pragma once
#include "calls.h"

/* The number of a module's own tensor: most are as an optimizer has left them in the step before; as Tensors.number. */
static PyObject *state_number(PyObject *tensors, PyObject *tensor) {
    if (!is_plain(tensor) || !is_simple(impl_of(tensor))) return number_in(tensors, tensor);
    c10::TensorImpl *impl = impl_of(tensor);
    Ref own(from_address(tensor));
    PyObject *current = known_of(Tensors_cached(tensors), own, tensor, impl);
    if (current) return held(KnownTensor_number(current));
    PyObject *carried_over = Tensors_carried_over(tensors), *storage = found(CarriedOver_storage_of(carried_over), own);
    PyObject *carried = storage ? found(CarriedOver_by_storage(carried_over), storage) : nullptr;
    if (!is_a(carried, given.CarriedTensor) || !is_a(CarriedTensor_known(carried), given.KnownTensor))
        return looked_up(tensors, tensor, Py_None);
    Ref kept(held(carried)), known(held(CarriedTensor_known(carried))), version(held(CarriedTensor_version(carried)));
    PyObject *address = KnownTensor_storage(known), *layout = KnownTensor_layout(known);
    bool same = referent(KnownTensor_tensor(known)) == tensor && number_of(version) == version_of(impl) &&
        PyLong_AsVoidPtr(KnownTensor_data_ptr(known)) == impl->data();
    int unversioned = PySet_Contains(Tensors__unversioned(tensors), address);
    must(unversioned);
    if (!same || unversioned || found(Tensors__stale_versions(tensors), address))
        return looked_up(tensors, tensor, Py_None);
    PyObject *generation = found(Tensors__generations(tensors), address);
    Ref content(content_key(generation ? generation : address, number_of(version)));
    PyObject *before = found(Layout_numbers(layout), content);
    Ref number(before ? held(before) : again(Tensors__recorder(tensors), CarriedTensor_fingerprint(carried), layout));
    if (!before) must(PyDict_SetItem(Layout_numbers(layout), content, number));
    cache(tensors, own, known, version, content, number);
    return number.give();
}

/* Add the rows of a module's own tensors, in slots by their names. */
static void take_state(PyObject *watch, PyObject *order, PyObject *tensors, PyObject *slots, PyObject *rows) {
    PyObject *name, *tensor, *known = Watch_tensors(watch);
    for (Py_ssize_t at = 0; PyDict_Next(tensors, &at, &name, &tensor);) {
        if (tensor == Py_None) continue;
        Ref kept(held(tensor));
        PyObject *slot = found(slots, name);
        Ref made(slot ? held(slot) : method(watch, names.state_slot, slots, name));
        Ref number, note;
        note_or(watch, number, note, [&] { return state_number(known, tensor); });
        extend(rows, order, made.p, number.p, note.p);
    }
}

static bool are_simple(PyObject *buffers) {
    PyObject *name, *tensor;
    for (Py_ssize_t at = 0; PyDict_Next(buffers, &at, &name, &tensor);)
        if (tensor != Py_None && !(is_plain(tensor) && is_simple(impl_of(tensor)))) return false;
    return true;
}

/* A usual call of a module inside another, as Modules._begin leaves it; null where that has to do it. */
static PyObject *begun_module(PyObject *self, PyObject *state, PyObject *module, PyObject *args, PyObject *kwargs, PyObject *frame) {
    PyObject *watch = Modules__watch(self), *recorder = Watch_recorder(watch), *stack = State_stack(state);
    Ref own(from_address(module));
    PyObject *known = found(Modules__modules(self), own);
    Py_ssize_t depth = PyList_GET_SIZE(stack);
    if (!is_a(known, given.ModuleName) || referent(FIELD(known, ModuleName, module)) != module || !depth || Watch_asks.is_set(watch) ||
        FIELD(known, ModuleName, kind) != reinterpret_cast<PyObject *>(Py_TYPE(module)) || !Watch_records_modules.is_set(watch) ||
        !Watch_calm.is_set(watch) || PyTuple_GET_SIZE(args) > POSITIONS || number_from(given.task) != -1)
        return nullptr;
    Ref parts(attribute(module, names.__dict__));
    PyObject *parameters = found(parts, names._parameters), *buffers = found(parts, names._buffers);
    PyObject *inner = found(parts, names._modules);
    bool few = parameters && PyDict_CheckExact(parameters) && PyDict_GET_SIZE(parameters) <= LIST && buffers &&
        PyDict_CheckExact(buffers) && PyDict_GET_SIZE(buffers) <= LIST; /* more are measured all at once */
    if (!few || !inner || !are_simple(buffers)) return nullptr;
    PyObject *parent = innermost(stack, nullptr), *path = FIELD(known, ModuleName, path), *series = FIELD(known, ModuleName, series);
    Ref kept(held(parent)), kept_known(held(known)), site(site_of(watch, Open_site(parent), frame));
    Ref order(next_of(Recorder_orders(recorder)));
    Inputs inputs(Inputs::follows(watch));
    inputs.take(watch, order, args, kwargs);
    Ref number(next_in(series, Recorder_epoch(recorder)));
    inputs.note(watch, series, number, order);
    Ref name(name_in(series, Series_forward(series), number, nullptr));
    Ref backward_name(name_in(series, Series_backward(series), number, names.backward));
    PyObject *module_id = FIELD(known, ModuleName, path_id), *class_id = FIELD(known, ModuleName, class_id);
    Ref arguments(arguments_of(watch, inputs.positional, inputs.named));
    CallColumns columns(watch, state, Watch_module_kind(watch));
    columns[CallRow::order] = order;
    columns[CallRow::name] = name;
    columns[CallRow::module] = module_id;
    columns[CallRow::module_class] = class_id;
    columns[CallRow::phase] = Watch_forward_phase(watch);
    columns[CallRow::parent] = Open_order(parent);
    columns[CallRow::arguments] = arguments;
    columns[CallRow::stack] = site;
    Ref row(columns.row());
    Ref backward(backward_call(watch, backward_name, row, order, Open_backward(parent)));
    Ref open(made(given.Open));
    Open_order.put(open, held(order));
    Open_module.put(open, held(module_id));
    Open_module_class.put(open, held(class_id));
    Open_path.put(open, held(path));
    Open_site.put(open, site.give());
    Open_op.put(open, held(names.nothing));
    Open_backward.put(open, held(backward));
    if (PyDict_GET_SIZE(parameters) || PyDict_GET_SIZE(inner)) must(PyDict_SetItem(Modules__backwards(self), path, backward));
    extend_by(Recorder_call_rows(recorder), row);
    Ref versions(held(Py_None));
    if (Modules__shows_state.is_set(self)) {
        if (PyDict_GET_SIZE(parameters)) take_state(watch, order, parameters, Watch_parameter_slots(watch), inputs.rows);
        if (PyDict_GET_SIZE(buffers)) take_state(watch, order, buffers, Watch_buffer_slots(watch), inputs.rows);
    }
    if (PyDict_GET_SIZE(buffers)) {
        versions = must(PyDict_New());
        PyObject *key, *tensor;
        for (Py_ssize_t at = 0; PyDict_Next(buffers, &at, &key, &tensor);) {
            if (tensor == Py_None) continue;
            Ref version(integer(version_of(impl_of(tensor))));
            must(PyDict_SetItem(versions, key, version));
        }
    }
    extend_by(Recorder_slot_rows(recorder), inputs.rows);
    return record(
        given.BegunModule, open.give(), held(Py_True), name.give(), backward.give(), versions.give(), inputs.targets.give(),
        must(PyObject_CallNoArgs(given.sequence)));
}

/* Modules._begin(modules, state, module, args, kwargs, frame) */
static PyObject *begin_module(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
        check(args[1], given.State);
        PyObject *begun = begun_module(args[0], args[1], args[2], args[3], args[4], args[5]);
        return begun ? begun : called(given.begin_module, args[0], args[1], args[2], args[3], args[4], args[5]);
    });
}

/* Modules._end(modules, module, begun, result) */
static PyObject *end_module(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
        PyObject *self = args[0], *module = args[1], *begun = args[2], *result = args[3];
        PyObject *watch = Modules__watch(self), *recorder = Watch_recorder(watch);
        Ref parts(attribute(module, names.__dict__));
        PyObject *buffers = found(parts, names._buffers);
        bool usual = is_a(begun, given.BegunModule) && is_a(result, given.Tensor) && FIELD(begun, BegunModule, wanted) == Py_True &&
            Watch_calm.is_set(watch) && buffers && PyDict_CheckExact(buffers) && !PyDict_GET_SIZE(buffers);
        if (!usual) return called(given.end_module, self, module, begun, result);
        PyObject *backward = FIELD(begun, BegunModule, backward), *targets = FIELD(begun, BegunModule, targets);
        Ref number, note;
        note_or(watch, number, note, [&] { return number_in(Watch_tensors(watch), result); });
        extend(
            Recorder_slot_rows(recorder), Open_order(FIELD(begun, BegunModule, open)), Watch_first_output(watch), number.p, note.p);
        if (targets != Py_None && backward != Py_None && impl_of(result)->requires_grad()) {
            BackwardCall_attached.put(backward, held(Py_True));
            Ref node(attribute(result, names.grad_fn));
            int64_t first = number_of(FIELD(begun, BegunModule, first));
            if (node != Py_None && sequence_of(node) >= first) {
                Ref incoming(tuple(attribute(result, names.output_nr), held(backward), held(Watch_first_gradient(watch))));
                attach_one(watch, backward, incoming, node, targets, first);
            }
        }
        flush_if_full(watch, recorder);
        return held(Py_None);
    });
}
