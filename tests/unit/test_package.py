from __future__ import annotations

import subprocess
import sys
import time

import numscope

# Whoever adds a public name adds it here, and to docs/reference.
PUBLIC = {
    "open_run",
    "capture",
    "guard",
    "compare",
    "compare_models",
    "diagnose",
    "graft",
    "copy_weights",
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
    "__version__",
}


def seconds(code: str) -> float:
    """Return the best of several runs of a fresh interpreter."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        times.append(time.perf_counter() - began)
    return min(times)


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
