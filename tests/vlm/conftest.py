"""What several tests of decoders need."""

import pytest

from mmaccel.vlm import examples


@pytest.fixture(scope="module")
def llama():
    """A small decoder, and the arguments of its call."""
    return examples.llama()
