/* Tensors: their layouts, whether they were seen before, and how a new one is measured. As tensors.py, recorder.py and
   torch_form.py do it, on the same objects; what is rare is left to those. */

#pragma once
#include "common.h"

/* Layouts by all that tells them apart, so that torch need not be asked for shapes as Python's objects. */
struct Layouts {
    PyObject_HEAD
    std::unordered_multimap<uint64_t, std::pair<std::vector<int64_t>, PyObject *>> *known;
};

static void layouts_free(PyObject *self) {
    Layouts *layouts = reinterpret_cast<Layouts *>(self);
    for (auto &one : *layouts->known) Py_DECREF(one.second.second);
    delete layouts->known;
    PyObject_Free(self);
}
static PyTypeObject LayoutsType; /* native.cpp makes it */

static PyObject *new_layouts() {
    Layouts *layouts = PyObject_New(Layouts, &LayoutsType);
    if (!layouts) throw Raised();
    layouts->known = new std::unordered_multimap<uint64_t, std::pair<std::vector<int64_t>, PyObject *>>();
    return reinterpret_cast<PyObject *>(layouts);
}

enum { DIMENSIONS = 24 };

/* The layout of a simple tensor, borrowed. */
static PyObject *layout_of(PyObject *tensors, PyObject *tensor, const c10::TensorImpl *impl) {
    int64_t key[2 * DIMENSIONS + 4];
    auto sizes = impl->sizes();
    auto device = impl->device();
    size_t count = sizes.size(), length = 0;
    if (count > DIMENSIONS) { /* no layout is remembered for so many */
        Ref layout(method(tensors, names.layout, tensor));
        return layout; /* Python's table holds it */
    }
    key[length++] = static_cast<int64_t>(c10::typeMetaToScalarType(impl->dtype())) << 32 |
        static_cast<int64_t>(static_cast<uint8_t>(device.type())) << 16 | static_cast<uint16_t>(device.index());
    key[length++] = impl->storage_offset();
    for (int64_t size : sizes) key[length++] = size;
    if (!impl->is_contiguous()) {
        key[length++] = -1;
        for (int64_t stride : impl->strides()) key[length++] = stride;
    }
    uint64_t hash = 0x9E3779B97F4A7C15u;
    for (size_t place = 0; place < length; place++) {
        hash = (hash ^ static_cast<uint64_t>(key[place])) * 0xFF51AFD7ED558CCDu;
        hash ^= hash >> 32;
    }
    PyObject *held_layouts = Tensors_compiled_layouts(tensors);
    if (!held_layouts || held_layouts == Py_None) Tensors_compiled_layouts.put(tensors, held_layouts = new_layouts());
    Ref kept(held(held_layouts)); /* while Python runs, another thread may begin a step */
    auto &known = *reinterpret_cast<Layouts *>(held_layouts)->known;
    auto range = known.equal_range(hash);
    for (auto one = range.first; one != range.second; ++one) {
        auto &stored = one->second.first;
        if (stored.size() == length && !std::memcmp(stored.data(), key, length * sizeof *key)) return one->second.second;
    }
    PyObject *layout = method(tensors, names.layout, tensor);
    known.emplace(hash, std::make_pair(std::vector<int64_t>(key, key + length), layout));
    return layout;
}

/* What is known of a tensor, borrowed, or null where its cached fingerprint does not hold; as KnownTensor.is_current. */
static inline PyObject *known_of(PyObject *cached, PyObject *key, PyObject *tensor, const c10::TensorImpl *impl) {
    PyObject *known = found(cached, key);
    if (!is_a(known, given.KnownTensor) || referent(KnownTensor_tensor(known)) != tensor) return nullptr;
    if (number_of(KnownTensor_version(known)) != version_of(impl)) return nullptr;
    return PyLong_AsVoidPtr(KnownTensor_data_ptr(known)) == impl->data() ? known : nullptr;
}

