"""Prompts as users make them: pictures of any shape, rows without any, later turns with new videos, odd settings."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from accelerate import cpu_offload
from noted_streamer import NotedStreamer
from transformers import DynamicCache, GenerationConfig, StaticCache

import mmaccel
from mmaccel import registry, vlm
from mmaccel.demos.families import visual_models
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.vlm import visual_examples
from mmaccel.vlm.families import visual_adapter
from mmaccel.vlm.families.tower import Probe
from mmaccel.vlm.input import arguments as input_arguments
from mmaccel.vlm.input.turns import ATTRIBUTE
from mmaccel.vlm.pruning.compressed import chosen
from mmaccel.vlm.pruning.compressor import Compressor

IMAGE, VIDEO = visual_examples.IMAGE, visual_examples.VIDEO
EXAMPLES = {example.family: example for example in visual_examples.examples()}
BY_ATTENTION = (vlm.HoliTom(keep=0.4), vlm.VisionZip(), vlm.FastVID(), vlm.IDPruner(), vlm.EarlyTom())


@dataclass(frozen=True)
class Some(Compressor):
    """Keeps every `step`-th token."""

    keep: float | None = 0.5
    tokens: int | None = None
    step: int = 3
    needs_attention, needs_key = True, True

    def compress(self, features, scores=None, key=None):
        frames, cells = features.shape[:2]
        assert scores.shape == (frames, cells) and key.shape[:2] == (frames, cells)
        return chosen(features, torch.arange(0, frames * cells, self.step))


@pytest.fixture(autouse=True, scope="module")
def registered():
    Some.name, Some.paper = "vlm.Some", "test"
    registry._methods["vlm.Some"] = Some
    yield
    del registry._methods["vlm.Some"]


def rows(*prompts):
    """Prompts of unequal length, padded on the left."""
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "max_new_tokens": 4}


def picture(model, height, width, tiles):
    """A call with one picture that is cut into tiles."""
    pixels = torch.randn(1, tiles, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor([[height, width]])
    with torch.no_grad():
        length = len(model.model.get_image_features(pixels, sizes).pooler_output[0])
    return {**rows([5, 6, *[IMAGE] * length, 7, 8]), "pixel_values": pixels, "image_sizes": sizes, "do_sample": False}


@pytest.mark.parametrize(
    "family, height, width, tiles",
    [
        ("llava_onevision", 32, 32, 2),
        ("llava_onevision", 10, 64, 3),
        ("llava_onevision", 64, 20, 2),
        ("llava_next_video", 12, 32, 2),
    ],
)
def test_attention_to_pictures_is_laid_out_as_their_features(family, height, width, tiles):
    model, _ = EXAMPLES[family].build()
    call = picture(model, height, width, tiles)
    with mmaccel.accelerate(model, Some()) as fast:
        visuals = fast.adapter.encode("image", Some(), call)
        for visual in visuals:
            assert visual.scores.shape == (1, int(visual.shows.sum())) and visual.key.shape[:2] == visual.scores.shape
        fast.generate(**call)
        assert fast.report.engaged and not fast.report.warnings
    for method in BY_ATTENTION:
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**call)
            assert fast.report.engaged


def test_attention_to_tiles_stands_where_the_tile_does():
    """Scores that name tile and row come back where that tile's features are."""
    model, _ = EXAMPLES["llava_onevision"].build()
    call = picture(model, 32, 64, 3)
    with mmaccel.accelerate(model, Some()) as fast:
        adapter, probe = fast.adapter, Probe()
        probe.received = [torch.full((64,), float(tile)) for tile in range(3)]
        probe.keys = [torch.full((64, 2), float(tile)) for tile in range(3)]
        with torch.no_grad():
            output = model.model.get_image_features(call["pixel_values"], call["image_sizes"])
        whole, large = adapter.visuals("image", output, call, probe)
    assert (whole.scores == 0).all()
    assert torch.equal(large.scores.view(8, 16), torch.tensor([1.0] * 8 + [2.0] * 8).expand(8, 16))
    assert torch.equal(large.key[..., 0], large.scores)


