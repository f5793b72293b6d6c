"""The demo app as it is served, and a browser for it."""

import shutil

import pytest
from expected_skips import BROWSERS

from mmaccel.demos import app

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


@pytest.fixture(scope="module")
def browser(launched):
    browser = launched()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def frame():
    return app.Frame()


@pytest.fixture(scope="module")
def url(frame, tmp_path_factory):
    """Where the app is served."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("visitors")))
        blocks = app.launch(frame, wait=False, allow_hosts=["demo.example.org"])
        yield blocks.local_url  # inside: gradio asks for the folder again at every upload
        frame.runs.close()
        blocks.close(verbose=False)
