"""Streams that share the passes of a model hear what each would hear alone."""

import functools
import threading
import time
from concurrent.futures import wait

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from mmaccel import speech
from mmaccel.errors import AudioError, SettingError, StreamFinishedError
from mmaccel.speech import examples
from mmaccel.speech.decoding import redecode
from mmaccel.speech.decoding.gathering import Gathering
from mmaccel.speech.decoding.packed import packed_attention
from mmaccel.speech.stream import stream_group
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.testing.contract import snapshot


def appending():
    """A Moonshine v2 that streams encode frame by frame."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    sizes = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, **heads}
    return examples.moonshine_streaming(encoder_config={**sizes, "sliding_windows": [[16, 4], [16, 0]]})


MODELS = {
    "moonshine": (examples.moonshine, examples.moonshine_processor),
    "moonshine_streaming": (appending, examples.moonshine_processor),
    "whisper": (examples.whisper, examples.whisper_processor),
}
ENDPOINT = speech.EnergyEndpoint(longest=3, silence=0.2, padding=0.2)


@pytest.fixture(params=MODELS)
def tiny(request):
    build, processor = MODELS[request.param]
    return build()[0], processor()


@pytest.fixture
def asr():
    return StreamingRecognizer(examples.moonshine()[0], examples.moonshine_processor(), endpoint=ENDPOINT)


def recordings(count):
    """Tones between silences, of other lengths."""
    return [
        torch.cat(
            [torch.zeros(4_000 + 1_000 * n), examples.sound(1, 14_000 + 3_000 * n, seed=n)[0], torch.zeros(8_000)]
        )
        for n in range(count)
    ]


def pieces(samples, size=4_000, count=12):
    held = list(samples.split(size))
    return [*held, *[None] * (count - len(held))]


def alone(asr, samples):
    with asr.stream() as stream:
        return [event for one in pieces(samples) if one is not None for event in stream.push(one)] + stream.finish()


def together(group, inputs):
    found = [[] for _ in inputs]
    for chunks in zip(*map(pieces, inputs), strict=True):
        for events, new in zip(found, group.push(chunks), strict=True):
            events += new
    return [events + rest for events, rest in zip(found, group.finish(), strict=True)]


def test_events_are_those_of_each_alone(tiny, monkeypatch):
    """And passes of several texts, each in another place, are one."""
    model, processor = tiny
    asr, inputs, widths = StreamingRecognizer(model, processor, endpoint=ENDPOINT), recordings(3), []
    expected, before = [alone(asr, samples) for samples in inputs], snapshot(model)
    passed = redecode.packed_pass
    monkeypatch.setattr(redecode, "packed_pass", lambda *given: widths.append(len(given[1])) or passed(*given))
    assert together(asr.streams(3), inputs) == expected
    assert any(isinstance(event, speech.Final) and len(event.words) > 1 for event in expected[0])
    assert max(widths) == 3 and snapshot(model) == before


@pytest.mark.parametrize("shares", (True, False))
def test_passes_run_under_the_autocast_of_who_pushes(asr, shares):
    """Of threads as of the caller alone."""
    on, chunks = [], recordings(1)[0].split(8_000)
    handle = register_module_forward_hook(lambda *_: on.append(torch.is_autocast_enabled("cpu")))
    opened = asr.streams(2) if shares else StreamingRecognizer(*parts_of(asr), endpoint=ENDPOINT, batched=True).stream()
    try:
        with opened, torch.autocast("cpu", torch.bfloat16):
            for chunk in chunks:
                opened.push([chunk, chunk] if shares else chunk)
        assert all(on) and len(on) > 10
    finally:
        handle.remove()


def parts_of(asr):
    return asr._model, asr.adapter.processor


def test_passes_with_eager_attention_stay_apart(monkeypatch):
    """It has other masks than those of packed passes."""
    model = examples.moonshine()[0]
    model.set_attn_implementation("eager")
    monkeypatch.setattr(redecode, "packed_pass", lambda *_: pytest.fail("was packed"))
    asr, inputs = StreamingRecognizer(model, examples.moonshine_processor(), endpoint=ENDPOINT), recordings(2)
    assert together(asr.streams(2), inputs) == [alone(asr, samples) for samples in inputs]


def test_packed_attention_is_that_of_its_own_thread():
    """A user may call the model meanwhile."""
    encoder, samples, found = examples.moonshine()[0].get_encoder().requires_grad_(False), examples.sound(1, 9_000), []
    thread = threading.Thread(target=lambda: found.append(encoder(samples).last_hidden_state))
    expected = encoder(samples).last_hidden_state
    with packed_attention([layer.self_attn for layer in encoder.layers], [1, 1]):
        thread.start()
        thread.join(20)
    torch.testing.assert_close(found[0], expected)


def test_many_pieces_are_encoded_as_each_alone(tiny):
    adapter = StreamingRecognizer(*tiny, endpoint=ENDPOINT).adapter
    inputs = [examples.sound(1, size)[0] for size in (100, 9_000, 9_500, 16_000)]
    for one, found in zip(inputs, adapter.encode_all(inputs), strict=True):
        expected = adapter.encode(one)
        assert found.seconds == expected.seconds
        torch.testing.assert_close(found.hidden_states, expected.hidden_states, rtol=1e-4, atol=1e-4)


def test_an_encoder_that_is_compiled_or_replaced_is_not_taken_apart():
    """A copy of it without layers would be the encoder itself."""
    model, inputs = examples.moonshine()[0], [examples.sound(1, size)[0] for size in (9_000, 16_000)]
    encoder = model.get_encoder()
    encoder.forward = functools.wraps(encoder.forward)(functools.partial(encoder.forward))  # as accelerate does
    adapter = StreamingRecognizer(model, examples.moonshine_processor(), endpoint=ENDPOINT).adapter
    found = adapter.encode_all(inputs, [adapter.growing(), None])
    for one, encoded in zip(inputs, found, strict=True):
        assert torch.equal(encoded.hidden_states, adapter.encode(one).hidden_states)


def test_a_piece_that_grows_is_encoded_as_the_whole():
    """Each sample is convolved once; a piece that is too short for a position, or shorter than before, is no other."""
    model, processor = examples.moonshine()[0], examples.moonshine_processor()
    adapter = StreamingRecognizer(model, processor, endpoint=ENDPOINT).adapter
    samples, convolved, most = examples.sound(1, 20_000)[0], [], 0
    torch.nn.init.normal_(model.get_encoder().groupnorm.bias)  # zero in a new model
    growing = adapter.growing()
    first = adapter.target.get_encoder().conv1  # of the twin that runs
    hook = first.register_forward_hook(lambda _, given, __: convolved.append(given[0].shape[-1]))
    for size in (100, 5_000, 5_001, 13_000, 9_000, 20_000):
        (expected,) = adapter.encode_all([samples[:size]])
        convolved.clear()
        (found,) = adapter.encode_all([samples[:size]], [growing])
        assert found.seconds == expected.seconds and sum(convolved) < 9_000
        most = max(most, sum(convolved))
        torch.testing.assert_close(found.hidden_states, expected.hidden_states, rtol=1e-4, atol=1e-4)
    hook.remove()
    assert most >= 20_000 - 13_000


def test_what_cannot_grow():
    """In half precision sums of what is not normalised would be too coarse."""
    asr = StreamingRecognizer(examples.moonshine()[0], examples.moonshine_processor(), endpoint=ENDPOINT)
    assert asr.growing() is None and asr.streams(1).streams[0].recognizer.growing() is not None
    asr.adapter.processor.feature_extractor.do_normalize = True
    assert asr.adapter.growing() is None
    half = StreamingRecognizer(asr.adapter.target.half(), examples.moonshine_processor(), endpoint=ENDPOINT)
    assert half.adapter.growing() is None


def test_one_text_that_meets_no_other_is_decoded_as_without(asr):
    adapter, gathering = asr.adapter, Gathering(threading.Lock())
    encoded = adapter.encode(examples.sound(1, 9_000)[0])
    expected = redecode.decode(adapter, encoded, adapter.prompt())
    assert redecode.decode(adapter, encoded, adapter.prompt(), gathering=gathering) == expected
    assert gathering.sizes["_passes", 1] == expected.forwards > 1


def test_a_stream_that_fails_takes_nothing_from_the_others(asr):
    inputs = recordings(2)
    expected = alone(asr, inputs[0])
    with asr.streams(2) as group:
        with pytest.raises(AudioError):
            group.push([inputs[0], "no audio"])
        first, second = group.push([None, inputs[1]])
        assert first + group.finish()[0] == expected and second
    with pytest.raises(StreamFinishedError):
        group.push([None, None])


def test_ctrl_c_in_a_push_loses_nothing(asr, monkeypatch):
    """Streams that still hear are waited for, and the next push returns what they heard."""
    inputs = recordings(2)
    expected = [alone(asr, samples) for samples in inputs]
    waited = []

    def interrupted(futures):
        waited.append(len(waited))
        if waited == [0]:
            raise KeyboardInterrupt
        return wait(futures)

    monkeypatch.setattr(stream_group, "wait", interrupted)
    with asr.streams(2) as group:
        with pytest.raises(KeyboardInterrupt):
            group.push(inputs)
        assert waited == [0, 1]
        first, rest = group.push([None, None]), group.finish()
    assert [events + last for events, last in zip(first, rest, strict=True)] == expected


def test_the_error_of_one_tells_of_the_others(asr):
    with asr.streams(3) as group:
        with pytest.raises(AudioError, match="a chunk of str") as caught:
            group.push(["no audio", None, torch.zeros(2, 3, 4)])
        (note,) = caught.value.__notes__
        assert note.startswith("stream 2 failed too: ") and "(2, 3, 4)" in note
        assert group.push([None, None, None]) == [[], [], []]


def test_what_no_group_takes(asr):
    with pytest.raises(SettingError, match="count=0: pass between 1 and 1000"):
        asr.streams(0)
    with pytest.raises(SettingError, match="channels=0"):
        asr.streams(2, sample_rate=8_000, update_interval=None, channels=0)
    with asr.streams(2) as group, pytest.raises(SettingError, match="1 chunks for 2 streams"):
        group.push([None])


def test_one_batch_for_all_that_ask():
    """Twelve threads ask three times each, one of them leaves early: no batch waits for it, and none is lost."""
    gathering, sizes = Gathering(threading.Lock()), []
    start = threading.Barrier(12)

    def double(items):
        sizes.append(len(items))
        return [2 * item for item in items]

    def ask(number):
        with gathering.joined():
            start.wait()
            found[number] = [gathering.ask(double, number + turn) for turn in range(1 if number == 5 else 3)]

    found = {}
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sizes == [12, 11, 11]
    assert found == {n: [2 * (n + turn) for turn in range(1 if n == 5 else 3)] for n in range(12)}


def test_who_is_interrupted_while_waiting_is_not_waited_for(monkeypatch):
    gathering, goes_on, found = Gathering(threading.Lock()), threading.Event(), []

    def later():
        with gathering.joined():
            is_in.set()
            goes_on.wait()
            found.append(gathering.ask(lambda items: items, 2))

    def interrupted(*_):
        raise KeyboardInterrupt

    is_in, thread = threading.Event(), threading.Thread(target=later)
    thread.start()
    is_in.wait()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(gathering._changed, "wait", interrupted)
        gathering.ask(lambda items: items, 1)
    goes_on.set()
    thread.join(20)
    assert found == [2]


def test_an_error_is_everybody_s_whose_item_it_met():
    gathering = Gathering(threading.Lock())

    def fail(items):
        raise ValueError(f"{len(items)} items")

    with pytest.raises(ValueError, match="1 items"):
        gathering.ask(fail, 1)
    assert gathering.ask(lambda items: items, 2) == 2


def test_the_first_kind_of_work_comes_first():
    """Two threads encode, and then all three decode in one batch, though one of them could begin earlier."""
    gathering, order = Gathering(threading.Lock()), []

    def encode(items):
        order.append(f"encode {len(items)}")
        return items

    def decode(items):
        order.append(f"decode {len(items)}")
        return items

    def stream(works):
        with gathering.joined():
            start.wait(20)
            for work in works:
                gathering.ask(work, 1)

    for work in (encode, decode):
        gathering.ask(work, 1)
    order.clear()
    start = threading.Barrier(3)
    threads = [
        threading.Thread(target=stream, args=(works,)) for works in ([decode], [encode, decode], [encode, decode])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert order == ["encode 2", "decode 3"]


def test_work_of_another_kind_is_not_forgotten():
    """It comes while a batch runs, and is done behind it."""
    gathering, order = Gathering(threading.Lock()), []

    def slow(items):
        time.sleep(0.05)
        order.append("slow")
        return items

    def quick(items):
        order.append("quick")
        return items

    threads = [threading.Thread(target=gathering.ask, args=(work, 1)) for work in (slow, quick)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(order) == ["quick", "slow"]
