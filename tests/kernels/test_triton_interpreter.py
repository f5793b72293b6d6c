"""The Triton kernels against the float64 reference in Triton's interpreter, in a process of its own.

The interpreter is chosen when Triton is imported, so that it cannot be switched on here.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_in_the_interpreter(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = [str(FOLDER / f"{cases}.py") for cases in ("attention", "verify", "small_ops")]
    # not from the repository, whose folders would shadow installed packages
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = Counter(re.findall(r"^PASSED \S*?(\w+)\.py::", done.stdout, re.MULTILINE))
    assert len(passed) == 3 and min(passed.values()) >= 20 and "skipped" not in done.stdout, done.stdout
