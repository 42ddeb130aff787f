/* Backward: hooks on the nodes of a call, and what they see. As backward.py and graph.py do it. */

#pragma once
#include "tensors.h"

static inline int64_t sequence_of(PyObject *node) {
    Ref number(method(node, names._sequence_nr));
    return number_of(number);
}

/* A new object of one of our classes, without a call of its `__init__`. */
static PyObject *made(PyObject *kind) {
    PyTypeObject *type = reinterpret_cast<PyTypeObject *>(kind);
    return must(type->tp_alloc(type, 0));
}

static PyObject *backward_call(PyObject *watch, PyObject *name, PyObject *row, PyObject *forward, PyObject *parent) {
    Ref call(made(given.BackwardCall));
    BackwardCall__watch.put(call, held(watch));
    BackwardCall__epoch.put(call, held(minus_one));
    BackwardCall_name.put(call, held(name));
    BackwardCall_row.put(call, held(row));
    BackwardCall_forward.put(call, held(forward));
    BackwardCall_parent.put(call, held(parent));
    BackwardCall_attached.put(call, held(Py_False));
    BackwardCall_wanted.put(call, held(Py_True));
    return call.give();
}

/* The hook of this capture's in a node's metadata, borrowed, or null. */
static PyObject *own_hook(PyObject *metadata, PyObject *watch) {
    PyObject *own = found(metadata, given.KEY);
    if (!own) return nullptr;
    check(own, given.NodeHook);
    return NodeHook__watch(own) == watch ? own : nullptr;
}

/* The hook of a node, a new one where it has none of this capture's; borrowed of the node. */
static PyObject *hook_of(PyObject *watch, PyObject *node, PyObject *incoming) {
    Ref metadata(attribute(node, names.metadata));
    PyObject *own = own_hook(metadata, watch);
    if (own) {
        if (incoming) NodeHook_incoming.put(own, must(PySequence_Concat(NodeHook_incoming(own), incoming)));
        return own;
    }
    Ref hook(made(given.NodeHook));
    NodeHook__watch.put(hook, held(watch));
    NodeHook_incoming.put(hook, held(incoming ? incoming : nothing));
    NodeHook_outgoing.put(hook, held(nothing));
    NodeHook_exits.put(hook, held(Py_None));
    must(PyDict_SetItem(metadata, given.KEY, hook));
    Ref done(method(node, names.register_hook, hook.p));
    return hook; /* the node holds it */
}

/* WithoutHandles.registered(self, register, hooks, hook): the dictionary of a node's first hook */
static PyObject *registered(PyObject *, PyObject *const *args, Py_ssize_t) {
    if (args[2] != Py_None || !is_a(args[3], given.NodeHook))
        return PyObject_CallFunctionObjArgs(args[1], args[2], args[3], nullptr);
    return answered([&] {
        Ref hooks(must(PyODict_New()));
        must(PyODict_SetItem(hooks, minus_one, args[3]));
        return tuple(hooks.give(), held(Py_None));
    });
}

/* An edge among those in the flat tuples of a hook; the first is that of an edge or an output. */
struct HookEdge {
    PyObject *place, *call, *slot;
    HookEdge(PyObject *flat, Py_ssize_t at)
        : place(PyTuple_GET_ITEM(flat, at)), call(PyTuple_GET_ITEM(flat, at + 1)), slot(PyTuple_GET_ITEM(flat, at + 2)) {}
};

static PyObject *key_of(PyObject *following, PyObject *number) {
    int64_t place = number_of(number);
    return place ? tuple(held(following), held(number)) : held(following);
}

/* Whether a hook can be led by one more edge at once: it is a new one, or the last one of other calls that gather nothing. */
static bool is_free(PyObject *outgoing, PyObject *edge, PyObject *call) {
    Py_ssize_t size = PyTuple_GET_SIZE(outgoing);
    if (!size) return true;
    int64_t place = number_of(edge);
    HookEdge last(outgoing, size - EDGE_ENTRIES);
    if (number_of(last.place) == place) return !is_a(last.call, given.Sink) && last.call != call;
    for (Py_ssize_t k = 0; k < size; k += EDGE_ENTRIES)
        if (number_of(HookEdge(outgoing, k).place) == place) return false;
    return true;
}

