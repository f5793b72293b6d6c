"""What several tests of the zoo need."""

import pytest

from mmaccel.zoo.worlds import emoji_world


@pytest.fixture(scope="session")
def emoji_font():
    """The font that clips to learn from are drawn with; the shipped models need none."""
    try:
        return emoji_world.font()
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
