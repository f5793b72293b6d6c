"""StoredContext: later prompts begin with what is stored, with the plain model's tokens, or run plainly and say why."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import mmaccel
from mmaccel.cache import ContextStore, context_store
from mmaccel.cache.model_hash import model_hash
from mmaccel.demos.families import visual_models
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.vlm import CompressKV, FusedDraft, HoliTom, SparsePrefill, StoredContext, SuffixDecoding, examples
from mmaccel.vlm.context.prompt import ContextPrompt, unfit_for_context

LENGTH = 80


@pytest.fixture
def stored(tmp_path):
    return StoredContext(folder=str(tmp_path / "kept"), least=20)


def asked(arguments, *tail, **more):
    """The same context with another question at its end."""
    call = arguments(**more)
    call["input_ids"][0, -len(tail) :] = torch.tensor(tail)
    return call


def context(session):
    return session.report.details["context"]


def test_a_second_question_computes_the_question_alone(llama, stored):
    model, arguments = llama
    passes, plain = [], [model.generate(**asked(arguments, *tail)) for tail in ((5, 6), (9, 8, 7))]
    handle = model.get_decoder().register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    try:
        with mmaccel.accelerate(model, stored) as fast:
            assert torch.equal(fast.generate(**asked(arguments, 5, 6)), plain[0])
            assert context(fast)["from_store"] == 0 and context(fast)["bytes_written"] > 0 and passes[0] == LENGTH
            passes.clear()
            assert torch.equal(fast.generate(**asked(arguments, 9, 8, 7)), plain[1])
            assert context(fast) == {"prompt": LENGTH, "from_store": 64, "bytes_written": 0} and passes[0] == 16
            assert fast.report.exact and fast.report.work_ratio < 1 and not fast.report.warnings
    finally:
        handle.remove()
    with mmaccel.accelerate(copy.deepcopy(model), stored) as fast:  # as another process would
        assert torch.equal(fast.generate(**asked(arguments, 9, 8, 7)), plain[1]) and context(fast)["from_store"] == 64


def test_sampling_beams_and_drafts_go_on_from_what_is_stored(llama, stored):
    model, arguments = llama
    for more in (
        {"do_sample": True, "temperature": 2.0},
        {"num_beams": 3},
        {"num_return_sequences": 2, "num_beams": 2},
    ):
        torch.manual_seed(3)
        plain = model.generate(**arguments(**more))
        with mmaccel.accelerate(model, stored) as fast:
            for _ in range(2):
                torch.manual_seed(3)
                assert torch.equal(fast.generate(**arguments(**more)), plain), more
            assert context(fast)["from_store"] == 64
    plain = model.generate(**arguments(max_new_tokens=24))
    for methods in ((stored, SuffixDecoding()), (SuffixDecoding(), stored)):
        with mmaccel.accelerate(model, *methods) as fast:
            for _ in range(2):
                assert torch.equal(fast.generate(**arguments(max_new_tokens=24)), plain)
            assert context(fast)["from_store"] == 64 and fast.report.work_ratio < 0.9, "drafts were verified too"
            assert fast.report.forwards % 1 == pytest.approx(1 - 64 / LENGTH), "and a part of the prompt was not read"
            fast.generate(**arguments(num_beams=2))
            assert fast.report.forwards < fast.report.plain_forwards, "also where drafts leave the call to the model"


def test_what_prompts_of_one_template_share_is_not_worth_a_whole_file(llama, tmp_path, monkeypatch):
    """A prompt that begins like a stored one, with fewer tokens than are kept: nothing is read for it."""
    model, arguments = llama
    other = arguments()
    other["input_ids"][0, 32:] = other["input_ids"][0, 32:].flip(0)
    plain = model.generate(**other)
    with mmaccel.accelerate(model, StoredContext(folder=str(tmp_path), least=64)) as fast:
        fast.generate(**arguments())
        monkeypatch.setattr(ContextStore, "read", None)
        assert torch.equal(fast.generate(**other), plain)
        assert context(fast)["from_store"] == 0 and context(fast)["bytes_written"] > 0


def test_a_longer_prompt_takes_the_place_of_the_one_it_contains(llama, stored):
    model, arguments = llama
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments())
        whole = arguments()["input_ids"]
        more = torch.cat([whole, whole[:, :40]], 1)
        fast.generate(input_ids=more, max_new_tokens=2, do_sample=False)
        assert context(fast)["from_store"] == LENGTH and context(fast)["bytes_written"]
    assert len(list(stored.path.glob("*"))) == 1


def test_a_prompt_that_has_grown_little_is_not_written_again(llama, tmp_path):
    """As a chat about a long document grows by a turn: all of it would be written for each."""
    model, arguments = llama
    ids = torch.cat([arguments()["input_ids"]] * 3, 1)
    with mmaccel.accelerate(model, StoredContext(folder=str(tmp_path), least=2)) as fast:
        for length, seen, written in ((160, 0, True), (176, 160, False), (192, 160, True), (192, 176, False)):
            fast.generate(input_ids=ids[:, :length], max_new_tokens=2, do_sample=False)
            assert context(fast)["from_store"] == seen and (context(fast)["bytes_written"] > 0) is written, length
    assert len(list(tmp_path.glob("*"))) == 1


def test_of_a_prompt_that_begins_alike_the_beginning_alone_is_read(llama, stored, monkeypatch):
    """Such as the system prompt of another document; what is broken behind it is not met."""
    monkeypatch.setattr(context_store, "PIECE", 16)
    model, arguments = llama
    other = arguments()
    other["input_ids"][0, 40:] = other["input_ids"][0, 40:].flip(0)
    plain = model.generate(**other)
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments())
        (path,) = stored.path.glob("*")
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)
        assert torch.equal(fast.generate(**other), plain) and context(fast)["from_store"] == 32
        assert not fast.report.warnings


def test_stored_states_reach_the_device_a_layer_at_a_time(llama, stored, monkeypatch):
    """All of them beside the cache would be the whole of it twice."""
    model, arguments = llama
    store, read = ContextStore(stored.path, 1), []
    whole = ContextStore.read
    monkeypatch.setattr(ContextStore, "read", lambda *given, **more: read.extend(whole(*given, **more)) or read)
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments())
        prompt, known = ContextPrompt.of(fast.adapter, arguments()), model_hash(model)
    cache, seen, _ = stored._begun(store, known, prompt, torch.device("meta"))
    assert seen == 64 and all(layer.keys.is_meta and layer.values.is_meta for layer in cache.layers)
    assert len(read) == 3 and all(part.is_cpu for pair in read for part in pair)


def test_a_prompt_that_is_kept_already_stays(llama, tmp_path):
    """Also where fewer new tokens suffice to keep a prompt than lie between two places to cut it."""
    model, arguments = llama
    ids = arguments()["input_ids"]
    for length in (70, LENGTH):
        with mmaccel.accelerate(model, StoredContext(folder=str(tmp_path / str(length)), least=2)) as fast:
            found = []
            for _ in range(3):
                fast.generate(input_ids=ids[:, :length], max_new_tokens=2, do_sample=False)
                found.append((context(fast)["from_store"], bool(context(fast)["bytes_written"])))
        assert found == [(0, True), (64, False), (64, False)]


@pytest.mark.parametrize("name", ["LlavaOnevisionForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"])
def test_a_second_question_about_a_clip_needs_no_tower(stored, name):
    model, call = visual_models.build(name)
    first, second, other = call(1), call(1), call(1)
    second["input_ids"][0, -1] = 9
    pixels = next(key for key in other if key.startswith("pixel_values"))
    other[pixels] = other[pixels].clone()
    other[pixels].view(-1)[-1] += 1
    plain = [model.generate(**one) for one in (first, second, other)]
    towers = []
    handle = next(m for n, m in model.named_modules() if n.endswith(("vision_tower", "visual"))).register_forward_hook(
        lambda *_: towers.append(1)
    )
    try:
        with mmaccel.accelerate(model, stored) as fast:
            assert torch.equal(fast.generate(**first), plain[0])
            towers.clear()
            assert torch.equal(fast.generate(**second), plain[1]) and context(fast)["from_store"] and not towers
            assert torch.equal(fast.generate(**other), plain[2]) and not context(fast)["from_store"] and towers
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "name", ["Qwen2_5OmniThinkerForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"]
)
def test_a_clip_has_the_places_that_the_model_gives_it_without_a_mask(stored, name):
    """Omni counts places up where there is no mask, and `generate` makes one."""
    model, call = visual_models.build(name)
    given = call(1, attention_mask=None, output_logits=True, return_dict_in_generate=True)
    plain = model.generate(**given).logits
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**given)
        torch.testing.assert_close(fast.generate(**given).logits, plain)
        torch.testing.assert_close(fast.generate(given.pop("input_ids"), **given).logits, plain)
        assert context(fast)["from_store"]


def test_a_clip_whose_tokens_are_not_told_has_the_places_that_the_model_gives_it(stored):
    """Without types of tokens Qwen2.5-VL counts them up like words."""
    model, call = visual_models.build("Qwen2_5_VLForConditionalGeneration")
    given = call(1, output_logits=True, return_dict_in_generate=True)
    del given["mm_token_type_ids"]
    plain = model.generate(**given).logits
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**given)
        torch.testing.assert_close(fast.generate(**given).logits, plain)
        assert context(fast)["from_store"]


def test_a_setting_is_no_picture(stored):
    """Whole Omni models hand `use_audio_in_video=False` on with every text."""
    model, _ = visual_models.build("Qwen2_5OmniThinkerForConditionalGeneration")
    ids = torch.randint(10, 40, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    given = {"input_ids": ids, "max_new_tokens": 3, "do_sample": False}
    plain = model.generate(**given)
    with mmaccel.accelerate(model, stored) as fast:
        for value, seen in ((False, 0), (False, 64), (True, 0), (True, 64)):
            assert torch.equal(fast.generate(**given, use_audio_in_video=value), plain)
            assert context(fast)["from_store"] == seen, "what is stored is of the same setting"


def test_another_layer_of_the_tower_shows_another_picture(stored):
    model, call = visual_models.build("LlavaForConditionalGeneration")
    plain = {layer: model.generate(**call(1, vision_feature_layer=layer)) for layer in (-1, -2)}
    with mmaccel.accelerate(model, stored) as fast:
        for layer, known in ((-1, False), (-2, False), (-1, True), (-2, True)):
            assert torch.equal(fast.generate(**call(1, vision_feature_layer=layer)), plain[layer])
            assert (context(fast)["from_store"] > 0) is known


def test_a_text_after_a_clip_has_positions_of_its_own(stored):
    """Models with positions in three axes remember where the last prompt's pictures ended."""
    model, call = visual_models.build("Qwen2_5_VLForConditionalGeneration")
    told = {"do_sample": False, "max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}
    ids = torch.randint(3, 12, (1, LENGTH), generator=torch.Generator().manual_seed(2))
    plain = model.generate(input_ids=ids, **told).logits
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(input_ids=ids, **told)
        fast.generate(**call(1))
        again = fast.generate(input_ids=ids, **told).logits
        assert context(fast)["from_store"] == 64
    torch.testing.assert_close(again, plain)


def test_sound_after_a_clip_has_positions_of_its_own(stored):
    """A prompt with content but without a grid counts from nothing too."""
    name = "Qwen2_5OmniThinkerForConditionalGeneration"
    visual_models.rows()[name]["more"].update(audio_token_index=61, audio_start_token_id=60, audio_end_token_id=59)
    try:
        model, clip = visual_models.build(name)
    finally:
        visual_models.read_rows.cache_clear()
    generator = torch.Generator().manual_seed(5)
    ids = torch.tensor([[7, 8, 60, *[61] * 16, 59, *range(10, 50)]])
    heard = {
        "input_features": torch.randn(1, 8, 64, generator=generator),
        "feature_attention_mask": torch.ones(1, 64).long(),
    }
    told = {"do_sample": False, "max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **heard, **told}
    plain = model.generate(**call).logits
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**call)
        fast.generate(**clip(1))
        again = fast.generate(**call).logits
        assert context(fast)["from_store"]
    torch.testing.assert_close(again, plain)


def test_nothing_is_kept_of_a_model_in_training(stored):
    model, arguments = examples.llama(attention_dropout=0.3)
    call = arguments(1, length=LENGTH, max_new_tokens=3)
    plain = model.generate(**call)
    with mmaccel.accelerate(model, stored) as fast:
        model.train()
        fast.generate(**call)
        assert "call model.eval() first" in fast.report.warnings[0]
        model.eval()
        assert torch.equal(fast.generate(**call), plain) and not context(fast)["from_store"]


def test_a_turn_after_a_stored_clip_goes_on_from_the_clip(stored):
    """Also where another prompt came between them."""
    model, call = visual_models.build("Qwen2_5_VLForConditionalGeneration")
    told = {"do_sample": False, "max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}

    def later(target):
        first = target.generate(**call(1, **told))
        ids = torch.cat([first.sequences, first.sequences[:, :4]], 1)
        return target.generate(input_ids=ids, past_key_values=first.past_key_values, **told).logits

    plain = later(model)
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**call(1))
        fast.generate(input_ids=torch.tensor([[5, 6, 7]]), **told)
        again = later(fast)
    torch.testing.assert_close(again, plain)


def test_types_of_tokens_are_no_picture(stored):
    """Ernie chooses experts by them, and a longer question has more of them."""
    model, call = visual_models.build("Ernie4_5_VLMoeForConditionalGeneration")
    first, second = call(1), call(1)
    for name in ("input_ids", "attention_mask", "mm_token_type_ids", "moe_mm_token_type_ids"):
        second[name] = torch.cat([second[name], second[name][:, -3:]], 1)
    plain = model.generate(**second)
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**first)
        assert torch.equal(fast.generate(**second), plain) and context(fast)["from_store"]