/* Lead what leaves by an edge to the input that it is the gradient of: the usual one here, others by `lead` of graph.py.
   `noted`: an edge that follows may go there, too. */
static void lead(PyObject *hook, PyObject *edge, PyObject *call, PyObject *targets, PyObject *key, PyObject *goal, bool noted = true) {
    PyObject *outgoing = NodeHook_outgoing(hook);
    if (!PyLong_CheckExact(goal) || !is_free(outgoing, edge, call)) {
        Ref done(called(given.lead, hook, edge, call, targets, key));
        return;
    }
    Ref slot(held(goal)), one(tuple(held(edge), held(call), held(slot)));
    NodeHook_outgoing.put(hook, must(PySequence_Concat(outgoing, one)));
    if (noted) {
        Ref where(record(given.Led, held(hook), held(edge), held(slot)));
        must(PyDict_SetItem(targets, key, where));
    }
}

/* What a gradient that goes to a leaf is known by among the targets, or null. */
static PyObject *leaf_key(PyObject *following) {
    if (reinterpret_cast<PyObject *>(Py_TYPE(following)) != given.AccumulateGrad) return nullptr;
    Ref variable(attribute(following, names.variable));
    return from_address(variable);
}

/* Lead what leaves a call by the edges of its other nodes; as CallGraph.walk. */
static void walk(
    PyObject *watch, PyObject *own, PyObject *only, PyObject *call, PyObject *pending, PyObject *targets, int64_t first) {
    bool has_leaves = found(targets, given.LEAVES);
    Ref visited(must(PySet_New(pending))), exits(must(PyList_New(0)));
    must(PySet_Add(visited, Py_None));
    must(PySet_Add(visited, only));
    auto is_new = [&](PyObject *node) { /* it was not visited, and is one of the call's own: then it is visited next */
        int known = PySet_Contains(visited, node);
        must(known);
        if (known || sequence_of(node) < first) return false;
        must(PySet_Add(visited, node));
        append(pending, node);
        return true;
    };
    auto leaves = [&](PyObject *place, PyObject *edge, PyObject *following, PyObject *number) {
        Ref exit(record(given.Exit, held(place), held(edge), held(following), held(number)));
        append(exits, exit);
    };
    while (Py_ssize_t left = PyList_GET_SIZE(pending)) {
        Ref node(held(PyList_GET_ITEM(pending, left - 1)));
        must(PyList_SetSlice(pending, left - 1, left, nullptr));
        Ref metadata(attribute(node, names.metadata));
        PyObject *hook = own_hook(metadata, watch);
        PyObject *owner = node == only ? Py_None : node.p; /* a hook that knew its own node would keep it alive for ever */
        if (hook && NodeHook_exits(hook) != Py_None && !has_leaves) {
            Ref inner(held(NodeHook_exits(hook)));
            for (Py_ssize_t k = 0; k < PyList_GET_SIZE(inner.p); k++) {
                PyObject *exit = PyList_GET_ITEM(inner.p, k), *place = FIELD(exit, Exit, node), *edge = FIELD(exit, Exit, edge);
                PyObject *following = FIELD(exit, Exit, following), *number = FIELD(exit, Exit, number);
                Ref key(key_of(following, number));
                PyObject *goal = found(targets, key);
                if (!goal) {
                    int known = PySet_Contains(visited, following);
                    must(known);
                    if (known || is_new(following)) continue;
                } else if (owner != Py_None) {
                    PyObject *where = hook_of(watch, place == Py_None ? owner : place, nullptr);
                    lead(where, edge, call, targets, key, goal);
                }
                leaves(place == Py_None ? owner : place == only ? Py_None : place, edge, following, number);
            }
            continue;
        }
        Ref next(attribute(node, names.next_functions));
        Py_ssize_t edges = PyTuple_GET_SIZE(next.p);
        for (Py_ssize_t k = 0; k < edges; k++) {
            PyObject *pair = PyTuple_GET_ITEM(next.p, k), *following = PyTuple_GET_ITEM(pair, 0), *number = PyTuple_GET_ITEM(pair, 1);
            Ref edge(integer(k - edges)), key(key_of(following, number));
            PyObject *goal = found(targets, key);
            if (goal) {
                leaves(owner, edge, following, number);
            } else if (reinterpret_cast<PyObject *>(Py_TYPE(following)) == given.AccumulateGrad) {
                if (!has_leaves) continue;
                key = leaf_key(following);
                goal = found(targets, key);
                if (!goal) continue;
            } else {
                int known = PySet_Contains(visited, following);
                must(known);
                if (!known && !is_new(following)) leaves(owner, edge, following, number);
                continue;
            }
            if (owner == Py_None) continue;
            if (!hook) hook = hook_of(watch, node, nullptr);
            lead(hook, edge, call, targets, key, goal);
        }
    }
    if (own != Py_None) NodeHook_exits.put(own, exits.give());
}

