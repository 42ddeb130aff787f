"""Runs in an object store: a real S3 server on the loopback interface."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from numscope.core.errors import RunError
from numscope.store.checksums import sealed
from numscope.store.reader import open_run
from numscope.store.remote import cache
from tests.unit.store.batches import write_run

pytest.importorskip("moto")
ROOT = Path(__file__).parents[2]
_CREDENTIAL = "Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"  # not looked at


class Server:
    """A process that serves S3; `url` names one of its objects by `endpoint_override`."""

    def __init__(self) -> None:
        code = (
            "import sys\nfrom moto.server import ThreadedMotoServer\n"
            "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False)\nserver.start()\n"
            "print(server.get_host_and_port()[1], flush=True)\nsys.stdin.read()\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.put("/bucket")

    def put(self, path: str, content: bytes = b"") -> None:
        self._ask("PUT", path, content)

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def put_run(self, directory: Path, key: str) -> None:
        for path in directory.rglob("*"):
            if path.is_file():
                self.put(f"/bucket/{key}/{path.relative_to(directory).as_posix()}", path.read_bytes())

    def url(self, key: str) -> str:
        return f"s3://bucket/{key}?endpoint_override=127.0.0.1%3A{self.port}&scheme=http"

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, method: str, path: str, content: bytes = b"") -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Content-Type": "application/octet-stream", "Authorization": f"AWS4-HMAC-SHA256 {_CREDENTIAL}"}
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status < 300, (method, path, answer.status)
        connection.close()


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    two = [Server(), Server()]
    yield two
    for server in two:
        server.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


def kept_name(run: Path) -> str:
    tensors = open_run(run).tensors
    return str(tensors.filter(tensors["kept"])["name"][0].as_py())


def test_a_run_in_a_bucket_reads_like_one_that_is_here(servers: list[Server], tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=2)
    servers[0].put_run(tmp_path / "run", "here")
    here, away = open_run(tmp_path / "run"), open_run(servers[0].url("here"))
    assert away.calls.equals(here.calls)
    assert away.tensors.equals(here.tensors)
    name = kept_name(tmp_path / "run")
    assert np.array_equal(away.tensor(name), here.tensor(name))


def test_weights_in_a_bucket_are_read_part_by_part(servers: list[Server], tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    import numscope as ns

    state = {f"layers.{n}.weight": np.random.default_rng(n).normal(size=(8, 8)).astype(np.float32) for n in range(4)}
    for n in range(2):
        part = {name: value for name, value in state.items() if int(name.split(".")[1]) % 2 == n}
        save_file(part, tmp_path / f"{n}.safetensors")
        servers[0].put(f"/bucket/weights/{n}.safetensors", (tmp_path / f"{n}.safetensors").read_bytes())
    assert ns.weights(servers[0].url("weights"), state).verdict == "identical"
    assert ns.weights(servers[0].url("weights/0.safetensors"), tmp_path / "0.safetensors").verdict == "identical"
    assert not (tmp_path / "cache").exists()


def test_one_bucket_and_key_at_two_endpoints_are_two_runs(
    servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n, server in enumerate(servers):
        write_run(tmp_path / str(n), steps=1 + n)
        server.put_run(tmp_path / str(n), "same")
    assert [len(open_run(server.url("same")).steps) for server in servers] == [1, 2]
    for n, server in enumerate(servers):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        assert len(open_run("s3://bucket/same").steps) == 1 + n
    assert len(cache.entries()) == 4


def test_a_key_that_leads_out_of_the_run_is_refused_and_nothing_is_written(
    servers: list[Server], tmp_path: Path
) -> None:
    write_run(tmp_path / "run", steps=1)
    for name in ("../evil.so", "/etc/evil.so"):
        servers[0].put_run(tmp_path / "run", "hostile")
        servers[0].put(f"/bucket/hostile/{name}", b"evil")
        with pytest.raises(RunError, match="which cannot be a file of a run"):
            open_run(servers[0].url("hostile"))
        servers[0].delete(f"/bucket/hostile/{name}")
    assert not (tmp_path / "cache").exists()


def test_an_object_that_was_replaced_in_the_same_second_is_copied_again(servers: list[Server], tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=1)
    servers[0].put_run(tmp_path / "run", "changed")
    url = servers[0].url("changed")
    path = tmp_path / "run/manifest.json"

    def rename(framework: str) -> None:  # of the same length
        path.write_text(json.dumps(sealed({**json.loads(path.read_text()), "framework": framework})))

    for _ in range(20):  # until both versions have the same time, in whole seconds
        rename("hcrot")
        time.sleep(1 - time.time() % 1)
        servers[0].put("/bucket/changed/manifest.json", path.read_bytes())
        before = open_run(url).manifest["framework"]
        old = next(open_run(url).path.rglob("manifest.json")).stat()
        rename(before[::-1])
        servers[0].put("/bucket/changed/manifest.json", path.read_bytes())
        after = open_run(url)
        if next(after.path.rglob("manifest.json")).stat().st_mtime_ns == old.st_mtime_ns:
            break
    assert after.manifest["framework"] == before[::-1]


READ = """
import os, sys
from numscope.store.reader import open_run
sys.stdin.readline()
run = open_run(sys.argv[1])
print(len(run.tensor(sys.argv[2])))
"""


def test_processes_that_read_a_cold_run_at_once_all_have_it(servers: list[Server], tmp_path: Path) -> None:
    write_run(tmp_path / "run", steps=1)
    servers[0].put_run(tmp_path / "run", "cold")
    name = kept_name(tmp_path / "run")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READ, servers[0].url("cold"), name],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    assert [reader.communicate()[0] for reader in readers] == ["2\n"] * 4
    assert not list((tmp_path / "cache").glob("numscope/remote/*/partial/*"))