def test_marks_around_a_picture_belong_to_it(stored):
    """Ovis2 takes their embeddings from the picture's, and a question without pixels would leave them as words."""
    model, call = visual_models.build("Ovis2ForConditionalGeneration")
    told = {"max_new_tokens": 2, "output_logits": True, "return_dict_in_generate": True}
    first, second = call(1, **told), call(1, **told)
    for arguments, last in ((first, 7), (second, 9)):
        arguments["input_ids"][0, -3:] = torch.tensor([model.config.visual_indicator_token_ids[1], 6, last])
    plain = model.generate(**second).logits
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**first)
        again = fast.generate(**second).logits
        assert context(fast)["from_store"]
    torch.testing.assert_close(again, plain)


def test_windows_are_kept_whole(stored):
    config = Gemma3TextConfig(**{**examples.TEXT, "head_dim": 8, "sliding_window": 24, "num_hidden_layers": 6})
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(config).eval()
    _, arguments = examples.llama()
    plain = model.generate(**asked(arguments, 9, 8))
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**asked(arguments, 5, 6))
        assert torch.equal(fast.generate(**asked(arguments, 9, 8)), plain) and context(fast)["from_store"] == 64


def test_other_weights_are_another_model(stored):
    model, arguments = examples.llama()
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments())
        with torch.no_grad():
            model.lm_head.weight.mul_(1.5)
        fast.generate(**arguments())
        assert context(fast)["from_store"] == 0 and "are of other models" in fast.report.warnings[0]