/* CallGraph.walk(graph, own, only, pending) */
static PyObject *walk_(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
        PyObject *graph = args[0];
        walk(CallGraph_watch(graph), args[1], args[2], CallGraph_call(graph), args[3], CallGraph_targets(graph),
             number_of(CallGraph_first(graph)));
        return held(Py_None);
    });
}

/* Watch the backward of a call that made one output node; as CallGraph.attach_one. */
static void attach_one(PyObject *watch, PyObject *call, PyObject *incoming, PyObject *node, PyObject *targets, int64_t first) {
    PyObject *own = hook_of(watch, node, incoming);
    Ref kept(held(own)), inner(must(PyList_New(0)));
    PyObject *exits = NodeHook_exits(own);
    bool has_leaves = found(targets, given.LEAVES);
    Py_ssize_t edges;
    if (exits != Py_None && !has_leaves) {
        Ref kept_exits(held(exits));
        edges = PyList_GET_SIZE(exits);
        for (Py_ssize_t k = 0; k < edges; k++) {
            PyObject *exit = PyList_GET_ITEM(exits, k), *place = FIELD(exit, Exit, node), *following = FIELD(exit, Exit, following);
            Ref key(key_of(following, FIELD(exit, Exit, number)));
            if (PyObject *goal = found(targets, key)) {
                PyObject *hook = place == Py_None ? own : hook_of(watch, place, nullptr);
                lead(hook, FIELD(exit, Exit, edge), call, targets, key, goal);
            } else if (sequence_of(following) >= first) {
                append(inner, following);
            }
        }
    } else {
        Ref next(attribute(node, names.next_functions));
        edges = PyTuple_GET_SIZE(next.p);
        for (Py_ssize_t k = 0; k < edges; k++) {
            PyObject *pair = PyTuple_GET_ITEM(next.p, k), *following = PyTuple_GET_ITEM(pair, 0);
            Ref edge(integer(k - edges)), key(key_of(following, PyTuple_GET_ITEM(pair, 1)));
            PyObject *goal = found(targets, key);
            if (!goal) {
                if (reinterpret_cast<PyObject *>(Py_TYPE(following)) != given.AccumulateGrad) {
                    if (following != Py_None && sequence_of(following) >= first) append(inner, following);
                    continue;
                }
                if (!has_leaves) continue;
                key = leaf_key(following);
                goal = found(targets, key);
                if (!goal) continue;
            }
            lead(own, edge, call, targets, key, goal, k + 1 < edges || PyList_GET_SIZE(inner.p));
        }
    }
    Py_ssize_t more = PyList_GET_SIZE(inner.p);
    if (more) { /* of an output node that has other edges, too, the walk notes those that leave */
        Ref pending;
        if (more == 1 && edges == 1) {
            pending = inner.give();
        } else {
            pending = must(PyList_New(0));
            append(pending, node);
        }
        walk(watch, own, node, call, pending, targets, first);
    }
}

