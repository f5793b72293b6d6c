"""What requests for answers may hold, without a model that answers them."""

import base64
import io

import pytest
from PIL import Image

from mmaccel.errors import SettingError
from mmaccel.vlm import chat_messages
from mmaccel.vlm.chat_messages import conversation_of

WHITE = Image.new("RGB", (60, 40), "white")


def data_url(kind, picture, **more):
    written = io.BytesIO()
    picture.save(written, kind.rpartition("/")[2].upper(), **more)
    return f"data:{kind};base64," + base64.b64encode(written.getvalue()).decode()


PICTURE = {"type": "image_url", "image_url": {"url": data_url("image/png", WHITE)}}
CLIP = {"type": "video_url", "video_url": {"url": data_url("video/webp", WHITE, save_all=True)}}


def conversation(*parts):
    return conversation_of([{"role": "user", "content": list(parts)}], frames=32)


@pytest.mark.parametrize(
    ("most_pixels", "fitting", "message"),
    (
        (10**9, 64, "more than 64 pictures and videos: send fewer"),
        (60 * 40 * 3, 4, f"more than {60 * 40 * 3} pixels: send fewer, or smaller ones"),
    ),
)
def test_no_picture_beyond_the_bounds_is_decoded(monkeypatch, most_pixels, fitting, message):
    decoded = []
    monkeypatch.setattr(chat_messages, "read_picture", lambda *_: decoded.append(WHITE) or WHITE)
    monkeypatch.setattr(chat_messages, "MOST_PIXELS", most_pixels)
    assert len(conversation(*[PICTURE] * fitting).pictures) == fitting
    decoded.clear()
    with pytest.raises(SettingError, match=message):
        conversation(*[PICTURE] * (fitting + 9))
    assert len(decoded) == fitting


def test_frames_of_videos_are_among_the_pixels(monkeypatch):
    monkeypatch.setattr(chat_messages, "MOST_PIXELS", 60 * 40 - 1)
    assert len(conversation(CLIP).videos) == 1
    with pytest.raises(SettingError, match="pixels: send fewer, or smaller ones"):
        conversation(CLIP, PICTURE)