def test_a_call_that_broke_off_tells_its_own_troubles(stored):
    model, arguments = examples.llama()

    def end(*_):
        raise KeyboardInterrupt

    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments())
        hook = model.lm_head.register_forward_hook(end)  # which makes another model of it
        with pytest.raises(KeyboardInterrupt):
            fast.generate(**arguments())
        assert "are of other models" in fast.report.warnings[0]
        hook.remove()
        fast.generate(**arguments())
        assert context(fast)["from_store"] and not fast.report.warnings


def test_an_adapter_that_is_switched_off_makes_another_model(stored):
    model, arguments = examples.llama()
    layer = model.model.layers[0].self_attn.q_proj
    layer.active_adapter, layer.disable_adapters = ["default"], False  # as peft's layers have them
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments())
        layer.disable_adapters = True
        fast.generate(**arguments())
        assert context(fast)["from_store"] == 0
        fast.generate(**arguments())
        assert context(fast)["from_store"] == 64


def test_another_adapter_of_a_call_makes_another_model(llama, stored):
    """`adapter_names` of a call are hooked to the layers of peft while it runs."""
    model, arguments = copy.deepcopy(llama[0]), llama[1]
    config = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    tuned = get_peft_model(model, config, adapter_name="fr")
    tuned.add_adapter("de", config)
    tuned.eval()
    plain = {name: tuned.generate(**arguments(), adapter_names=[name]) for name in ("fr", "de")}
    assert not torch.equal(*plain.values())
    with mmaccel.accelerate(model, stored) as fast:
        for name, seen in (("fr", 0), ("de", 0), ("fr", 64)):
            assert torch.equal(tuned.generate(**arguments(), adapter_names=[name]), plain[name])
            assert context(fast)["from_store"] == seen


