"""JoinedContext: parts that are encoded alone take any place in a prompt, exactly so where they lose nothing by it."""

import copy
from types import SimpleNamespace

import pytest
import torch
from draft_models import deepseek_v2
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

import mmaccel
from mmaccel import zoo
from mmaccel.demos.families import visual_models
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.vlm import CompressKV, HoliTom, JoinedContext, StoredContext, SuffixDecoding, examples, mark_contexts
from mmaccel.vlm.context import joined_context
from mmaccel.vlm.context.parts import Part
from mmaccel.vlm.context.turning import turned
from mmaccel.vlm.visual_examples import IMAGE, VIDEO, clip, prompt

LENGTH = 80
PAGES = [(3, 34), (37, 70)]
TOLD = {"output_logits": True, "return_dict_in_generate": True}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}


@pytest.fixture
def joined(tmp_path):
    return JoinedContext(folder=str(tmp_path / "kept"), least=8, recomputed=4)


def context(session):
    return session.report.details["context"]


def logits(target, call, **more):
    return torch.stack(target.generate(**call, **TOLD, **more).logits)


@pytest.mark.parametrize("rope", [{}, YARN, LLAMA3, LINEAR], ids=["default", "yarn", "llama3", "linear"])
def test_turned_keys_are_those_of_the_other_place(rope):
    model, arguments = examples.llama(**({"rope_parameters": rope} if rope else {}))
    model.double()
    ids, decoder = arguments()["input_ids"], model.get_decoder()
    keys = []
    for first in (0, 137):
        places = torch.arange(LENGTH)[None] + first
        cache = decoder(input_ids=ids, position_ids=places, use_cache=True).past_key_values
        keys.append(cache.layers[-1].keys)
    shift = torch.full((LENGTH,), 137)
    assert not torch.allclose(*keys, atol=0.1)
    torch.testing.assert_close(turned(decoder, keys[0], shift), keys[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(turned(decoder, keys[1], shift, back=True), keys[0], atol=1e-4, rtol=0)


class Elsewhere:
    """A tensor of another device, which has to be moved first."""

    def __init__(self, values):
        self.values = values

    def to(self, device):
        assert device == self.values.device
        return self.values


def test_keys_are_turned_where_they_are(llama):
    """The rotary embedding of a model that is spread over devices may be on another one than a layer."""
    decoder = llama[0].get_decoder()

    def rotary(*given):
        return [Elsewhere(part) for part in decoder.rotary_emb(*given)]

    rotary.attention_scaling = decoder.rotary_emb.attention_scaling
    spread = SimpleNamespace(rotary_emb=rotary, layers=decoder.layers)
    key, places = torch.randn(1, 2, 5, 8), torch.arange(5)
    assert torch.equal(turned(spread, key, places), turned(decoder, key, places))


def test_a_prompt_comes_to_the_model(joined, monkeypatch):
    """`generate` moves what its own passes read, and no more."""
    model, arguments = examples.llama()
    model.to("meta")
    read, given, call = [], [], arguments()
    model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: read.append(kwargs["input_ids"].device), with_kwargs=True
    )
    monkeypatch.setattr(joined_context, "parts_of", lambda _, kwargs, spans: given.append(kwargs) or ([], None))
    with mmaccel.accelerate(model, joined) as fast:
        joining, *_ = joined._parts(fast, call, PAGES)
        joining.compute(3)
        joining.encode(Part(3, 34))
    assert read == [model.device] * 2 and given[0]["attention_mask"].is_meta and not call["input_ids"].is_meta


@pytest.mark.parametrize("rope", [{}, YARN, LLAMA3], ids=["default", "yarn", "llama3"])
def test_one_layer_loses_nothing_by_joining(joined, rope):
    """Its keys and values depend on their own tokens alone, and so a wrong place or turn is all that could show."""
    model, arguments = examples.llama(num_hidden_layers=1, **({"rope_parameters": rope} if rope else {}))
    plain = logits(model, arguments())
    for spans in (PAGES, [(0, 30), (30, 79)], [(9, LENGTH)]):
        with mmaccel.accelerate(model, joined) as fast:
            for _ in range(2):
                torch.testing.assert_close(logits(fast, arguments(), contexts=spans), plain, atol=1e-4, rtol=1e-4)
            assert context(fast)["from_store"] == sum(min(b, 79) - a - 4 * (a > 0) for a, b in spans)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("LlavaOnevisionForConditionalGeneration", {}),
        ("Qwen2_5_VLForConditionalGeneration", {}),
        ("Qwen2_5OmniThinkerForConditionalGeneration", {}),  # which finds a clip by the word before it alone
        ("Qwen3OmniMoeThinkerForConditionalGeneration", {}),
        ("Qwen3OmniMoeThinkerForConditionalGeneration", {"video_second_per_grid": torch.tensor([0.3, 0.3])}),
    ],
    ids=["onevision", "qwen2.5", "qwen2.5-omni", "qwen3-omni", "parts of a position"],
)
def test_two_clips_take_each_others_place(joined, name, more, monkeypatch):
    row = visual_models.rows()[name]
    monkeypatch.setitem(row, "text", {**row.get("text", {}), "num_hidden_layers": 1})
    model, call = visual_models.build(name)
    one, other = ({**two_clips(call, order), **more} for order in ((0, 1), (1, 0)))
    plain = logits(model, other)
    towers = []
    tower = next(m for n, m in model.named_modules() if n.endswith(("vision_tower", "visual")))
    handle = tower.register_forward_hook(lambda *_: towers.append(1))
    try:
        with mmaccel.accelerate(model, joined) as fast:
            fast.generate(**one)
            assert context(fast)["parts"] == 2 and len(towers) == 2
            towers.clear()
            found = logits(fast, other)
            assert context(fast)["from_store"] > 100 and not towers
        torch.testing.assert_close(found, plain, atol=1e-3, rtol=1e-3)
        assert not torch.allclose(plain, logits(model, one), atol=1e-2), "the order shows"
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"))
def test_clips_whose_tokens_are_not_told_are_joined(joined, name, monkeypatch):
    """Their places count up, as `generate` has it; Qwen2-VL itself refuses to find them."""
    model, call = one_layer(name, monkeypatch)
    given = two_clips(call, (0, 1))
    del given["mm_token_type_ids"]
    plain = logits(model, given)
    torch.testing.assert_close(joined_logits(joined, model, given, 2), plain, atol=1e-3, rtol=1e-3)


