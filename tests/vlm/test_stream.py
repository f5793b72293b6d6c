"""Videos that go on: bounded memory, a tower whose reuse is exact where it is complete, the answers of a plain call."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig
from PIL import Image
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache, GenerationConfig

from mmaccel import vlm
from mmaccel.cache.argument import cached
from mmaccel.demos.training.onevision import shape
from mmaccel.errors import PromptError, SettingError, UnknownNameError, UnsupportedTargetError
from mmaccel.testing.contract import snapshot
from mmaccel.vlm import visual_examples
from mmaccel.vlm.answering import prepare
from mmaccel.vlm.stream import video_stream
from mmaccel.vlm.stream.stream_cache import HEAD, StreamCache
from mmaccel.vlm.stream.streaming_compression import History
from mmaccel.vlm.stream.token_memory import FrameTokens, TokenMemory
from mmaccel.vlm.stream.tower_cache import Computed, TowerCache, _Forward
from mmaccel.zoo.frames import OnevisionProcessor

CELLS = 64


@pytest.fixture(scope="module")
def parts():
    torch.manual_seed(0)
    tokenizer = shape.build_tokenizer()
    model = shape.build_model(tokenizer).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, OnevisionProcessor(tokenizer, model.config)


def frames(count, seed=0, still=False):
    rng = np.random.default_rng(seed)
    picture = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    clip = np.repeat(picture[None], count, 0)
    if not still:
        for number, frame in enumerate(clip):
            at = 2 * number % 48
            frame[at : at + 16, at : at + 16] = rng.integers(0, 255, 3)
    return clip


def features(model, processor, clip):
    inputs = processor(videos=[list(clip)], text="?", return_tensors="pt")
    with torch.no_grad():
        found = model.model.get_video_features(inputs["pixel_values_videos"]).pooler_output
    return found[0, :-1].unflatten(0, (len(clip), CELLS))


def test_a_stream_that_keeps_everything_answers_as_a_plain_call(parts):
    model, processor = parts
    clip = frames(6)
    method = vlm.StreamingCompression(keep=1.0, refresh=1.0)
    inputs = processor(videos=[list(clip)], text="what moves up?", return_tensors="pt")
    plain = model.generate(**inputs, max_new_tokens=8, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    before = snapshot(model)
    with vlm.VideoStream(model, processor, method) as stream:
        stream.push(clip[0])
        stream.push(clip[1:4])
        stream.push(list(clip[4:]))
        answer = stream.ask("what moves up?", max_new_tokens=8)
        assert stream.ask("what moves up?", max_new_tokens=8) == answer, "a second question is on the same memory"
    assert answer == processor.batch_decode(plain, skip_special_tokens=True)[0].strip()
    assert snapshot(model) == before


def asked(stream, question="what moves up?"):
    """The logits of an answer."""
    seen = []

    def watch(ids, scores):
        seen.append(scores.clone())
        return scores

    stream.ask(question, max_new_tokens=3, logits_processor=[watch])
    return torch.stack(seen)


def test_what_was_asked_before_a_frame_came_is_forgotten(parts):
    """Ask, push, ask: the last answer is that of a stream that was given the same frames and asked nothing."""
    model, processor = parts
    method, clip = vlm.StreamingCompression(keep=0.5, refresh=1.0), frames(6)
    asking, silent = (vlm.VideoStream(model, processor, method) for _ in range(2))
    for stream in (asking, silent):
        stream.push(clip[:2])
    before = asked(asking)
    for stream in (asking, silent):
        stream.push(clip[2:])
    after = asked(asking)
    assert torch.equal(after, asked(silent)) and not torch.equal(after, before)
    # and where nothing came, the prefix that was kept gives what a new one gives
    assert torch.allclose(asked(asking), asked(silent, "what moves up?"), atol=1e-5)
    assert torch.allclose(asked(asking, "how many?"), asked(silent, "how many?"), atol=1e-5)


def test_an_answer_that_broke_off_leaves_nothing_behind(parts):
    model, processor = parts
    broken, fresh = (vlm.VideoStream(model, processor, vlm.StreamingCompression(keep=0.5)) for _ in range(2))
    for stream in (broken, fresh):
        stream.push(frames(3))
    asked(broken)

    def stop(ids, scores):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.ask("how many?", logits_processor=[stop])
    assert torch.equal(asked(broken), asked(fresh))


def test_a_stream_that_was_closed_begins_anew(parts):
    model, processor = parts
    method = vlm.StreamingCompression(keep=0.25, refresh=0.5, interval=2)
    used, fresh = (vlm.VideoStream(model, processor, method) for _ in range(2))
    used.push(frames(3, seed=9))
    asked(used)
    used.close()
    for stream in (used, fresh):
        stream.push(frames(4))
    assert torch.equal(asked(used), asked(fresh)) and torch.equal(used.memory.tokens(), fresh.memory.tokens())


def test_a_stream_that_was_closed_holds_nothing_and_judges_no_old_answer(parts, monkeypatch):
    model, processor = parts
    stream = vlm.VideoStream(model, processor)
    stream.push(frames(2))
    likely = iter((1.0, 9.0, 9.0))
    monkeypatch.setattr(stream, "perplexity", lambda question, answer: next(likely))
    assert not stream.has_news("what moves?", "a star")
    stream.close()
    assert (stream.stats.memory_bytes, stream.stats.tokens, stream.stats.remembered) == (0, 0, 0)
    assert stream.stats.frames == 2
    stream.push(frames(1))
    assert not stream.has_news("what moves?", "a star"), "its first question since"
    assert not stream.has_news("what moves?", "a star"), "the answer fits as it did then"


def test_a_stream_that_was_closed_counts_its_frames_anew(parts):
    """Every third frame is computed whole: after one and a close the next, and not the second next."""
    model, processor = parts
    stream = vlm.VideoStream(model, processor, vlm.StreamingCompression(refresh=0.25, interval=3), policy="window")
    shares = []

    def push():
        tower = stream._tower
        computed, plain = tower.computed, tower.plain
        stream.push(frames(1))
        shares.append((tower.computed - computed) / (tower.plain - plain))

    for _ in range(5):
        push()
    stream.close()
    assert stream._tower.references == {}, "memory is let go"
    for _ in range(4):
        push()
    assert shares == [1, 0.25, 0.25, 1, 0.25, 1, 0.25, 0.25, 1]
    assert stream.stats.tower_share == pytest.approx(sum(shares) / 9) and stream.stats.frames == 9


def test_features_of_another_stream_need_no_tower_of_this_one(parts):
    method = vlm.StreamingCompression(refresh=0.25)
    one, other = (vlm.VideoStream(*parts, method) for _ in range(2))
    other.push_features(one.features(one.pixels([*frames(2)])))
    assert other.stats.frames == 2 and other.stats.tower_share == 1, "its own tower saw nothing"


@pytest.mark.parametrize("cut", (2, 3, 5, 7))
def test_what_a_tower_reuses_does_not_depend_on_how_frames_are_pushed(parts, cut):
    model, processor = parts
    clip = frames(7)

    def seen(size):
        stream = vlm.VideoStream(model, processor, vlm.StreamingCompression(keep=0.5, refresh=0.25, interval=3))
        for first in range(0, len(clip), size):
            stream.push(clip[first : first + size])
        return stream.memory.tokens(), stream.stats.tower_share

    (one, share), (other, as_much) = seen(1), seen(cut)
    assert torch.allclose(one, other, atol=1e-4) and share == as_much == pytest.approx((3 + 4 * 0.25) / 7)


def test_a_stream_has_the_parts_it_was_given(parts):
    model, processor = parts
    gate = vlm.ResponseGate(1.5)
    stream = vlm.VideoStream(model, processor, memory=90, policy="window", gate=gate)
    assert stream.gate is gate and stream.method == vlm.StreamingCompression()
    for _ in range(2):
        stream.push(list(frames(6)))
        assert [frame.number % 6 for frame in stream.memory.frames] == [2, 3, 4, 5], "20 tokens each, the newest"
        assert stream.stats.remembered == 4 and stream.stats.tokens == stream.memory.count == 80
        stream.close()


def test_a_picture_is_one_frame_and_several_are_several(parts):
    model, processor = parts
    stream = vlm.VideoStream(model, processor)
    clip = frames(3)
    stream.push(Image.fromarray(clip[0]))
    stream.push([Image.fromarray(frame) for frame in clip[1:]])
    other = vlm.VideoStream(model, processor)
    other.push(clip[:1])
    other.push(clip[1:])
    assert stream.stats.frames == 3 and torch.equal(stream.memory.tokens(), other.memory.tokens())


def test_frames_of_a_file_are_pushed_as_they_were_read(parts):
    model, processor = parts
    clip, times = frames(3), np.arange(3.0)
    stream, other = (vlm.VideoStream(model, processor) for _ in range(2))
    stream.push(vlm.VideoFrames(clip, np.arange(3), times, 1.0, 3, 3.0, Path("clip.mp4"), "av"))
    other.push(clip)
    assert stream.stats.frames == 3 and torch.equal(stream.memory.tokens(), other.memory.tokens())


@pytest.mark.parametrize("prefill", (False, True), ids=("question while a push is read", "push while a question is"))
def test_a_push_and_a_question_of_two_threads_take_turns(parts, prefill, monkeypatch):
    """No frame is read twice by the language model, and none is left out."""
    model, processor = parts
    method, clip = vlm.StreamingCompression(keep=0.5, refresh=1.0), frames(6)
    live, calm = (vlm.VideoStream(model, processor, method, prefill=prefill) for _ in range(2))
    live.push(clip[:3])
    calm.push(clip[:3])

    def push():
        live.push(clip[3:])

    def ask():
        return asked(live)

    here, there = (ask, push) if prefill else (push, ask)
    append, others = StreamCache.append, []

    def meanwhile(cache, embeds, numbers):
        if not others:
            others.append(pool.submit(there))
            wait(others, timeout=0.5)  # which is how long it waits if all is well
        append(cache, embeds, numbers)

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(StreamCache, "append", meanwhile)
        here()
        others[0].result()
    calm.push(clip[3:])
    assert torch.equal(asked(live), asked(calm)) and live._cache.numbers == calm._cache.numbers


def test_an_answer_lets_frames_come(parts):
    """A camera goes on while a long answer is written, about what was there when it was asked for."""
    model, processor = parts
    method, clip = vlm.StreamingCompression(keep=0.5, refresh=1.0), frames(6)
    live, calm = (vlm.VideoStream(model, processor, method) for _ in range(2))
    live.push(clip[:3])
    calm.push(clip[:3])
    scores = []

    def watch(ids, found):
        scores.append(found.clone())
        if len(scores) == 1:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(live.push, clip[3:]).result(timeout=60)
        return found

    live.ask("what moves up?", max_new_tokens=3, logits_processor=[watch])
    assert live.stats.frames == 6 and torch.equal(torch.stack(scores), asked(calm))


@pytest.mark.parametrize("prefill", (False, True))
def test_a_model_may_be_off_loaded(parts, prefill):
    """Between passes accelerate leaves its weights on "meta"."""
    model, processor = parts
    away = cpu_offload(copy.deepcopy(model), execution_device=torch.device("cpu"))
    assert away.device.type == "meta"
    streams = [vlm.VideoStream(each, processor, prefill=prefill) for each in (model, away)]
    for stream in streams:
        stream.push(frames(3))
    plain, other = map(asked, streams)
    assert torch.equal(plain, other)
    plain, other = (stream.perplexity("what moves up?", "rocket") for stream in streams)
    assert plain == other


@pytest.mark.parametrize("first", ("push", "ask", "perplexity"))
def test_passes_of_an_off_loaded_model_take_turns(parts, first):
    """Of two threads, the one that leaves a layer would take the weights with which the other computes."""
    model, processor = parts
    away, clip, others = copy.deepcopy(model), frames(6), [None]
    layer = away.model.language_model.layers[0].mlp.down_proj
    forward = layer.forward

    def meanwhile(states):
        if not others:
            others.append(pool.submit(calls["ask" if first == "push" else "push"], live))
            wait(others, timeout=0.5)  # which is how long it waits if all is well
        return forward(states)

    layer.forward = meanwhile
    cpu_offload(away, execution_device=torch.device("cpu"))
    live, calm = (vlm.VideoStream(each, processor) for each in (away, model))
    for stream in (live, calm):
        stream.push(clip[:3])
    calls = {
        "push": lambda stream: stream.push(clip[3:]),
        "ask": asked,
        "perplexity": lambda stream: stream.perplexity("what moves up?", "rocket"),
    }
    with ThreadPoolExecutor(1) as pool:
        others.clear()
        expected, found = calls[first](calm), calls[first](live)
        second = others[0].result()
    if first == "push":
        assert torch.equal(second, asked(calm))
    else:
        calm.push(clip[3:])
        assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected)) and torch.equal(asked(live), asked(calm))


class Stacking(OnevisionProcessor):
    """Stacks the frames of a video before it resizes them, as transformers' own do."""

    def __call__(self, *args, videos, **more):
        for video in videos:
            np.stack([np.asarray(frame) for frame in video])
        return super().__call__(*args, videos=videos, **more)