/* What is known of a new tensor, from new references; as KnownTensor(). */
static PyObject *new_known(PyObject *tensor, uint64_t data, PyObject *storage, PyObject *layout) {
    PyTypeObject *kind = reinterpret_cast<PyTypeObject *>(given.KnownTensor);
    Ref known(must(kind->tp_alloc(kind, 0)));
    KnownTensor_tensor.put(known, must(PyWeakref_NewRef(tensor, nullptr)));
    KnownTensor_data_ptr.put(known, integer(static_cast<int64_t>(data)));
    KnownTensor_storage.put(known, held(storage));
    KnownTensor_layout.put(known, held(layout));
    return known.give();
}

/* Remember a tensor's fingerprint; as Tensors._cache. `own`: the tensor's id. */
static void cache(
    PyObject *tensors, PyObject *own, PyObject *known, PyObject *version, PyObject *content, PyObject *number) {
    KnownTensor_version.put(known, held(version));
    KnownTensor_content.put(known, held(content));
    KnownTensor_number.put(known, held(number));
    must(PyDict_SetItem(Tensors_cached(tensors), own, known));
}

/* Measuring ------------------------------------------------------------------------------------------------------------ */

struct Locked { /* the recorder's lock, as `with` holds it */
    PyObject *lock;
    explicit Locked(PyObject *lock) : lock(lock) { Ref done(method(lock, names.acquire)); }
    ~Locked() {
        ErrorAside error;
        Ref done(PyObject_CallMethodNoArgs(lock, names.release));
        if (!done.p) PyErr_Clear();
    }
};

typedef int (*Entry)(const char *form, int row, uint32_t high, uint32_t low);

static int entered(Entry entry, PyObject *form, int64_t row, uint64_t address, bool lets_go) {
    const char *bytes = PyBytes_AS_STRING(form);
    if (!lets_go) return entry(bytes, static_cast<int>(row), static_cast<uint32_t>(address >> 32), static_cast<uint32_t>(address));
    int answer;
    Py_BEGIN_ALLOW_THREADS
    answer = entry(bytes, static_cast<int>(row), static_cast<uint32_t>(address >> 32), static_cast<uint32_t>(address));
    Py_END_ALLOW_THREADS
    return answer;
}

static int64_t next_row(PyObject *batch, bool needs_room) {
    PyObject *rows = TorchBatch__rows(batch);
    int64_t row = number_of(Rows_count(rows));
    Rows_count.put(rows, integer(row + 1));
    if (needs_room && row >= number_of(Rows_room(rows))) Ref done(method(rows, names.reserve));
    return row;
}

/* Launch what measures a tensor on a GPU whose form is known; the row, or -1 where that is left to Python. */
static int64_t launched(PyObject *batch, PyObject *cuda, PyObject *form, uint64_t address) {
    if (std::strcmp(Py_TYPE(cuda)->tp_name, "CudaBatch") || address & 15 || is_true_of(given.capturing)) return -1;
    Ref index(attribute(cuda, names.index));
    Ref here(must(PyObject_CallNoArgs(given.current_device)));
    if (number_of(index) != number_of(here)) return -1;
    Ref stream(called(given.raw_stream, static_cast<PyObject *>(index)));
    Ref streams(attribute(cuda, names.streams));
    PyObject *queue = found(streams, stream);
    if (!queue) return -1;
    Ref alike(attribute(queue, names.alike));
    PyObject *plan = found(alike, form);
    if (!plan) return -1;
    Ref packed(attribute(plan, names.packed));
    if (packed == Py_None) return -1;
    Ref entry(attribute(queue, names.entry));
    int64_t row = next_row(batch, false);
    Ref kept(held(plan));
    if (entered(reinterpret_cast<Entry>(PyLong_AsVoidPtr(entry)), packed, row, address, true)) {
        Ref a(integer(row)), b(integer(static_cast<int64_t>(address)));
        Ref done(method(queue, names.launch_by_triton, plan, a.p, b.p));
    }
    return row;
}

