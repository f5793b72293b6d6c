"""Every bad setting and call is one clear line, and leaves the model as it was."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

import mmaccel
from mmaccel import private
from mmaccel.adapter import find_adapter
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR, examples
from mmaccel.image.decoding.grid_decoder import GridDecoder
from mmaccel.image.decoding.sampling import Sampling
from mmaccel.testing.contract import snapshot

METHODS = (SpeculativeJacobi(window=4), GroupedSpeculative(window=4), ZipAR(window=2))
FAMILIES = ("janus", "emu3", "glm_image")


def assert_clear(error, *words):
    """One line that holds the value and a hint."""
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, f"{word!r} is missing from {text!r}"


SETTINGS = (
    (SpeculativeJacobi, {"window": 0}, "window=0", "at least 1"),
    (SpeculativeJacobi, {"window": -3}, "window=-3", "at least 1"),
    (SpeculativeJacobi, {"window": 2.5}, "window=2.5", "whole number"),
    (SpeculativeJacobi, {"window": True}, "window=True", "whole number"),
    (SpeculativeJacobi, {"window": "all"}, "window='all'", "'auto'"),
    (SpeculativeJacobi, {"window": None}, "window=None", "'auto'"),
    (SpeculativeJacobi, {"coupling": "maximum"}, "coupling='maximum'", "maximal"),
    (SpeculativeJacobi, {"coupling": None}, "coupling=None", "maximal"),
    (SpeculativeJacobi, {"init": "repeat_right"}, "init='repeat_right'", "repeat_left"),
    (GroupedSpeculative, {"window": 0}, "window=0", "at least 1"),
    (GroupedSpeculative, {"group_size": 0}, "group_size=0", "at least 1"),
    (GroupedSpeculative, {"delta": 1.5}, "delta=1.5", "between 0 and 1"),
    (GroupedSpeculative, {"delta": -0.1}, "delta=-0.1", "between 0 and 1"),
    (GroupedSpeculative, {"delta": float("nan")}, "delta=nan", "between 0 and 1"),
    (GroupedSpeculative, {"delta": "much"}, "delta='much'", "between 0 and 1"),
    (GroupedSpeculative, {"distance": -1}, "distance=-1", "None"),
    (ZipAR, {"window": 0}, "window=0", "at least 1"),
    (ZipAR, {"window": "auto"}, "window='auto'", "whole number"),
    (ZipAR, {"verify": 1}, "verify=1", "True or False"),
    (ZipAR, {"verify": True, "draft_window": 1}, "draft_window=1", "at least 2"),
)


@pytest.mark.parametrize(("method", "settings", "value", "hint"), SETTINGS, ids=lambda x: str(x)[:40])
def test_settings(method, settings, value, hint):
    with pytest.raises(SettingError) as error:
        method(**settings)
    assert_clear(error, method.__name__, value, hint)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("method", "limit"),
    ((SpeculativeJacobi(window=17), 16), (GroupedSpeculative(window=17), 16), (ZipAR(window=5), 4)),
    ids=str,
)
def test_wider_than_the_picture_at_once(method, limit):
    """Janus has one grid, so that nothing has to be generated to see it."""
    model, _ = examples.janus()
    before = snapshot(model)
    for ask in (mmaccel.accelerate, mmaccel.plan):
        with pytest.raises(SettingError) as error:
            ask(model, method)
        assert_clear(error, method.window, limit, type(method).__name__)
    assert snapshot(model) == before


@pytest.mark.parametrize(
    ("family", "method", "limit"),
    (
        ("emu3", SpeculativeJacobi(window=24), 23),
        ("emu3", ZipAR(window=6), 5),
        ("glm_image", GroupedSpeculative(window=22), 21),
        ("glm_image", ZipAR(window=5), 4),
    ),
    ids=str,
)
def test_wider_than_the_picture_of_a_call(family, method, limit):
    model, arguments = getattr(examples, family)()
    before = snapshot(model)
    with mmaccel.accelerate(model, method) as fast, pytest.raises(SettingError) as error:
        fast.generate(**arguments())
    assert_clear(error, method.window, limit)
    assert snapshot(model) == before


# (family, change to the arguments, error, words of the message); a callable sees the arguments
ANY = "any"
CALLS = (
    (ANY, {"input_ids": None}, UnsupportedTargetError, ("input_ids", "processor")),
    (ANY, {"input_ids": lambda c: c["input_ids"][0]}, UnsupportedTargetError, ("input_ids", "(batch, tokens)")),
    (ANY, {"input_ids": lambda c: c["input_ids"][:0]}, UnsupportedTargetError, ("input_ids", "processor")),
    (ANY, {"input_ids": lambda c: c["input_ids"].float()}, UnsupportedTargetError, ("float32", ".long()")),
    (ANY, {"attention_mask": torch.ones(2, 6)}, UnsupportedTargetError, ("(2, 6)", "(1, 6)", "processor")),
    (ANY, {"attention_mask": torch.ones(1, 9)}, UnsupportedTargetError, ("(1, 9)", "(1, 6)", "processor")),
    (ANY, {"logits_processor": [torch.nn.Identity()]}, UnsupportedTargetError, ("logits_processor", ".remove()")),
    (ANY, {"stopping_criteria": [torch.nn.Identity()]}, UnsupportedTargetError, ("stopping_criteria", ".remove()")),
    (ANY, {"streamer": object()}, UnsupportedTargetError, ("streamer", ".remove()")),
    (ANY, {"output_scores": True}, UnsupportedTargetError, ("output_scores", ".remove()")),
    (ANY, {"generation_config": GenerationConfig(output_logits=True)}, UnsupportedTargetError, ("output_logits",)),
    (ANY, {"generator": [torch.Generator()]}, SettingError, ("generator", "one torch.Generator")),
    (ANY, {"num_beams": 2}, UnsupportedTargetError, ("num_beams=2", "num_beams=1")),
    (ANY, {"repetition_penalty": 1.3}, UnsupportedTargetError, ("repetition_penalty=1.3", "repetition_penalty=1.0")),
    (ANY, {"min_p": 0.2}, UnsupportedTargetError, ("min_p=0.2", "min_p=0.0")),
    (ANY, {"typical_p": 0.5}, UnsupportedTargetError, ("typical_p=0.5", "typical_p=1.0")),
    (ANY, {"no_such_option": 3}, ValueError, ("no_such_option",)),
    ("emu3", {"max_new_tokens": 22}, UnsupportedTargetError, ("max_new_tokens=22", "23")),
    ("emu3", {"max_new_tokens": None, "max_length": 28}, UnsupportedTargetError, ("max_length=28", "23", "=29")),
    ("glm_image", {"max_new_tokens": 20}, UnsupportedTargetError, ("max_new_tokens=20", "21")),
    ("emu3", {"image_sizes": [[4, 4], [2, 2]]}, UnsupportedTargetError, ("(2, 2)", "(4, 4)", "one size")),
    ("emu3", {"image_sizes": None}, UnsupportedTargetError, ("image_sizes", "return_for_image_generation")),
    ("emu3", {"negative_prompt_ids": torch.ones(2, 3).long()}, UnsupportedTargetError, ("2 negative", "1 prompts")),
)


@pytest.mark.parametrize(
    ("which", "change", "kind", "words"), CALLS, ids=lambda x: ", ".join(x) if isinstance(x, dict) else str(x)[:40]
)
def test_calls(which, change, kind, words):
    """Of each family with another method: families read what a call asks for, whatever the method."""
    for family, method in zip(FAMILIES, METHODS, strict=True):
        if which not in (ANY, family):
            continue
        model, arguments = getattr(examples, family)()
        call = arguments()
        call.update({name: value(call) if callable(value) else value for name, value in change.items()})
        before = snapshot(model)
        with mmaccel.accelerate(model, method) as fast:
            with pytest.raises(kind) as error:
                fast.generate(**call)
            if kind is not ValueError:
                assert_clear(error, *words)
            assert words[0] in str(error.value)
            state = torch.get_rng_state()
            again = fast.generate(**arguments(), generator=torch.Generator().manual_seed(0))
            assert len(again) == 1 and torch.equal(torch.get_rng_state(), state), "the session is damaged"
        assert snapshot(model) == before


@pytest.mark.parametrize("name", ("inputs_embeds", "past_key_values"))
def test_tensors_where_nothing_is_supported(name):
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, METHODS[0]) as fast, pytest.raises(UnsupportedTargetError) as error:
        fast.generate(**arguments(), **{name: torch.zeros(1, 6, 32)})
    assert_clear(error, name, ".remove()")


@pytest.mark.parametrize(
    "name",
    ("assistant_model", "custom_generate", "output_logits", "output_attentions", "output_hidden_states"),
)
def test_what_accelerated_decoding_does_not_read(name):
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        with pytest.raises(UnsupportedTargetError) as error:
            fast.generate(**arguments(), **{name: True})
        assert_clear(error, f"generate({name}=...)", ".remove()")
        fast.generate(**arguments(), **{name: False}, logits_processor=[], streamer=None)  # which asks for nothing


UNREAD = {
    "top_h": 0.5,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "watermarking_config": object(),
    "sequence_bias": {(3,): 1.0},
    "begin_suppress_tokens": [3],
    "penalty_alpha": 0.6,
    "exponential_decay_length_penalty": (3, 1.1),
    "min_new_tokens": 3,
    "stop_strings": ["x"],
    "prompt_lookup_num_tokens": 3,
    "max_time": 1.0,
    "cache_implementation": "quantized",
}


def sampling(**settings):
    usual = {"do_sample": True, "temperature": None, "top_k": None, "top_p": None, "suppress_tokens": None}
    return Sampling.from_config(SimpleNamespace(**{**usual, **settings}), range(20, 30))


@pytest.mark.parametrize("name", UNREAD)
def test_a_setting_that_changes_the_distribution_is_refused(name):
    with pytest.raises(UnsupportedTargetError) as error:
        sampling(**{name: UNREAD[name]})
    assert_clear(error, f"{name}={UNREAD[name]!r}", "is not supported", ".remove()")


def test_settings_that_change_nothing_in_a_picture_are_taken():
    assert sampling() == Sampling(), "None stands for what does nothing"
    assert sampling(suppress_tokens=[3, 30]) == Sampling(), "no codes of images"
    with pytest.raises(UnsupportedTargetError, match=r"suppress_tokens=\[20, 29\] are image codes"):
        sampling(suppress_tokens=[3, 20, 29])
    assert sampling(do_sample=False, temperature=0.0).do_sample is False
    assert sampling(min_new_tokens=0) == Sampling(), "no least length"
    assert sampling(cache_implementation="static") == Sampling(), "the same tokens from another cache"
    assert sampling(temperature=0.5, top_k=7, top_p=0.25) == Sampling(True, 0.5, 7, 0.25)


def test_a_picture_of_janus_is_square():
    model, _ = examples.janus()
    model.config.vision_config.num_image_tokens = 12
    with pytest.raises(UnsupportedTargetError, match="num_image_tokens=12 is no square"):
        mmaccel.accelerate(model, METHODS[0])


@pytest.mark.parametrize("scale", (1.0, 0.5))
def test_what_plain_janus_cannot_do_is_said_before_anything_runs(scale):
    """Its own generate needs both branches of guidance; an accelerated one draws without."""
    model, arguments = examples.janus()
    calls = []
    model.model.language_model.register_forward_pre_hook(lambda *_: calls.append(None))
    with pytest.raises(UnsupportedTargetError, match=f"guidance_scale={scale}: the plain Janus.*nothing to compare"):
        mmaccel.compare(model, METHODS[0], **arguments(guidance=scale))
    call = {name: value for name, value in arguments().items() if name != "guidance_scale"}
    config = copy.deepcopy(model.generation_config)
    config.guidance_scale = scale
    with pytest.raises(UnsupportedTargetError, match="nothing to compare"):
        mmaccel.compare(model, METHODS[0], **call, generation_config=config)
    assert not calls


def test_guidance_below_one_is_followed():
    model, arguments = examples.janus()
    made = {}
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        for scale in (0.0, 0.5, 1.0, 3.0):
            made[scale] = fast.generate(**arguments(guidance=scale), generator=torch.Generator().manual_seed(0))
    assert not any(torch.equal(made[1.0], made[scale]) for scale in (0.0, 0.5, 3.0))


def test_marks_are_no_tokens():
    model, arguments = examples.janus()
    call = arguments()
    with mmaccel.accelerate(model, METHODS[0]) as fast, pytest.raises(UnsupportedTargetError, match=r"torch\.bool"):
        fast.generate(**{**call, "input_ids": call["input_ids"] > 0})


IGNORED = (
    {"suppress_tokens": [1, 2, 3]},
    {"bad_words_ids": [[3]]},
    {"encoder_repetition_penalty": 1.5},
    {"temperature": 0.0},
    {"temperature": -1.0},
    {"top_k": -1},
    {"top_p": -1.0},
    {"guidance_scale": float("nan")},
    {"max_time": 1e-9},
)


@pytest.mark.parametrize("settings", IGNORED, ids=str)
def test_settings_that_are_silently_ignored(settings):
    """The model's own generate follows these, or refuses the value: ignoring them is a wrong picture."""
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, METHODS[0]) as fast, pytest.raises((ValueError, UnsupportedTargetError)) as error:
        fast.generate(**arguments(**settings))
    assert_clear(error, *settings)


