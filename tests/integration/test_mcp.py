"""`numscope mcp`, asked by a client as a coding agent asks it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import numscope as ns
from numscope.commands import available

mcp = pytest.importorskip("mcp")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, approximate in (("target", "tanh"), ("reference", "none")):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(approximate=approximate))
        with ns.capture(folder / name, model, keep="tensors"):
            model(torch.ones(4, 8)).sum().backward()
    return folder


def test_a_client_finds_the_fault_and_its_repair(runs: Path) -> None:
    async def ask() -> dict[str, Any]:
        server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "numscope", "mcp"], cwd=str(runs))
        async with mcp.Client(server) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            two = {"target": "target", "reference": "reference"}
            said = {
                "compare": await client.call_tool("compare", two),
                "diagnose": await client.call_tool("diagnose", two),
                "check": await client.call_tool("check", {"run": "target"}),
                "show": await client.call_tool("show", {"run": "target", "pattern": "gelu", "steps": [0], "top": 1}),
                "wrong": await client.call_tool("check", {"run": "nowhere"}),
            }
            return {"tools": tools, **said}

    found = asyncio.run(ask())
    wanted = {"compare", "diagnose", "check", "show", "weights"} & set(available())
    assert set(found["tools"]) == wanted
    assert all(tool.description for tool in found["tools"].values())
    report = found["compare"].structured_content
    assert (report["format"], report["verdict"], report["exit_status"]) == ("numscope.report/1", "diverged", 1)
    assert "gelu" in report["origin"]["call"]
    assert "approximate='none'" in found["diagnose"].structured_content["origin"]["repair"]
    assert found["check"].structured_content["found"] is False
    assert len(found["show"].structured_content["calls"]) == 1
    assert found["wrong"].is_error
    assert "nowhere does not exist" in found["wrong"].content[0].text
