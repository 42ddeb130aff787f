"""Stretches that the guard keeps out of: CUDA graphs, here one that only remembers what to do, and pipelines' rehearsals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import numscope as ns


class Graph:
    """Stands for torch.cuda.CUDAGraph: what it replays no hook, mode or version tells."""

    work: Callable[[], Any]

    def capture_begin(self, *_: object) -> None:
        pass

    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        self.work()


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    return Graph()


@pytest.mark.parametrize("deferred", [False, True])
def test_what_is_captured_is_not_looked_at(graph: Graph, deferred: bool) -> None:
    before = dict(vars(Graph))

    def job() -> None:
        graph.capture_begin()
        torch.log(torch.zeros(2))
        graph.capture_end()
        torch.exp(torch.full((2,), 1e6))

    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(record=None, deferred=deferred):
        job()
    assert caught.value.origin["call"] == "Torch.exp.0.forward"
    assert dict(vars(Graph)) == before


def test_what_a_replay_has_written_is_looked_at_anew(graph: Graph) -> None:
    static = torch.ones(4)

    def job() -> None:
        static * 2.0
        graph.work = lambda: static.numpy().fill(math.nan)
        graph.replay()
        static * 3.0

    with pytest.raises(ns.NonFiniteError) as caught, ns.guard(record=None, deferred=True):
        job()
    assert caught.value.origin["call"] == "Tensor.mul.1.forward"
    assert "no call that is watched made it" in str(caught.value)


def test_what_a_pipeline_rehearses_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = pytest.importorskip("torch.distributed.pipelining.stage").PipelineStage

    def rehearse(*_: object) -> None:
        torch.log(torch.zeros(2))

    monkeypatch.setattr(stage, "_forward_metadata_inference", rehearse, raising=False)
    with ns.guard(record=None) as guard:
        stage._forward_metadata_inference(None)
        torch.ones(2).log()
    assert guard.origins == []
    assert stage._forward_metadata_inference is rehearse
