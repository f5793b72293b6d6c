"""Merging of audio tokens: the pure functions against their definitions, and the method on real classes."""

from __future__ import annotations

import itertools
import math
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import tiny_recognisers
import torch

from mmaccel.adapter import Adapter
from mmaccel.errors import SettingError
from mmaccel.plan import Plan
from mmaccel.session import Session
from mmaccel.speech.decoding import merge_audio_tokens
from mmaccel.speech.decoding.audio_tokens import _chosen, greedy_map, merge_tokens, similar_runs
from mmaccel.speech.decoding.merge_audio_tokens import MergeAudioTokens, _Received


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unit(x):
    return torch.nn.functional.normalize(x, dim=-1)


@pytest.mark.parametrize("threshold", (-1, 0.0, 0.3, 0.85, 1.0))
def test_runs_follow_their_definition(threshold):
    vectors = unit(random(30, 6).cumsum(0))
    runs = [[0]]
    for token in range(1, 30):
        mean = np.mean([float(vectors[token] @ vectors[member]) for member in runs[-1]])
        if mean >= threshold:
            runs[-1].append(token)
        else:
            runs.append([token])
    assert similar_runs(vectors.numpy(), threshold) == [run[0] for run in runs]


@pytest.mark.parametrize("seed", range(6))
def test_greedy_map_is_the_greedy_of_determinants(seed):
    vectors = random(9, 12, seed=seed).double()
    kernel = (vectors @ vectors.T).numpy()
    chosen = []
    for _ in range(5):  # brute force: each item tried, each determinant computed
        left = [item for item in range(9) if item not in chosen]
        chosen.append(max(left, key=lambda item: np.linalg.det(kernel[np.ix_([*chosen, item], [*chosen, item])])))  # noqa: B023
    assert greedy_map(kernel, 5) == chosen


def test_greedy_map_is_near_the_best_subset():
    vectors = random(7, 8, seed=3).double()
    kernel = (vectors @ vectors.T).numpy()

    def determinant(items):
        return np.linalg.det(kernel[np.ix_(items, items)])

    best = max(determinant(list(items)) for items in itertools.combinations(range(7), 3))
    found = determinant(greedy_map(kernel, 3))
    assert 0 < found <= best * (1 + 1e-9) and math.log(best / found) < 1


def test_greedy_map_past_the_rank_takes_the_largest():
    vectors = random(6, 2).double()
    kernel = (vectors @ vectors.T).numpy()
    chosen = greedy_map(kernel, 5)
    rest = sorted(set(range(6)) - set(chosen[:2]), key=lambda item: -kernel[item, item])
    assert len(set(chosen)) == 5 and chosen[2:] == rest[:3]


def test_merged_features_are_weighted_means_in_order():
    base = unit(random(3, 16))
    features = torch.stack([base[0], base[0] * 2, base[1], base[2], base[2] * 3, base[2]])[None]
    importance = torch.tensor([[1.0, 3.0, 1.0, 2.0, 1.0, 1.0]])
    merged = merge_tokens(features, importance, keep=1.0, threshold=0.9)
    assert merged.first.tolist() == [[0, 2, 3]] and merged.size.tolist() == [[2, 1, 3]]
    expected = torch.stack([base[0] * 7 / 4, base[1], base[2] * 6 / 4])
    assert torch.allclose(merged.features[0], expected, atol=1e-6)
    assert torch.equal(merged.features[0, 1], features[0, 2])  # alone: as it was


def test_keep_bounds_the_number_and_chooses_the_telling():
    features = random(1, 20, 32)
    importance = torch.full((1, 20), 0.01)
    telling = [2, 3, 7, 11, 19]
    importance[0, telling] = 1.0
    merged = merge_tokens(features, importance, keep=0.25, threshold=1.0)
    assert merged.first[0].tolist() == telling and torch.equal(merged.features[0], features[0, telling])
    assert merge_tokens(features, importance, keep=0.01).features.shape == (1, 1, 32)