def two_clips(call, order):
    """A prompt with the clip of two calls, in this order, and words between."""
    given = call(2)
    ids, types = given["input_ids"][:1], given.get("mm_token_type_ids")
    ids[0, -7:] = torch.arange(10, 17)  # none of which begins a clip
    inputs = {**given, "input_ids": torch.cat([ids, ids], 1)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if types is not None:
        inputs["mm_token_type_ids"] = torch.cat([types[:1], types[:1]], 1)
    pixels = given["pixel_values_videos"]
    halves = pixels.chunk(2)
    inputs["pixel_values_videos"] = torch.cat([halves[number] for number in order])
    return inputs


def joined_logits(joined, model, given, parts):
    """Those of a prompt whose parts all came from the store."""
    with mmaccel.accelerate(model, joined) as fast:
        fast.generate(**given)
        assert context(fast)["parts"] == parts, fast.report.warnings
        found = logits(fast, given)
        assert context(fast)["from_store"] > 0
    return found


def one_layer(name, monkeypatch):
    """A model whose parts lose nothing by being joined."""
    row = visual_models.rows()[name]
    monkeypatch.setitem(row, "text", {**row.get("text", {}), "num_hidden_layers": 1})
    return visual_models.build(name)


@pytest.mark.parametrize("sizes", ([[32, 32], [32, 32]], [[32, 32], [16, 64]]), ids=("alike", "of two sizes"))
def test_pictures_of_one_prompt_are_joined(joined, sizes, monkeypatch):
    """LLaVA-OneVision cuts up none that stands beside others, and is told how many a prompt has."""
    model, _ = one_layer("LlavaOnevisionForConditionalGeneration", monkeypatch)
    given = {**prompt(1, [IMAGE] * 2 * 65), "max_new_tokens": 4, "do_sample": False}
    given |= {"pixel_values": clip(2, 1, 32), "image_sizes": torch.tensor(sizes)}
    given["batch_num_images"] = torch.tensor([2])
    plain = logits(model, given)
    torch.testing.assert_close(joined_logits(joined, model, given, 2), plain, atol=1e-3, rtol=1e-3)
    three = {**given, **prompt(1, [IMAGE] * 3 * 65), "batch_num_images": torch.tensor([3])}
    three |= {"pixel_values": torch.cat([clip(1, 1, 32, seed=1), given["pixel_values"]])}
    three["image_sizes"] = torch.tensor([[32, 32], *sizes])
    with mmaccel.accelerate(model, joined) as fast:
        found = logits(fast, three)
        assert context(fast)["parts"] == 3 and context(fast)["from_store"] > 65, "those of the prompt with two"
    torch.testing.assert_close(found, logits(model, three), atol=1e-3, rtol=1e-3)


def test_a_picture_beside_a_clip_is_joined(joined, monkeypatch):
    """The seconds between frames are of the clip."""
    model, call = one_layer("Qwen2_5_VLForConditionalGeneration", monkeypatch)
    given, picture = call(1), torch.tensor([[5, *[IMAGE] * 16, 6]])
    ids = torch.cat([picture, given["input_ids"]], 1)
    given |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    given["mm_token_type_ids"] = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    given |= {"pixel_values": given["pixel_values_videos"][:64] + 1, "image_grid_thw": torch.tensor([[1, 8, 8]])}
    given["second_per_grid_ts"] = torch.tensor([1.5])
    plain = logits(model, given)
    torch.testing.assert_close(joined_logits(joined, model, given, 2), plain, atol=1e-3, rtol=1e-3)


def test_a_part_at_the_beginning_is_exact(llama, joined, tmp_path):
    model, arguments = llama
    plain = logits(model, arguments())
    with mmaccel.accelerate(model, StoredContext(folder=str(tmp_path / "prefix"), least=8)) as fast:
        fast.generate(**arguments())
        prefix = logits(fast, arguments())
    opening = arguments()["input_ids"].clone()
    opening[0, 0] = model.config.bos_token_id
    behind = {**arguments(), "input_ids": opening}
    with mmaccel.accelerate(model, joined) as fast:
        for _ in range(2):
            found = logits(fast, arguments(), contexts=[(0, 64)])
            torch.testing.assert_close(found, plain, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found, prefix, atol=1e-5, rtol=1e-5)
        found = logits(fast, behind, contexts=[(1, 64)])
    torch.testing.assert_close(found, logits(model, behind), atol=1e-5, rtol=1e-5)


def test_all_tokens_computed_anew_are_the_plain_model(llama, joined):
    model, arguments = llama
    call = arguments(max_new_tokens=12)
    plain = logits(model, call)
    with mmaccel.accelerate(model, joined) as fast:
        assert not torch.allclose(logits(fast, call, contexts=PAGES), plain, atol=1e-2), "pages that see nothing differ"
    whole = JoinedContext(folder=joined.folder, least=8, recomputed=33)
    with mmaccel.accelerate(model, whole) as fast:
        torch.testing.assert_close(logits(fast, call, contexts=PAGES), plain, atol=1e-5, rtol=1e-5)
    errors = []
    for count in (0, 16, 30):
        method = JoinedContext(folder=joined.folder, least=8, recomputed=count)
        with mmaccel.accelerate(model, method) as fast:
            errors.append(float((logits(fast, call, contexts=PAGES)[0] - plain[0]).abs().mean()))
    assert errors[-1] < errors[0]


def test_pages_in_another_order_come_from_the_store(llama, joined):
    model, arguments = llama
    ids = arguments()["input_ids"]
    first, second, tail = ids[:, 3:34], ids[:, 37:70], ids[:, 70:]
    swapped = {"input_ids": torch.cat([ids[:, :9], second, first, tail], 1), "max_new_tokens": 4, "do_sample": False}
    spans = [(9, 42), (42, 73)]
    passes = []
    with mmaccel.accelerate(copy.deepcopy(model), joined) as fast:
        fresh = fast.generate(**swapped, contexts=spans)
    for path in joined.path.glob("*"):
        path.unlink()
    with mmaccel.accelerate(model, joined) as fast:
        fast.generate(**arguments(), contexts=PAGES)
        assert (context(fast)["from_store"], context(fast)["parts"]) == (0, 2)
        assert context(fast)["bytes_written"] and "hold its parts" in fast.report.warnings[-1]
        handle = model.get_decoder().register_forward_pre_hook(
            lambda _, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        try:
            again = fast.generate(**swapped, contexts=spans)
        finally:
            handle.remove()
        assert torch.equal(again, fresh), "an answer does not hang on what was stored"
        assert context(fast) == {"prompt": 83, "from_store": 56, "bytes_written": 0, "parts": 2}
        assert passes[:3] == [9 + 4, 4, 10] and not fast.report.exact and fast.report.work_ratio < 1


def test_beams_samples_and_drafts_go_on_from_it(llama, joined):
    model, arguments = llama
    with mmaccel.accelerate(model, joined) as fast:
        for more in ({"num_beams": 3}, {"do_sample": True, "num_return_sequences": 3}):
            found = []
            for _ in range(2):
                torch.manual_seed(3)
                found.append(fast.generate(**arguments(**more), contexts=PAGES))
            assert torch.equal(*found) and context(fast)["from_store"]
        plain = fast.generate(**arguments(max_new_tokens=24), contexts=PAGES)
    with mmaccel.accelerate(model, joined, SuffixDecoding()) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**arguments(max_new_tokens=24), contexts=PAGES), plain)
        assert context(fast)["from_store"]


