"""A browser that tests drive."""

import shutil

import pytest
from expected_skips import BROWSERS

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def launched():
    """Launches a browser with further flags; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium or Chrome on the PATH")
    with sync_api.sync_playwright() as playwright:
        yield lambda *flags: playwright.chromium.launch(executable_path=found, args=[*FLAGS, *flags])