/* CallGraph.attach_one(graph, incoming, node) */
static PyObject *attach_one_(PyObject *, PyObject *const *args, Py_ssize_t) {
    return answered([&] {
        PyObject *graph = args[0];
        check(CallGraph_call(graph), given.BackwardCall);
        attach_one(CallGraph_watch(graph), CallGraph_call(graph), args[1], args[2], CallGraph_targets(graph),
                   number_of(CallGraph_first(graph)));
        return held(Py_None);
    });
}

/* The order of a call's backward part, which is recorded when it is first asked for in a step; as BackwardCall.begin. */
static PyObject *begun(PyObject *call, PyObject *state) {
    check(call, given.BackwardCall);
    PyObject *watch = BackwardCall__watch(call), *recorder = Watch_recorder(watch), *epoch = Recorder_epoch(recorder);
    int64_t before = number_of(BackwardCall__epoch(call));
    if (before == number_of(epoch)) return held(BackwardCall__order(call));
    PyObject *outer = BackwardCall_parent(call);
    if (!Recorder_direct.is_set(recorder)) return method(call, names.begin, state);
    Ref parent(outer == Py_None ? held(minus_one) : begun(outer, state));
    if (!BackwardCall_wanted.is_set(call)) return parent.give();
    Ref order(next_of(Recorder_orders(recorder)));
    BackwardCall__epoch.put(call, held(epoch));
    BackwardCall__order.put(call, held(order));
    BackwardCall__seen.put(call, held(nothing));
    PyObject *row = BackwardCall_row(call);
    CallColumns columns(watch, state, FIELD(row, CallRow, kind));
    columns[CallRow::order] = order;
    columns[CallRow::name] = BackwardCall_name(call);
    columns[CallRow::module] = FIELD(row, CallRow, module);
    columns[CallRow::module_class] = FIELD(row, CallRow, module_class);
    columns[CallRow::phase] = Watch_backward_phase(watch);
    columns[CallRow::parent] = parent;
    if (before < 0) columns[CallRow::forward] = BackwardCall_forward(call);
    columns[CallRow::stack] = FIELD(row, CallRow, stack);
    columns.add_to(Recorder_call_rows(recorder));
    return order.give();
}

static bool holds(PyObject *slots, int64_t slot) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(slots); k++)
        if (number_of(PyTuple_GET_ITEM(slots, k)) == slot) return true;
    return false;
}

/* What is to be seen when a node has run: places, calls and slots, in threes. */
static void see(PyObject *watch, PyObject *state, PyObject *parts, PyObject *inputs, PyObject *outputs) {
    PyObject *recorder = Watch_recorder(watch), *tensors = Watch_tensors(watch);
    int64_t epoch = number_of(Recorder_epoch(recorder));
    Ref number, last_held;
    PyObject *last = nullptr;
    for (Py_ssize_t k = 0; k + EDGE_ENTRIES <= PyTuple_GET_SIZE(parts); k += EDGE_ENTRIES) {
        HookEdge edge(parts, k);
        /* A place is that of an incoming gradient from the beginning, of an outgoing one from the end. */
        Py_ssize_t place = number_of(edge.place);
        PyObject *source = place < 0 ? inputs : outputs;
        if (place < 0) place += PyTuple_GET_SIZE(inputs);
        if (place < 0 || place >= PyTuple_GET_SIZE(source)) {
            PyErr_SetString(PyExc_IndexError, "a node has other gradients than it had edges");
            throw Raised();
        }
        PyObject *call = edge.call, *slot = edge.slot;
        Ref gradient(held(PyTuple_GET_ITEM(source, place))), kept;
        if (number_of(slot) < 0) { /* a sink */
            gradient = method(call, names.add, gradient.p);
            kept = attribute(call, names.slot);
            Ref inner(attribute(call, names.call));
            slot = kept;
            call = inner; /* the sink holds it */
        }
        check(call, given.BackwardCall);
        if (gradient == Py_None) continue;
        Ref order;
        if (number_of(BackwardCall__epoch(call)) != epoch) {
            order = begun(call, state);
            BackwardCall__seen.put(call, tuple(held(slot)));
        } else if (holds(BackwardCall__seen(call), number_of(slot))) {
            order = method(call, names.show, slot);
        } else {
            order = held(BackwardCall__order(call));
            Ref one(tuple(held(slot)));
            BackwardCall__seen.put(call, must(PySequence_Concat(BackwardCall__seen(call), one)));
        }
        if (gradient != last) { /* a module has the gradients of the last call inside it */
            try {
                number = number_in(tensors, gradient);
            } catch (const Raised &) {
                if (!PyErr_ExceptionMatches(given.Unmeasured)) throw;
                PyErr_Clear();
                Ref done(method(watch, names.show, order.p, slot, gradient.p, BackwardCall_name(call)));
                last = nullptr;
                continue;
            }
            Ref key(from_address(gradient));
            last = found(Tensors_cached(tensors), key) ? gradient.p : nullptr; /* else it is measured at each look */
            last_held = gradient.give();
        }
        extend(Recorder_slot_rows(recorder), order.p, slot, number.p, minus_one);
    }
    flush_if_full(watch, recorder);
}