def test_a_broken_entry_is_computed_again(llama, stored):
    model, arguments = llama
    with mmaccel.accelerate(model, stored) as fast:
        wanted = fast.generate(**arguments())
        (path,) = stored.path.glob("*")
        data = bytearray(path.read_bytes())
        data[-9] ^= 4
        path.write_bytes(data)
        assert torch.equal(fast.generate(**arguments()), wanted)
        assert context(fast)["from_store"] == 0 and context(fast)["bytes_written"]
        told, now = fast.report.warnings
        assert "is broken and was deleted" in told and "it is now, for later ones" in now
        fast.generate(**arguments())
        assert context(fast)["from_store"] == 64 and not fast.report.warnings


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"batch": 3}, "3 prompts in a batch"),
        ({"use_cache": False}, "use_cache=False"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens was given"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions was given"),
        ({"attention_mask": torch.tensor([[0] * 5 + [1] * 75])}, "padded"),
        ({"attention_mask": None, "input_ids": torch.tensor([[0] * 5 + [6] * 75])}, "padding tokens"),
    ],
)
def test_calls_that_run_plainly_say_why(llama, stored, more, word):
    model, arguments = llama
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**arguments(**more))
        assert word in fast.report.warnings[0] and not stored.path.exists()
        fast.generate(input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=2)
        assert "fewer than least=20 tokens" in fast.report.warnings[0]


