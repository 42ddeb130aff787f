from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from numscope.store.git import repository_state
from numscope.store.manifest import collect, environment


def test_a_manifest_tells_what_ran_and_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    facts = collect(framework="json", framework_version="1.2", devices=["cpu"], seeds={"torch": 5}, settings={"a": 1})
    assert json.loads(json.dumps(facts)) == facts
    assert facts["format"] == "numscope.run/1"
    assert (facts["framework"], facts["framework_version"], facts["devices"]) == ("json", "1.2", ["cpu"])
    assert (facts["argv"], facts["seeds"], facts["settings"]) == (["train.py", "--lr", "0.1"], {"torch": 5}, {"a": 1})
    assert facts["world_size"] == 1
    assert set(facts) >= {"created", "numscope", "python", "platform", "cpus", "script", "git", "environment"}


def test_the_frameworks_version_is_read_where_it_is_loaded() -> None:
    assert collect(framework="json")["framework_version"] == json.__version__
    assert collect(framework="not_loaded")["framework_version"] == ""


def test_only_listed_variables_are_kept_and_no_secret() -> None:
    kept = environment(
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",
            "NCCL_ALGO": "Ring",
            "FLAGS_cudnn_deterministic": "1",
            "WORLD_SIZE": "2",
            "TORCH_API_TOKEN": "x",
            "NVIDIA_API_KEY": "x",
            "HOME": "/home/someone",
            "AWS_SECRET_ACCESS_KEY": "x",
            "HOSTNAME": "x",
            "USER": "x",
        }
    )
    assert set(kept) == {
        "CUDA_VISIBLE_DEVICES",
        "CUBLAS_WORKSPACE_CONFIG",
        "OMP_NUM_THREADS",
        "PYTHONHASHSEED",
        "NCCL_ALGO",
        "FLAGS_cudnn_deterministic",
        "WORLD_SIZE",
    }


def test_secrets_on_the_command_line_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", "abc", "--hf_token=abc", "--token", "--lr", "1", "x"])
    assert collect()["argv"] == ["train.py", "--api-key", "***", "--hf_token=***", "--token", "--lr", "1", "x"]
    monkeypatch.setattr(sys, "argv", ["train.py", "--tokenizer", "gpt2", "--max-tokens=5"])
    assert collect()["argv"] == ["train.py", "--tokenizer", "gpt2", "--max-tokens=5"]


def git(directory: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *settings, *arguments], cwd=directory, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "deep/er").mkdir(parents=True)
    git(root, "init", "-q")
    (root / "a.py").write_text("one\n")
    (root / "deep/er/b with a long name to be padded.py").write_text("two\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def test_commit_branch_and_a_clean_tree_are_read_from_inside_a_repository(repository: Path) -> None:
    state = repository_state(repository / "deep/er")
    assert state == {"commit": git(repository, "rev-parse", "HEAD"), "branch": "main", "dirty": False}


def test_dirty_is_told_for_changed_and_deleted_files_and_not_for_touched_ones(repository: Path) -> None:
    file = repository / "a.py"
    time.sleep(0.01)
    file.write_text("one\n")  # same content, new time
    assert repository_state(repository)["dirty"] is False
    file.write_text("0ne\n")  # same size
    assert repository_state(repository)["dirty"] is True
    git(repository, "add", "a.py")  # staged, not committed
    assert repository_state(repository)["dirty"] in (True, None)
    git(repository, "commit", "-qm", "second")
    assert repository_state(repository)["dirty"] is False
    file.unlink()
    assert repository_state(repository)["dirty"] is True


def test_packed_references_worktrees_and_detached_heads_are_read(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    git(repository, "worktree", "add", "-q", str(tmp_path / "side"), "-b", "side")
    git(repository, "pack-refs", "--all")
    git(repository, "gc", "-q")
    assert repository_state(repository) == {"commit": commit, "branch": "main", "dirty": False}
    assert repository_state(tmp_path / "side") == {"commit": commit, "branch": "side", "dirty": False}
    git(repository, "checkout", "-q", "--detach")
    assert repository_state(repository)["branch"] == ""


def test_outside_a_repository_and_with_a_broken_one_nothing_fails(tmp_path: Path) -> None:
    assert repository_state(tmp_path) is None
    (tmp_path / ".git").mkdir()
    assert repository_state(tmp_path) is None
    (tmp_path / ".git/HEAD").write_text("ref: refs/heads/main\n")
    assert repository_state(tmp_path) == {"commit": "", "branch": "main", "dirty": None}
    (tmp_path / ".git/index").write_bytes(b"DIRC\0\0\0\2\0\0\0\5short")
    assert repository_state(tmp_path)["dirty"] is None


def test_an_empty_repository_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert repository_state(tmp_path)["commit"] == ""
