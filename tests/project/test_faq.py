"""What docs/faq.md says, tried on tiny models; each error that it quotes is the one that is raised."""

import copy

import pytest
import torch
from accelerate import cpu_offload
from peft import LoraConfig, get_peft_model
from reader import DOCS
from transformers import GitConfig, GitForCausalLM

import mmaccel
from mmaccel import image, video, vlm
from mmaccel.demos.families.visual_models import build as visual_model
from mmaccel.errors import MmaccelError
from mmaccel.modality import get_modality
from mmaccel.video.examples import wan_pipeline

FAQ = (DOCS / "faq.md").read_text(encoding="utf-8")
CPU = torch.device("cpu")
TOKENS = {
    "janus": ("image", image.SpeculativeJacobi(window=4, coupling="gumbel_exact")),
    "qwen2_5_vl": ("vlm", vlm.DyCoke(keep=0.3)),
}
INSIDE_STEPS = (
    video.HeterogeneousSteps(0.6, interval=4, fraction=0.2),
    video.SparseAttention(budget=0.5, min_length=1, always=True),
)


def built(family):
    """A tiny model, the arguments of its `generate`, and a method for it."""
    modality, method = TOKENS[family]
    example = next(one for one in get_modality(modality).examples() if one.family == family)
    model, arguments = example.build(0)
    return model, arguments(), method


def answered(model, call, method, told=()):
    """What a call gives; its report warns of no more than what is `told`."""
    with mmaccel.accelerate(model, method) as fast:
        torch.manual_seed(0)
        tokens = fast.generate(**call)
        assert fast.report.engaged and [text.partition(":")[0] for text in fast.report.warnings] == list(told)
        return tokens


def filmed(pipe, method, steps=12):
    with mmaccel.accelerate(pipe, method) as fast:
        return fast(**wan_pipeline()[1](1, steps=steps))[0], fast.report


def refused(error, *quotes):
    """The FAQ has the very words."""
    for quote in quotes:
        assert quote in str(error.value) and quote in FAQ


@pytest.mark.parametrize("family", TOKENS)
def test_token_models_are_off_loaded_compiled_and_cached_statically(family):
    model, call, method = built(family)
    expected = answered(model, call, method)
    assert torch.equal(answered(model, {**call, "cache_implementation": "static"}, method), expected)
    compiled = copy.deepcopy(model)
    compiled.compile(backend="eager")
    assert torch.equal(answered(compiled, call, method), expected)
    cpu_offload(model, execution_device=CPU)
    assert torch.equal(answered(model, call, method), expected)


@pytest.mark.parametrize(
    "method", (video.HeterogeneousSteps(), video.BlockCache(1e6, warmup=3), *INSIDE_STEPS), ids=str
)
@pytest.mark.parametrize("kind", ("sequential", "group"))
def test_pipelines_are_off_loaded(method, kind):
    pipe = wan_pipeline()[0]
    expected, _ = filmed(pipe, method)
    if kind == "group":
        places = {"onload_device": CPU, "offload_device": CPU}
        pipe.transformer.enable_group_offload(**places, offload_type="block_level", num_blocks_per_group=1)
    else:
        cpu_offload(pipe.transformer, execution_device=CPU)
    output, report = filmed(pipe, method)
    assert torch.equal(output, expected) and report.engaged


@pytest.mark.parametrize("family", TOKENS)
@pytest.mark.parametrize("wrapper", ("OptimizedModule", "PeftModel", "DataParallel"))
def test_wrappers_are_refused_and_what_is_inside_is_not(family, wrapper):
    model, call, method = built(family)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    wrap = {
        "OptimizedModule": lambda model: torch.compile(model, backend="eager"),
        "PeftModel": lambda model: get_peft_model(model, config),
        "DataParallel": torch.nn.DataParallel,
    }
    wrapped = wrap[wrapper](model)
    with pytest.raises(MmaccelError) as error:
        mmaccel.accelerate(wrapped, method)
    refused(error, f"no adapter for {wrapper}")
    if wrapper == "DataParallel":
        assert str(error.value).endswith("give its .module")
        answered(wrapped.module, call, method)
    if wrapper == "PeftModel":
        answered(wrapped.get_base_model(), call, method)