@pytest.mark.parametrize("more", ({"token_healing": True}, {"penalty_alpha": 0.6}, {"dola_layers": "low"}), ids=str)
def test_a_prompt_that_is_read_otherwise_is_left_to_the_model(llama, more):
    model, arguments = llama
    assert unfit_for_context(model, arguments(**more)) == f"{next(iter(more))} was given"


@pytest.mark.parametrize("more", ({"top_k": 1}, {"do_sample": True, "top_k": 4}), ids=str)
def test_a_penalty_with_which_generate_does_not_search_changes_nothing(llama, more):
    model, arguments = llama
    assert unfit_for_context(model, arguments(penalty_alpha=0.6, **more)) is None


def reads_all(model, input_ids, logits_processor, stopping_criteria, generation_config, **kwargs):
    """A loop of the caller's own, whose first pass reads all of a prompt, whatever the cache holds."""
    for step in range(4):
        count = 1 if step else None
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=count, **kwargs)
        input_ids = torch.cat([input_ids, model(**inputs).logits[:, -1:].argmax(-1)], 1)
    return input_ids


def test_loops_of_the_caller_read_the_prompt_themselves(llama, stored):
    model, arguments = llama
    plain = model.generate(**arguments(), custom_generate=reads_all)
    drafts = FusedDraft(always=True).custom_generate()
    with mmaccel.accelerate(model, stored) as fast:
        wanted = fast.generate(**arguments())
        assert torch.equal(fast.generate(**arguments(), custom_generate=reads_all), plain)
        assert fast.report.warnings == ["vlm.StoredContext ran plainly: custom_generate was given"]
        assert torch.equal(fast.generate(**arguments(), custom_generate=drafts), wanted)
        assert context(fast)["from_store"] == 64


