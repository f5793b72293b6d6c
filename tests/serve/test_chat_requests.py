"""What requests for answers may hold, without a model that answers them."""

import base64
import io

import pytest
from PIL import Image

from mmaccel.errors import SettingError
from mmaccel.vlm import chat_messages
from mmaccel.vlm.chat_messages import conversation_of
from mmaccel.vlm.serving import ENDPOINT, OTHER_CUTS

WHITE = Image.new("RGB", (60, 40), "white")


def data_url(kind, picture, **more):
    written = io.BytesIO()
    picture.save(written, kind.rpartition("/")[2].upper(), **more)
    return f"data:{kind};base64," + base64.b64encode(written.getvalue()).decode()


PICTURE = {"type": "image_url", "image_url": {"url": data_url("image/png", WHITE)}}
CLIP = {"type": "video_url", "video_url": {"url": data_url("video/webp", WHITE, save_all=True)}}


class Roles:
    """A processor whose template tells the roles."""

    def apply_chat_template(self, messages, add_generation_prompt):
        return " ".join(message["role"] for message in messages)


def parsed(messages=None, **more):
    question = [{"role": "user", "content": "what moves up?"}]
    return ENDPOINT("none", (None, Roles()), None).parse({"messages": messages or question, **more})


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


@pytest.mark.parametrize("size", ((4032, 3024), (8064, 6048)))
def test_photographs_of_phones_are_taken(size):
    photograph = data_url("image/jpeg", Image.new("L", size))
    (read,) = conversation({"type": "image_url", "image_url": {"url": photograph}}).pictures
    assert read.size == size


def test_frames_of_videos_are_among_the_pixels(monkeypatch):
    monkeypatch.setattr(chat_messages, "MOST_PIXELS", 60 * 40 - 1)
    assert len(conversation(CLIP).videos) == 1
    with pytest.raises(SettingError, match="pixels: send fewer, or smaller ones"):
        conversation(CLIP, PICTURE)


NEUTRAL = {
    "response_format": {"type": "text"},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logprobs": False,
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "stop": [],
    "store": False,
    "logit_bias": {},
    "top_p": 1,
    "user": "someone",
    "safety_identifier": "someone",
    "prompt_cache_key": "of one",
    "verbosity": "medium",
}


def test_values_that_ask_for_nothing_are_taken():
    neutral, plain = parsed(**NEUTRAL, max_completion_tokens=9, max_tokens=9), parsed(max_tokens=9)
    assert (neutral.sampling, neutral.group) == (plain.sampling, plain.group)


def test_a_stream_without_noise_is_what_all_are():
    options = {"include_usage": True, "include_obfuscation": False}
    assert parsed(stream=True, stream_options=options).tells_usage
    with pytest.raises(SettingError, match="stream_options="):
        parsed(stream=True, stream_options={"include_obfuscation": True})


def test_words_are_drawn_where_some_are_cut_off():
    """OpenAI's temperature is 1 where none is given; this server's is 0 as long as nothing asks for a choice."""
    drawn = {"max_new_tokens": 4_096, "do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, **OTHER_CUTS}
    assert parsed(top_p=0.5).sampling == {**drawn, "top_p": 0.5}
    assert parsed(top_k=5).sampling == {**drawn, "top_k": 5}
    assert parsed(top_p=0.5).group is None and parsed(top_p=1).group is not None
    for colder in ({"temperature": 0, "top_p": 0.5}, {"top_p": 1}, {"top_k": 0}, {}):
        assert parsed(**colder).sampling == {"max_new_tokens": 4_096, "do_sample": False}
    assert parsed(temperature=0.7).sampling == {**drawn, "temperature": 0.7}


def test_messages_as_programs_send_them():
    answered = {"role": "assistant", "content": "rocket", "refusal": None, "tool_calls": [], "annotations": []}
    picture = {"type": "image_url", "image_url": {**PICTURE["image_url"], "detail": "high"}}
    asked = {"role": "user", "name": "someone", "content": [picture, {"type": "text", "text": "what moves up?"}]}
    request = parsed([{"role": "developer", "content": "be brief"}, asked, {**answered, "function_call": None}, asked])
    assert request.text == "system user assistant user" and len(request.pictures) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    (
        ({"response_format": {"type": "json_object"}}, "response_format="),
        ({"presence_penalty": 0.5}, "presence_penalty=0.5"),
        ({"n": True}, "n=True: this server takes 1 only"),
        ({"logprobs": 0}, "logprobs=0: this server takes False only"),
        ({"stop": ["."]}, r"stop=\['.'\]: this server takes \[\] only, or leave it out"),
        ({"tools": [{"type": "function"}]}, "tools="),
        ({"tool_choice": "required"}, "tool_choice='required'"),
        ({"stream_options": {"include_usage": True}}, "stream_options are those of a stream"),
        ({"max_completion_tokens": 2, "max_tokens": "many"}, "max_tokens='many': give a whole number"),
        ({"max_completion_tokens": 2, "max_tokens": 3}, "say the same: give one of them"),
    ),
)
def test_fields_that_ask_for_something_else_are_refused(given, message):
    with pytest.raises(SettingError, match=message):
        parsed(**given)


@pytest.mark.parametrize(
    ("more", "message"),
    (
        ({"tool_calls": [{"id": "1"}]}, "tool_calls="),
        ({"audio": {"id": "1"}}, "'audio' is not used here"),
        ({"content": [{**CLIP, "fps": 3}]}, "'fps' is not used here"),
        ({"content": [{"type": "text", "text": "x", "more": "y"}]}, "'more' is not used here"),
        ({"content": [{"type": "text", "text": None}]}, "without a text"),
        ({"content": [{"type": "image_url"}]}, "image_url must hold the file"),
        ({"content": [{**PICTURE, "image_url": {**PICTURE["image_url"], "detail": "all"}}]}, "detail='all'"),
        ({"content": [{**PICTURE, "image_url": {**PICTURE["image_url"], "crop": 1}}]}, "'crop' is not used here"),
    ),
)
def test_nothing_in_a_message_is_overlooked(more, message):
    with pytest.raises(SettingError, match=message):
        parsed([{"role": "user", "content": "x", **more}])
