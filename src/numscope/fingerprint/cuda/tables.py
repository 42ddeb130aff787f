"""The constants of the fingerprint on a CUDA device, in the form that the kernels read."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from numscope.fingerprint import constants
from numscope.fingerprint.constants import CHUNK, ROLLS, ROW, SPAN
from numscope.fingerprint.constants import ROWS as SIGN_ROWS
from numscope.fingerprint.cuda import elements
from numscope.fingerprint.cuda.fast_loop import AHEAD, FACT, FACTOR, FLIPS, ROWS
from numscope.fingerprint.cuda.launch import Launch, can_be_early
from numscope.fingerprint.cuda.shapes import MOST_PROGRAMS, PER_WORD, TUNING
from numscope.fingerprint.kinds import Kind

TILE = 1024
_BEFORE = (2 * AHEAD + 1) * MOST_PROGRAMS  # tiles before the first, whose facts the loop loads unchecked

_NAMES = """
    float32 bfloat16 float16 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 float8_e4m3fn float8_e5m2
    """.split()
_CODES: dict[str, int] = {name: getattr(elements, name.upper()) for name in _NAMES}
_CODES["bool"] = elements.UINT8


class DeviceTables:
    """The tables of one device, and the kernels compiled for it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
        self.at_once = {per: tuning.at_once(processors) for per, tuning in TUNING.items()}  # programs
        able = device.type == "cuda" and torch.version.hip is None
        able = able and torch.cuda.get_device_capability(device) >= (9, 0)
        self.packed = {per: int(able and per == 2) for per in TUNING}  # whether two elements are compared at once
        self.early = can_be_early(device)
        self.places = self._put(constants.places())
        self.blocks = self._put(constants.blocks())
        rows = constants.sign_rows()
        self.rows = self._put(np.concatenate([rows, rows[:ROLLS]]).view(np.int64))  # a chunk's rows never wrap
        self.values = {"": torch.zeros(256, dtype=torch.float32, device=device)}
        self.compiled: dict[Hashable, Launch] = {}
        self.direct = True  # kernels may be launched without Triton's launcher
        self.tried = False  # their results were compared with another form's
        self.known = 0
        self.chunks: torch.Tensor
        self.spans: torch.Tensor
        self.facts: dict[int, torch.Tensor]
        self._lock = threading.Lock()
        self._side: torch.cuda.Stream | None = None
        self._before: list[object] = []  # smaller tables: launches with their addresses may still come
        self.know(1 << 26)

    def side(self) -> torch.cuda.Stream:
        """Return the stream on which results are copied to the host."""
        with self._lock:
            if self._side is None:
                self._side = torch.cuda.Stream(self.device)
            return self._side

    def _put(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(self.device)

    def know(self, elements: int) -> None:
        """Extend the constants to all chunks and spans of a content of this many elements, of 64 bits at most."""
        with self._lock:
            if elements > self.known:
                self._grow(max(elements, 2 * self.known))

    def _grow(self, elements: int) -> None:
        if self.known:
            self._before.append((self.chunks, self.spans, self.facts))
        chunk = np.arange(elements // CHUNK + 1)
        table = np.zeros((len(chunk), 8), np.int32)
        table[:, 0] = constants.rolls(chunk)
        table[:, 1:3] = constants.flips(chunk)[:, None].view(np.int32)
        self.chunks = self._put(table)
        self.spans = self._put(constants.span_factors(np.arange(2 * elements // SPAN + 1)))
        blocks, spans = constants.blocks(), constants.span_factors(np.arange(2 * elements // SPAN + 1))
        before = np.zeros((_BEFORE, FACT), np.int64)
        facts = {per: np.concatenate([before, _facts(per, elements, blocks, spans)]) for per in PER_WORD}
        self.facts = {per: self._put(table)[_BEFORE:] for per, table in facts.items()}
        self.known = elements

    def code(self, kind: Kind) -> tuple[int, torch.Tensor]:
        """Return the kernels' number of a kind, and the table of values of the 256 codes of an 8-bit float."""
        code = _CODES.get(kind.name)
        if code is not None:
            return code, self.values[""]
        if kind.name not in self.values:
            codes = np.arange(256, dtype=np.uint8)
            self.values[kind.name] = self._put(kind.load(codes, np.empty(256, np.float32)))
        return elements.TABLE, self.values[kind.name]


@cache
def tables_of(device: torch.device) -> DeviceTables:
    """Return the device's tables: made once in a process, as the kernels are compiled once."""
    return DeviceTables(device)


def _facts(per: int, elements: int, blocks: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the facts of each tile of 1024 words for the fast loop, with `per` elements to a word."""
    tile = np.arange(-(-elements // (TILE * per)) + 1)
    with np.errstate(over="ignore"):
        factor = blocks[tile % (SPAN // TILE)] * spans[tile * TILE // SPAN]
    first = tile * TILE * per
    chunk = first // CHUNK
    facts = np.zeros((len(tile), FACT), np.int64)
    below = factor.astype(np.int32)
    facts[:, FACTOR] = ((factor - below) & ~0xFFFFFFFF) | below.view(np.uint32)
    facts[:, ROWS] = first // ROW % SIGN_ROWS + constants.rolls(chunk)
    facts[:, FLIPS] = constants.flips(chunk).view(np.int64)
    return facts