@pytest.mark.parametrize("method", (SpeculativeJacobi(window=1), ZipAR(window=5)), ids=str)
def test_grid_of_emu3_needs_no_allowed_tokens(method):
    """The adapter says that `prefix_allowed_tokens_fn` is not needed; that must hold for every setting."""
    model, arguments = examples.emu3()
    call = arguments()
    del call["prefix_allowed_tokens_fn"]
    torch.manual_seed(0)
    with mmaccel.accelerate(model, method) as fast:
        picture = fast.generate(**call)[0, 6:]
    assert len(picture) == 23 and picture[-3:].tolist() == [12, 13, 2]
    assert picture[:20].view(4, 5)[:, -1].tolist() == [11] * 4


def test_allowed_tokens_of_emu3_that_are_fewer_than_a_picture_s_are_refused():
    model, arguments = examples.emu3()
    call = arguments()
    usual = call["prefix_allowed_tokens_fn"]
    call["prefix_allowed_tokens_fn"] = lambda row, ids: usual(row, ids)[1:]
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        with pytest.raises(UnsupportedTargetError, match="prefix_allowed_tokens_fn allows fewer tokens"):
            fast.generate(**call)
        assert fast.generate(**arguments()).shape == (1, 29)


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_padding_is_seen_without_a_mask_too(family):
    """As transformers' own generate has it."""
    model, arguments = getattr(examples, family)()
    call = arguments(2, guidance=1.0, do_sample=False)
    model.generation_config.pad_token_id = pad = model.config.get_text_config().pad_token_id
    call["attention_mask"] = torch.ones_like(call["input_ids"])
    call["attention_mask"][1, :2] = 0
    call["input_ids"] = call["input_ids"].masked_fill(call["attention_mask"] == 0, pad)
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        masked = fast.generate(**call)
        del call["attention_mask"]
        assert torch.equal(fast.generate(**call), masked)
        assert not torch.equal(fast.generate(**call, attention_mask=torch.ones_like(call["input_ids"])), masked)


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_of_glm_image_is_counted_as_far_as_it_goes(seed):
    """Its own generate, which plain settings call, may draw the end of a picture anywhere; ours has it whole."""
    model, arguments = examples.glm_image(rows=3, columns=3)
    call = arguments(1)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=1)) as fast:
        torch.manual_seed(seed)
        tokens = fast.generate(**call)
        made = tokens.shape[1] - call["input_ids"].shape[1]
        assert made == fast.report.tokens == fast.report.forwards == fast.report.plain_forwards
        whole = fast.generate(**call, generator=torch.Generator().manual_seed(seed))
        assert whole.shape[1] - call["input_ids"].shape[1] == fast.report.tokens >= made