def test_pictures_among_several_are_one_tile_each():
    model, _ = EXAMPLES["llava_onevision"].build()
    pixels = torch.randn(2, 1, 3, 32, 32)
    call = {"pixel_values": pixels, "image_sizes": torch.tensor([[32, 32], [20, 64]])}
    call["batch_num_images"] = torch.tensor([2])
    call |= rows([5, *[IMAGE] * 65, 6, *[IMAGE] * 65, 7])
    with mmaccel.accelerate(model, vlm.HoliTom(keep=0.3)) as fast:
        fast.generate(**call)
        assert fast.report.engaged and len(vlm.kept(fast)) == 2


def test_what_was_kept_of_videos_and_pictures_comes_in_the_order_of_the_prompt():
    """A video of three frames, then two pictures."""
    model, _ = EXAMPLES["llava_onevision"].build()
    call = rows([5, *[VIDEO] * 49, 6, *[IMAGE] * 65, 6, *[IMAGE] * 65, 7])
    call |= {"pixel_values_videos": visual_examples.clip(1, 3, 32), "pixel_values": torch.randn(2, 1, 3, 32, 32)}
    call |= {"image_sizes": torch.tensor([[32, 32], [20, 64]]), "batch_num_images": torch.tensor([2])}
    with mmaccel.accelerate(model, vlm.HoliTom(keep=0.3)) as fast:
        fast.generate(**call)
        assert [len(kept.sizes) for kept in vlm.kept(fast)] == [3, 1, 1]


def test_a_row_of_words_among_videos():
    model, _ = EXAMPLES["llava_onevision"].build()
    call = {**rows([5, *[VIDEO] * 49, 7], [4, 5, 6]), "pixel_values_videos": visual_examples.clip(1, 3, 32)}
    for method in (vlm.FrameFusion(), vlm.FastV(keep=0.3), vlm.HoliTom(keep=0.4)):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**call, do_sample=False)
            assert fast.report.engaged


def later_turn(family, method, everything):
    """A second turn with videos of its own on the cache of the first, and all in one call."""
    model, arguments = EXAMPLES[family].build()
    call = arguments(2, frames=3)
    pixels = next(name for name in ("pixel_values", "pixel_values_videos") if name in call)
    grid = {name: call[name] for name in ("video_grid_thw",) if name in call}
    with mmaccel.accelerate(model, method) as fast:
        first = fast.generate(**dict(call), return_dict_in_generate=True)
        ids = torch.cat([first.sequences, call["input_ids"][:, 3:]], 1)
        mask = torch.nn.functional.pad(call["attention_mask"], (0, ids.shape[1] - call["input_ids"].shape[1]), value=1)
        again = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
        if family == "smolvlm":
            both = torch.cat([call[pixels]] * 2, 1)
        else:
            both = torch.cat([part for row in call[pixels].chunk(2) for part in (row, row)])
        whole = {pixels: both, **{name: torch.cat([value] * 2) for name, value in grid.items()}}
        together = fast.generate(**again, **whole)
        given = whole if everything else {pixels: call[pixels], **grid}
        later = fast.generate(**again, **given, past_key_values=first.past_key_values)
        return together, later, fast.report, vlm.kept(fast), fast.adapter.last[0]


@pytest.mark.parametrize("family", ("llava_onevision", "qwen2_vl"))
def test_videos_of_a_later_turn_have_numbers_of_their_own(family):
    """Each placeholder that stays says to which video of the conversation it belongs, and where it stands in it."""
    *_, later = later_turn(family, Some(), False)
    assert len(later.cells) == 4
    if later.position_ids is not None:  # time, row and column come after a count without gaps
        assert torch.equal(later.position_ids[0], (later.attention_mask.cumsum(1) - 1).clamp(min=0))
    for row, numbers in enumerate(later.number.tolist()):
        found = list(dict.fromkeys(number for number in numbers if number >= 0))
        assert found == [row, 2 + row], "a row has its video of the first turn, and then that of the second"
        for number in found:
            anchors = later.anchor[row][later.number[row] == number].tolist()
            assert anchors == list(range(0, later.cells[number] * 3, 3))[: len(anchors)] and len(anchors) > 1


@pytest.mark.parametrize("everything", (False, True), ids=("new", "all"))
@pytest.mark.parametrize("family", EXAMPLES)
def test_a_later_turn_with_new_videos(family, everything):
    together, later, report, kept, _ = later_turn(family, Some(), everything)
    assert torch.equal(together, later)
    assert report.engaged and 0 < report.visual_tokens < report.plain_visual_tokens
    apart = family in ("llava", "qianfan_ocr")  # of which each picture stands for itself
    assert len(kept) == (6 if apart else 2)