def test_compiled_transformers_are_refused_where_the_faq_says_so():
    pipe = wan_pipeline()[0]
    whole = pipe.transformer
    pipe.transformer = torch.compile(whole, backend="eager")
    with pytest.raises(MmaccelError) as error:
        mmaccel.accelerate(pipe, video.HeterogeneousSteps())
    refused(error, "write pipe.transformer.compile(...), which compiles it in place")
    pipe.transformer = whole
    whole.compile(backend="eager")
    mmaccel.plan(pipe, video.HeterogeneousSteps())
    with pytest.raises(MmaccelError) as error:
        mmaccel.accelerate(pipe, video.TokenCache())
    refused(error, "is compiled: load it again without compile()")
    pipe, arguments = wan_pipeline()
    with mmaccel.accelerate(pipe, video.EasyCache()) as fast, pytest.raises(MmaccelError) as error:
        pipe.transformer.compile(backend="eager")
        fast(**arguments(1, steps=2))
    refused(error, "was compiled after accelerate(): remove() the session, and call accelerate() again")
    pipe, arguments = wan_pipeline()
    with mmaccel.accelerate(pipe, video.EasyCache()) as fast, pytest.raises(MmaccelError) as error:
        pipe.transformer = torch.compile(pipe.transformer, backend="eager")
        fast(**arguments(1, steps=2))
    refused(error, "was compiled after accelerate(): remove() the session, and call accelerate() again")


def int8(module):
    torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)


def float8(transformer):
    transformer.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)


@pytest.mark.parametrize("family", TOKENS)
def test_quantised_token_models_work_and_stay_quantised(family):
    model, call, method = built(family)
    int8(model)
    torch.manual_seed(0)
    before = model.generate(**call)
    answered(model, call, method, ["not exact here"] if method.exact else [])
    torch.manual_seed(0)
    assert torch.equal(model.generate(**call), before)


@pytest.mark.parametrize("method", (video.HeterogeneousSteps(), *INSIDE_STEPS), ids=str)
@pytest.mark.parametrize("quantise", (lambda transformer: int8(transformer.blocks), float8), ids=("int8", "float8"))
def test_quantised_pipelines_work(method, quantise):
    pipe, arguments = wan_pipeline()
    quantise(pipe.transformer)
    before = pipe(**arguments(1, steps=12))[0]
    output, report = filmed(pipe, method)
    assert output.isfinite().all() and report.engaged
    assert torch.equal(pipe(**arguments(1, steps=12))[0], before)


def test_what_few_steps_leave_to_save():
    pipe = wan_pipeline()[0]
    _, report = filmed(pipe, video.HeterogeneousSteps(), steps=4)
    assert (report.forwards, report.plain_forwards) == (8, 8)  # two guidance branches a step
    told = "4 steps are too few to forecast"
    assert any(told in text for text in report.warnings) and told in FAQ
    quotes = ("reused nothing: warmup and cooldown take ", " steps and the run has 4: lower them")
    for method in (video.EasyCache(), video.BlockCache(), video.TokenCache(), video.TaylorSeer()):
        _, report = filmed(pipe, method, steps=4)
        assert not report.engaged and all(quote in " ".join(report.warnings) for quote in quotes)
    assert "...".join(quotes) in FAQ
    _, report = filmed(pipe, video.SparseAttention(budget=0.5, min_length=1, always=True), steps=4)
    assert report.engaged


def test_other_errors_are_quoted_as_they_are():
    model, _, method = built("qwen2_5_vl")
    with mmaccel.accelerate(model, method), pytest.raises(MmaccelError) as error:
        mmaccel.accelerate(model, method)
    refused(error, "is already accelerated by Session(")
    model.config._attn_implementation = model.config.get_text_config()._attn_implementation = "flash_attention_2"
    with pytest.raises(MmaccelError) as error:
        mmaccel.plan(model, method)
    refused(error, "attn_implementation='flash_attention_2': load the model with attn_implementation='sdpa'")
    with pytest.raises(MmaccelError) as error:
        mmaccel.plan(visual_model("AriaForConditionalGeneration")[0], vlm.HoliTom())
    refused(error, "ranks tokens by the attention in the vision tower, and that of")
    with pytest.raises(MmaccelError) as error:
        mmaccel.plan(GitForCausalLM(GitConfig(num_hidden_layers=1, vocab_size=8)), method)
    refused(error, "cannot leave out visual tokens of")
    from diffusers.hooks import FirstBlockCacheConfig, apply_first_block_cache

    pipe = wan_pipeline()[0]
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(MmaccelError) as error:
        mmaccel.plan(pipe, video.TaylorSeer())
    refused(error, "has FirstBlockCacheConfig enabled already: call .disable_cache() on it first")
    pipe = wan_pipeline()[0]
    apply_first_block_cache(pipe.transformer, FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(MmaccelError) as error:
        mmaccel.plan(pipe, video.TaylorSeer())
    refused(error, "has hooks of a cache on already: call first, for each of ")