def test_frames_of_a_push_may_differ_in_size(parts):
    model, processor = parts
    small, large = frames(2), np.random.default_rng(1).integers(0, 255, (48, 80, 3), dtype=np.uint8)
    chunk = [*small, Image.fromarray(large), large, small[0]]
    stream, plain = (vlm.VideoStream(model, each) for each in (Stacking(processor.tokenizer, model.config), processor))
    assert torch.equal(stream.pixels(chunk), prepare(processor, chunk, ["?"])["pixel_values_videos"])
    for each in (stream, plain):
        each.push(chunk)
    assert stream.stats.frames == 5 and torch.equal(stream.memory.tokens(), plain.memory.tokens())


def test_a_frame_is_as_new_as_what_is_kept_of_it(parts):
    model, processor = parts
    stream = vlm.VideoStream(model, processor, vlm.StreamingCompression(keep=0.25, refresh=1.0))
    history, clip = History(), frames(3)
    for frame, seen in zip(clip, features(model, processor, clip), strict=True):
        stream.push(frame)
        _, novelty = history.take(seen, 16)
        assert stream.memory.frames[-1].novelty == pytest.approx(float(novelty.mean()), abs=1e-4)


def test_what_is_left_over_goes_to_the_first_frames():
    kept = vlm.StreamingCompression(keep=None, tokens=10).compress(torch.randn(4, 16, 8))
    assert (kept.anchor_index // 16).bincount().tolist() == [3, 3, 2, 2]


def test_the_newest_frames_are_a_window():
    memory = TokenMemory(6, "window")
    for number in range(10):
        memory.add(FrameTokens(number, torch.zeros(2, 3), novelty=float(number == 1)))
    assert [frame.number for frame in memory.frames] == [7, 8, 9]


def test_frames_are_pruned_as_the_formula_says(parts):
    model, processor = parts
    clip = frames(4)
    stream = vlm.VideoStream(model, processor, vlm.StreamingCompression(keep=0.25, refresh=1.0))
    for frame in clip:
        stream.push(frame)
    seen = features(model, processor, clip)
    past = None
    for number, (frame, remembered) in enumerate(zip(seen, stream.memory.frames, strict=True)):
        unit = frame / frame.norm(dim=-1, keepdim=True)

        def alike(centre, unit=unit):
            return sum((-(unit - centre).pow(2).sum(-1) / (2 * 2.0**p)).exp() for p in range(-3, 2))

        score = alike(unit.mean(0)) + (alike(past) if past is not None else 0)
        kept = score.argsort()[:16].sort().values
        assert torch.allclose(remembered.tokens, frame[kept], atol=1e-5), f"frame {number}"
        past = unit.mean(0) if past is None else (past * number + unit.mean(0)) / (number + 1)


def test_offline_is_the_stream(parts):
    model, processor = parts
    clip = frames(5)
    method = vlm.StreamingCompression(keep=0.25, refresh=1.0)
    stream = vlm.VideoStream(model, processor, method)
    for frame in clip:
        stream.push(frame)
    left = method.compress(features(model, processor, clip))
    assert torch.allclose(left.tokens, stream.memory.tokens(), atol=1e-5)


def test_memory_and_time_stay_bounded(parts):
    model, processor = parts
    stream = vlm.VideoStream(model, processor, vlm.StreamingCompression(keep=0.25), memory=160)
    held = []
    for number in range(40):
        stream.push(frames(4, seed=number))
        assert stream.memory.count <= 160
        if number % 10 == 9:
            stream.ask("what moves up?", max_new_tokens=2)
            held.append(stream.stats.memory_bytes)
    assert len(set(held)) == 1, "bytes grow"
    stats = stream.stats
    assert stats.frames == 160 and stats.tokens == 160 and stats.plain_tokens == 160 * CELLS
    assert stats.remembered == 10 and 0.5 < stats.tower_share < 0.7 and stats.seconds > 0


@pytest.mark.parametrize("policy", ("peak_end", "budget"))
def test_what_is_remembered(policy):
    memory = TokenMemory(20, policy)
    for number in range(100):
        memory.add(FrameTokens(number, torch.zeros(2, 3), novelty=10.0 if number in (5, 31) else number / 1000))
        assert memory.count <= 20
    numbers = [frame.number for frame in memory.frames]
    assert numbers == sorted(numbers) and numbers[-5:] == [95, 96, 97, 98, 99]
    if policy == "peak_end":
        assert numbers[:2] == [5, 31]
    else:
        assert max(np.diff(numbers[:-5])) <= 40 and numbers[0] < 30, "the past is covered"


@pytest.mark.parametrize("policy", ("peak_end", "budget"))
def test_what_is_remembered_does_not_depend_on_the_number_of_the_first_frame(policy):
    """Frames go on being counted when a stream was closed."""
    kept = []
    for first in (0, 300):
        memory = TokenMemory(20, policy)
        for number in range(40):
            memory.add(FrameTokens(first + number, torch.zeros(2, 3), novelty=float(number % 7)))
        kept.append([frame.number - first for frame in memory.frames])
    assert kept[0] == kept[1]


def test_a_frame_larger_than_the_memory_is_kept_alone():
    memory = TokenMemory(4)
    memory.add(FrameTokens(0, torch.zeros(9, 2), 0.0))
    memory.add(FrameTokens(1, torch.zeros(9, 2), 0.0))
    assert [frame.number for frame in memory.frames] == [1]


@pytest.mark.parametrize("policy", ("peak_end", "budget"))
def test_a_memory_of_less_than_two_frames_holds_the_newest(policy):
    """The first one is the newest by itself: there is nothing before it that it could be like."""
    memory = TokenMemory(7, policy)
    for number in range(3):
        memory.add(FrameTokens(number, torch.zeros(4, 2), novelty=-float(number)))
    assert [frame.number for frame in memory.frames] == [2]


def test_a_prompt_has_no_more_tokens_of_a_frame_than_the_memory(parts):
    stream = vlm.VideoStream(*parts, vlm.StreamingCompression(keep=1.0), memory=10)
    stream.push(frames(3))
    assert stream.stats.tokens == 10 and stream.memory.frames[-1].number == 2
    assert len(stream._cache.read().layers[0].keys[0, 0]) == len(stream._cache)


# The tower


def tower_pass(model, processor, clip, cache):
    pixels = processor(videos=[list(clip)], text="?", return_tensors="pt")["pixel_values_videos"][0]
    with torch.no_grad(), cache.chunk(len(clip)) as order:
        out = model.model.vision_tower(pixels[order], output_hidden_states=True).hidden_states[-1]
    return out[torch.tensor(order).argsort()]


def plain_pass(model, processor, clip):
    pixels = processor(videos=[list(clip)], text="?", return_tensors="pt")["pixel_values_videos"][0]
    with torch.no_grad():
        return model.model.vision_tower(pixels, output_hidden_states=True).hidden_states[-1]


def test_refreshing_all_tokens_is_exact(parts):
    model, processor = parts
    layers = model.model.vision_tower.encoder.layers
    cache = TowerCache(layers, refresh=0.9999, interval=100)  # rounds to all tokens, by way of the reused path
    tower_pass(model, processor, frames(2), cache)
    out = tower_pass(model, processor, frames(3, seed=5), cache)
    assert torch.allclose(out, plain_pass(model, processor, frames(3, seed=5)), atol=1e-5)


def test_a_frame_that_did_not_change_costs_little_and_is_exact(parts):
    model, processor = parts
    cache = TowerCache(model.model.vision_tower.encoder.layers, refresh=0.1, interval=100)
    clip = frames(4, still=True)
    first = tower_pass(model, processor, clip[:1], cache)
    again = tower_pass(model, processor, clip[1:], cache)
    assert torch.allclose(again, first.expand_as(again), atol=1e-5)
    assert cache.computed / cache.plain == pytest.approx((1 + 3 * 26 / 256) / 4, abs=1e-3)


def test_more_refresh_is_nearer(parts):
    model, processor = parts
    errors = []
    for refresh in (0.05, 0.4, 0.95):
        cache = TowerCache(model.model.vision_tower.encoder.layers, refresh, interval=100)
        clip = frames(6)
        tower_pass(model, processor, clip[:1], cache)
        out = tower_pass(model, processor, clip[1:], cache)
        errors.append(float((out - plain_pass(model, processor, clip[1:])).square().mean()))
    assert errors[0] > errors[1] > errors[2]


def test_the_token_that_changed_most_is_told_in_half_precision():
    """Both cosines round to 1 in bfloat16."""
    torch.manual_seed(0)
    before = torch.randn(1, 2, 64)
    after = (before + torch.tensor([0.03, 0.055])[:, None] * torch.randn(1, 2, 64)).bfloat16()
    known = Computed(torch.nn.functional.normalize(before.bfloat16(), dim=-1), after.clone(), after.clone())
    same, fresh = torch.nn.Identity(), []
    attention = SimpleNamespace(
        q_proj=lambda x: fresh.append(x) or x, k_proj=same, v_proj=same, out_proj=same, head_dim=64, scale=1.0
    )
    layer = SimpleNamespace(layer_norm1=same, layer_norm2=same, mlp=same, self_attn=attention)
    forward = _Forward(SimpleNamespace(refresh=0.5, computed=0), 0, layer, {}, 0, [0])
    forward._changed(after, known, [0])
    assert torch.equal(fresh[0], after[:, 1:])


def test_an_exception_leaves_the_tower_as_it_was(parts):
    model, processor = parts
    before = snapshot(model)
    cache = TowerCache(model.model.vision_tower.encoder.layers, 0.25)
    with pytest.raises(RuntimeError), cache.chunk(2):
        raise RuntimeError
    assert snapshot(model) == before


def test_a_chunk_that_broke_off_does_not_count(parts):
    """The next one begins with the whole frame that it would have had."""
    model, processor = parts
    cache = TowerCache(model.model.vision_tower.encoder.layers, refresh=0.1, interval=2)
    clips = [frames(1, seed) for seed in range(3)]
    tower_pass(model, processor, clips[0], cache)
    tower_pass(model, processor, clips[1], cache)
    known = {number: frames_.unit.clone() for number, frames_ in cache.references.items()}
    with pytest.raises(RuntimeError), cache.chunk(2):
        raise RuntimeError
    hook = model.model.vision_tower.encoder.layers[-1].mlp.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tower_pass(model, processor, clips[2], cache)
    hook.remove()
    assert all(torch.equal(known[number], frames_.unit) for number, frames_ in cache.references.items())
    computed, plain = cache.computed, cache.plain
    tower_pass(model, processor, clips[2], cache)
    assert cache.computed - computed == cache.plain - plain > 0


def test_arguments_of_an_answer_reach_generate(parts):
    model, processor = parts
    with vlm.VideoStream(model, processor) as stream:
        stream.push(frames(3))
        drawn = set()
        for seed in range(4):
            torch.manual_seed(seed)
            drawn.add(stream.ask("what moves up?", max_new_tokens=6, do_sample=True, temperature=5.0))
        assert len(drawn) > 1 and len({stream.ask("what moves up?", max_new_tokens=6) for _ in range(2)}) == 1


def test_a_kind_of_cache_that_is_asked_for_gives_way_to_that_of_the_stream(parts, monkeypatch):
    model, processor = parts
    with vlm.VideoStream(model, processor) as stream:
        stream.push(frames(3))
        plain = stream.ask("what moves up?", max_new_tokens=6)
        assert stream.ask("what moves up?", max_new_tokens=6, cache_implementation="static") == plain
        monkeypatch.setattr(model.generation_config, "cache_implementation", "static")
        assert stream.ask("what moves up?", max_new_tokens=6) == plain


def test_memory_counts_the_keys_that_are_kept(parts):
    model, processor = parts
    held = []
    for prefill in (False, True):
        stream = vlm.VideoStream(model, processor, prefill=prefill)
        stream.push(frames(3))
        held.append(stream.stats.memory_bytes)
        stream.ask("what moves up?", max_new_tokens=2)
        held.append(stream.stats.memory_bytes)
        stream.push(frames(1))
        held.append(stream.stats.memory_bytes)
    tokens = stream.memory.nbytes()
    assert held[0] == held[1] < held[2], "read with the frames"
    assert held[3] < held[4] > held[5] == tokens, "read with the question, and let go with the next frame"


def test_a_stream_that_reads_as_it_goes_answers_as_one_that_reads_at_the_question(parts):
    """Until something is forgotten both know the same; with reread=0 also after that."""
    model, processor = parts
    method = vlm.StreamingCompression(keep=0.25, refresh=1.0)
    made = {"memory": 100, "policy": "budget"}
    ways = ({"prefill": True}, {"reread": 0.0}, {"reread": None})
    late, exact, never = (vlm.VideoStream(model, processor, method, **made, **way) for way in ways)
    for number in range(6):
        for stream in (late, exact, never):
            stream.push(frames(2, seed=number))
        wanted = asked(late)
        assert torch.allclose(asked(exact), wanted, atol=1e-4)
        assert torch.allclose(asked(never), wanted, atol=1e-4) == (number < 3), "16 tokens a frame: six fit"
        perplexities = [stream.perplexity("what moves up?", "rocket") for stream in (late, exact)]
        assert perplexities[0] == pytest.approx(perplexities[1], rel=1e-4)


def test_keys_that_moved_up_are_those_of_their_new_positions(parts):
    """Of one layer, which knows nothing of what is gone: evicted in the middle, it is as if that had not been there."""
    model, _ = parts
    decoder, config = model.get_decoder(), model.config.get_text_config(decoder=True)
    embeds = torch.randn(1, 9, config.hidden_size)
    whole, fresh = StreamCache(decoder, config), StreamCache(decoder, config)
    whole.append(embeds[:, :5], [HEAD, 0, 0, 1, 1])
    whole.append(embeds[:, 5:], [2, 2, 3, 3])
    whole.keep({0, 2, 3})
    fresh.append(embeds[:, [0, 1, 2, 5, 6, 7, 8]], [HEAD, 0, 0, 2, 2, 3, 3])
    assert whole.numbers == fresh.numbers and whole.evicted == 2
    first, other = whole.read().layers, fresh.read().layers
    assert torch.allclose(first[0].keys, other[0].keys, atol=1e-5)
    assert not torch.allclose(first[1].keys, other[1].keys, atol=1e-3), "deeper layers have seen it"


def test_columns_that_stay_are_sent_to_a_gpu_once(parts):
    """And not as a list for each layer."""
    model, _ = parts
    decoder, config = model.get_decoder(), model.config.get_text_config(decoder=True)
    cache, lists = StreamCache(decoder, config), []

    class Lists(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.__getitem__:
                lists.extend(part for part in args[1] if isinstance(part, list))
            return func(*args, **(kwargs or {}))

    cache.append(torch.randn(1, 5, config.hidden_size), [HEAD, 0, 0, 1, 1])
    with Lists():
        cache.keep({1})
    assert len(cache) == 3 and not lists


def test_a_decoder_whose_keys_cannot_move_is_refused(parts):
    model, processor = parts
    rotary = model.get_decoder().rotary_emb
    rotary.rope_type = "dynamic"
    try:
        with pytest.raises(UnsupportedTargetError, match="prefill=True"):
            vlm.VideoStream(model, processor)
        stream = vlm.VideoStream(model, processor, prefill=True)
        stream.push(frames(1))
        assert isinstance(stream.ask("what moves up?", max_new_tokens=2), str)
    finally:
        rotary.rope_type = "default"


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_streams_go_on_in_autocast(parts, dtype):
    stream = vlm.VideoStream(*parts, vlm.StreamingCompression(keep=0.25))
    with torch.autocast("cpu", dtype):
        for part in np.split(frames(6), 3):
            stream.push(part)
        assert stream.ask("what moves up?", 2) is not None
    assert stream.stats.frames == 6 and stream.stats.tower_share < 1


def test_the_last_whole_frame_is_what_later_ones_are_held_against(parts):
    model, processor = parts
    one, other = frames(1)[0], frames(1, seed=7)[0]
    plain = plain_pass(model, processor, np.stack([one, other]))
    for cuts in ([0, 4], [0, 1, 4], [0, 3, 4]):  # whole ones are the first and the third
        cache = TowerCache(model.model.vision_tower.encoder.layers, refresh=1e-6, interval=2)
        clip = np.stack([one, one, other, other])
        out = torch.cat([tower_pass(model, processor, clip[a:b], cache) for a, b in itertools.pairwise(cuts)])
        assert torch.allclose(out, plain[[0, 0, 1, 1]], atol=1e-5)
        tokens = plain.shape[1]
        assert cache.computed == len(cache.layers) * 2 * (tokens + 1), "a token of each layer at least"


def test_what_is_remembered_of_a_chunk_is_one_frame_in_memory(parts):
    model, processor = parts
    cache = TowerCache(model.model.vision_tower.encoder.layers)
    tower_pass(model, processor, frames(4), cache)
    for known in cache.references.values():
        for part in (known.unit, known.value, known.change):
            assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


def test_other_towers_are_refused():
    model, _ = visual_examples.qwen2_vl()
    with pytest.raises(UnsupportedTargetError, match=r"refresh=1\.0"):
        TowerCache(model.model.visual.blocks, 0.25)


# What a user can do wrong


def test_errors(parts):
    model, processor = parts
    with pytest.raises(UnsupportedTargetError, match="LlavaOnevision"):
        vlm.VideoStream(visual_examples.qwen2_vl()[0], processor)
    for bad in (
        {"memory": 0},
        {"memory": 2.5},
        {"memory": "2048"},
        {"prefill": "no"},
        {"gate": 1.04},
        {"reread": "all"},
        {"method": vlm.VidCom2()},
    ):
        with pytest.raises(SettingError, match=f"{next(iter(bad))}=.*: pass "):
            vlm.VideoStream(model, processor, **bad)
    with pytest.raises(UnknownNameError, match="peak_end"):
        vlm.VideoStream(model, processor, policy="peak_and")
    with pytest.raises(SettingError, match="reread=-1"):
        vlm.VideoStream(model, processor, reread=-1)
    stream = vlm.VideoStream(model, processor)
    with pytest.raises(PromptError, match="the stream has no frames"):
        stream.ask("what moves up?")
    stream.push([])
    for bad in ("clip.mp4", frames(2)[0, :, :, :2], frames(1)[0] / 255, [frames(1)[0], None], frames(0)[:, 0], 3):
        with pytest.raises(PromptError, match=r"frame \d of the push is a .*: push PIL pictures or uint8"):
            stream.push(bad)
    assert stream.stats.frames == 0
    stream.push([frames(1)[0], frames(1)[0, :40, :30]])
    with pytest.raises(PromptError, match="question is empty"):
        stream.ask(" ")
    for more in ({"return_dict_in_generate": True}, {"num_return_sequences": 2, "do_sample": True}):
        with pytest.raises(SettingError, match="ask returns the text of one answer"):
            stream.ask("what moves up?", **more)
    for more in ({"prompt_lookup_num_tokens": 4}, {"assistant_model": stream.model}, {"prefill_chunk_size": 8}):
        with pytest.raises(SettingError, match=f"{next(iter(more))}: a stream is read as embeddings"):
            stream.ask("what moves up?", **more)
    with pytest.raises(SettingError, match="a stream has a cache of its own"):
        stream.ask("what moves up?", **cached(DynamicCache()))
    assert stream.ask("what moves up?", num_beams=2, return_dict_in_generate=False, num_return_sequences=1)
    stream.close()
    with pytest.raises(PromptError, match="the stream has no frames"):
        stream.ask("what moves up?")


def test_a_template_with_two_videos_is_refused(parts, monkeypatch):
    model, processor = parts
    stream = vlm.VideoStream(model, processor)
    stream.push(frames(1))
    template = processor.apply_chat_template
    monkeypatch.setattr(processor, "apply_chat_template", lambda *a, **k: 2 * template(*a, **k))
    with pytest.raises(PromptError, match="makes 2 video placeholders of one video"):
        stream.ask("what moves up?")


def test_seconds_add_up(parts, monkeypatch):
    model, processor = parts
    stream = vlm.VideoStream(model, processor)
    ticks = iter((10.0, 13.0, 20.0, 24.0))
    monkeypatch.setattr(video_stream.time, "perf_counter", lambda: next(ticks))
    for _ in range(2):
        stream.push(frames(1))
    assert stream.stats.seconds == 7.0


@pytest.mark.parametrize("ends", (0, 1))
def test_a_line_ends_after_the_video_where_the_family_has_it_so(parts, monkeypatch, ends):
    model, processor = parts
    stream = vlm.VideoStream(model, processor, vlm.StreamingCompression(keep=0.25))
    stream.push(frames(2))
    monkeypatch.setattr(stream.adapter, "line_ends", ends, raising=False)
    ids, embeds, _ = stream._prompt("what moves up?")
    shown = (ids[0] == stream.adapter.token_id("video")).nonzero().flatten()
    assert len(shown) == stream.memory.count + ends and embeds.shape[1] == ids.shape[1]


def test_perplexity_is_lowest_for_the_answer_itself(parts):
    model, processor = parts
    stream = vlm.VideoStream(model, processor)
    stream.push(frames(3))
    answer = stream.ask("what moves up?", max_new_tokens=3) or "rocket"
    assert stream.perplexity("what moves up?", answer) <= stream.perplexity("what moves up?", "white background") * 1.01
    with pytest.raises(PromptError, match="answer is empty"):
        stream.perplexity("what moves up?", "")


def test_news_is_an_answer_that_fits_less_and_less(parts, monkeypatch):
    model, processor = parts
    stream = vlm.VideoStream(model, processor)
    stream.push(frames(2))
    fits = iter([2.0, 2.05, 2.2, 2.2, 1.5])
    monkeypatch.setattr(stream, "perplexity", lambda question, answer: next(fits))
    asked = [stream.has_news("what moves up?", "rocket") for _ in range(4)]
    assert asked == [False, False, True, False]
    assert not stream.has_news("what moves up?", "pizza"), "a new answer is the new reference"
    fits = iter([9.0])
    assert not stream.has_news("how many?", "pizza"), "and so is that of another question"


def test_an_answer_to_a_watched_question_is_held_against_the_time_when_it_was_given(parts, monkeypatch):
    """And not against the next look at it, when the scene may be another one already."""
    stream = vlm.VideoStream(*parts)
    stream.push(frames(2))
    fits = iter([2.0, 9.0, 3.0, 9.0])
    monkeypatch.setattr(stream, "_perplexity", lambda prompt, answer: next(fits))
    assert not stream.has_news("what moves up?", "rocket")
    assert stream.has_news("what moves up?", "rocket")
    answer = stream.ask("what moves up?", max_new_tokens=3)
    assert answer and stream.gate.reference == 3.0
    assert stream.has_news("what moves up?", answer)
    stream.ask("how many?", max_new_tokens=3)  # which nobody watches
    assert next(fits, None) is None


@pytest.mark.parametrize("prefill", (False, True))
def test_frames_that_come_while_an_answer_is_written_do_not_count_for_it(parts, monkeypatch, prefill):
    model, processor = parts
    stream, generate, wanted = vlm.VideoStream(model, processor, prefill=prefill), model.generate, []
    stream.push(frames(2))
    stream.has_news("what moves up?", "rocket")

    def while_frames_come(**kwargs):
        result = generate(**kwargs)
        answer = processor.batch_decode(result[:, kwargs["input_ids"].shape[1] :], skip_special_tokens=True)[0].strip()
        wanted.append(stream.perplexity("what moves up?", answer))
        stream.push(frames(3, seed=9))
        wanted.append(stream.perplexity("what moves up?", answer))
        return result

    monkeypatch.setattr(model, "generate", while_frames_come)
    assert stream.ask("what moves up?", max_new_tokens=3)
    assert stream.gate.reference == pytest.approx(wanted[0], rel=1e-5) != pytest.approx(wanted[1], rel=1e-3)


def test_history_starts_with_the_frame_alone():
    history = History()
    frame = torch.randn(4, 3)
    first = history.novelty(frame)
    history.add(frame)
    assert history.frames == 1 and (history.novelty(frame) < first).all()


def test_two_streams_in_two_threads_are_as_two_one_after_the_other(parts):
    model, processor = parts
    clips = [frames(16, seed) for seed in (1, 2)]
    plain = features(model, processor, clips[0])

    def seen(clip):
        stream = vlm.VideoStream(model, processor)
        for first in range(0, len(clip), 2):
            stream.push(clip[first : first + 2])
        return stream.memory.tokens()

    wanted, before = [seen(clip) for clip in clips], snapshot(model)
    for _ in range(4):
        with ThreadPoolExecutor(2) as threads:
            found = threads.map(seen, clips)
            meanwhile = features(model, processor, clips[0])
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        assert torch.equal(meanwhile, plain), "who calls the model itself gets its own tower"
    assert snapshot(model) == before


def test_settings_of_generate_are_the_users(parts):
    model, processor = parts
    with vlm.VideoStream(model, processor) as stream:
        stream.push(frames(2))
        counted = []
        hook = model.lm_head.register_forward_hook(lambda *_: counted.append(1))
        stream.ask("what moves up?", generation_config=GenerationConfig(max_new_tokens=3, min_new_tokens=3))
        assert len(counted) == 3
        for given, count in (
            ({"generation_config": GenerationConfig(min_new_tokens=40)}, 32),
            ({"generation_config": GenerationConfig(max_new_tokens=3, min_new_tokens=9), "max_new_tokens": 9}, 9),
            ({"max_new_tokens": 4, "min_new_tokens": 4}, 4),
            ({"min_new_tokens": 40}, 32),
        ):
            counted.clear()
            stream.ask("what moves up?", **given)
            assert len(counted) == count
        hook.remove()
        with pytest.raises(ValueError, match="max_new_tokens"):
            stream.ask("what moves up?", max_new_tokens=0)
        with pytest.raises(SettingError, match="return_dict_in_generate=True: ask returns the text"):
            stream.ask("what moves up?", generation_config=GenerationConfig(return_dict_in_generate=True))
        with pytest.raises(PromptError, match="question=.'a', 'b'.: ask one question"):
            stream.ask(["a", "b"])


@pytest.mark.parametrize("reread", (0.125, None))
def test_what_was_read_by_another_adapter_is_read_anew(parts, reread):
    """Also in the tower, which reuses nothing of a frame that another one has seen."""
    model, processor = copy.deepcopy(parts[0]), parts[1]
    config, clip = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False), frames(4)
    for name in ("one", "other"):
        model.add_adapter(config, name)
    model.set_adapter("other")
    method = vlm.StreamingCompression(keep=1.0, refresh=0.25)
    fresh, switched = (vlm.VideoStream(model, processor, method, reread=reread) for _ in range(2))
    for stream in (fresh, switched):
        stream.push(clip)
    expected = asked(fresh)
    model.set_adapter("one")
    other = asked(switched)
    model.set_adapter("other")
    assert torch.allclose(asked(switched), expected, atol=1e-5) and not torch.allclose(other, expected, atol=1e-3)
    seen = switched.features(switched.pixels(list(clip[:1])))
    model.set_adapter("one")
    tower = vlm.VideoStream(model, processor, method)
    pixels = tower.pixels(list(clip[1:2]))
    assert torch.equal(switched.features(pixels), tower.features(pixels)) and seen.shape == (1, CELLS, seen.shape[2])