def test_a_later_turn_says_that_nothing_is_dropped_inside():
    _, _, report, kept, _ = later_turn("llava_onevision", vlm.FastV(keep=0.3), False)
    assert "first turn only" in report.warnings[0]
    assert report.visual_tokens == report.plain_visual_tokens == 96 and all(one.share == 1 for one in kept)


def test_an_answer_that_ended_early_is_padding_later():
    """What the mask of a later turn hides of the answer, the cache hides too."""
    model, arguments = EXAMPLES["llava_onevision"].build()
    call = arguments(2)
    with mmaccel.accelerate(model, Some(step=1)) as fast:
        seen = {}
        begin = fast.adapter.begin

        def watch(methods, run, kwargs):
            prompt = begin(methods, run, kwargs)
            seen.update(kwargs)
            return prompt

        fast.adapter.begin = watch
        first = fast.generate(**call, return_dict_in_generate=True)
        ids = torch.cat([first.sequences, torch.full((2, 4), 9)], 1)
        mask = torch.nn.functional.pad(call["attention_mask"], (0, ids.shape[1] - call["input_ids"].shape[1]), value=1)
        mask[0, -7:-4] = 0  # the first row ended after two tokens
        fast.generate(input_ids=ids, attention_mask=mask, past_key_values=first.past_key_values, max_new_tokens=2)
        assert torch.equal(seen["attention_mask"], mask)


def test_settings_under_which_layers_cannot_differ_in_length():
    model, arguments = EXAMPLES["qwen3_vl"].build()
    for more in ({"cache_implementation": "static"}, {"use_cache": False}):
        call = arguments(1, max_new_tokens=1, **more)
        plain = model.generate(**dict(call))
        with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
            assert torch.equal(fast.generate(**call), plain)
            assert "was given" in fast.report.warnings[0] and not fast.report.engaged


@pytest.mark.parametrize("family", ("llava_onevision", "qwen3_vl"))
def test_prompts_in_chunks_are_plain(family):
    model, arguments = EXAMPLES[family].build()
    call = arguments(2, prefill_chunk_size=32)
    plain = model.generate(**dict(call))
    with mmaccel.accelerate(model, Some()) as fast:
        assert torch.equal(fast.generate(**call), plain)
        assert "prefill_chunk_size" in fast.report.warnings[0]


def test_beams_are_counted_once_as_tokens_and_each_as_keys():
    model, arguments = EXAMPLES["llava_onevision"].build()
    for method, share in ((vlm.FastV(keep=0.25), (2 + 4 * 0.25) / 6), (Some(step=1), 1.0)):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**arguments(2, num_beams=3))
            report = fast.report
            assert report.plain_visual_tokens == 2 * 6 * 16
            assert report.visual_tokens == round(share * report.plain_visual_tokens)
            assert (report.keys == report.plain_keys) == (share == 1.0) and report.keys <= report.plain_keys


def test_a_streamer_is_given_the_prompt_as_it_was():
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        streamer = NotedStreamer()
        tokens = fast.generate(**arguments(1), streamer=streamer)
        assert streamer.tokens == tokens[0].tolist() and streamer.ended == 1


def test_positions_of_the_user_do_not_fit_a_shorter_prompt():
    model, arguments = visual_examples.onevision()
    call = arguments(1)
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        expected = fast.generate(**dict(call))
        positions = torch.arange(call["input_ids"].shape[1]).flip(0)[None]
        assert torch.equal(fast.generate(**call, position_ids=positions), expected)


def test_a_video_behind_a_picture_is_warned_of_too():
    """A picture has no other frame, so that DyCoke lacks nothing; the video's six frames need 21 tokens."""
    model, _ = EXAMPLES["llava_onevision"].build()
    call = rows([5, *[IMAGE] * 136, 6, *[VIDEO] * 97, 7])
    call |= {"pixel_values_videos": visual_examples.clip(1, 6, 32), "pixel_values": torch.randn(1, 2, 3, 32, 32)}
    with mmaccel.accelerate(model, vlm.DyCoke(keep=0.1)) as fast:
        fast.generate(**call, image_sizes=torch.tensor([[32, 32]]))
        (warning,) = fast.report.warnings
    assert "give at least keep=0.219" in warning


