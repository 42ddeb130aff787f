/* The compiled functions of capture: what is done at each call, each gradient and each tensor of a job.

   Each does what the Python function of its name does, on the same objects, and leaves to that what is not usual. Compiled by
   __init__.py where there is a compiler, against the headers of the torch that runs; nothing but c10's are needed. */

#include "aten.h"

static Py_ssize_t offset_of(PyObject *classes, const char *owner, const char *name) {
    PyObject *kind = PyDict_GetItemString(classes, owner);
    if (!kind) {
        PyErr_Format(PyExc_KeyError, "%s", owner);
        throw Raised();
    }
    Ref member(must(PyObject_GetAttrString(kind, name)));
    if (Py_TYPE(member.p) != &PyMemberDescr_Type) {
        PyErr_Format(PyExc_TypeError, "%s.%s is no slot", owner, name);
        throw Raised();
    }
    return reinterpret_cast<PyMemberDescrObject *>(member.p)->d_member->offset;
}

/* prepare(classes, given, tensors): our classes, what is handed over, and tensors with the addresses of torch's own objects. */
static PyObject *prepare(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
#define FIND(owner, name) owner##_##name.at = offset_of(args[0], #owner, #name);
        SLOTS(FIND)
#undef FIND
#define TAKE(name)                                                                                                                   \
    given.name = PyDict_GetItemString(args[1], #name);                                                                               \
    if (!given.name) PyErr_SetString(PyExc_KeyError, #name);                                                                         \
    must(given.name);                                                                                                                \
    Py_INCREF(given.name);
        GIVEN(TAKE)
#undef TAKE
#define INTERN(text) names.text = must(PyUnicode_InternFromString(#text));
        NAMES(INTERN)
#undef INTERN
        names.nothing = must(PyUnicode_InternFromString(""));
        minus_one = integer(-1);
        nothing = must(PyTuple_New(0));
        Py_ssize_t size = reinterpret_cast<PyTypeObject *>(given.Tensor)->tp_basicsize;
        for (tensor_at = sizeof(PyObject); tensor_at + static_cast<Py_ssize_t>(sizeof(void *)) <= size; tensor_at += sizeof(void *)) {
            bool everywhere = true;
            for (Py_ssize_t k = 0; k < PyList_GET_SIZE(args[2]); k++) {
                PyObject *pair = PyList_GET_ITEM(args[2], k);
                everywhere &= impl_of(PyTuple_GET_ITEM(pair, 0)) == PyLong_AsVoidPtr(PyTuple_GET_ITEM(pair, 1));
            }
            if (everywhere) return held(Py_None);
        }
        PyErr_SetString(PyExc_RuntimeError, "a tensor's Python object does not have torch's own in it");
        throw Raised();
    });
}

/* bound(function): the same, to be a method of a class. */
static PyObject *bound(PyObject *, PyObject *function) { return PyInstanceMethod_New(function); }

/* facts(tensor): what c10 tells of a simple tensor, to be compared with what torch says of it; None of another. */
static PyObject *facts(PyObject *, PyObject *tensor) {
    return answered([&]() -> PyObject * {
        c10::TensorImpl *impl = impl_of(tensor);
        if (!is_plain(tensor) || !is_simple(impl)) return held(Py_None);
        Ref sizes(must(PyList_New(0))), strides(must(PyList_New(0)));
        for (int64_t size : impl->sizes()) append(sizes, Ref(integer(size)));
        for (int64_t stride : impl->strides()) append(strides, Ref(integer(stride)));
        return tuple(
            from_address(impl->unsafe_storage().unsafeGetStorageImpl()), integer(version_of(impl)), from_address(impl->data()),
            integer(impl->storage_offset()), sizes.give(), strides.give(), PyBool_FromLong(impl->is_contiguous()),
            PyBool_FromLong(impl->requires_grad()), integer(static_cast<int64_t>(impl->dtype().itemsize())));
    });
}

/* A function of so many arguments, the first of them an object of one of our classes where that is named. */
template <PyObject *(*function)(PyObject *, PyObject *const *, Py_ssize_t), int least, int most, PyObject *Given::*kind = nullptr>
static PyObject *checked(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count < least || count > most) {
        PyErr_Format(PyExc_TypeError, "%zd arguments, where %d to %d are taken", count, least, most);
        return nullptr;
    }
    if constexpr (kind != nullptr)
        if (!is_done([&] { check(args[0], given.*kind); })) return nullptr;
    return function(self, args, count);
}

#define FUNCTION(name, ...) {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(checked<__VA_ARGS__>)), METH_FASTCALL, nullptr}
static PyMethodDef functions[] = {
    FUNCTION("prepare", prepare, 3, 3),
    FUNCTION("look_up", look_up, 2, 3, &Given::Tensors),
    FUNCTION("number", number, 2, 2, &Given::Tensors),
    FUNCTION("take", take, 5, 5, &Given::Inputs),
    FUNCTION("attach_one", attach_one_, 3, 3, &Given::CallGraph),
    FUNCTION("walk", walk_, 4, 4, &Given::CallGraph),
    FUNCTION("hook_call", hook_call, 3, 3, &Given::NodeHook),
    FUNCTION("gradient_call", gradient_call, 2, 2, &Given::GradientHook),
    FUNCTION("registered", registered, 4, 4),
    FUNCTION("call_function", call_function, 3, 5, &Given::ApiMode),
    FUNCTION("call_operator", call_operator, 3, 5, &Given::AtenMode),
    FUNCTION("begin_module", begin_module, 6, 6, &Given::Modules),
    FUNCTION("end_module", end_module, 4, 4, &Given::Modules),
    {"bound", bound, METH_O, nullptr},
    {"facts", facts, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "numscope_native", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit_numscope_native() {
    LayoutsType.tp_name = "numscope_native.Layouts";
    LayoutsType.tp_basicsize = sizeof(Layouts);
    LayoutsType.tp_dealloc = layouts_free;
    LayoutsType.tp_flags = Py_TPFLAGS_DEFAULT;
    if (PyType_Ready(&LayoutsType) < 0) return nullptr;
    return PyModule_Create(&definition);
}