@pytest.mark.parametrize("kind", ("mps", "xpu"))
def test_a_gpu_without_float64_chooses_the_same(kind):
    class Narrow(torch.Tensor):
        device = torch.device(kind)

        def cpu(self):
            return self.as_subclass(torch.Tensor)

        def double(self):
            raise TypeError

    merged, relevance = random(9, 4), random(9, seed=1).abs()
    there = (x.as_subclass(Narrow) for x in (merged, relevance))
    assert _chosen(*there, 3) == _chosen(merged, relevance, 3)


def test_of_two_that_are_alike_one_is_chosen():
    base = unit(random(3, 16))
    features = torch.stack([base[0], base[1], base[0], base[2]])[None]  # not neighbours: they do not merge
    merged = merge_tokens(features, torch.tensor([[1.0, 0.5, 0.9, 0.5]]), keep=0.75, threshold=0.9)
    assert merged.first.tolist() == [[0, 1, 3]]


def test_ragged_rows_are_shortened_apart_and_padding_is_never_seen():
    features, importance = random(2, 12, 8).cumsum(1), random(2, 12).abs()
    mask = torch.ones(2, 12)
    mask[1, 5:] = 0
    spoilt = features.clone()
    spoilt[1, 5:] = 99.0
    merged = merge_tokens(spoilt, importance, 0.5, 0.9, mask)
    alone = [
        merge_tokens(features[:1], importance[:1], 0.5, 0.9),
        merge_tokens(features[1:, :5], importance[1:, :5], 0.5, 0.9),
    ]
    for row, single in enumerate(alone):
        kept = merged.size[row] > 0
        assert torch.equal(merged.first[row][kept], single.first[0]) and torch.equal(
            merged.size[row][kept], single.size[0]
        )
        assert torch.allclose(merged.features[row][kept], single.features[0], atol=1e-6)
        assert not merged.features[row][~kept].any()


def test_equal_rows_for_decoders_without_a_mask():
    features = torch.stack([random(16, 8), torch.ones(16, 8)])  # all different, and all the same
    merged = merge_tokens(features, torch.ones(2, 16), keep=0.5, threshold=0.9, equal=True)
    assert merged.features.shape == (2, 8, 8) and (merged.size > 0).all()
    assert merged.size[1].tolist() == [2] * 8 and torch.allclose(merged.features[1], torch.ones(8, 8))


# The method, on models of real classes with a few thousand weights.

SETTINGS = {"seed": 0, "eos_token_id": None}  # no text ends of itself


class Plain(Adapter):
    """As little of an adapter as a session needs."""

    family, modality, classes = "whisper", "speech", ()


def whisper(scale=1.0):
    model = tiny_recognisers.whisper(scale=scale, **SETTINGS, encoder_layers=2, max_target_positions=32)
    return model, lambda batch: {"input_features": random(batch, 8, 100)}


def moonshine(scale=1.0):
    model = tiny_recognisers.moonshine(scale=scale, **SETTINGS, encoder_num_hidden_layers=2)
    return model, lambda batch: {"input_values": random(batch, 16_000)}


@pytest.fixture(params=(whisper, moonshine), ids=("whisper", "moonshine"))
def target(request):
    return request.param(scale=6.0)  # attention and greedy decoding have no near-ties


def session_of(model, method):
    return Session(Plan((method,), family="whisper"), Plain(model))


def generate(target, inputs, **more):
    return target.generate(**inputs, max_new_tokens=8, do_sample=False, **more)


@pytest.mark.parametrize("batch", (1, 3))
def test_the_method_shortens_what_the_decoder_attends_to(target, batch):
    model, inputs = target
    seen = []
    with session_of(model, MergeAudioTokens(keep=0.5)) as fast:
        watch = model.get_decoder().register_forward_pre_hook(
            lambda _module, _args, kwargs: seen.append(kwargs["encoder_hidden_states"].shape), with_kwargs=True
        )
        generate(fast, inputs(batch))
        watch.remove()
        report = fast.report
    length = model.get_encoder()(next(iter(inputs(1).values()))).last_hidden_state.shape[1]
    assert report.engaged and not report.exact
    assert {shape[0] for shape in seen} == {batch} and all(shape[1] <= round(0.5 * length) for shape in seen)
    assert report.details["audio_tokens"] == batch * length and report.details["kept"] <= batch * round(0.5 * length)
    assert report.work_ratio == pytest.approx(report.details["kept"] / report.details["audio_tokens"], rel=1e-3)
    assert not report.warnings and report.peak_extra_bytes > 0