def test_other_weights_and_broken_entries_are_encoded_again(joined):
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, joined) as fast:
        wanted = fast.generate(**arguments(), contexts=PAGES)
        path = sorted(joined.path.glob("*"))[0]
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)
        assert torch.equal(fast.generate(**arguments(), contexts=PAGES), wanted)
        assert 0 < context(fast)["from_store"] < 56 and context(fast)["bytes_written"]
        assert "is broken and was deleted" in fast.report.warnings[0]
        with torch.no_grad():
            model.get_decoder().layers[0].self_attn.v_proj.weight.mul_(1.5)
        fast.generate(**arguments(), contexts=PAGES)
        assert context(fast)["from_store"] == 0


@pytest.mark.parametrize("full", [False, True], ids=["no folder", "too small"])
def test_what_cannot_be_kept_did_not_come_from_the_store(llama, joined, tmp_path, full):
    model, arguments = llama
    with mmaccel.accelerate(model, joined) as fast:
        wanted = fast.generate(**arguments(), contexts=PAGES)
    file = tmp_path / "a file"
    file.write_text("x")
    where = {"folder": str(tmp_path / "small"), "gigabytes": 1e-6} if full else {"folder": str(file)}
    with mmaccel.accelerate(model, JoinedContext(**where, least=8, recomputed=4)) as fast:
        assert torch.equal(fast.generate(**arguments(), contexts=PAGES), wanted)
        assert context(fast) == {"prompt": LENGTH, "from_store": 0, "bytes_written": 0, "parts": 2}
        told = fast.report.warnings
        assert all("not kept" in line for line in told) and told and len({*told}) == len(told)


