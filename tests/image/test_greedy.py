"""Greedy decoding gives the tokens of the model's own generate; sampled calls keep their shapes and settings."""

import importlib

import pytest
import torch
from accelerate import cpu_offload
from own_pictures import own
from quantized_weight import quantize
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

import mmaccel
from mmaccel.adapter import find_adapter
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR, examples
from mmaccel.image.decoding.coupling import COUPLINGS
from mmaccel.image.decoding.sampling import Sampling
from mmaccel.linears import skinny

FAMILIES = ("janus", "emu3", "glm_image")
# Janus always guides, Emu3 may, and GLM-Image has no guidance of its own.
GUIDANCE = {"janus": (3.0,), "emu3": (1.0, 3.0), "glm_image": (1.0,)}
CASES = [(family, guidance) for family in FAMILIES for guidance in GUIDANCE[family]]


def build(family, guidance, batch, **more):
    """Model and call, with weights whose greedy pictures are not constant."""
    model, arguments = getattr(examples, family)(seed=3 if family == "glm_image" else 2)
    return model, arguments(batch, guidance=guidance, do_sample=False, top_k=None, **more)


def columns(family):
    return examples.COLUMNS + (family == "emu3")


def assert_equal(family, guidance, batch, *methods, **more):
    model, call = build(family, guidance, batch, **more)
    plain = own(family, model, call)
    assert len(plain[:, -examples.ROWS * examples.COLUMNS :].unique()) > 3, "a constant picture proves nothing"
    for method in methods:
        with mmaccel.accelerate(model, method) as fast:
            assert torch.equal(fast.generate(**call), plain), str(method)
            assert fast.report.forwards <= fast.report.plain_forwards
    assert torch.equal(own(family, model, call), plain)


@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize(("family", "guidance"), CASES)
def test_every_coupling(family, guidance, batch):
    methods = [SpeculativeJacobi(window=6, coupling=name) for name in COUPLINGS]
    assert_equal(family, guidance, batch, *methods, SpeculativeJacobi(window=3, init="repeat_left"))


@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize(("family", "guidance"), CASES)
def test_plain_raster_order(family, guidance, batch):
    """Row decoding with the whole row as lead is plain decoding, also with drafts."""
    width = columns(family)
    methods = [ZipAR(window=width, verify=True, draft_window=n) for n in (2, 3, 8)]
    assert_equal(family, guidance, batch, *methods, GroupedSpeculative(window=5, group_size=1))


@pytest.mark.parametrize("family", FAMILIES)
def test_automatic_window(family):
    assert_equal(family, GUIDANCE[family][0], 2, SpeculativeJacobi())


