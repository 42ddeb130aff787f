/* What all parts share: Python's objects held and let go, the slots of our own classes, and what c10 tells of a tensor. */

#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>

#include "records.h"

#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

struct Raised {}; /* Python's error is set */

/* A reference that is given back when it goes out of sight. */
struct Ref {
    PyObject *p;
    Ref(PyObject *owned = nullptr) : p(owned) {}
    Ref(Ref &&other) noexcept : p(other.p) { other.p = nullptr; }
    Ref &operator=(Ref &&other) noexcept {
        std::swap(p, other.p);
        return *this;
    }
    Ref(const Ref &) = delete;
    Ref &operator=(const Ref &) = delete;
    ~Ref() { Py_XDECREF(p); }
    operator PyObject *() const { return p; }
    PyObject *give() { return std::exchange(p, nullptr); }
};

static inline PyObject *must(PyObject *object) {
    if (!object) throw Raised();
    return object;
}
static inline void must(int answer) {
    if (answer < 0) throw Raised();
}
static inline PyObject *held(PyObject *object) { return Py_NewRef(object); }
static inline PyObject *integer(int64_t number) { return must(PyLong_FromLongLong(number)); }
static inline PyObject *from_address(const void *address) { return must(PyLong_FromVoidPtr(const_cast<void *>(address))); }
static inline int64_t number_of(PyObject *object) {
    int64_t number = PyLong_AsLongLong(object);
    if (number == -1 && PyErr_Occurred()) throw Raised();
    return number;
}
/* What a dictionary has, borrowed, or null. */
static inline PyObject *found(PyObject *dictionary, PyObject *key) {
    PyObject *value = PyDict_GetItemWithError(dictionary, key);
    if (!value && PyErr_Occurred()) throw Raised();
    return value;
}
static inline PyObject *next_of(PyObject *iterator) {
    PyObject *value = Py_TYPE(iterator)->tp_iternext(iterator);
    if (!value && !PyErr_Occurred()) PyErr_SetNone(PyExc_StopIteration);
    return must(value);
}
static inline PyObject *attribute(PyObject *object, PyObject *name) { return must(PyObject_GetAttr(object, name)); }
template <typename... Arguments>
static inline PyObject *method(PyObject *object, PyObject *name, Arguments... arguments) {
    PyObject *all[] = {object, arguments...};
    return must(PyObject_VectorcallMethod(name, all, (1 + sizeof...(arguments)) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}
template <typename... Arguments>
static inline PyObject *called(PyObject *function, Arguments... arguments) {
    PyObject *all[] = {nullptr, arguments...};
    return must(PyObject_Vectorcall(function, all + 1, sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
}
static inline bool is_true_of(PyObject *function) { /* what a function without arguments says */
    Ref answer(must(PyObject_CallNoArgs(function)));
    return answer == Py_True;
}
static inline int64_t number_from(PyObject *function) {
    Ref answer(must(PyObject_CallNoArgs(function)));
    return number_of(answer);
}
template <typename... Objects> static inline PyObject *tuple(Objects... objects) { /* of new references */
    PyObject *made = must(PyTuple_New(sizeof...(objects)));
    Py_ssize_t place = 0;
    (PyTuple_SET_ITEM(made, place++, objects), ...);
    return made;
}
/* An empty record of one of our NamedTuple classes, and one of new references. */
static inline PyObject *new_record(PyObject *kind, Py_ssize_t fields) {
    PyObject *made = must(reinterpret_cast<PyTypeObject *>(kind)->tp_alloc(reinterpret_cast<PyTypeObject *>(kind), fields));
#if PY_VERSION_HEX >= 0x030E0000
    reinterpret_cast<PyTupleObject *>(made)->ob_hash = -1;
#endif
    return made;
}
template <typename... Objects> static inline PyObject *record(PyObject *kind, Objects... objects) {
    PyObject *made = new_record(kind, sizeof...(objects));
    Py_ssize_t place = 0;
    (PyTuple_SET_ITEM(made, place++, objects), ...);
    return made;
}
/* A field of a record, borrowed: FIELD(row, CallRow, order). */
static inline PyObject *field(PyObject *object, Py_ssize_t place) { return PyTuple_GET_ITEM(object, place); }
#define FIELD(object, kind, name) field(object, kind::name)
static inline void append(PyObject *list, PyObject *object) { must(PyList_Append(list, object)); }
template <typename... Objects> static inline void extend(PyObject *list, Objects... objects) { (append(list, objects), ...); }
static inline void extend_by(PyObject *list, PyObject *sequence) {
    Py_ssize_t end = PyList_GET_SIZE(list);
    must(PyList_SetSlice(list, end, end, sequence));
}

/* The slots of Python's classes, by where they lie in an object; `prepare` finds that out. */
struct Slot {
    Py_ssize_t at = 0;
    PyObject *operator()(PyObject *object) const { /* borrowed */
        return *reinterpret_cast<PyObject **>(reinterpret_cast<char *>(object) + at);
    }
    void put(PyObject *object, PyObject *owned) const {
        PyObject **place = reinterpret_cast<PyObject **>(reinterpret_cast<char *>(object) + at);
        PyObject *before = *place;
        *place = owned;
        Py_XDECREF(before);
    }
    bool is_set(PyObject *object) const {
        PyObject *value = (*this)(object);
        return value == Py_True || (value != Py_False && value != Py_None && PyObject_IsTrue(value) > 0);
    }
    bool is_none(PyObject *object) const { return (*this)(object) == Py_None; }
};

#define SLOTS(X) \
    X(Api, head) X(Api, op) X(Api, plain) X(Api, series) X(Api, usual) \
    X(ApiMode, _known) X(ApiMode, _thread) X(ApiMode, _watch) \
    X(AtenMode, _epoch) X(AtenMode, _operators) X(AtenMode, _owners) X(AtenMode, _watch) \
    X(BackwardCall, _epoch) X(BackwardCall, _order) X(BackwardCall, _seen) X(BackwardCall, _watch) \
        X(BackwardCall, attached) X(BackwardCall, forward) X(BackwardCall, name) X(BackwardCall, parent) \
        X(BackwardCall, row) X(BackwardCall, wanted) \
    X(CallGraph, call) X(CallGraph, first) X(CallGraph, targets) X(CallGraph, watch) \
    X(CarriedOver, by_storage) X(CarriedOver, storage_of) \
    X(CarriedTensor, fingerprint) X(CarriedTensor, known) X(CarriedTensor, version) \
    X(Executions, log) \
    X(GradientHook, _backwards) X(GradientHook, _path) X(GradientHook, _slot) X(GradientHook, _watch) \
    X(Inputs, named) X(Inputs, positional) X(Inputs, rows) X(Inputs, slots) X(Inputs, targets) \
    X(KnownTensor, content) X(KnownTensor, data_ptr) X(KnownTensor, layout) X(KnownTensor, number) \
        X(KnownTensor, storage) X(KnownTensor, tensor) X(KnownTensor, version) \
    X(Layout, device) X(Layout, dtype) X(Layout, numbers) X(Layout, rows) X(Layout, shape) X(Layout, views) \
    X(Modules, _backwards) X(Modules, _modules) X(Modules, _shows_state) X(Modules, _watch) \
    X(Names, coming) \
    X(NodeHook, _watch) X(NodeHook, exits) X(NodeHook, incoming) X(NodeHook, outgoing) \
    X(Open, backward) X(Open, module) X(Open, module_class) X(Open, op) X(Open, order) X(Open, path) X(Open, site) \
    X(Operator, aliases) X(Operator, backward) X(Operator, call) X(Operator, forward) X(Operator, key) \
        X(Operator, ordinary) \
    X(Recorder, _again) X(Recorder, _batch) X(Recorder, _lock) X(Recorder, _measure) X(Recorder, _tensors) \
        X(Recorder, call_rows) X(Recorder, direct) X(Recorder, epoch) X(Recorder, full) X(Recorder, orders) \
        X(Recorder, shares) X(Recorder, sites) X(Recorder, slot_rows) X(Recorder, takes_many) \
        X(Recorder, tensor_numbers) \
    X(Rows, count) X(Rows, room) \
    X(Series, _lock) X(Series, backward) X(Series, forward) X(Series, now) \
    X(Sites, _boundaries) X(Sites, _ids) \
    X(State, busy) X(State, guard) X(State, number) X(State, optimizer_step) X(State, quiet) \
        X(State, stack) \
    X(Tensors, _generations) X(Tensors, _recorder) X(Tensors, _stale_versions) X(Tensors, _unversioned) \
        X(Tensors, _weak_refs) X(Tensors, cached) X(Tensors, carried_over) X(Tensors, compiled_layouts) \
        X(Tensors, uninitialized) \
    X(TorchBatch, _later) X(TorchBatch, _rows) X(TorchBatch, _ways) \
    X(Watch, _argument_ids) X(Watch, _keywords) X(Watch, api_kind) X(Watch, asks) X(Watch, aten_kind) X(Watch, backward_phase) \
        X(Watch, buffer_slots) X(Watch, calm) X(Watch, executions) X(Watch, first_gradient) X(Watch, first_output) \
        X(Watch, forward_on) X(Watch, forward_phase) X(Watch, module_kind) X(Watch, on) \
        X(Watch, outside) X(Watch, parameter_slots) X(Watch, places) X(Watch, record_backward) X(Watch, recorder) \
        X(Watch, records_modules) X(Watch, restless) X(Watch, stacks) X(Watch, tensors) X(Watch, thread)

#define DECLARE(owner, name) static Slot owner##_##name;
SLOTS(DECLARE)
#undef DECLARE

/* Objects that Python hands over once: classes, functions of torch's, and functions of ours for what is rare. */
#define GIVEN(X) \
    X(AccumulateGrad) X(AGAIN) X(aim) X(aim_again) X(Api) X(ApiMode) X(AtenMode) X(BackwardCall) \
    X(begin_module) X(BegunCall) X(BegunModule) X(Buffer) X(call_function) X(call_operator) \
    X(CallGraph) X(CallRow) X(capturing) X(CarriedTensor) X(compiler) X(count) X(current_device) \
    X(current_node) X(end_call) X(end_module) X(EXACT) X(Exit) X(functions) X(gradient_call) \
    X(GradientHook) X(hook_call) X(Inputs) X(is_tracing) X(KEY) X(KnownTensor) X(Layout) X(lead) \
    X(LEAVES) X(Led) X(look_up) X(MeasuredAt) X(ModuleName) X(modes) X(Modules) \
    X(NodeHook) X(Numbering) X(Open) X(Operator) X(Parameter) X(raised) X(raw_stream) X(sequence) \
    X(SIMPLE) X(Sink) X(State) X(take) X(task) X(Tensor) X(Tensors) X(THREAD) \
    X(TorchBatch) X(traced) X(Unmeasured) X(View) X(Watch) X(Way)

struct Given {
#define DECLARE(name) PyObject *name;
    GIVEN(DECLARE)
#undef DECLARE
};
static Given given;

#define NAMES(X) \
    X(acquire) X(_add) X(add) X(add_alike) X(_add_numpy) X(alike) X(arguments) X(autocast) X(backward) X(begin) \
    X(_begin_step) X(_buffers) X(call) X(detach) X(__dict__) X(__enter__) X(entry) X(__exit__) \
    X(fault) X(flatten_one) X(flatten_output) X(flush_if_full) X(grad) X(grad_fn) X(here) X(hold_large) X(index) \
    X(input) X(_is_compiling_flag) X(keywords) X(kwargs) X(launch_by_triton) X(layout) X(_link) \
    X(metadata) X(_modules) X(name) X(next) X(next_functions) X(output_nr) X(packed) X(_parameters) \
    X(parameters_grad) X(register_hook) X(release) X(reserve) X(rows) X(_sequence_nr) X(show) \
    X(slot) X(state_slot) X(streams) X(tensor) X(thread_number) X(unmeasured) X(variable)

struct Names {
    PyObject *nothing; /* the empty text */
#define DECLARE(name) PyObject *name;
    NAMES(DECLARE)
#undef DECLARE
};
static Names names;
static PyObject *minus_one;
static PyObject *nothing; /* the empty tuple */

/* Tensors ----------------------------------------------------------------------------------------------------------- */

static Py_ssize_t tensor_at; /* where a tensor's Python object has torch's own */

static inline c10::TensorImpl *impl_of(PyObject *tensor) {
    return *reinterpret_cast<c10::TensorImpl **>(reinterpret_cast<char *>(tensor) + tensor_at);
}
static inline bool is_plain_kind(PyObject *kind) { return kind == given.Tensor || kind == given.Parameter || kind == given.Buffer; }
static inline bool is_plain(PyObject *object) { return is_plain_kind(reinterpret_cast<PyObject *>(Py_TYPE(object))); }
/* Whether a tensor is what most are: memory of its own that is there, nothing put off, no wrapper. */
static inline bool is_simple(c10::TensorImpl *impl) {
    using Key = c10::DispatchKey;
    static const c10::DispatchKeySet odd = c10::DispatchKeySet(Key::Python) | c10::DispatchKeySet(Key::FuncTorchBatched) |
        c10::DispatchKeySet(Key::FuncTorchGradWrapper) | c10::DispatchKeySet(Key::Functionalize) |
        c10::DispatchKeySet(Key::Conjugate) | c10::DispatchKeySet(Key::Negative) | c10::DispatchKeySet(Key::ZeroTensor) |
        c10::DispatchKeySet(Key::Quantized) | c10::DispatchKeySet(Key::NestedTensor);
    return !impl->key_set().has_any(odd) && impl->has_storage() && !impl->is_inference() && impl->layout() == c10::kStrided &&
        !impl->has_symbolic_sizes_strides() && !impl->is_meta();
}
static inline int64_t version_of(const c10::TensorImpl *impl) { return impl->version_counter().current_version(); }

/* What a weak reference refers to, only to be compared with an object that is held; null of anything else. */
static inline PyObject *referent(PyObject *reference) {
    if (!PyWeakref_Check(reference)) return nullptr;
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *object = nullptr;
    if (PyWeakref_GetRef(reference, &object) <= 0) return nullptr;
    Py_DECREF(object);
    return object;
#else
    return PyWeakref_GET_OBJECT(reference);
#endif
}

/* Whether an object is of exactly that class: Dynamo has been seen to put others in the place of our records. */
static inline bool is_a(PyObject *object, PyObject *kind) { return object && reinterpret_cast<PyObject *>(Py_TYPE(object)) == kind; }

/* Raise where what Python gave is not of the class whose slots are looked at. */
static inline void check(PyObject *object, PyObject *kind) {
    if (is_a(object, kind)) return;
    if (PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject *>(kind))) return;
    PyErr_Format(PyExc_TypeError, "a %s is no %s", Py_TYPE(object)->tp_name, reinterpret_cast<PyTypeObject *>(kind)->tp_name);
    throw Raised();
}

/* What a fault of ours leads to: it is counted, and raised only where the user wants that. */
static inline void fault(PyObject *watch, PyObject *where) {
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    Ref a(kind), b(value), c(trace);
    if (!PyErr_GivenExceptionMatches(kind, PyExc_Exception)) {
        PyErr_Restore(a.give(), b.give(), c.give());
        throw Raised();
    }
    Ref done(method(watch, names.fault, where, value));
}

/* Our own code runs in this thread, as long as this is there; see own_code.py. */
struct OwnCode {
    PyObject *state;
    explicit OwnCode(PyObject *state) : state(state) { State_busy.put(state, held(Py_True)); }
    OwnCode(const OwnCode &) = delete;
    ~OwnCode() { State_busy.put(state, held(Py_False)); }
};

/* Python's error that is set, put aside as long as this is there. */
struct ErrorAside {
    PyObject *kind, *value, *trace;
    ErrorAside() {
        PyErr_Fetch(&kind, &value, &trace);
        PyErr_NormalizeException(&kind, &value, &trace);
    }
    ErrorAside(const ErrorAside &) = delete;
    ~ErrorAside() {
        if (kind) PyErr_Restore(kind, value, trace);
    }
    void replace() { /* another error is set now, in its place */
        Py_CLEAR(kind);
        Py_CLEAR(value);
        Py_CLEAR(trace);
    }
};

/* What is open in this thread, and its number. */
static inline PyObject *state_of(PyObject *thread) {
    Ref state(attribute(thread, names.here));
    check(state, given.State);
    return state.give();
}

/* What is open innermost in a thread, borrowed; `outside`: where nothing is. */
static inline PyObject *innermost(PyObject *stack, PyObject *outside) {
    Py_ssize_t depth = PyList_GET_SIZE(stack);
    PyObject *open = depth ? PyList_GET_ITEM(stack, depth - 1) : outside;
    check(open, given.Open);
    return open;
}

static inline PyObject *thread_of(PyObject *watch, PyObject *state) {
    PyObject *number = State_number(state);
    return number_of(number) < 0 ? method(watch, names.thread_number) : held(number);
}

/* The columns of the row of a call that begins now in a thread, borrowed; those that are not set are null. As Watch.call_row. */
struct CallColumns {
    PyObject *columns[CallRow::FIELDS];
    Ref thread, autocast;
    CallColumns(PyObject *watch, PyObject *state, PyObject *kind) : thread(thread_of(watch, state)) {
        for (PyObject *&column : columns) column = minus_one;
        columns[CallRow::kind] = kind;
        columns[CallRow::recompute] = Py_False;
        columns[CallRow::thread] = thread;
        bool casts = !c10::impl::tls_is_dispatch_keyset_excluded(c10::autocast_dispatch_keyset);
        if (casts && number_of(kind) != number_of(Watch_aten_kind(watch)))
            columns[CallRow::autocast] = autocast = method(watch, names.autocast);
    }
    PyObject *&operator[](Py_ssize_t column) { return columns[column]; }
    void add_to(PyObject *rows) const {
        for (PyObject *column : columns) append(rows, column);
    }
    PyObject *row() const { /* a CallRow */
        PyObject *made = new_record(given.CallRow, CallRow::FIELDS);
        for (Py_ssize_t k = 0; k < CallRow::FIELDS; k++) PyTuple_SET_ITEM(made, k, held(columns[k]));
        return made;
    }
};

static inline void flush_if_full(PyObject *watch, PyObject *recorder) {
    if (PyList_GET_SIZE(Recorder_slot_rows(recorder)) > number_of(Recorder_full(recorder)))
        Ref done(method(watch, names.flush_if_full));
}

/* What a mode's function is given: mode, func, types, args=(), kwargs=None. */
struct Asked {
    PyObject *mode, *func, *types, *args, *kwargs; /* no keyword arguments: null */
    Asked(PyObject *const *all, Py_ssize_t count)
        : mode(all[0]), func(all[1]), types(all[2]), args(count > 3 ? all[3] : nothing), kwargs(count > 4 ? all[4] : Py_None) {
        if (kwargs == Py_None || !PyDict_GET_SIZE(kwargs)) kwargs = nullptr;
    }
    bool is_plain() const { /* no tensors of others' classes; torch's functions in Python name those of all that have one of their own */
        if (!PyTuple_CheckExact(types) || !PyTuple_CheckExact(args)) return false;
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(types); k++)
            if (!is_plain_kind(PyTuple_GET_ITEM(types, k))) return false;
        return true;
    }
    PyObject *by(PyObject *python) const { /* what is not usual: Python's function does it */
        PyObject *all[] = {mode, func, types, args, kwargs ? kwargs : Py_None};
        return PyObject_Vectorcall(python, all, 5, nullptr);
    }
    PyObject *done(PyObject *function) const { return PyObject_Call(function, args, kwargs); }
};

/* Do some work; a C++ error becomes Python's, which is then set. */
template <typename Work> static inline bool is_done(Work work) {
    try {
        work();
        return true;
    } catch (const Raised &) {
    } catch (const std::exception &error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return false;
}
template <typename Work> static inline PyObject *answered(Work work) {
    PyObject *answer = nullptr;
    return is_done([&] { answer = work(); }) ? answer : nullptr;
}
