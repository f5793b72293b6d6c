"""Vision-language models with fewer visual tokens: the prompt that is left, its positions, and its cache."""

from dataclasses import dataclass

import pytest
import torch

import mmaccel
from mmaccel import registry, vlm
from mmaccel.errors import PromptError, SettingError
from mmaccel.kernels.policies import Span
from mmaccel.vlm import visual_examples
from mmaccel.vlm.input.spans import spans
from mmaccel.vlm.input.visual import Visual
from mmaccel.vlm.pruning.compressed import chosen
from mmaccel.vlm.pruning.compressor import Compressor

EXAMPLES = {example.family: example for example in visual_examples.examples()}
MROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@dataclass(frozen=True)
class Every(Compressor):
    """Keeps every `step`-th token."""

    keep: float | None = 0.5
    tokens: int | None = None
    step: int = 1

    needs_attention, needs_key = True, True

    def compress(self, features, scores=None, key=None):
        frames, cells = features.shape[:2]
        assert scores.shape == (frames, cells) and key.shape[:2] == (frames, cells)
        assert scores.sum(1).allclose(scores.sum(1)[:1], rtol=0.5), "frames share out the same attention"
        return chosen(features, torch.arange(0, frames * cells, self.step))


@pytest.fixture(autouse=True, scope="module")
def registered():
    Every.name, Every.paper = "vlm.Every", "test"
    registry._methods["vlm.Every"] = Every
    yield
    del registry._methods["vlm.Every"]


@pytest.fixture(params=EXAMPLES, ids=str)
def family(request):
    return request.param


def build(family):
    return EXAMPLES[family].build()


@pytest.mark.parametrize(
    "more", ({}, {"num_beams": 3}, {"max_new_tokens": None, "max_length": 140}, {"attention_mask": None}), ids=str
)
def test_all_tokens_through_our_way_are_the_plain_call(family, more):
    model, arguments = build(family)
    call = arguments(3, return_dict_in_generate=True, output_logits=True, **more)
    plain = model.generate(**dict(call))
    with mmaccel.accelerate(model, Every()) as fast:
        result = fast.generate(**dict(call))
    assert torch.equal(result.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(result.logits, plain.logits, strict=True))