def test_min_length_counts_the_prompt_as_it_was_given():
    model, arguments = EXAMPLES["llava_onevision"].build()
    length = arguments(1)["input_ids"].shape[1]
    with mmaccel.accelerate(model, Some()) as fast:
        free = fast.generate(**arguments(1, max_new_tokens=8))[0, length:].tolist()
        for end in (2, 4):  # what would come there may end the answer, and not before
            stop = {"eos_token_id": free[end], "max_new_tokens": 8}
            expected = fast.generate(**arguments(1, min_new_tokens=end, **stop))
            assert torch.equal(fast.generate(**arguments(1, min_length=length + end, **stop)), expected)
            assert expected.shape[1] > length + end
            more = {"min_length": length + 1, "min_new_tokens": end, **stop}
            assert torch.equal(fast.generate(**arguments(1, **more)), expected), "the larger of the two"


def test_answers_that_are_more_than_prompts_are_not_gone_on_with():
    model, arguments = EXAMPLES["llava_onevision"].build()
    call = arguments(1, num_beams=2, num_return_sequences=2)
    with mmaccel.accelerate(model, Some()) as fast:
        first = fast.generate(**call, return_dict_in_generate=True)
        assert torch.equal(first.sequences[:, : call["input_ids"].shape[1]], call["input_ids"].expand(2, -1))
        ids = torch.cat([first.sequences, torch.full((2, 3), 9)], 1)
        with pytest.raises(PromptError, match="several answers: start again"):
            fast.generate(ids, past_key_values=first.past_key_values, max_new_tokens=2, do_sample=False)


def second_turn(fast, first, call, **more):
    question = torch.full((1, 3), 9)
    ids = torch.cat([first.sequences, question], 1)
    return fast.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False, **more)


def test_a_copied_cache_goes_on_as_the_cache():
    model, arguments = visual_examples.onevision()
    call = arguments(1, return_dict_in_generate=True)
    for method in (vlm.VidCom2(), vlm.FastV(keep=0.3)):
        with mmaccel.accelerate(model, method) as fast:
            first = fast.generate(**dict(call))
            cache = copy.deepcopy(first.past_key_values)
            expected = second_turn(fast, first, call, past_key_values=first.past_key_values)
            assert torch.equal(second_turn(fast, first, call, past_key_values=cache), expected)


@pytest.mark.parametrize("method", (vlm.VidCom2(), vlm.FastV(keep=0.3), vlm.VidCom2(keep=None, tokens=999)), ids=str)
def test_a_later_turn_tells_that_the_earlier_one_was_shortened(method):
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, method) as fast:
        first = fast.generate(**arguments(1, return_dict_in_generate=True))
        shortened = fast.report.engaged
        second_turn(fast, first, None, past_key_values=first.past_key_values)
        report = fast.report
        assert report.engaged is shortened is (report.keys < report.plain_keys) and bool(report.warnings) != shortened


def test_a_cache_that_others_have_used_is_refused():
    model, arguments = visual_examples.onevision()
    call = arguments(1, return_dict_in_generate=True)
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        first = fast.generate(**dict(call))

        def stop(*_):
            raise KeyError

        with pytest.raises(KeyError):
            second_turn(fast, first, call, past_key_values=first.past_key_values, stopping_criteria=[stop])
        with pytest.raises(PromptError, match="start again"):
            second_turn(fast, first, call, past_key_values=first.past_key_values)
        first = fast.generate(**dict(call))
    with mmaccel.accelerate(model, vlm.VidCom2()) as other, pytest.raises(PromptError, match="another session"):
        second_turn(other, first, call, past_key_values=first.past_key_values)


def test_a_cache_of_a_first_call_that_broke_off_is_refused_unless_nothing_is_in_it():
    model, arguments = visual_examples.onevision()

    def stop(*_, **__):
        raise KeyError

    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        expected = fast.generate(**arguments(1))
        before, midway = (DynamicCache(config=model.config.get_text_config()) for _ in range(2))
        with pytest.raises(KeyError):
            fast.generate(**arguments(1), past_key_values=before, streamer=SimpleNamespace(put=stop, end=stop))
        assert torch.equal(fast.generate(**arguments(1), past_key_values=before), expected)
        with pytest.raises(KeyError):
            fast.generate(**arguments(1), past_key_values=midway, stopping_criteria=[stop])
        with pytest.raises(PromptError, match="did not end, .*: start again"):
            fast.generate(**arguments(1), past_key_values=midway)