/* The row of a tensor's fingerprint, which is taken now or launched; as TorchBatch.add_alike. */
static int64_t measured(PyObject *batch, PyObject *tensor, PyObject *form, uint64_t address) {
    if (reinterpret_cast<PyObject *>(Py_TYPE(batch)) == given.TorchBatch && address && TorchBatch__later.is_none(batch)) {
        PyObject *way = found(TorchBatch__ways(batch), form);
        if (is_a(way, given.Way)) {
            Ref kept(held(way));
            int64_t row = next_row(batch, true);
            Entry entry = reinterpret_cast<Entry>(PyLong_AsVoidPtr(FIELD(way, Way, entry)));
            if (entered(entry, FIELD(way, Way, form), row, address, FIELD(way, Way, lets_go) == Py_True)) {
                Ref place(integer(row)), content(method(tensor, names.detach));
                Ref done(method(batch, names._add_numpy, place.p, content.p));
            }
            return row;
        }
        if (way && !PyTuple_Check(way)) {
            int64_t row = launched(batch, way, form, address);
            if (row >= 0) return row;
        }
    }
    Ref where(integer(static_cast<int64_t>(address)));
    Ref row(method(batch, names.add_alike, tensor, form, where.p));
    return number_of(row);
}

/* The number of a tensor that was not seen before. `content`: null where it can't be trusted. As Recorder.view. */
static PyObject *recorded(PyObject *recorder, PyObject *layout, PyObject *content, PyObject *tensor, uint64_t address, bool first) {
    if (!Recorder_shares.is_set(recorder)) {
        PyObject *dtype = Layout_dtype(layout), *shape = Layout_shape(layout), *device = Layout_device(layout);
        if (!Recorder_takes_many.is_set(recorder)) return method(recorder, names.tensor, tensor, dtype, shape, device, minus_one);
        Ref number(next_of(Recorder_tensor_numbers(recorder)));
        extend(Recorder__tensors(recorder), number.p, dtype, shape, device, minus_one, minus_one);
        return number.give();
    }
    Locked locked(Recorder__lock(recorder));
    Ref number(next_of(Recorder_tensor_numbers(recorder)));
    PyObject *rows = Layout_rows(layout), *batch = Recorder__batch(recorder);
    PyObject *known = first || !content ? nullptr : found(rows, content);
    Ref row;
    if (is_a(known, given.MeasuredAt) && number_of(FIELD(known, MeasuredAt, batch)) == number_of(batch)) {
        row = held(FIELD(known, MeasuredAt, row));
    } else {
        row = integer(measured(Recorder__measure(recorder), tensor, layout, address));
        if (content) {
            Ref where(record(given.MeasuredAt, held(Recorder__batch(recorder)), held(row)));
            must(PyDict_SetItem(rows, content, where));
        }
    }
    extend(
        Recorder__tensors(recorder), number.p, Layout_dtype(layout), Layout_shape(layout), Layout_device(layout), row.p, minus_one);
    return number.give();
}

/* Number a tensor that an earlier step has measured; as Recorder.again. */
static PyObject *again(PyObject *recorder, PyObject *lasting, PyObject *layout) {
    Ref number(next_of(Recorder_tensor_numbers(recorder)));
    Locked locked(Recorder__lock(recorder));
    PyObject *list = Recorder__again(recorder);
    Ref row(integer(number_of(given.AGAIN) - PyList_GET_SIZE(list)));
    append(list, lasting);
    extend(
        Recorder__tensors(recorder), number.p, Layout_dtype(layout), Layout_shape(layout), Layout_device(layout), row.p, minus_one);
    return number.give();
}

/* Looking up ----------------------------------------------------------------------------------------------------------- */

static PyObject *content_key(PyObject *storage, int64_t version) {
    if (!version) return held(storage);
    Ref number(integer(version));
    static PyObject *bits = PyLong_FromLong(64);
    Ref above(must(PyNumber_Lshift(number, bits)));
    return must(PyNumber_Add(storage, above));
}

