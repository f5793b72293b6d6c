"""What tests share: one thread, since models are tiny, and no choice of kernels from another run, or left for one."""

import gc
import importlib.util
from pathlib import Path

import pytest
import torch
from browser import launched  # noqa: F401  (a fixture)
from expected_skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401  (hooks)
from work_clock import work_clock  # noqa: F401  (a fixture)

from mmaccel import registry
from mmaccel.files import kept_choices


def pytest_collection_finish():
    """What was imported stays, so that no search for garbage among what tests make goes through all of it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def still_one_thread():
    """A benchmark sets its own: the tests after it would take several times as long, beside other processes."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_choices(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choices")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_choices, "path", lambda: folder / "choices.json")
        patch.setenv("MMACCEL_CACHE", str(folder))  # contexts of prompts too
        yield


@pytest.fixture
def register(monkeypatch):
    """Registers a method for one test."""
    registry.load_modalities()  # their own methods stay
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    return registry.register


@pytest.fixture(scope="session")
def recording():
    """Ten seconds of human speech."""
    found = importlib.util.find_spec("moonshine_voice")
    if found is None or importlib.util.find_spec("soxr") is None:
        pytest.skip('needs the speech extra: pip install "mmaccel[speech]"')
    return Path(found.origin).parent / "assets" / "beckett.wav"