@pytest.mark.parametrize("family", FAMILIES)
def test_eager_attention(family):
    """The additive mask says the same as the boolean one."""
    model, call = build(family, GUIDANCE[family][0], 2)
    model.set_attn_implementation("eager")
    plain = own(family, model, call)
    for method in (SpeculativeJacobi(window=6), ZipAR(window=columns(family), verify=True)):
        with mmaccel.accelerate(model, method) as fast:
            assert torch.equal(fast.generate(**call), plain), str(method)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_leaves_the_random_state_alone(family):
    model, call = build(family, GUIDANCE[family][0], 1)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        state = torch.get_rng_state()
        fast.generate(**call)
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("method", (SpeculativeJacobi(window=6), ZipAR(window=2)), ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_several_pictures_per_prompt(family, method):
    model, arguments = getattr(examples, family)()
    call = arguments(2, guidance=GUIDANCE[family][-1], num_return_sequences=2)
    with mmaccel.accelerate(model, method) as fast:
        tokens = fast.generate(**call, generator=torch.Generator().manual_seed(0))
        again = fast.generate(**call, generator=torch.Generator().manual_seed(0))
        other = fast.generate(**call, generator=torch.Generator().manual_seed(1))
    grid = examples.ROWS * examples.COLUMNS
    length = {"janus": grid, "emu3": 6 + grid + examples.ROWS + 3, "glm_image": 6 + 4 + grid + 1}[family]
    assert tokens.shape == (4, length)
    assert len({tuple(row) for row in tokens.tolist()}) == 4, "pictures of one prompt are alike"
    assert torch.equal(tokens, again) and not torch.equal(tokens, other)
    if family != "janus":  # the prompts come first, in the order of transformers
        assert torch.equal(tokens[:, :6], call["input_ids"].repeat_interleave(2, 0))


@pytest.mark.parametrize("family", FAMILIES)
def test_several_top_1_pictures_follow_their_prompts(family):
    """Repeated rows keep prompt, mask and guidance branch together (transformers repeats sampled calls only)."""
    model, call = build(family, GUIDANCE[family][-1], 2)
    plain = own(family, model, call)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        tokens = fast.generate(**{**call, "do_sample": True, "top_k": 1, "num_return_sequences": 2})
    assert torch.equal(tokens, plain.repeat_interleave(2, 0))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_without_a_mask_and_by_its_other_name(family):
    model, call = build(family, GUIDANCE[family][0], 1)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        tokens = fast.generate(**call)
        del call["attention_mask"]
        call["inputs"] = call.pop("input_ids")
        assert torch.equal(fast.generate(**call), tokens)


def test_guidance_that_is_not_asked_for():
    """Janus guides with 5 then, as its own generate; a scale of 1 needs no second branch."""
    model, arguments = examples.janus()
    adapter = find_adapter(model)
    unsaid = adapter.begin({**arguments(2), "guidance_scale": None})
    assert (unsaid.guidance, unsaid.branches, unsaid.batch) == (5.0, 2, 2)
    single = adapter.begin(arguments(2, guidance=1.0))
    assert (single.branches, len(single.prompt_ids)) == (1, 2)
    model, arguments = examples.emu3()
    single = find_adapter(model).begin({**arguments(guidance=3.0), "guidance_scale": 1.0})
    assert (single.branches, len(single.prompt_ids)) == (1, 1)


def test_without_a_negative_prompt_guidance_begins_with_the_last_token():
    """Of each prompt, as in transformers' own."""
    model, call = build("emu3", 3.0, 2)
    del call["negative_prompt_ids"]
    task = find_adapter(model).begin(dict(call))
    assert task.branches == 2 and task.prompt_mask[2:].sum(-1).tolist() == [1, 1]
    assert torch.equal(task.prompt_ids[2:, -1], call["input_ids"][:, -1])
    plain = own("emu3", model, call)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        assert torch.equal(fast.generate(**call), plain)


def test_padding_of_a_negative_prompt_is_not_seen():
    """Its mask counts: two padded tokens before it change nothing."""
    model, call = build("emu3", 3.0, 1)
    negative = call["negative_prompt_ids"]
    padded = torch.nn.functional.pad(negative, (2, 0), value=7)
    mask = torch.nn.functional.pad(torch.ones_like(negative), (2, 0))
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        tokens = fast.generate(**call)
        call["negative_prompt_ids"] = padded
        assert torch.equal(fast.generate(**call, negative_prompt_attention_mask=mask), tokens)
        assert not torch.equal(fast.generate(**call), tokens), "seen, they change the picture"


@pytest.mark.parametrize("changed", ("bias", "hook", "quantized", "codes"))
def test_a_head_that_is_not_as_usual(changed):
    """One with a bias, with a hook of the user, of quantized weights, and codes that do not lie side by side."""
    model, arguments = examples.emu3()
    task = find_adapter(model).begin(arguments())
    if changed == "bias":
        model.lm_head.bias = torch.nn.Parameter(torch.arange(44.0))
    if changed == "hook":
        model.lm_head.register_forward_hook(lambda module, given, output: output * 2)
    if changed == "quantized":
        quantize(model.lm_head)
    if changed == "codes":
        task.ids = task.ids.clone()
        task.ids[0] = 5
    hidden = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model.lm_head(hidden)[:, task.ids[: task.codes]]
        assert torch.allclose(task.head(hidden), wanted, atol=1e-5)


def test_codes_alone_are_computed_also_where_linear_layers_are_held(monkeypatch):
    """As on a CPU in float32, which is to find the fastest way for few rows, of layers that are large enough."""
    model, call = build("emu3", 3.0, 1)
    wanted, rows, compute = own("emu3", model, call), [], skinny.skinny_linear
    kernel = importlib.import_module("mmaccel.kernels.skinny_linear")
    monkeypatch.setattr(kernel, "LEAST_BYTES", 0)
    monkeypatch.setattr(kernel, "way", lambda *_: "plain")
    monkeypatch.setattr(skinny, "skinny_linear", lambda x, *layer: rows.append(len(layer[0])) or compute(x, *layer))
    with mmaccel.accelerate(model, SpeculativeJacobi(window=4)) as fast:
        assert torch.equal(fast.generate(**call), wanted)
    assert rows and model.lm_head.out_features not in rows


@pytest.mark.parametrize("family", FAMILIES)
def test_result_is_what_generate_returns(family):
    model, call = build(family, GUIDANCE[family][0], 1)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        tokens = fast.generate(**call)
        output = fast.generate(**call, return_dict_in_generate=True)
        positional = fast.generate(call.pop("input_ids"), **call)
    assert torch.equal(output.sequences, tokens) and torch.equal(positional, tokens)


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_negative_prompt_longer_than_the_prompt(family):
    """The result starts with the prompt as given, without the padding that guidance needed."""
    model, call = build(family, 3.0, 2)
    longer = torch.cat([call["input_ids"][:1], call["input_ids"][:1]], 1)[:, -9:]
    call.update(negative_prompt_ids=longer.repeat(2, 1))
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        tokens = fast.generate(**call)
    if family == "emu3":
        assert torch.equal(tokens, own(family, model, call))
    assert torch.equal(tokens[:, :6], call["input_ids"])


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_guidance_from_a_generation_config(family):
    """`guidance_scale` means the same in a `GenerationConfig` as among the arguments."""
    model, call = build(family, 3.0, 1)
    scale = call.pop("guidance_scale")
    config = type(model.generation_config)(do_sample=False, max_new_tokens=call.pop("max_new_tokens"))
    config.eos_token_id, config.pad_token_id = model.generation_config.eos_token_id, 0
    call.pop("do_sample"), call.pop("top_k")
    with mmaccel.accelerate(model, SpeculativeJacobi(window=6)) as fast:
        wanted = fast.generate(**call, generation_config=config, guidance_scale=scale)
        config.guidance_scale = scale
        tokens = fast.generate(**call, generation_config=config)
    assert torch.equal(tokens, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_progress_reaches_the_end(family):
    calls = []
    model, call = build(family, GUIDANCE[family][0], 2)
    for method in (SpeculativeJacobi(window=6), ZipAR(window=2)):
        calls.clear()
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**call, progress=lambda done, total: calls.append((done, total)))
            total = fast.report.plain_forwards
        assert calls[-1] == (total, total) and calls == sorted(calls) and {t for _, t in calls} == {total}


WARPERS = (
    {},
    {"temperature": 0.7},
    {"temperature": 1.9},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 100},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.8},
)