def test_what_is_no_picture_of_emu3():
    """A call that looks at a picture, and one whose allowed tokens are those of text."""
    model, arguments = examples.emu3()
    adapter, call = find_adapter(model), arguments()
    assert adapter.makes_images(call)
    assert not adapter.makes_images({**call, "pixel_values": torch.zeros(1, 3, 8, 8)})
    del call["image_sizes"]
    ids = call.pop("input_ids")
    assert not adapter.makes_images({**call, "input_ids": ids[:, :-1]})
    for name in ("input_ids", "inputs"):
        with pytest.raises(UnsupportedTargetError, match="the grid is not known"):
            adapter.makes_images({**call, name: ids})


@pytest.mark.parametrize("ends", ("padding", "codes"))
def test_a_prompt_of_emu3_behind_which_no_picture_begins_is_refused(ends):
    """Padding on the right, or a part of a picture: a whole one behind it would be none."""
    model, arguments = examples.emu3()
    call = {name: value for name, value in arguments(2).items() if name != "prefix_allowed_tokens_fn"}
    more = torch.tensor([[0, 0]] if ends == "padding" else [[20, 21]]).expand(2, -1)
    call["input_ids"] = torch.cat([call["input_ids"], more], 1)
    call["attention_mask"] = torch.cat([call["attention_mask"], more.clamp(max=1)], 1)
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        with pytest.raises(UnsupportedTargetError) as error:
            fast.generate(**call)
        assert_clear(error, "<|image token|>", "padding_side='left'", "the model's own generate")
        assert fast.generate(**arguments(2)).shape == (2, 29)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", (*METHODS, SpeculativeJacobi(window=4, coupling="gumbel_exact")), ids=str)