def test_importance_is_the_attention_of_the_eager_model(target):
    model, inputs = target
    model.set_attn_implementation("eager")
    encoder = model.get_encoder()
    last = encoder.layers[-1].self_attn
    received = _Received(last)
    maps = []
    watch = last.register_forward_hook(lambda _m, _a, output: maps.append(output[1]))
    with torch.no_grad(), received.watched():
        encoder(next(iter(inputs(2).values())))
        found = received.importance(None)
    watch.remove()
    assert torch.allclose(found, maps[0].mean((1, 2)), atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(2))


def test_autocast_changes_no_importance(target):
    model, inputs = target
    received = _Received(model.get_encoder().layers[-1].self_attn)
    with torch.no_grad(), received.watched():
        model.get_encoder()(next(iter(inputs(2).values())))
    states, positions = dict(received.states), received.positions
    expected = received.importance(None)
    received.states.update(states)
    received.positions = positions
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(received.importance(None), expected)


def test_another_thread_may_call_the_encoder_meanwhile(target):
    """What its tokens receive counts for them alone, and so do they in the report."""
    model, inputs = target
    thread, given, heard = threading.get_ident(), inputs(2), []

    @torch.no_grad()
    def encode():
        return model.get_encoder()(next(iter(inputs(1).values()))).last_hidden_state

    def meanwhile(*_):
        if threading.get_ident() == thread:
            other = threading.Thread(target=lambda: heard.append(encode()))
            other.start()
            other.join()

    with session_of(model, MergeAudioTokens(keep=0.4, threshold=-1.0)) as fast:
        expected, told = generate(fast, given), fast.report.details["audio_tokens"]
        alone = encode()
        with model.get_encoder().layers[-1].self_attn.register_forward_hook(meanwhile):
            assert torch.equal(generate(fast, given), expected)
        assert fast.report.details["audio_tokens"] == told
    assert heard and all(torch.equal(each, alone) for each in heard)


def test_rows_of_padded_audio_are_as_if_alone():
    model, _ = moonshine()
    short = random(1, 8_000)
    padded = torch.cat([torch.nn.functional.pad(short, (0, 8_000)), random(1, 16_000, seed=1)])
    mask = torch.ones(2, 16_000, dtype=torch.long)
    mask[0, 8_000:] = 0
    with torch.no_grad(), session_of(model, MergeAudioTokens(keep=0.3)):
        output = model.get_encoder()(padded, attention_mask=mask)
    kept = output.attention_mask.sum(1)
    assert output.last_hidden_state.shape[:2] == output.attention_mask.shape
    assert 0 < kept[0] < kept[1] == output.attention_mask.shape[1]
    assert not output.last_hidden_state[0, kept[0] :].any()


def test_beams_and_times(target):
    model, inputs = target
    with session_of(model, MergeAudioTokens(keep=0.5)) as fast:
        assert generate(fast, inputs(2), num_beams=2).shape[0] == 2
        with pytest.raises(SettingError, match="merged tokens have no times"):
            generate(fast, inputs(1), return_token_timestamps=True)


def test_each_call_has_its_own_figures(target):
    model, inputs = target
    seen = []
    with session_of(model, MergeAudioTokens(keep=0.5)) as fast:
        for batch in (2, 1, 2):
            generate(fast, inputs(batch))
            seen.append({**fast.report.details, "keys": fast.report.keys, "bytes": fast.report.peak_extra_bytes})
            del seen[-1]["merging_seconds"]
        assert seen[0] == seen[2] != seen[1] and seen[0]["audio_tokens"] == 2 * seen[1]["audio_tokens"]
        name, sound = next(iter(inputs(1).items()))
        if name == "input_values":
            with torch.no_grad():
                given = model.get_encoder()(sound)
            fast.generate(encoder_outputs=given, max_new_tokens=2)
            assert "encoder_outputs were given" in fast.report.warnings[0] and not fast.report.engaged
        assert torch.equal(fast.generate(sound, max_new_tokens=8, do_sample=False), generate(fast, inputs(1)))
        assert not fast.report.warnings and fast.report.engaged


