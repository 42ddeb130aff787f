from __future__ import annotations

import os
import subprocess
import sys

import numscope

# Whoever adds a public name adds it here, and to docs/reference.
PUBLIC = {
    "open_run",
    "capture",
    "guard",
    "compare",
    "compare_models",
    "diagnose",
    "exact",
    "graft",
    "copy_weights",
    "weights",
    "seed_all",
    "to_cpu",
    "NumscopeError",
    "SettingsError",
    "RunError",
    "NotKeptError",
    "CaptureError",
    "MissingExtraError",
    "ComparisonError",
    "NonFiniteError",
    "InexactError",
    "__version__",
}


def seconds(code: str) -> float:
    """Return the least processor time of several runs of a fresh interpreter: what else the machine does is not in it."""
    times = []
    for _ in range(5):
        began = spent()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(spent() - began)
    return min(times)


def spent() -> float:
    """Return the processor time of all child processes so far."""
    used = os.times()
    return used.children_user + used.children_system


def test_the_public_names_are_these() -> None:
    assert set(numscope.__all__) == PUBLIC
    assert set(dir(numscope)) == PUBLIC


def test_importing_numscope_loads_no_framework_and_little_else() -> None:
    heavy = "{'torch', 'paddle', 'jax', 'numpy', 'pyarrow', 'rich', 'ml_dtypes', 'safetensors', 'ray'}"
    code = f"import sys, numscope; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_importing_numscope_takes_less_than_60_ms() -> None:
    assert seconds("import numscope") - seconds("pass") < 0.06


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(numscope, "nonsense")


def test_a_notebook_shows_the_arguments_of_what_is_called() -> None:
    import inspect

    import numscope as ns

    assert list(inspect.signature(ns.compare).parameters)[:4] == ["target", "reference", "noise", "map"]
    assert list(inspect.signature(ns.capture).parameters) == ["path", "model", "settings"]
    assert "suspects" in inspect.signature(ns.diagnose).parameters