@pytest.mark.parametrize("settings", WARPERS, ids=str)
def test_distribution_equals_the_warpers_of_transformers(settings):
    """Temperature, top-k and top-p, also where logits are tied."""
    logits = torch.randn(3, 4, 33, generator=torch.Generator().manual_seed(0)) * 3
    logits[0] = logits[0].round()  # ties
    expected = logits.flatten(0, 1).clone()
    if "temperature" in settings:
        expected = TemperatureLogitsWarper(settings["temperature"])(None, expected)
    if "top_k" in settings:
        expected = TopKLogitsWarper(settings["top_k"])(None, expected)
    if "top_p" in settings:
        expected = TopPLogitsWarper(settings["top_p"])(None, expected)
    result = Sampling(do_sample=True, **settings).distribution(logits)
    assert torch.allclose(result, expected.softmax(-1).view_as(logits), atol=1e-6)
    assert torch.equal(result > 0, (expected.softmax(-1) > 0).view_as(logits))


def test_greedy_distribution_is_one_hot():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    p = Sampling(do_sample=False, temperature=0.5).distribution(logits)
    assert torch.equal(p.argmax(-1), logits.argmax(-1)) and torch.equal(p.sum(-1), torch.ones(2, 3))


@pytest.mark.parametrize(
    "method", (SpeculativeJacobi(window=4), ZipAR(window=2), GroupedSpeculative(window=4)), ids=str
)
@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_batches_are_drawn_under_autocast(family, method):
    """Where keys that were rotated are float32, and values are not."""
    model, call = build(family, GUIDANCE[family][0], 2)
    with torch.autocast("cpu", torch.bfloat16):
        plain = own(family, model, call)
        with mmaccel.accelerate(model, method) as fast:
            assert fast.generate(**call).shape == plain.shape and fast.report.engaged


@pytest.mark.parametrize("way", ("pre-hook", "hook", "forward"))
def test_what_is_hooked_to_the_head_counts(way):
    model, call = build("emu3", 3.0, 1)
    untouched, head = own("emu3", model, call), model.lm_head
    if way == "pre-hook":
        head.register_forward_pre_hook(lambda module, inputs: (inputs[0].flip(-1),))
    elif way == "hook":
        head.register_forward_hook(lambda module, inputs, output: output.flip(-1))
    else:
        forward = head.forward
        head.forward = lambda hidden: forward(hidden.flip(-1))
    plain = own("emu3", model, call)
    assert not torch.equal(plain, untouched)
    with mmaccel.accelerate(model, SpeculativeJacobi(window=4)) as fast:
        assert torch.equal(fast.generate(**call), plain)


@pytest.mark.parametrize(
    "method", (SpeculativeJacobi(window=4), ZipAR(window=2), GroupedSpeculative(window=4)), ids=str
)
@pytest.mark.parametrize("family", FAMILIES)
def test_off_loaded_weights_are_the_same_weights(family, method):
    model, arguments = getattr(examples, family)()
    call = arguments(1, GUIDANCE[family][-1])
    made = []
    for off_loaded in (False, True):
        if off_loaded:
            cpu_offload(model, execution_device=torch.device("cpu"))
        with mmaccel.accelerate(model, method) as fast:
            made.append(fast.generate(**call, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(*made)