def test_a_page_may_stand_twice(llama, joined):
    model, arguments = llama
    call = arguments()
    call["input_ids"][:, 40:60] = call["input_ids"][:, 10:30]
    with mmaccel.accelerate(model, joined) as fast:
        first = fast.generate(**call, contexts=[(10, 30), (40, 60)])
        assert context(fast)["from_store"] == 16, "of the second, which is the first"
        assert torch.equal(fast.generate(**call, contexts=[(10, 30), (40, 60)]), first)
        assert context(fast)["from_store"] == 32


@pytest.mark.parametrize(
    ("spans", "word"),
    [
        ([(3, 34), (30, 70)], "begins before"),
        ([(37, 70), (3, 34)], "begins before"),
        ([(3, 81)], "no span of a prompt of 80 tokens"),
        ([(-1, 20)], "no span"),
        ([(20, 20)], "no span"),
        ([(1, 2, 3)], "give the first token"),
        (7, "give the first token"),
        ([("a", "b")], "give the first token"),
        ([(3.7, 34.2)], "give the first token"),
        ([(0, float("inf"))], "give the first token"),
    ],
)
def test_spans_that_cannot_be_are_refused_in_one_line(llama, joined, spans, word):
    model, arguments = llama
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with mmaccel.accelerate(model, joined) as fast:
        with pytest.raises(SettingError, match=word) as error:
            fast.generate(**arguments(), contexts=spans)
        assert "\n" not in str(error.value)
        embeds = model.get_input_embeddings()(arguments()["input_ids"])
        with pytest.raises(SettingError, match="give input_ids"):
            fast.generate(inputs_embeds=embeds, contexts=PAGES)
    after = {name: dict(vars(module)) for name, module in model.named_modules()}
    assert {name: set(found) for name, found in before.items()} == {name: set(found) for name, found in after.items()}


