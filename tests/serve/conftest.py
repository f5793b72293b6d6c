"""A recogniser behind HTTP."""

import pytest

from mmaccel import speech
from mmaccel.speech.serving.transcriptions import ENDPOINT


@pytest.fixture(scope="session")
def listener(recording):
    """The endpoint of a recogniser that knows English."""
    recognizer = speech.StreamingRecognizer(*speech.load("moonshine-tiny"), batched=True)
    return ENDPOINT("moonshine-tiny", recognizer, recognizer)