def test_a_row_alone_is_the_row_in_a_batch(family):
    """Whatever the padding and the neighbours."""
    model, arguments = build(family)
    call = arguments(2)
    with mmaccel.accelerate(model, Every(step=3)) as fast:
        together = fast.generate(**dict(call))
        single = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in call.items()}
        for name in ("pixel_values", "pixel_values_videos"):
            if name in call:
                single[name] = call[name][: len(call[name]) // 2]
        alone = fast.generate(**single)
    assert torch.equal(alone[0], together[0])


def pruned_call(model, arguments, batch, method):
    """The arguments that the session's `generate` hands to the model."""
    with mmaccel.accelerate(model, method) as fast:
        seen = {}
        adapter, begin = fast.adapter, fast.adapter.begin

        def watch(methods, run, kwargs):
            prompt = begin(methods, run, kwargs)
            seen.update(kwargs, prompt=prompt)
            return prompt

        adapter.begin = watch
        tokens = fast.generate(**arguments(batch))
    return tokens, seen


@pytest.mark.parametrize("family", MROPE)
def test_decoding_with_a_cache_is_a_full_forward_over_the_pruned_sequence(family):
    """The positions of a token are those that it had before others were dropped."""
    model, arguments = build(family)
    tokens, seen = pruned_call(model, arguments, 1, Every(step=3))
    prompt, new = seen["prompt"], tokens[:, seen["prompt"].full_ids.shape[1] :]
    call = arguments(1)
    grid = {name: call[name] for name in ("video_grid_thw", "mm_token_type_ids")}
    full, _ = model.model.get_rope_index(call["input_ids"], **grid)
    stays = torch.cat([torch.ones(1, dtype=bool), torch.zeros(2, dtype=bool)]).repeat(1000)
    video = (call["input_ids"][0] == visual_examples.VIDEO).nonzero().squeeze(1)
    dropped = video[~stays[: len(video)]]
    left = [i for i in range(call["input_ids"].shape[1]) if i not in dropped.tolist()]
    assert torch.equal(prompt.position_ids[1:], full[..., left])
    later = full.max() + torch.arange(1, new.shape[1] + 1)
    positions = torch.cat([full[..., left], later.expand(3, 1, -1)], -1)
    ids = torch.cat([prompt.input_ids, new], 1)
    inputs = {name: seen[name] for name in ("mm_encoder_outputs",) if name in seen}
    if not inputs:
        embeds = torch.cat([seen["inputs_embeds"], model.get_input_embeddings()(new)], 1)
        inputs = {"inputs_embeds": embeds}
    else:
        inputs["input_ids"] = ids
    out = model(**inputs, position_ids=positions, attention_mask=torch.ones_like(ids), use_cache=False)
    assert torch.equal(out.logits[0, prompt.input_ids.shape[1] - 1 : -1].argmax(-1), new[0])


def test_what_a_tower_makes_comes_to_the_device_of_the_prompt(monkeypatch):
    part, elsewhere = torch.ones(4, 2), torch.device("meta")
    visual = Visual(part, (2, 1, 2), part[:, 0] > 0, part, part, part[:, 0].long(), (part, part)).to(elsewhere)
    told = (visual.features, visual.shows, visual.scores, visual.key, visual.present, *visual.extra)
    assert all(each.is_meta for each in told) and len(told) == 7 and visual.grid == (2, 1, 2)
    assert Visual.of_frames(part, (2, 1, 2)).to(elsewhere).scores is None
    model, arguments = build("qwen3_vl")
    moved = []
    monkeypatch.setattr(Visual, "to", lambda visual, device: moved.append(device) or visual)
    with mmaccel.accelerate(model, Every(step=3)) as fast:
        fast.generate(**arguments(2))
    assert moved == [model.device] * 2


def test_placeholders_come_to_the_device_of_the_embeddings(monkeypatch):
    """The parts of a model may lie elsewhere than its prompt."""
    model, arguments = build("llava_onevision")
    places = []
    with mmaccel.accelerate(model, Every(step=3)) as fast:
        prompt = fast.adapter.shorten(Every(step=3), arguments(1))
        model.get_input_embeddings().register_forward_hook(lambda module, ids, embeds: embeds.to("meta"))
        monkeypatch.setattr(torch.Tensor, "masked_scatter", lambda embeds, mask, _: places.append(mask) or embeds)
        fast.adapter.inputs(prompt)
    assert places[0].is_meta


@pytest.mark.parametrize("batch", (1, 3))
def test_fast_v_is_a_mask_in_the_later_layers(family, batch):
    """Hiding the dropped tokens from everybody, from that layer on, is the same as not having them."""
    model, arguments = build(family)
    with mmaccel.accelerate(model, vlm.FastV(keep=0.3)) as fast:
        result = fast.generate(**arguments(batch), return_dict_in_generate=True, output_logits=True)
        assert fast.report.engaged and not fast.report.warnings
        assert fast.report.visual_tokens < fast.report.plain_visual_tokens
    hidden = masked_run(model, arguments(batch), 2, 0.3)
    assert torch.allclose(result.logits[0], hidden, atol=1e-4)


def masked_run(model, call, cut, keep):
    """Logits of the last token of a plain forward whose layers from `cut` on do not see what is dropped."""
    from torch.nn.functional import softmax

    layers, found = model.get_decoder().layers, {}
    mask = call.pop("attention_mask").bool()
    config = model.config
    shown = (call["input_ids"] == config.image_token_id) | (
        call["input_ids"] == config.video_token_id if hasattr(config, "video_token_id") else False
    )
    if model.config.model_type == "llava_onevision":
        last = shown.long().cumsum(1) == shown.sum(1, keepdim=True)
        shown &= ~last  # the newline
    length = mask.shape[1]
    visible = torch.ones(length, length).tril().bool() & mask[:, None]

    def keep_scores(module, args, kwargs):
        attention, states = module.self_attn, module.input_layernorm(args[0] if args else kwargs["hidden_states"])
        found["scores"] = attention_of(attention, states, kwargs, mask)

    def hide(module, args, kwargs):
        kwargs["attention_mask"] = found.setdefault("mask", hidden_mask())[:, None]
        return args, kwargs

    def hidden_mask():
        now = visible.clone()
        for row, scores in enumerate(found["scores"]):
            places = shown[row].nonzero().squeeze(1)
            count = max(1, round(keep * len(places)))
            best = scores[places].sort(descending=True, stable=True).indices[:count]
            gone = torch.ones(len(places), dtype=bool)
            gone[best] = False
            now[row][:, places[gone]] = False
        return now

    def attention_of(attention, states, kwargs, mask):
        heads = config.get_text_config().num_attention_heads
        size = attention.head_dim
        query = attention.q_proj(states).unflatten(2, (-1, size))
        key = attention.k_proj(states).unflatten(2, (-1, size))
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        query, key = query.transpose(1, 2), key.transpose(1, 2)
        import sys

        rope = sys.modules[type(attention).__module__]
        cosine, sine = kwargs["position_embeddings"]
        if hasattr(rope, "apply_multimodal_rotary_pos_emb"):
            sections = attention.config.rope_parameters["mrope_section"]
            query, key = rope.apply_multimodal_rotary_pos_emb(query, key, cosine, sine, sections)
        else:
            query, key = rope.apply_rotary_pos_emb(query, key, cosine, sine)
        key = key.repeat_interleave(heads // key.shape[1], 1)
        scores = (query[:, :, -1:] @ key.transpose(2, 3))[:, :, 0] * size**-0.5
        return softmax(scores.masked_fill(~mask[:, None], float("-inf")), -1).mean(1)

    handles = [layers[cut - 1].register_forward_pre_hook(keep_scores, with_kwargs=True)]
    handles += [layer.register_forward_pre_hook(hide, with_kwargs=True) for layer in layers[cut:]]
    call = {k: v for k, v in call.items() if k not in ("max_new_tokens", "do_sample")}
    positions = (
        {} if model.config.model_type.startswith("qwen") else {"position_ids": (mask.long().cumsum(1) - 1).clamp(min=0)}
    )
    with torch.no_grad():
        logits = model(**call, attention_mask=mask.long(), **positions).logits[:, -1]
    for handle in handles:
        handle.remove()
    return logits


def test_turns_go_on_with_the_cache(family):
    """A second question on the cache of the first: as if all had been one prompt."""
    model, arguments = build(family)
    question = torch.randint(4, 50, (2, 4), generator=torch.Generator().manual_seed(3))
    for method in (Every(step=3), vlm.FastV(keep=0.3)):
        call = arguments(2)
        with mmaccel.accelerate(model, method) as fast:
            first = fast.generate(**call, return_dict_in_generate=True)
            ids = torch.cat([first.sequences, question], 1)
            mask = torch.nn.functional.pad(
                call["attention_mask"], (0, ids.shape[1] - call["input_ids"].shape[1]), value=1
            )
            more = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
            second = fast.generate(**more, past_key_values=first.past_key_values)
            assert torch.equal(second[:, : ids.shape[1]], ids)
            if isinstance(method, Every):
                again = {**{k: v for k, v in call.items() if k != "mm_token_type_ids"}, **more}
                assert torch.equal(fast.generate(**again), second)


def test_errors(family):
    model, arguments = build(family)
    call = arguments(1)
    with mmaccel.accelerate(model, vlm.FastV()) as fast:
        with pytest.raises(PromptError, match="placeholders"):
            fast.generate(
                **{**call, "input_ids": call["input_ids"][:, 12:], "attention_mask": None, "mm_token_type_ids": None}
            )
        with pytest.raises(PromptError, match="no .* placeholders"):
            words = torch.full_like(call["input_ids"], 7)
            fast.generate(**{**call, "input_ids": words, "mm_token_type_ids": torch.zeros_like(words)})
        fast.generate(input_ids=torch.tensor([[5, 6, 7]]), max_new_tokens=2)
        assert "no picture or video" in fast.report.warnings[0]
    with pytest.raises(SettingError, match="layer from"):
        mmaccel.accelerate(model, vlm.FastV(layer=40))


def test_language_models_have_no_visual_tokens():
    from mmaccel.errors import UnsupportedTargetError
    from mmaccel.vlm import examples

    with pytest.raises(UnsupportedTargetError, match="LlamaForCausalLM is shown no pictures: vlm.SparsePrefill"):
        mmaccel.accelerate(examples.llama()[0], vlm.FastV())


def test_spans_of_the_frames_are_told(family):
    """ST-Lite knows where the frames stand, whatever the family puts between them."""
    model, arguments = build(family)
    with mmaccel.accelerate(model, vlm.CompressKV(policy="st_lite", budget=0.3)) as fast:
        call = arguments(2)
        found = fast.adapter.spans(call)
        ids = (fast.adapter.token_id("image"), fast.adapter.token_id("video"))
        shown = (call["input_ids"][..., None] == torch.tensor([i for i in ids if i is not None])).any(-1)
        for row, spans in enumerate(found):
            slots = [slot for span in spans for slot in range(span.first, span.end)]
            assert len(slots) == len(set(slots)) and shown[row, slots].all() and sum(s.frames for s in spans) == 6
            assert int(shown[row].sum()) - len(slots) == (family == "llava_onevision")  # its newline
        fast.generate(**call)
        assert fast.report.engaged and not fast.report.warnings
        assert fast.adapter.spans({"input_ids": call["input_ids"]}) is None


@pytest.mark.parametrize(
    ("grids", "expected"),
    (
        ({"video": [(2, 1, 2)], "image": [(1, 1, 3)]}, [[Span(1, 2, 1, 2), Span(6, 1, 1, 3)]]),
        ({"video": [(3, 1, 2)], "image": [(1, 1, 3)]}, None),
        ({"video": [(2, 1, 2), (1, 1, 2)], "image": [(1, 1, 3)]}, None),
        ({"video": [(1, 1, 2)], "image": [(1, 1, 3)]}, [[Span(1, 1, 1, 2), Span(6, 1, 1, 3)]]),
        ({"video": [(2, 1, 2)]}, None),
    ),
    ids=("fits", "a frame missing", "a video missing", "tokens that show nothing", "a picture too many"),
)
def test_spans_of_placeholders_and_grids_that_fit_or_do_not(grids, expected):
    ids = torch.tensor([[1, 9, 9, 9, 9, 2, 8, 8, 8, 3]])
    assert spans(ids, {"video": 9, "image": 8}, grids) == expected


def test_presets_and_what_a_session_cannot_shorten(family):
    model, arguments = build(family)
    methods = (vlm.VidCom2(keep=0.1),) if family == "qianfan_ocr" else ()  # whose presets leave pages whole
    with mmaccel.accelerate(model, *methods, preset=None if methods else "fast") as fast:
        embeds = model.get_input_embeddings()(torch.tensor([[5, 6, 7]]))
        fast.generate(inputs_embeds=embeds, max_new_tokens=2)
        assert "needs input_ids" in fast.report.warnings[0] and not fast.report.engaged
        fast.generate(**arguments(1, frames=60))  # a tenth of fewer holds less than DyCoke's first stage needs
        assert fast.report.engaged and not fast.report.warnings
        assert "visual" in str(fast.report)
