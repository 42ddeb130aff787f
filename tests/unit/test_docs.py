"""Pages that scripts make are what the scripts make now."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(280)
def test_the_page_of_what_is_seen_is_what_capture_sees():
    script = ROOT / "docs" / "reference" / "make_coverage.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
