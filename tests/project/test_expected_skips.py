"""A skip that nobody expects fails the run, also when tests run in several processes; all skips are listed."""

import os
import subprocess
import sys
from pathlib import Path

import expected_skips
import pytest
from reader import ROOT

HELPERS = Path(expected_skips.__file__).parent


def run(folder, body, *words, **environment):
    (folder / "test_made_up.py").write_text(f"import pytest\n\n{body}\n\ndef test_that_passes():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "expected_skips", "-c", os.devnull, *words, str(folder)]
    without = {name: value for name, value in os.environ.items() if name not in ("MMACCEL_ALL_TESTS", "PYTEST_ADDOPTS")}
    environment = {**without, "PYTHONPATH": str(HELPERS), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    return done.returncode, done.stdout


@pytest.mark.parametrize("words", ((), ("-n", "2")), ids=("one process", "two processes"))
@pytest.mark.parametrize(
    "body",
    ("def test_one():\n    pytest.skip('not today')", "pytest.skip('not today', allow_module_level=True)"),
    ids=("a test", "a module"),
)
def test_an_unexpected_skip_fails_the_run(tmp_path, body, words):
    code, out = run(tmp_path, body, *words)
    assert code == 1 and "UNEXPECTED: 1 x not today (test_made_up.py:" in out, out


def test_an_expected_skip_is_listed_and_fails_only_where_nothing_is_missing(tmp_path):
    body = "@pytest.mark.parametrize('n', range(3))\ndef test_one(n):\n    pytest.importorskip('{}')"
    code, out = run(tmp_path, body.format("no_such_package"))
    assert code == 0 and "3 x could not import 'no_such_package'" in out and "UNEXPECTED" not in out
    code, out = run(tmp_path, body.format("no_such_package"), MMACCEL_ALL_TESTS="1")
    assert code == 1 and "UNEXPECTED: 3 x could not import 'no_such_package'" in out
    code, out = run(tmp_path, "def test_one():\n    pytest.skip('needs the package pytest')")
    assert code == 1 and "UNEXPECTED: 1 x needs the package pytest" in out, "it is installed"


def test_a_browser_that_is_there_is_no_reason_to_skip(monkeypatch):
    reason = "no Chromium or Chrome on the PATH"
    monkeypatch.delenv("MMACCEL_ALL_TESTS", raising=False)
    monkeypatch.setattr(expected_skips.shutil, "which", lambda name: None)
    assert expected_skips.unexpected([reason]) == []
    monkeypatch.setenv("MMACCEL_ALL_TESTS", "1")
    assert expected_skips.unexpected([reason]) == [reason]
    monkeypatch.delenv("MMACCEL_ALL_TESTS")
    monkeypatch.setattr(expected_skips.shutil, "which", lambda name: "/usr/bin/chromium")
    assert expected_skips.unexpected([reason]) == [reason]


def test_ci_installs_what_may_not_be_missing_there():
    steps = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert "install -y chromium-browser fonts-noto-color-emoji" in steps and "bash .ci/run" in steps
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