def test_settings_and_padding_reach_the_merging():
    model, _ = moonshine()
    mask = torch.ones(2, 16_000, dtype=torch.long)
    mask[0, 8_000:] = 0
    values = random(2, 16_000) * mask
    with session_of(model, MergeAudioTokens(keep=0.99, threshold=-1)) as fast:
        generate(fast, {"input_values": values, "attention_mask": mask})
        details = fast.report.details
        assert details["kept"] == 2, "everything is alike from -1: one run a row"
    frames = model.get_encoder()(values, attention_mask=mask).attention_mask
    assert details["audio_tokens"] == int(frames.sum()) < frames.numel()


def test_what_the_encoder_hands_to_the_merging(monkeypatch, target):
    """Padding has no importance; rows get equally many tokens where the decoder takes no mask; all calls count."""
    model, inputs = target
    merging = Mock(side_effect=merge_tokens)
    calls = merging.call_args_list
    monkeypatch.setattr(merge_audio_tokens, "merge_tokens", merging)
    call = inputs(2)
    masked = "input_values" in call
    if masked:
        call["attention_mask"] = torch.ones(2, 16_000, dtype=torch.long)
        call["attention_mask"][0, 8_000:] = 0
    with session_of(model, MergeAudioTokens(keep=0.5)) as fast:
        generate(fast, call)
        ((_, importance, keep, threshold, mask), more) = calls[0]
        assert (keep, threshold) == (0.5, 0.85) and more["equal"] is not masked and (mask is not None) is masked
        assert (importance > 0).equal(mask.bool() if masked else torch.ones_like(importance, dtype=torch.bool))
        if masked:
            return
        calls.clear()
        model.generation_config.no_timestamps_token_id = 60
        more = {"attention_mask": torch.ones(1, 260, dtype=torch.long), "return_timestamps": True}
        fast.generate(random(1, 8, 260), max_new_tokens=8, do_sample=False, **more)
        assert len(calls) > 1, "segments of a long recording"
        report, kept = fast.report, [int((merge_tokens(*args, **given).size > 0).sum()) for args, given in calls]
        assert report.details["audio_tokens"] == 50 * len(calls) and report.details["kept"] == sum(kept)
        assert report.work_ratio == pytest.approx(sum(kept) / 50 / len(calls), rel=1e-2)
        # every new token attends to the tokens of its own segment alone, 50 of them in 8 heads
        assert report.plain_keys == report.tokens * 50 * 8


def test_all_tokens_kept_have_times():
    """Nothing is refused where nothing merges."""
    model, inputs = whisper()
    settings = model.generation_config
    settings.alignment_heads, settings.no_timestamps_token_id = [[1, 0]], 60
    with session_of(model, MergeAudioTokens(keep=1)) as fast:
        assert "token_timestamps" in generate(fast, inputs(1), return_token_timestamps=True, return_timestamps=True)
        assert fast.report.exact and not fast.report.engaged


def test_nothing_alike_and_all_kept_says_so(target):
    model, inputs = target
    with session_of(model, MergeAudioTokens(keep=0.999, threshold=1.0)) as fast:
        generate(fast, inputs(1))
        assert not fast.report.engaged and "lower threshold or keep" in fast.report.warnings[0]


@pytest.mark.parametrize("bad", ({"keep": 0}, {"keep": 1.2}, {"keep": "1"}, {"threshold": 2}, {"threshold": math.nan}))
def test_bad_settings(bad):
    with pytest.raises(SettingError, match=rf"^MergeAudioTokens\({next(iter(bad))}="):
        MergeAudioTokens(**bad)