def test_a_cache_of_fixed_length_that_others_have_used_is_refused():
    """It counts its tokens in place."""
    model, arguments = visual_examples.onevision()
    cache = StaticCache(config=model.config.get_text_config(), max_cache_len=200)
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        first = fast.generate(**arguments(1, return_dict_in_generate=True), past_key_values=cache)
        second_turn(fast, first, None, past_key_values=copy.deepcopy(cache))
        with torch.no_grad():
            model(input_ids=torch.full((1, 2), 9), past_key_values=cache)
        with pytest.raises(PromptError, match="after the last call that ended well: start again"):
            second_turn(fast, first, None, past_key_values=cache)


def test_max_length_below_the_prompt_is_refused_as_by_transformers():
    model, arguments = visual_examples.onevision()
    call = {**arguments(1), "max_new_tokens": None, "max_length": 20}
    with pytest.raises(ValueError, match="max_length"):
        model.generate(**dict(call))
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast, pytest.raises(SettingError, match="max_length=20"):
        fast.generate(**dict(call))


def test_the_configuration_of_a_call_counts_before_that_of_the_model():
    model, arguments = visual_examples.onevision()
    model.generation_config.max_new_tokens = 2
    call = {name: x for name, x in arguments(1).items() if name not in ("max_new_tokens", "min_new_tokens")}
    given = GenerationConfig(max_new_tokens=5, min_new_tokens=5, do_sample=False)
    plain = model.generate(**call, generation_config=given)
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.5)) as fast:
        assert fast.generate(**call, generation_config=given).shape == plain.shape


def test_a_length_that_is_none_counts_before_all_configurations():
    """As scripts ask for `max_length` where a checkpoint, or a pipeline, has a `max_new_tokens` of its own."""
    model, arguments = visual_examples.onevision()
    model.generation_config.max_new_tokens = 2
    call = {**arguments(1), "max_new_tokens": None}
    length = call["input_ids"].shape[1]
    for more in ({"max_length": length + 9}, {}, {"generation_config": GenerationConfig(max_new_tokens=4)}):
        plain = model.generate(**call, **more)
        with mmaccel.accelerate(model, vlm.VidCom2(keep=0.5)) as fast:
            assert fast.generate(**call, **more).shape == plain.shape
    assert plain.shape[1] == length + 20, "what transformers writes by default"


def test_a_configuration_that_counts_new_tokens_stands_alone(monkeypatch):
    """`generate` warns of one beside arguments of its own, and `transformers.pipeline` always gives one."""
    model, arguments = visual_examples.onevision()
    call, told = arguments(1), []
    monkeypatch.setattr(model, "generate", lambda **kwargs: told.append(kwargs) or kwargs["input_ids"])
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.5)) as fast:
        del call["max_new_tokens"]
        fast.generate(**call, generation_config=GenerationConfig(max_new_tokens=4))
        fast.generate(**call, max_length=150)
    assert [kwargs.get("max_new_tokens") for kwargs in told] == [None, 150 - call["input_ids"].shape[1]]
    assert not any("max_length" in kwargs for kwargs in told)


def test_lengths_of_a_configuration_are_said_in_a_copy_of_it(monkeypatch):
    model, arguments = visual_examples.onevision()
    call = {name: x for name, x in arguments(1).items() if name not in ("max_new_tokens", "min_new_tokens")}
    length, told = call["input_ids"].shape[1], []
    given = GenerationConfig(max_length=length + 9, min_length=length + 4)
    monkeypatch.setattr(model, "generate", lambda **kwargs: told.append(kwargs) or kwargs["input_ids"])
    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.5)) as fast:
        fast.generate(**call, generation_config=given)
        fast.generate(**call, generation_config=GenerationConfig(do_sample=True))
    names = "max_new_tokens", "max_length", "min_new_tokens", "min_length"
    assert not any(name in kwargs for kwargs in told for name in names)
    said = [tuple(getattr(kwargs["generation_config"], name) for name in names) for kwargs in told]
    assert said == [(9, None, 4, None), (20, None, None, None)]
    assert (given.max_new_tokens, given.max_length) == (None, length + 9)


