"""The log of calls on a device: written in the order of the calls, and judged when their counts have reached the host.

The results of calls wait, held, until there are enough of them for one launch. A window is a stretch of the log; its flags
are copied to the host in one piece and read when they are there, so that the host never waits. The input of a call is known
by identity, or by storage and version: it was looked at when it was made, or it is looked at now.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, ParamSpec

import torch

from numscope.capture.torch.guard.calls import HeldTensor, bytes_of, storage_of, version_of
from numscope.capture.torch.guard.flags import DeviceFlags, Pending, count
from numscope.capture.torch.own_code import OwnCode
from numscope.nonfinite.rule import Counts, State

Tensor = torch.Tensor
P = ParamSpec("P")
_CLEAN = Counts()
_WAITING = 64  # looks that wait for their launch
_REMEMBERED = 1 << 15  # tensors that are known by identity

# Modules that hand on whatever is not finite: where their result is finite, so were their inputs (inf·0 is NaN, inf-inf is
# NaN), forward and backward. Their inputs need no look of their own unless the result shows something. Operators of this
# kind have Trait.TRANSMITS.
MODULES_THAT_TRANSMIT: frozenset[type] = frozenset(
    [torch.nn.Linear, torch.nn.LayerNorm, torch.nn.GELU, torch.nn.SiLU, torch.nn.Identity, torch.nn.Flatten]
    + ([torch.nn.RMSNorm] if hasattr(torch.nn, "RMSNorm") else [])
)


class Window:
    """A stretch of the log, with the flags of its tensors on one device."""

    __slots__ = ("always", "dirty", "log", "pending", "read", "storages")

    def __init__(self) -> None:
        self.log: list[Callable[[], object]] = []  # what is to be judged, in the order of the calls
        self.always: list[Callable[[], object]] = []  # the part of it that matters where nothing was found, too
        self.pending: Pending | None = None
        self.read = False
        self.dirty = False  # something that was counted at once is not finite
        self.storages: dict[int, object] = {}  # weak references, freed with this window

    def free(self) -> None:
        """Let addresses be used again."""
        for reference in self.storages.values():
            torch.UntypedStorage._free_weak_ref(reference)
        self.storages.clear()


class Look:
    """One content of one tensor: where its counts will be found, and the tensor itself for as long as it is held."""

    __slots__ = ("_counts", "after", "key", "parameter", "row", "state", "tensor", "version", "waits", "window")

    def __init__(self, key: int, version: int, parameter: str = "", counts: Counts | None = None) -> None:
        self.key = key  # of its storage
        self.version = version
        self.parameter = parameter
        self.state: State | None = None
        self.tensor: HeldTensor = None
        self.window: Window | None = None
        self.row = -1
        self.waits = False  # for its launch
        self.after: Look | None = None  # this one is clean if that one is
        self._counts = counts

    @property
    def counts(self) -> Counts:
        """How many elements are not finite; the window must have been read."""
        if self._counts is None:
            assert self.window is not None
            assert self.window.pending is not None
            self._counts = self.window.pending.counts(self.row)
        return self._counts


class _Known(NamedTuple):
    """The last look at a tensor."""

    tensor: weakref.ref[Tensor]
    version: int
    look: Look


class _Extent(NamedTuple):
    """The stretch of a storage, in elements, at which a look was taken."""

    start: int
    stop: int
    look: Look


class DeviceLog:
    """The log of one process's device; a second device of the same process has its counts read at once."""

    def __init__(self, host: bool = False) -> None:
        self._host = host  # the host's tensors have flags too
        self._flags: DeviceFlags | None = None
        self._window = self._reading = Window()
        self._unread: list[Window] = []
        self.waiting: list[tuple[Tensor, Look]] = []  # for their launch
        self._written: set[int] = set()  # storages of the batch
        self._bytes = 0
        self.room = 256 << 20  # bytes that may wait for their launch
        self.held = 0  # bytes of all looks that ever held their tensor
        self._by_id: dict[int, _Known] = {}  # by the id of the tensor
        self._known: dict[tuple[int, int], _Extent] = {}  # by storage and version
        self._storages: dict[int, object] = {}  # weak references that keep the addresses above from being used again
        self._parameters: dict[int, Look] = {}  # by storage, over all steps
        self.wants_all: Callable[[], bool] = lambda: False  # asked whether calls with finite results matter, too

    def __len__(self) -> int:
        return len(self._window.log)

    @property
    def in_use(self) -> bool:
        """Tell whether there is a device with flags."""
        return self._flags is not None

    @property
    def device(self) -> torch.device | None:
        """The device whose flags these are."""
        return self._flags.device if self._flags is not None else None

    @property
    def full(self) -> bool:
        """Tell whether the window should end."""
        if len(self.waiting) >= _WAITING or self._bytes > self.room:
            return True
        return self._flags is not None and self._flags.full

    # Looking --------------------------------------------------------------------------------------------------------

    def made(self, tensor: Tensor) -> Look:
        """Return the look at a new result; it waits for its launch, and the tensor is held until then."""
        return self.known(tensor) or self._new(tensor, "", True)

    def gradient(self, tensor: Tensor) -> Look:
        """Return the look at a gradient: a new result to which no graph will ever be attached."""
        return self.known(tensor) or self._new(tensor, "", True, plain=not tensor.requires_grad)

    def passing(self, tensor: Tensor) -> Look:
        """Return the look at a gradient on its way to a parameter: taken at once, because the parameter gets it whole."""
        look = self.known(tensor)
        if look is None:
            look = self._new(tensor, "", False, plain=True)
            look.tensor = None
        return look

    def given(self, tensor: Tensor, name: Callable[[Tensor], str], version: int | None = None) -> Look:
        """Return the look at the input of a call, at the version that it then had; `name` names parameters."""
        known = self._by_id.get(id(tensor))
        then = version_of(tensor) if version is None else version
        if known is not None and known.tensor() is tensor and known.version == then:
            return known.look
        if version is not None and version >= 0 and version != version_of(tensor):  # overwritten since
            storage = storage_of(tensor)
            address = int(storage._cdata) if storage is not None else 0
            extent = self._known.get((address, version))
            return extent.look if extent is not None else Look(address, version, counts=_CLEAN)
        return self._new(tensor, name(tensor), False)

    def known(self, tensor: Tensor) -> Look | None:
        """Return the look at this very tensor, if it has one and was not written to since."""
        known = self._by_id.get(id(tensor))
        if (
            known is not None
            and known.tensor() is tensor
            and known.version == version_of(tensor)
            and known.version >= 0
        ):
            return known.look
        return None

    def _remember(self, tensor: Tensor, version: int, look: Look) -> Look:
        self._by_id[id(tensor)] = _Known(weakref.ref(tensor), version, look)
        return look

    def alias(self, view: Tensor, whole: Tensor) -> None:
        """Know a view by the look at the whole."""
        look = self.known(whole)
        if look is not None:
            self._remember(view, version_of(view), look)

    def launch_where_made(self) -> None:
        """Look at all that waits, on the stream where it was made, whichever is the current one."""
        if self._flags is not None:
            self._flags.is_here()
            self.launch()

    def forget(self) -> None:
        """Forget all tensors: something unseen may have written to any of them."""
        self._by_id.clear()
        self._known.clear()
        self._parameters.clear()

    def again(self, tensors: Iterable[tuple[Tensor, str]]) -> list[Look]:
        """Look at tensors whose versions do not tell what was written, at once and in one launch."""
        found = [self._new(tensor, name, True, fresh=True, plain=True) for tensor, name in tensors]
        self.launch()
        return found

    def all(self, tensors: Iterable[tuple[Tensor, str]]) -> list[Look]:
        """Return the looks at tensors, those that are new in one launch."""
        found = [self.known(tensor) or self._new(tensor, name, True, plain=True) for tensor, name in tensors]
        self.launch()
        return found

    def _new(self, tensor: Tensor, parameter: str, waits: bool, fresh: bool = False, plain: bool = False) -> Look:
        version = version_of(tensor)
        dtype = tensor.dtype
        if not (dtype.is_floating_point or dtype.is_complex) or tensor.is_meta:
            look = Look(0, version, parameter, _CLEAN)
            look.tensor = tensor  # a mask or a target says as much of an origin as its numbers do
            self.held += bytes_of(tensor)
            return self._remember(tensor, version, look)
        storage = storage_of(tensor)
        other = self._flags is not None and tensor.device != self._flags.device
        if storage is None or other or (tensor.is_cpu and not self._host) or not _is_dense(tensor):
            counts = count(tensor)
            self._window.dirty = self._window.dirty or not counts.clean
            look = Look(int(storage._cdata) if storage is not None else 0, version, parameter, counts)
            look.tensor = weakref.ref(tensor) if parameter else tensor.detach()
            return look
        address = int(storage._cdata)
        start, stop = _extent(tensor)
        if not fresh and version >= 0:
            known = self._known.get((address, version))
            if known is not None and known.start <= start and stop <= known.stop:
                return self._remember(tensor, version, known.look)
            last = self._parameters.get(address) if parameter else None
            if last is not None and last.version == version:
                return self._remember(tensor, version, last)
        if address not in self._storages:
            self._storages[address] = storage._weak_ref()
        look = Look(address, version, parameter)
        self._enqueue(tensor, tensor if plain else tensor.detach(), look, waits)
        whole = stop - start == tensor.numel()
        if whole or (address, version) not in self._known:
            self._known[address, version] = _Extent(start, stop if whole else start, look)
            if parameter:
                self._parameters[address] = look
        return self._remember(tensor, version, look)

    def _enqueue(self, tensor: Tensor, held: Tensor, look: Look, waits: bool) -> None:
        flags = self._flags
        if flags is None:
            flags = self._flags = DeviceFlags(tensor.device)
        look.window = self._window
        # A held tensor must not keep a graph alive, nor a parameter that the model no longer has.
        look.tensor = weakref.ref(tensor) if look.parameter else held
        if not look.parameter:
            self.held += tensor.nbytes
        if not waits:
            look.row = flags.add(tensor)
        elif tensor.numel():
            if not flags.is_here():
                self.launch()
            look.row = flags.row(tensor)
            look.waits = True
            self.waiting.append((held, look))
            self._written.add(look.key)
            self._bytes += tensor.nbytes
        if look.row < 0:
            look._counts = _CLEAN

    # Launching ------------------------------------------------------------------------------------------------------

    def before_write(self, target: object) -> None:
        """Look at what waits in memory that is about to be overwritten."""
        if not self.waiting:
            return
        storage = storage_of(target) if isinstance(target, Tensor) else None
        if storage is None or storage._cdata in self._written:
            self.launch()

    def launch(self) -> None:
        """Look at all that waits."""
        batch, self.waiting = self.waiting, []
        if not batch:
            return
        self._written.clear()
        self._bytes = 0
        roots: dict[Look, int] = {}
        for _, look in reversed(batch):
            look.waits = False
            if look.after is not None:
                roots[look] = roots.get(look.after, look.after.row)
        assert self._flags is not None
        with OwnCode():
            self._flags.launch([(tensor, look.row, roots.get(look, -1)) for tensor, look in batch])

    # The log --------------------------------------------------------------------------------------------------------

    @property
    def window(self) -> Window:
        """The window that is open."""
        return self._window

    def log(self, judge: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Note a call that is judged if the window has something that is not finite."""
        self._window.log.append(partial(judge, *args, **kwargs))

    def log_always(self, change: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Note what is done at this place in the order of the calls, whatever the window has."""
        work = partial(change, *args, **kwargs)
        self._window.log.append(work)
        self._window.always.append(work)

    def end(self, step: bool = False) -> Window:
        """End the window and return it; its flags set out for the host. With `step`, tensors are no longer known."""
        self.launch()
        window, self._window = self._window, Window()
        if step or len(self._by_id) > _REMEMBERED:
            # Parameters stay as they are until something is written to them, and an optimizer's step looks at all of them.
            self._by_id = {
                key: known for key, known in self._by_id.items() if known.look.parameter and known.tensor() is not None
            }
            self._known.clear()
            window.storages, self._storages = self._storages, {}
        if self._flags is not None:
            window.pending = self._flags.take()
        self._unread.append(window)
        return window

    def read(self, wait: bool = False, through: Window | None = None) -> None:
        """Judge the windows whose flags are here; with `wait`, all of them; those up to `through` are waited for."""
        must = len(self._unread) if wait else self._unread.index(through) + 1 if through in self._unread else 0
        while self._unread and (must > 0 or self._unread[0].pending is None or self._unread[0].pending.ready):
            window = self._reading = self._unread.pop(0)
            must -= 1
            try:
                window.read = True
                struck = window.dirty or (window.pending is not None and window.pending.struck())
                for work in window.log if struck or self.wants_all() else window.always:
                    work()
            finally:
                window.log, window.always = [], []
                window.free()

    def give_reference(self, key: int) -> object | None:
        """Give away the weak reference to a storage, or None where there is none any more."""
        for storages in (self._reading.storages, *(window.storages for window in self._unread), self._storages):
            if key in storages:
                return storages.pop(key)
        return None


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first element of the storage that a tensor shows, and the one after its last."""
    start = int(tensor.storage_offset())
    if tensor.is_contiguous():
        return start, start + tensor.numel()
    if tensor.numel() == 0:
        return start, start
    return start, start + 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
