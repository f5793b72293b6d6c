"""The Triton kernels compiled ahead of time, in a process that has Triton and needs no GPU.

A part of the matrix by default; all of it where ``MMACCEL_FULL=1``.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "ahead_of_time" / "compilation.py"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_matrix_compiles(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
    # not from the repository, whose folders would shadow installed packages
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 40 and "skipped" not in done.stdout, done.stdout
