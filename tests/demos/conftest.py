"""The demo app as it is served, and a browser for it."""

import pytest

from mmaccel.demos import app


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