@pytest.mark.parametrize("sampled", (True, False))
def test_what_is_no_number_is_no_picture(family, method, sampled, monkeypatch):
    """As in float16 where numbers grow too large: the model's own generate cannot draw by it either."""
    model, arguments = getattr(examples, family)()
    distribution, calls = GridDecoder.distribution, []

    def broken(self, hidden, *rest, **more):
        calls.append(None)
        return distribution(self, hidden * float("nan") if len(calls) > 3 else hidden, *rest, **more)

    with mmaccel.accelerate(model, method) as fast:
        given = arguments(2, do_sample=sampled)
        plain = fast.generate(**given, generator=torch.Generator().manual_seed(0))
        with monkeypatch.context() as patch:
            patch.setattr(GridDecoder, "distribution", broken)
            with pytest.raises(UnsupportedTargetError, match=r"gives NaN in torch\.float32.*bfloat16"):
                fast.generate(**given)
        assert torch.equal(fast.generate(**given, generator=torch.Generator().manual_seed(0)), plain)


@pytest.mark.parametrize(("own", "end"), (([2, 5], 2), (7, 7), (None, 2)), ids=str)
def test_the_end_of_a_picture_of_emu3_is_that_of_the_model(own, end):
    """Of several the first, and without one that of its language model."""
    model, arguments = examples.emu3()
    model.generation_config.eos_token_id = own
    assert find_adapter(model).begin(arguments()).ids[-4:].tolist() == [11, 12, 13, end]


