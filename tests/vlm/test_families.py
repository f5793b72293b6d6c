"""Classes beside those of the examples that the adapters of vision-language models fit."""

import pytest
import torch
from transformers import (
    AyaVisionConfig,
    AyaVisionForConditionalGeneration,
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    DeepseekVLConfig,
    DeepseekVLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)

import mmaccel
from mmaccel import vlm
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm import visual_examples as examples

SIDE = 32
SIGLIP = {**examples.VISION, "model_type": "siglip_vision_model", "image_size": SIDE, "patch_size": 4}
COHERE = {"model_type": "cohere2", **examples.TEXT, "head_dim": 8, "sliding_window": 64}


def aya_vision():
    config = AyaVisionConfig(
        text_config=COHERE, vision_config=SIGLIP, image_token_index=examples.IMAGE, downsample_factor=2,
        adapter_layer_norm_eps=1e-6, alignment_intermediate_size=64,
    )  # fmt: skip
    return AyaVisionForConditionalGeneration(config)


def cohere2_vision():
    config = Cohere2VisionConfig(
        text_config=COHERE, vision_config=SIGLIP, image_token_id=examples.IMAGE, downsample_factor=2,
        alignment_intermediate_size=64,
    )  # fmt: skip
    return Cohere2VisionForConditionalGeneration(config)


def deepseek_vl():
    config = DeepseekVLConfig(
        text_config={"model_type": "llama", **examples.TEXT},
        vision_config={**SIGLIP, "patch_size": 8},
        image_token_id=examples.IMAGE,
    )
    return DeepseekVLForConditionalGeneration(config)


def qwen3_vl_moe():
    vision = {**examples.QWEN_VISION, "depth": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    text = {**examples._mrope(), "head_dim": 8, **experts}
    config = Qwen3VLMoeConfig(text_config=text, vision_config=vision, **examples.PLACEHOLDERS)
    return Qwen3VLMoeForConditionalGeneration(config)


def _pictures(model):
    return model, examples._tiles(SIDE, flat=True)


CLASSES = {
    "aya_vision": (aya_vision, _pictures),
    "cohere2_vision": (cohere2_vision, _pictures),
    "deepseek_vl": (deepseek_vl, _pictures),
    "qwen3_vl_moe": (qwen3_vl_moe, lambda model: examples._qwen(model, stamp=[5, 6])),
}
METHODS = (
    vlm.HoliTom(keep=0.4), vlm.VidCom2(keep=0.4), vlm.DyCoke(keep=0.4), vlm.FastVID(keep=0.4), vlm.IDPruner(keep=0.4),
    vlm.VisionZip(keep=0.4), vlm.FastV(keep=0.4, layer=3),
)  # fmt: skip


@pytest.fixture(scope="module", params=CLASSES, ids=str)
def made(request):
    build, call = CLASSES[request.param]
    return call(examples.sharp(build, 0))


@pytest.mark.parametrize("more", ({}, {"num_beams": 3}), ids=str)
def test_all_tokens_through_our_way_are_the_plain_call(made, more):
    model, arguments = made
    call = arguments(3, **more)
    plain = model.generate(**dict(call))
    with mmaccel.accelerate(model, vlm.VidCom2(keep=1.0)) as fast:
        assert torch.equal(fast.generate(**dict(call)), plain)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_methods_answer_with_fewer_tokens_and_leave_nothing_behind(made, method):
    model, arguments = made
    plain = model.generate(**arguments(2))
    before = snapshot(model)
    with mmaccel.accelerate(model, method) as fast:
        answers = fast.generate(**arguments(2))
        assert answers.shape == plain.shape
        if isinstance(method, vlm.FastV) and "sliding_attention" in (
            getattr(model.config.text_config, "layer_types", None) or ()
        ):
            assert any("some of its layers have a sliding window" in told for told in fast.report.warnings)
            return
        assert fast.report.engaged, fast.report
        assert 0 < fast.report.visual_tokens < fast.report.plain_visual_tokens
        single = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in arguments(2).items()}
        for name in ("pixel_values", "pixel_values_videos"):
            if name in single:
                single[name] = arguments(2)[name][: len(arguments(2)[name]) // 2]
        assert torch.equal(fast.generate(**single)[0], answers[0]), "a row alone is the row in a batch"
    assert snapshot(model) == before
    assert torch.equal(model.generate(**arguments(2)), plain)