def test_calls_without_parts_are_exact_or_plain(llama, joined):
    model, arguments = llama
    plain = [model.generate(**arguments()), model.generate(**arguments(batch=3))]
    with mmaccel.accelerate(model, joined) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**arguments()), plain[0])
        assert context(fast)["from_store"] == 64
        assert torch.equal(fast.generate(**arguments(batch=3), contexts=PAGES), plain[1])
        assert "3 prompts in a batch" in fast.report.warnings[0]
    with mmaccel.accelerate(model, JoinedContext(gigabytes=0)) as fast:
        assert torch.equal(fast.generate(**arguments(), contexts=PAGES), plain[0])


def test_pictures_that_lie_apart_are_left_to_prefixes(joined):
    """Qwen3-VL has words between the frames of a clip."""
    model, call = visual_models.build("Qwen3VLForConditionalGeneration")
    plain = model.generate(**call(1))
    with mmaccel.accelerate(model, joined) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**call(1)), plain)
        assert context(fast)["from_store"] and "cannot be told apart" in fast.report.warnings[-1]


def test_pages_are_joined_whatever_the_settings_of_a_call(joined):
    model, _ = visual_models.build("Qwen2_5OmniThinkerForConditionalGeneration")
    ids = torch.randint(10, 40, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    given = {"input_ids": ids, "max_new_tokens": 3, "do_sample": False, "use_audio_in_video": False}
    with mmaccel.accelerate(model, joined) as fast:
        for seen in (0, 56):
            fast.generate(**given, contexts=PAGES)
            assert (context(fast)["parts"], context(fast)["from_store"]) == (2, seen)


def test_a_clip_is_encoded_by_the_settings_of_the_call(joined, monkeypatch):
    name = "LlavaOnevisionForConditionalGeneration"
    monkeypatch.setitem(visual_models.rows()[name], "text", {"model_type": "qwen2", "num_hidden_layers": 1})
    model, call = visual_models.build(name)
    plain = {layer: logits(model, call(1, vision_feature_layer=layer)) for layer in (-1, -2)}
    assert not torch.allclose(plain[-1], plain[-2], atol=1e-2), "the layer shows"
    with mmaccel.accelerate(model, joined) as fast:
        for layer, known in ((-1, False), (-2, False), (-1, True)):
            found = logits(fast, call(1, vision_feature_layer=layer))
            torch.testing.assert_close(found, plain[layer], atol=1e-3, rtol=1e-3)
            assert context(fast)["parts"] == 1 and (context(fast)["from_store"] > 0) is known


def test_sound_beside_a_clip_is_left_to_prefixes(joined):
    model, call = visual_models.build("Qwen2_5OmniThinkerForConditionalGeneration")
    model.config.audio_token_id, model.config.audio_start_token_id = 60, 58
    given, sound = call(1), torch.tensor([[58, *[60] * 4, 59]])
    given["input_ids"] = torch.cat([given["input_ids"][:, :2], sound, given["input_ids"][:, 2:]], 1)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["input_features"] = torch.randn(1, 8, 16, generator=torch.Generator().manual_seed(0))
    given["feature_attention_mask"] = torch.ones(1, 16).long()
    plain = model.generate(**given)
    with mmaccel.accelerate(model, joined) as fast:
        for _ in range(2):
            assert torch.equal(fast.generate(**given), plain)
        assert context(fast)["from_store"] and "cannot be told apart" in fast.report.warnings[-1]


def test_features_in_place_of_pixels_are_left_to_prefixes(joined):
    model, call = visual_models.build("Qwen2_5_VLForConditionalGeneration")
    given = two_clips(call, (0, 1))
    plain = model.generate(**given)
    with torch.no_grad():
        seen = model.model.get_video_features(given.pop("pixel_values_videos"), given["video_grid_thw"])
    with mmaccel.accelerate(model, joined) as fast:
        for known in (False, True):
            assert torch.equal(fast.generate(**given, mm_encoder_outputs={"video": seen}), plain)
            assert (context(fast)["from_store"] > 0) is known and "cannot be told apart" in fast.report.warnings[-1]


def test_a_page_may_not_cut_a_clip(joined):
    model, call = visual_models.build("LlavaOnevisionForConditionalGeneration")
    inputs = call(1)
    first = int((inputs["input_ids"][0] == model.config.video_token_id).nonzero()[0])
    with mmaccel.accelerate(model, joined) as fast:
        with pytest.raises(SettingError, match="begins before"):
            fast.generate(**inputs, contexts=[(0, first + 3)])
        fast.generate(**inputs, contexts=[(0, first)])
        assert context(fast)["parts"] == 1, "shorter than least, and the clip"


def test_what_does_not_fit_is_refused(llama):
    model, _ = llama
    for other in (CompressKV(), StoredContext()):
        with pytest.raises(ConflictError):
            mmaccel.plan(model, JoinedContext(), other)
    assert JoinedContext.conflicts(HoliTom)
    windows = Gemma3ForCausalLM(Gemma3TextConfig(**{**examples.TEXT, "head_dim": 8, "num_hidden_layers": 6}))
    learned = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=128, n_embd=32, n_layer=2, n_head=4))
    moving = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    dynamic = LlamaForCausalLM(LlamaConfig(**{**examples.TEXT, "rope_parameters": moving}))
    some = {"num_hidden_layers": 4, "no_rope_layer_interval": 2}
    without = SmolLM3ForCausalLM(SmolLM3Config(**{**examples.TEXT, **some}))
    for target, word in (
        (deepseek_v2(), "keys of DeepseekV2ForCausalLM cannot be turned"),
        (windows, "cannot take other positions"),
        (learned, "cannot take other positions"),
        (dynamic, "by the length of the whole prompt"),
        (without, "some layers of SmolLM3ForCausalLM"),
    ):
        with pytest.raises(UnsupportedTargetError, match=word):
            mmaccel.plan(target, JoinedContext())
    for bad in ({"recomputed": -1}, {"recomputed": 1.5}, {"least": 0}, {"gigabytes": -1}):
        with pytest.raises(SettingError, match=next(iter(bad))):
            JoinedContext(**bad)


