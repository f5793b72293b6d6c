"""The Triton kernels against the float64 reference in Triton's interpreter, in a process of its own.

The interpreter is chosen when Triton is imported, so that it cannot be switched on here.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.mark.parametrize("cases", ("attention", "verify", "small_ops"))
def test_in_the_interpreter(cases, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(FOLDER / f"{cases}.py")]
    # not from the repository, whose folders would shadow installed packages
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= 20 and "skipped" not in done.stdout, done.stdout
