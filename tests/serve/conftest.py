"""Human speech, and a recogniser behind HTTP."""

import importlib.util
from pathlib import Path

import pytest

from mmaccel import speech
from mmaccel.speech.serving.transcriptions import ENDPOINT


@pytest.fixture(scope="session")
def recording():
    """Ten seconds of human speech."""
    found = importlib.util.find_spec("moonshine_voice")
    if found is None or importlib.util.find_spec("soxr") is None:
        pytest.skip('needs the speech extra: pip install "mmaccel[speech]"')
    return Path(found.origin).parent / "assets" / "beckett.wav"


@pytest.fixture(scope="session")
def listener(recording):
    """The endpoint of a recogniser that knows English."""
    recognizer = speech.StreamingRecognizer(*speech.load("moonshine-tiny"), batched=True)
    return ENDPOINT("moonshine-tiny", recognizer, recognizer)