def test_weights_that_lie_elsewhere_are_left_to_the_model(llama):
    model, arguments = copy.deepcopy(llama[0]), llama[1]
    assert unfit_for_context(model, arguments()) is None
    model.lm_head.to("meta")
    assert "on several devices" in unfit_for_context(model, arguments())
    assert "not in memory" in unfit_for_context(model.to("meta"), arguments())


def test_what_does_not_fit_is_refused(llama):
    model, _ = llama
    for other in (CompressKV(), SparsePrefill()):
        with pytest.raises(ConflictError):
            mmaccel.plan(model, StoredContext(), other)
    assert StoredContext.conflicts(HoliTom)
    hybrid = Lfm2ForCausalLM(Lfm2Config(**{**examples.TEXT, "layer_types": ["conv", "full_attention", "conv"]}))
    with pytest.raises(UnsupportedTargetError, match="states of their own"):
        mmaccel.plan(hybrid, StoredContext())
    turned = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    moving = LlamaForCausalLM(LlamaConfig(**{**examples.TEXT, "rope_parameters": turned}))
    with pytest.raises(UnsupportedTargetError, match="keys by the length of the whole prompt .rope_type 'dynamic'"):
        mmaccel.plan(moving, StoredContext())
    shared = LlamaForCausalLM(LlamaConfig(**examples.TEXT))
    shared.config.num_kv_shared_layers = 1  # as of Gemma 3n
    with pytest.raises(UnsupportedTargetError, match="layers of LlamaForCausalLM share their keys"):
        mmaccel.plan(shared, StoredContext())
    prefixed = LlamaForCausalLM(LlamaConfig(**examples.TEXT))
    prefixed.config.prefix_lm = True  # as that of HrmTextForCausalLM
    with pytest.raises(UnsupportedTargetError, match="tokens of a prompt see later ones .prefix_lm."):
        mmaccel.plan(prefixed, StoredContext())
    for bad in ({"gigabytes": -1}, {"least": 0}, {"folder": 3}):
        with pytest.raises(SettingError, match=next(iter(bad))):
            StoredContext(**bad)


def test_a_prompt_with_a_token_that_pads_and_ends_is_whole(llama, stored):
    """As `generate` takes it where no mask is given."""
    model, arguments = llama
    given = arguments(attention_mask=None, pad_token_id=2, eos_token_id=2)
    given["input_ids"][0, 40] = 2
    plain = model.generate(**given)
    with mmaccel.accelerate(model, stored) as fast:
        for seen in (0, 64):
            assert torch.equal(fast.generate(**given), plain) and context(fast)["from_store"] == seen


def test_a_pass_writes_a_token_of_each_text(llama, stored):
    model, arguments = llama
    given = arguments(num_return_sequences=4, do_sample=True, max_new_tokens=6, eos_token_id=None)
    with mmaccel.accelerate(model, stored) as fast:
        fast.generate(**given)
        assert fast.report.tokens == 24 and fast.report.plain_forwards == fast.report.forwards == 6


STRANGE = object()


def test_beside_a_hook_that_records_nothing_is_stored(stored):
    model, arguments = examples.llama()
    layer, kept = model.get_decoder().layers[0], []
    with mmaccel.accelerate(model, stored) as session:
        hook = layer.register_forward_hook(lambda module, args, output: kept.append(len(args)))
        for _ in range(2):
            session.generate(**asked(arguments, 5))
            assert context(session)["from_store"] == context(session)["bytes_written"] == 0
            assert any("hooks on the model changed" in warning for warning in session.report.warnings)
        hook.remove()
        layer.register_forward_hook(lambda module, args, output: STRANGE and None)
        session.generate(**asked(arguments, 5))
        assert "a hook on" in session.report.warnings[0] and "(object)" in session.report.warnings[0]