@pytest.mark.parametrize("name", ("pixel_values", "mm_encoder_outputs"))
def test_source_pictures_of_glm_image(name):
    """They reach the model, in calls without guidance that ask for one picture of each prompt."""
    model, arguments = examples.glm_image()
    adapter, given = find_adapter(model), torch.zeros(4, 12) if name == "pixel_values" else {"image": object()}
    task = adapter.begin(arguments(**{name: given}))
    assert task.inputs[name] is given
    assert name not in adapter.begin(arguments()).inputs
    for more, hint in (({"guidance": 3.0}, "guidance_scale"), ({"num_return_sequences": 2}, "num_return_sequences")):
        with pytest.raises(UnsupportedTargetError, match=hint):
            adapter.begin(arguments(**{name: given}, **more))


def test_glm_image_remembers_nothing_of_an_accelerated_call(monkeypatch):
    """Also if it fails: its own state belongs to calls of its own generate."""
    model, arguments = examples.glm_image()
    inner, kept = model.model, torch.tensor([[5]])
    inner.rope_deltas, inner._prefill_len = kept, 99
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        fast.generate(**arguments())
        assert inner.rope_deltas is kept and inner._prefill_len == 99 and inner._cached_decode_position_ids is None

        def fail(*_, **__):
            raise RuntimeError("out of memory")

        monkeypatch.setattr(inner.language_model, "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            fast.generate(**arguments())
        assert inner.rope_deltas is kept and inner._cached_decode_position_ids is None


def test_rows_of_glm_image_must_agree():
    model, arguments = examples.glm_image()
    call = arguments(2)
    call["image_grid_thw"] = torch.tensor([[1, 4, 4], [1, 2, 2], [1, 3, 4], [1, 2, 2]])
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        with pytest.raises(UnsupportedTargetError) as error:
            fast.generate(**call)
        assert_clear(error, "(3, 4)", "(4, 4)", "one size")
        del call["images_per_sample"]
        with pytest.raises(UnsupportedTargetError) as error:
            fast.generate(**call)
        assert_clear(error, "images_per_sample", "processor")


def test_a_prompt_of_glm_image_that_has_all_its_grids_is_refused():
    model, arguments = examples.glm_image()
    call = arguments()
    call["input_ids"][0, 1:3] = model.config.image_end_token_id
    with pytest.raises(UnsupportedTargetError, match="one size at a time"):
        find_adapter(model).begin(call)


def test_a_model_of_no_family_is_told_where_all_classes_stand():
    model = torch.nn.Linear(2, 2)
    before = snapshot(model)
    for ask in (mmaccel.accelerate, mmaccel.plan):
        with pytest.raises(UnsupportedTargetError) as error:
            ask(model, METHODS[0])
        assert_clear(error, "Linear", "the page Model families of the documentation")
    assert snapshot(model) == before and isinstance(error.value, TypeError)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_that_is_split_over_processes_asks_for_a_window(family, monkeypatch):
    """Each process would measure another cost of a pass, and wait for the others for ever."""
    model, _ = getattr(examples, family)()
    monkeypatch.setattr(private, "is_split", lambda part: True)
    with pytest.raises(UnsupportedTargetError) as error:
        mmaccel.accelerate(model, SpeculativeJacobi())
    assert_clear(error, type(model).__name__, "say image.SpeculativeJacobi(window=16)")
    for method in METHODS:
        mmaccel.plan(model, method)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_without_a_window_mask(family):
    model, _ = getattr(examples, family)()
    model.config.get_text_config()._attn_implementation = "flash_attention_2"
    before = snapshot(model)
    with pytest.raises(UnsupportedTargetError) as error:
        mmaccel.accelerate(model, METHODS[0])
    assert_clear(error, "flash_attention_2", "sdpa")
    assert snapshot(model) == before


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_text_of_janus_is_left_alone(method):
    model, arguments = examples.janus()
    call = {k: v for k, v in arguments(2).items() if k in ("input_ids", "attention_mask")}
    call.update(max_new_tokens=5, do_sample=False, top_k=None)
    for mode in ({}, {"generation_mode": "text"}):
        plain = model.generate(**call, **mode)
        with mmaccel.accelerate(model, method) as fast:
            assert torch.equal(fast.generate(**call, **mode), plain)
            positional = {k: v for k, v in call.items() if k != "input_ids"}
            assert torch.equal(fast.generate(call["input_ids"], **positional, **mode), plain)
            assert not fast.report.engaged and fast.report.forwards == 0


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_text_of_the_others_is_left_alone(family):
    model, arguments = getattr(examples, family)()
    call = {k: v for k, v in arguments().items() if k in ("input_ids", "attention_mask")}
    call["input_ids"] = call["input_ids"].clamp(30, 40) if family == "glm_image" else call["input_ids"]
    call.update(max_new_tokens=4, do_sample=False, top_k=None)
    plain = model.generate(**call)
    with mmaccel.accelerate(model, METHODS[0]) as fast:
        assert torch.equal(fast.generate(**call), plain) and fast.report.forwards == 0


def test_text_takes_no_progress_and_no_generator():
    """Which are of the tokens of a picture: the model itself would refuse them, or ignore them."""
    model, arguments = examples.janus()
    call = {k: v for k, v in arguments(1).items() if k in ("input_ids", "attention_mask")}
    call.update(generation_mode="text", max_new_tokens=2, do_sample=False, top_k=None)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=4)) as fast:
        for own in ({"progress": lambda done, total: None}, {"generator": torch.Generator()}):
            with pytest.raises(UnsupportedTargetError, match="leave out generator and progress"):
                fast.generate(**call, **own)
        assert len(fast.generate(**call, generator=None, progress=None)) == 1, "which ask for nothing"