/* The number of a tensor, measured if it was not seen; as Tensors.look_up. */
static PyObject *looked_up(PyObject *tensors, PyObject *tensor, PyObject *base) {
    c10::TensorImpl *impl = is_plain(tensor) ? impl_of(tensor) : nullptr;
    if (!impl || !is_simple(impl)) return called(given.look_up, tensors, tensor, base);
    c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl();
    int64_t version = version_of(impl);
    if (base != Py_None) {
        if (!is_plain(base) || !is_simple(impl_of(base))) return called(given.look_up, tensors, tensor, base);
        if (impl_of(base)->unsafe_storage().unsafeGetStorageImpl() == storage) version = version_of(impl_of(base));
    }
    PyObject *layout = layout_of(tensors, tensor, impl);
    Ref kept(held(layout));
    uint64_t data = reinterpret_cast<uint64_t>(impl->data());
    PyObject *recorder = Tensors__recorder(tensors), *weak_refs = Tensors__weak_refs(tensors);
    PyObject *numbers = Layout_numbers(layout);
    Ref address(from_address(storage)), number, content;
    if (!found(weak_refs, address)) { /* as of most: nothing of it was seen, and nothing is to be doubted */
        Ref weak(from_address(c10::raw::intrusive_ptr::make_weak(storage)));
        must(PyDict_SetItem(weak_refs, address, weak));
        if (storage->nbytes() >= LARGE && impl->is_cpu()) {
            Ref size(integer(static_cast<int64_t>(storage->nbytes()))), done(method(tensors, names.hold_large, address.p, size.p));
        }
        PyObject *generation = found(Tensors__generations(tensors), address); /* another one lay here, which is forgotten */
        content = content_key(generation ? generation : address.p, version);
        number = recorded(recorder, layout, content, tensor, data, true);
        must(PyDict_SetItem(numbers, content, number));
    } else {
        int unversioned = PySet_Contains(Tensors__unversioned(tensors), address);
        must(unversioned);
        if (unversioned || found(Tensors__stale_versions(tensors), address))
            return called(given.look_up, tensors, tensor, base);
        PyObject *generation = found(Tensors__generations(tensors), address);
        content = content_key(generation ? generation : address.p, version);
        PyObject *before = found(numbers, content);
        if (before) {
            number = held(before);
        } else {
            PyObject *carried = found(CarriedOver_by_storage(Tensors_carried_over(tensors)), address);
            bool carries = is_a(carried, given.CarriedTensor);
            if (carries && number_of(CarriedTensor_version(carried)) == version) { /* as CarriedTensor.holds */
                Ref kept_carried(held(carried));
                PyObject *known = CarriedTensor_known(carried);
                bool holds = is_a(known, given.KnownTensor) && referent(KnownTensor_tensor(known)) == tensor &&
                    KnownTensor_layout(known) == layout &&
                    reinterpret_cast<uint64_t>(PyLong_AsVoidPtr(KnownTensor_data_ptr(known))) == data;
                if (holds) number = again(recorder, CarriedTensor_fingerprint(carried), layout);
            }
            if (!number.p) number = recorded(recorder, layout, content, tensor, data, false);
            must(PyDict_SetItem(numbers, content, number));
        }
    }
    Ref known(new_known(tensor, data, address, layout)), own(from_address(tensor)), at(integer(version));
    cache(tensors, own, known, at, content, number);
    return number.give();
}

/* The same, of one that was seen most often. */
static PyObject *number_in(PyObject *tensors, PyObject *tensor) {
    if (is_plain(tensor) && is_simple(impl_of(tensor))) {
        Ref key(from_address(tensor));
        PyObject *known = known_of(Tensors_cached(tensors), key, tensor, impl_of(tensor));
        if (known) return held(KnownTensor_number(known));
    }
    return looked_up(tensors, tensor, Py_None);
}

/* What some work finds as a tensor's number; one that can't be measured has none, and a note of why not. */
template <typename Work> static void note_or(PyObject *watch, Ref &number, Ref &note, Work work) {
    try {
        number = work();
        note = held(minus_one);
    } catch (const Raised &) {
        if (!PyErr_ExceptionMatches(given.Unmeasured)) throw;
        PyObject *kind, *why, *trace;
        PyErr_Fetch(&kind, &why, &trace);
        PyErr_NormalizeException(&kind, &why, &trace);
        Ref a(kind), b(why), c(trace);
        number = held(minus_one);
        note = method(watch, names.unmeasured, why);
    }
}

/* Tensors.look_up(tensors, tensor, base=None) */
static PyObject *look_up(PyObject *, PyObject *const *args, Py_ssize_t count) {
    return answered([&] {
        return looked_up(args[0], args[1], count > 2 ? args[2] : Py_None);
    });
}

/* Tensors.number(tensors, tensor) */
static PyObject *number(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
        return number_in(args[0], args[1]);
    });
}