/* Do some work of a hook's, unseen by the job's own modes and by itself; a fault of ours is told. */
template <typename Work> static PyObject *unseen(PyObject *watch, PyObject *state, PyObject *where, Work work) {
    OwnCode own(state);
    Ref guard(held(State_guard(state)));
    return answered([&] {
        Ref entered(method(guard, names.__enter__));
        bool seen = is_done(work);
        if (!seen) seen = is_done([&] { fault(watch, where); });
        {
            ErrorAside error;
            Ref left(PyObject_CallMethodObjArgs(guard, names.__exit__, Py_None, Py_None, Py_None, nullptr));
        }
        if (!seen) throw Raised();
        return held(Py_None);
    });
}

/* NodeHook.__call__(hook, grad_inputs, grad_outputs) */
static PyObject *hook_call(PyObject *, PyObject *const *args, Py_ssize_t) {
    PyObject *hook = args[0], *watch = NodeHook__watch(hook);
    if (Watch_restless.is_set(watch) || !PyTuple_CheckExact(args[1]) || !PyTuple_CheckExact(args[2]))
        return PyObject_Vectorcall(given.hook_call, args, 3, nullptr);
    Ref state;
    if (!is_done([&] { state = state_of(Watch_thread(watch)); })) return nullptr;
    if (!Watch_on.is_set(watch) || State_busy.is_set(state)) return held(Py_None);
    return unseen(watch, state, names.backward, [&] {
        Ref parts(must(PySequence_Concat(NodeHook_incoming(hook), NodeHook_outgoing(hook))));
        see(watch, state, parts, args[1], args[2]);
    });
}

/* GradientHook.__call__(hook, parameter) */
static PyObject *gradient_call(PyObject *, PyObject *const *args, Py_ssize_t) {
    PyObject *hook = args[0], *watch = GradientHook__watch(hook);
    if (Watch_restless.is_set(watch)) return PyObject_Vectorcall(given.gradient_call, args, 2, nullptr);
    Ref state;
    if (!is_done([&] { state = state_of(Watch_thread(watch)); })) return nullptr;
    if (!Watch_on.is_set(watch) || State_busy.is_set(state)) return held(Py_None);
    Ref call(PyObject_GetItem(GradientHook__backwards(hook), GradientHook__path(hook)));
    if (!call.p) {
        if (!PyErr_ExceptionMatches(PyExc_KeyError)) return nullptr;
        PyErr_Clear();
        return held(Py_None);
    }
    if (is_a(call, given.BackwardCall) && !BackwardCall_wanted.is_set(call)) return held(Py_None);
    return unseen(watch, state, names.parameters_grad, [&] {
        Ref gradient(attribute(args[1], names.grad));
        if (gradient == Py_None) return;
        check(call, given.BackwardCall);
        Ref order(begun(call, state)), number, note;
        note_or(watch, number, note, [&] { return looked_up(Watch_tensors(watch), gradient, Py_None); });
        extend(Recorder_slot_rows(Watch_recorder(watch)), order.p, GradientHook__slot(hook), number.p, note.p);
    });
}