def test_a_prompt_may_come_without_its_name():
    model, arguments = visual_examples.onevision()
    call = arguments(2)
    with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
        named = fast.generate(**dict(call))
        ids = call.pop("input_ids")
        for given in (((ids,), {}), ((), {"inputs": ids})):
            assert torch.equal(fast.generate(*given[0], **given[1], **call), named) and fast.report.engaged


def test_a_prompt_that_is_elsewhere_is_brought_to_the_model(monkeypatch):
    """As `generate` does, to which processors' inputs may go as they are; the answer is where the prompt was."""
    model, arguments = visual_examples.onevision()
    meta, given = torch.device("meta"), {}

    def encode(adapter, kind, method, kwargs, seen=0):
        given.update(kwargs)
        raise InterruptedError

    with mmaccel.accelerate(model, vlm.VidCom2(keep=0.3)) as fast:
        with monkeypatch.context() as patch, pytest.raises(InterruptedError):
            patch.setattr(input_arguments, "pass_device", lambda model, ids: meta)
            patch.setattr(visual_adapter.VisualAdapter, "encode", encode)
            fast.generate(**arguments(1))
        assert all(given[name].is_meta for name in ("input_ids", "attention_mask", "pixel_values_videos"))
        with monkeypatch.context() as patch:
            patch.setattr(visual_adapter, "bring", lambda model, kwargs: meta)
            assert fast.generate(**arguments(1)).is_meta and fast.report.engaged
        with monkeypatch.context() as patch:  # without a picture the model does that itself
            patch.setattr(input_arguments, "pass_device", lambda model, ids: meta)
            call = arguments(1)
            call["input_ids"][:] = 5
            call.pop("pixel_values_videos")
            assert torch.equal(fast.generate(**call), model.generate(**call)) and not fast.report.engaged


def test_pictures_are_found_in_a_prompt_without_its_name():
    model, arguments = visual_examples.internvl()
    call = arguments(2)
    with mmaccel.accelerate(model, vlm.CompressKV(policy="st_lite", budget=0.3)) as fast:
        named = fast.generate(**dict(call))
        ids = call.pop("input_ids")
        assert torch.equal(fast.generate(ids, **call), named) and fast.report.engaged and not fast.report.warnings
        assert fast.adapter.spans(call) is None, "such as of a prompt of embeddings"


def test_a_cache_of_fixed_length_has_all_tokens():
    model, arguments = visual_examples.qwen3_vl()
    plain = model.generate(**arguments(1))
    with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
        cache = StaticCache(config=model.config.get_text_config(), max_cache_len=200)
        assert torch.equal(fast.generate(**arguments(1), past_key_values=cache), plain)
        assert fast.report.warnings == [
            "nothing was dropped inside the language model: a cache of fixed length was given"
        ]


@pytest.mark.parametrize("method", (vlm.VidCom2(), vlm.FastV(keep=0.3)), ids=str)
def test_a_cache_of_the_user_goes_on_as_that_of_the_result(method):
    """A later turn of words says nothing of what was dropped in the first."""
    model, arguments = visual_examples.onevision()
    answers = []
    with mmaccel.accelerate(model, method) as fast:
        first = fast.generate(**arguments(1, return_dict_in_generate=True))
        own = DynamicCache(config=model.config.get_text_config())
        assert torch.equal(fast.generate(**arguments(1), past_key_values=own), first.sequences)
        for cache in (first.past_key_values, own):
            answers.append(second_turn(fast, first, None, past_key_values=cache))
            assert not any("first turn" in text for text in fast.report.warnings)
    assert torch.equal(*answers)


def test_seconds_of_a_grid_count_in_positions():
    model, arguments = visual_examples.qwen2_5_vl()
    more = {"return_dict_in_generate": True, "output_logits": True}
    slow = arguments(1, second_per_grid_ts=torch.tensor([4.0]), **more)
    plain, usual = model.generate(**dict(slow)), model.generate(**arguments(1, **more))
    assert not torch.equal(plain.logits[0], usual.logits[0])
    with mmaccel.accelerate(model, Some(step=1)) as fast:
        assert torch.equal(fast.generate(**slow).logits[0], plain.logits[0])