def test_pages_are_marked_with_the_same_tokens_everywhere():
    _, processor = zoo.load("tiny-onevision")
    tokenizer = processor.tokenizer
    pages = ["what moves up?", "what is on the left?"]
    one = mark_contexts(tokenizer, f"{pages[0]} {pages[1]} what?", pages)
    other = mark_contexts(tokenizer, f"what? {pages[1]}{pages[0]}", pages[::-1])
    found = [[inputs["input_ids"][0, a:b].tolist() for a, b in inputs["contexts"]] for inputs in (one, other)]
    assert found[0] == found[1][::-1] and one["attention_mask"].all()
    assert other["contexts"][1][1] == other["input_ids"].shape[1]
    assert mark_contexts(tokenizer, "what?", [])["contexts"] == []
    single = mark_contexts(processor, f"{pages[0]} what?", pages[0])
    listed = mark_contexts(tokenizer, f"{pages[0]} what?", pages[:1])
    assert single["contexts"] == listed["contexts"] and torch.equal(single["input_ids"], listed["input_ids"])
    for bad in (pages[::-1], ["nowhere"], [""], [3]):
        with pytest.raises(SettingError, match="is not in the prompt behind"):
            mark_contexts(tokenizer, f"{pages[0]} {pages[1]} what?", bad)


def test_a_prompt_behind_a_chat_template_gets_no_other_beginning():
    tokenizer = zoo.load("tiny-janus")[1].tokenizer
    prompt, pages = "red heart on blue", ["red heart"]
    begun, bare = (mark_contexts(tokenizer, prompt, pages, add_special_tokens=add) for add in (True, False))
    assert begun["input_ids"][0].tolist() == [tokenizer.bos_token_id, *bare["input_ids"][0].tolist()]
    assert bare["contexts"] == [(0, 2)] and begun["contexts"] == [(1, 3)]


def test_contexts_are_for_no_other_run_of_a_comparison(llama, joined):
    model, arguments = llama
    found = mmaccel.compare(model, joined, contexts=PAGES, simple=False, rounds=1, **arguments(length=LENGTH))
    assert [row["label"] for row in found.rows] == ["plain", str(joined)] and not found.rows[1]["idle"]