def test_a_cache_remembers_no_features():
    """They would stay in memory as long as the conversation."""
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, Some()) as fast:
        first = fast.generate(**arguments(1, return_dict_in_generate=True))
        prompt = getattr(first.past_key_values, ATTRIBUTE).prompt
    assert prompt.visuals == {} and prompt.answered == 5 and len(prompt.cells) == 1


@pytest.mark.parametrize(("pad", "expected"), ((3, 3), (None, 0)))
def test_shorter_rows_are_padded_with_the_token_of_the_model(pad, expected):
    model, arguments = visual_examples.onevision()
    model.generation_config.pad_token_id = pad
    with mmaccel.accelerate(model, Some()) as fast:
        fast.generate(**arguments(2))
        prompt = fast.adapter.last[0]
    gone = prompt.attention_mask == 0
    assert gone.any() and (prompt.input_ids[gone] == expected).all()


def test_keys_of_a_later_turn_are_those_of_its_own_passes():
    """What the cache holds is attended to, and not computed again; where all is kept both counts are one."""
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, Some(step=1)) as fast:
        first = fast.generate(**arguments(1, return_dict_in_generate=True))
        second_turn(fast, first, None, past_key_values=first.past_key_values)
        report = fast.report
    length = first.sequences.shape[1] + 3
    queries = range(length - 3, length + 3)  # the last token of the first answer, 3 words, and 2 steps
    assert report.keys == report.plain_keys == 4 * 6 * sum(queries)


def test_a_video_lies_in_one_prompt():
    model, _ = visual_examples.onevision()
    call = rows([5, *[VIDEO] * 48, 7], [5, *[VIDEO] * 49, 7])
    call["pixel_values_videos"] = visual_examples.clip(1, 6, 32)
    with mmaccel.accelerate(model, Some()) as fast, pytest.raises(PromptError, match="lie in two prompts of the batch"):
        fast.generate(**call)


@pytest.mark.parametrize("name", ("mm_token_type_ids", "token_type_ids"))
def test_types_of_tokens_may_be_given_as_none(name):
    model, arguments = visual_examples.qwen2_5_vl()
    call = arguments(1)
    call.pop("mm_token_type_ids", None)
    with mmaccel.accelerate(model, vlm.VidCom2()) as fast:
        assert torch.equal(fast.generate(**call, **{name: None}), fast.generate(**call))


def by_features(model, call):
    """A call that brings what the tower makes of its pixels, and the same with the pixels."""
    name = next(name for name in ("pixel_values_videos", "pixel_values") if name in call)
    kind = "video" if name == "pixel_values_videos" else "image"
    grid = {name: call[name] for name in (f"{kind}_grid_thw",) if name in call}
    with torch.no_grad():
        seen = getattr(model.model, f"get_{kind}_features")(call[name], **grid, return_dict=True)
    return {**{key: value for key, value in call.items() if key != name}, "mm_encoder_outputs": {kind: seen}}


@pytest.mark.parametrize("family", ("llava_onevision", "qwen2_5_vl", "qwen3_vl", "internvl", "llava"))
def test_features_stand_in_for_pixels(family):
    model, arguments = EXAMPLES[family].build()
    call = arguments(2)
    features = by_features(model, call)
    plain = model.generate(**call)
    for method in (vlm.VidCom2(keep=0.4), vlm.FastV(keep=0.3)):
        with mmaccel.accelerate(model, method) as fast:
            expected, tokens = fast.generate(**call), fast.report.visual_tokens
            assert torch.equal(fast.generate(**features), expected)
            assert fast.report.engaged and fast.report.visual_tokens == tokens and not fast.report.warnings
    for method in BY_ATTENTION:
        with mmaccel.accelerate(model, method) as fast:
            assert torch.equal(fast.generate(**features), plain) and not fast.report.engaged
            assert "where mm_encoder_outputs are given: give pixels" in fast.report.warnings[0]


@pytest.mark.parametrize("name", ("Qwen3VLForConditionalGeneration", "Ovis2ForConditionalGeneration"))
@pytest.mark.parametrize("beams", (1, 2))
def test_what_an_off_loaded_model_reads_beside_features_stays_with_them(name, beams):
    """As with device_map="auto" too: accelerate hands its modules copies of what they are given, field by field."""
    model, arguments = visual_models.build(name)
    call, method = arguments(1, num_beams=beams), vlm.VidCom2(keep=0.4)
    with mmaccel.accelerate(model, method) as fast:
        expected = fast.generate(**call)
    with mmaccel.accelerate(cpu_offload(model, execution_device=torch.device("cpu")), method) as fast:
        assert torch.equal(fast.generate(**call), expected) and fast.report.engaged


@pytest.mark.parametrize("more", ("prefill_chunk_size", "mm_encoder_outputs"))
def test_a_turn_that_cannot_be_shortened_does_not_go_on_from_one_that_was(more):
    """Its positions would be those of the whole prompt."""
    model, arguments = visual_examples.onevision()
    call = arguments(1, return_dict_in_generate=True)
    with mmaccel.accelerate(model, vlm.HoliTom(keep=0.4)) as fast:
        first = fast.generate(**call)
        given = {"prefill_chunk_size": 16} if more == "prefill_chunk_size" else by_features(model, call)
        with pytest.raises(PromptError, match=f"cannot go on from the prompt that it has shortened: .*{more}"):
            second_turn(fast, first, call, past_key_values=first.past_key_values, **{more: given[more]})


@pytest.mark.parametrize("needs", ({"needs_key": False}, {"needs_attention": False}), ids=str)
def test_the_tower_is_watched_for_a_method_that_needs_either(needs):
    model, arguments = visual_examples.onevision()
    method = type("Either", (Some,), needs)()
    with mmaccel.accelerate(model, Some()) as fast:
        (visual,) = fast.adapter.encode("video", method, arguments(1))
        assert visual.scores is not None and (visual.key is not None) is method.needs_key
        (visual,) = fast.adapter.encode("video", vlm.VidCom2(), arguments(1))
        assert visual.scores is None and visual.key is None


def test_a_tower_without_attention_cannot_rank_tokens(monkeypatch):
    model, arguments = visual_examples.onevision()
    monkeypatch.setattr(visual_adapter, "tower_attention", lambda tower: [])
    with mmaccel.accelerate(model, Some()) as fast, pytest.raises(UnsupportedTargetError, match="no attention to read"):
        fast.generate(**arguments(1))


@pytest.mark.parametrize("implementation", ("eager", "flash_attention_2", "flex_attention"))
def test_a_tower_in_other_attention_is_refused_at_plan_by_what_ranks_tokens(implementation):
    model, _ = visual_examples.onevision()
    model.model.vision_tower.config._attn_implementation = implementation
    for method in BY_ATTENTION:
        with pytest.raises(UnsupportedTargetError, match=f"tower, which has attn_implementation='{implementation}'"):
            mmaccel.plan(model, method)
    mmaccel.plan(model, vlm.VidCom2())


def test_additional_features_come_before_the_first_cut():
    """Two layers of this model receive them."""
    model, _ = visual_examples.qwen3_vl()
    mmaccel.plan(model, vlm.FastV(layer=2))
    with pytest.raises(SettingError, match="before layer 1: .* from 2 to 5"):
        mmaccel.plan(model, vlm.FastV(layer=1))


def test_methods_on_the_cache_are_told_where_the_pictures_are():
    model, arguments = visual_examples.onevision()
    with mmaccel.accelerate(model, vlm.CompressKV(policy="st_lite", budget=0.3)) as fast:
        seen, begin = [], fast.adapter.begin
        fast.adapter.begin = lambda methods, run, kwargs: [begin(methods, run, kwargs), seen.append(run.visual)][0]
        call = arguments(2)
        fast.generate(**dict(call))
        assert seen == [fast.adapter.spans(call)] and seen[0][0]


@pytest.mark.parametrize("method", (vlm.EarlyTom(), vlm.HoliTom()), ids=str)
def test_rows_with_different_numbers_of_pictures(method):
    """SmolVLM's processor pads the shorter rows with pictures of zeros, which the model drops before the tower."""
    model, _ = visual_examples.smolvlm()
    one = [5, *[IMAGE] * 16, 6]
    pixels = visual_examples.clip(2, 3, 32)
    pixels[1, 1:] = 0
    given = {**rows([4, *one * 3, 7, 8], [*one, 9, 10]), "pixel_values": pixels, "do_sample": False}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, method) as fast:
        assert fast.generate(**given).shape == plain.shape and fast.report.engaged
        assert fast.report.visual_tokens < fast.report.plain_visual_tokens == 64
    assert torch.equal(model.generate(**given), plain)
