"""MTPDraft: the layer of multi-token prediction of a checkpoint drafts, and the text stays the model's."""

import mtp_layers
import pytest
import torch
from draft_models import NEW, call, deepseek_v3, qwen3_next
from mtp_layers import DEEPSEEK, QWEN, exaone4, glm4_moe, glm_moe_dsa, mellum, qwen3_5
from torch.nn import functional
from transformers import AutoModelForImageTextToText, DynamicCache
from transformers.modeling_layers import MtpModel

import mmaccel
from mmaccel.decoding.drafters.heads.guesses import HeadGuesses
from mmaccel.decoding.drafters.heads.mtp_weights import find_layers, load_mtp
from mmaccel.errors import SettingError, UnsupportedTargetError, WeightsError
from mmaccel.vlm import FastV, MTPDraft, examples, visual_examples

KINDS = {
    "qwen3_5": (qwen3_5, QWEN, False),
    "qwen3_next": (qwen3_next, QWEN, True),
    "glm4_moe": (glm4_moe, DEEPSEEK, True),
    "deepseek_v3": (deepseek_v3, DEEPSEEK, True),
    "mellum": (mellum, QWEN, True),
    "exaone4": (exaone4, QWEN, False),
    "llama": (lambda: examples.llama()[0], QWEN, False),
}


def saved(folder, kind, **more):
    make, layout, is_sparse = KINDS[kind]
    model = make()
    head = mtp_layers.random_head(model, is_sparse)
    return mtp_layers.write(folder, model, head, layout, **more)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("batch", "pad", "sampled"), ((1, 0, False), (1, 0, True), (3, 4, False)))
@pytest.mark.filterwarnings("error:.past_key_values. is deprecated:FutureWarning")
def test_the_text_is_the_models(kind, batch, pad, sampled, tmp_path):
    model = saved(tmp_path, kind)
    given = call(batch, pad, do_sample=sampled)
    torch.manual_seed(2)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, MTPDraft(always=True)) as fast:
        for _ in range(2):
            torch.manual_seed(2)
            assert torch.equal(fast.generate(**given), plain)
            assert fast.report.exact and fast.report.details["drafted"]
            assert not any("multi-token" in text for text in fast.report.warnings)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("kind", ("glm4_moe", "deepseek_v3", "mellum"))
def test_a_layer_is_computed_as_transformers_does(kind, tmp_path, monkeypatch):
    model = saved(tmp_path, kind)
    if kind != "mellum":
        monkeypatch.setattr(model, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.3\."])  # not of 61 layers
    theirs = MtpModel.from_pretrained(model)
    ours = load_mtp(str(tmp_path), find_layers(str(tmp_path), model), model)
    ids = call(1)["input_ids"]
    states = []
    handle = model.get_decoder().layers[-1].register_forward_hook(lambda _, __, out: states.append(out))
    normed = model(ids, output_hidden_states=True).hidden_states[-1]
    handle.remove()
    count = ids.shape[1] - 1
    places = torch.arange(1, count + 1)[None]
    expected = theirs.forward_layer(0, normed[:, :-1], places, DynamicCache(), input_ids=ids[:, 1:])
    mask = torch.ones(count, count, dtype=torch.bool).tril().triu(1 - (ours.config.window or count))[None, None]
    found = ours(ids[:, 1:], ours.join(states[0][:, :-1]), places, mask, DynamicCache())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_layer_whose_kind_is_not_said_is_as_the_first_where_that_has_a_window():
    """As vLLM reads EXAONE 4.5, whose other layers do not turn their tokens."""
    config = mtp_layers.random_head(exaone4()).config
    assert config.layer_types == ["sliding_attention"] and config.window == 16
    assert mtp_layers.random_head(qwen3_5()).config.layer_types == ["full_attention"]


def test_a_layer_that_was_trained_is_mostly_right(tmp_path):
    """Where it reads embedding and state in the order of its training, and else it is not."""
    model, given = qwen3_5(), call(4, 0)
    head = mtp_layers.random_head(model).requires_grad_(True)
    learn(head, model, model.generate(**given))
    first = {**given, **{name: given[name][:1] for name in ("input_ids", "attention_mask")}}
    assert passes_of(mtp_layers.write(tmp_path / "a", model, head), first) < 19, f"of {NEW} without drafts"
    head.fc.weight.data = head.fc.weight.data.roll(head.fc.in_features // 2, 1)
    assert passes_of(mtp_layers.write(tmp_path / "b", model, head), first) > 24


def passes_of(model, given):
    with mmaccel.accelerate(model, MTPDraft(always=True, block=4, remember=0)) as fast:
        fast.generate(**given)
        return fast.report.forwards


def learn(head, model, texts, steps=150):
    """Train a head on what a model writes."""
    head.beside(model)
    states = []
    handle = model.get_decoder().layers[-1].register_forward_hook(lambda _, __, out: states.append(out))
    with torch.no_grad():
        model(texts)
    handle.remove()
    hidden = head.join(states[0]).detach()[:, :-2]
    count = hidden.shape[1]
    mask = torch.ones(count, count, dtype=torch.bool).tril()[None, None]
    places = torch.arange(count).expand(len(texts), -1)
    optimizer = torch.optim.Adam([value for name, value in head.named_parameters() if "final" not in name], 3e-3)
    for _ in range(steps):
        state, loss = hidden, 0
        for depth in range(2):  # its own states too
            kept = count - depth
            state = head(texts[:, 1 + depth : 1 + count], state[:, :kept], places[:, :kept],
                         mask[..., :kept, :kept], DynamicCache())  # fmt: skip
            wanted = texts[:, 2 + depth : 2 + count]
            loss = loss + functional.cross_entropy(head.logits(state).flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    head.requires_grad_(False)


def test_a_checkpoint_in_parts_and_in_half_precision(tmp_path):
    model = saved(tmp_path, "qwen3_5", sharded=True, change=lambda found: {n: v.bfloat16() for n, v in found.items()})
    given = call()
    with mmaccel.accelerate(model, MTPDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given), model.generate(**given))
        assert fast.report.details["drafted"] and not fast.report.warnings


def test_questions_about_clips(tmp_path):
    """Positions of three axes, and placeholders that are never drafted."""
    model, arguments = visual_examples.qwen3_vl()
    model = mtp_layers.write(tmp_path, model, mtp_layers.random_head(model))
    assert isinstance(model, AutoModelForImageTextToText._model_mapping[type(model.config)])
    given = arguments(1)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, MTPDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["drafted"] and not any("multi-token" in text for text in fast.report.warnings)


def test_a_checkpoint_without_such_a_layer_is_told(tmp_path):
    model = examples.llama()[0]
    with mmaccel.accelerate(model, MTPDraft(always=True)) as fast:
        fast.generate(**call())
        assert any("no layer of multi-token prediction" in text for text in fast.report.warnings)
    model.save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="has no layer of multi-token prediction: use vlm.FusedDraft"):
        mmaccel.accelerate(model, MTPDraft(checkpoint=tmp_path))
    with pytest.raises(WeightsError, match="is read from .*nowhere"):
        mmaccel.accelerate(model, MTPDraft(checkpoint=str(tmp_path / "nowhere")))
    with pytest.raises(SettingError, match="checkpoint must be a folder or a repository"):
        MTPDraft(checkpoint=3)


def test_layers_of_another_model_or_kind_are_refused(tmp_path):
    def quantized(found):
        return {**found, "mtp.fc.weight_scale_inv": torch.ones(1)}

    def packed(found):
        return {name: value for name, value in found.items() if name != "mtp.fc.weight"} | {
            "mtp.fc.qweight": torch.ones(1, dtype=torch.int32)
        }

    def torn(found):
        return {name: value for name, value in found.items() if "q_proj" not in name}

    with pytest.raises(WeightsError, match=r"is quantized \(fc.weight_scale_inv\)"):
        mmaccel.accelerate(saved(tmp_path / "a", "llama", change=quantized), MTPDraft())
    with pytest.raises(WeightsError, match=r"is quantized \(fc.qweight\)"):
        mmaccel.accelerate(saved(tmp_path / "packed", "llama", change=packed), MTPDraft())
    with pytest.raises(WeightsError, match="is not one of LlamaForCausalLM: .*q_proj"):
        mmaccel.accelerate(saved(tmp_path / "b", "llama", change=torn), MTPDraft())
    model = saved(tmp_path / "c", "llama")
    model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.to("meta"))
    with pytest.raises(UnsupportedTargetError, match="has its last norm off-loaded"):
        mmaccel.accelerate(model, MTPDraft())
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.to("meta"))
    with pytest.raises(UnsupportedTargetError, match="has its lm_head off-loaded"):
        mmaccel.accelerate(model, MTPDraft())


def test_layers_that_are_laid_out_otherwise_are_refused_by_name(tmp_path):
    """As those of Ernie 4.5: there are some, and to name another checkpoint would not help."""

    def as_ernie(found):
        return {name.replace("mtp.", "model.mtp_block.0."): value for name, value in found.items()}

    model = saved(tmp_path, "llama", change=as_ernie)
    with pytest.raises(UnsupportedTargetError, match=r"names that are not known, as model.mtp_block.0.*: use"):
        mmaccel.accelerate(model, MTPDraft())


def test_layers_that_need_more_than_a_head_is_given_are_refused_before_a_text(tmp_path):
    """As those that choose which tokens they attend to."""
    model = glm_moe_dsa()
    model = mtp_layers.write(tmp_path, model, mtp_layers.random_head(model, True), DEEPSEEK)
    with pytest.raises(UnsupportedTargetError, match="the MTP layer of GlmMoeDsaForCausalLM needs more .*: use vlm.Fu"):
        mmaccel.accelerate(model, MTPDraft())


def test_a_model_made_from_another_checkpoint_is_given_the_layer_by_name(tmp_path):
    model = saved(tmp_path, "llama")
    own = examples.llama()[0]
    with mmaccel.accelerate(own, MTPDraft(checkpoint=tmp_path, always=True)) as fast:
        given = call()
        assert torch.equal(fast.generate(**given), model.generate(**given))
        assert fast.report.details["drafted"] and not fast.report.warnings


def test_no_part_of_a_checkpoint_is_fetched_but_that_of_the_layer(tmp_path):
    model = saved(tmp_path, "llama", sharded=True)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with mmaccel.accelerate(model, MTPDraft(always=True)) as fast:
        fast.generate(**call())
        assert fast.report.details["drafted"] and not fast.report.warnings
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"is read from .*model-00002-of-00002"):
        mmaccel.accelerate(model, MTPDraft())


def test_the_bias_of_a_router_stays_in_float32(tmp_path):
    model = saved(tmp_path, "glm4_moe").bfloat16()
    head = load_mtp(str(tmp_path), find_layers(str(tmp_path), model), model)
    kinds = {name: value.dtype for name, value in head.state_dict().items()}
    assert kinds.pop("layer.mlp.gate.e_score_correction_bias") == torch.float32
    assert set(kinds.values()) == {torch.bfloat16}


def test_states_of_prompts_that_were_pruned_are_not_taken_for_those_of_other_tokens(tmp_path, monkeypatch):
    model, arguments = visual_examples.qwen3_vl()
    model = mtp_layers.write(tmp_path, model, mtp_layers.random_head(model))
    given, told = arguments(1), []
    learn = HeadGuesses.learn
    monkeypatch.setattr(HeadGuesses, "learn", lambda self, *rest: (learn(self, *rest), told.append(list(self._unread))))
    with mmaccel.accelerate(model, FastV(), MTPDraft(always=True)) as fast:
        fast.generate(**given)
    assert [len(states) for states in told[0]] == [1], "of the prompt only the last token's is sure"


def test_nor_are_they_beside_a_text_that_keeps_all_of_its_tokens(tmp_path, monkeypatch):
    """Then the others are filled up to its length: of them only what stands behind the last dropped token is sure."""
    model, arguments = visual_examples.qwen3_vl()
    model = mtp_layers.write(tmp_path, model, mtp_layers.random_head(model))
    given, one, told, learn = arguments(2), arguments(1), {}, HeadGuesses.learn
    plain = given["input_ids"][1]
    plain[given["mm_token_type_ids"][1] > 0], plain[:3] = 9, 8
    given |= {name: one[name] for name in ("pixel_values_videos", "video_grid_thw")}
    given["attention_mask"][1], given["mm_token_type_ids"][1] = 1, 0

    def learned(self, *rest):
        learn(self, *rest)
        told.setdefault(self.row, sum(map(len, self._unread)))

    monkeypatch.setattr(HeadGuesses, "learn", learned)
    with mmaccel.accelerate(model, FastV(keep=0.2), MTPDraft(always=True)) as fast:
        fast.generate(**given)
    count = len(plain)
    behind = count - 1 - int(given["mm_token_type_ids"][0].nonzero().max())
    assert told[1] == count and behind <= told[0] < count / 2


def test_calls_that_are_left_to_the_model_are_not_told_that_there_is_no_layer(tmp_path):
    model = saved(tmp_path, "llama")
    drafts = MTPDraft().custom_generate()
    model.generate(**call(), custom_generate=drafts, output_hidden_states=True, return_dict_in_generate=True)
    assert any("own loop ran" in text for text in drafts.report.warnings)
    assert not any("multi-token" in text for text in drafts.report.warnings)
    with pytest.raises(SettingError, match="reads hidden states"):
        MTPDraft().custom_generate().drafters()


@pytest.mark.parametrize(("part", "name"), (("model.embed_tokens", "embedding"), ("lm_head", "lm_head")))
@pytest.mark.parametrize("dtype", (torch.uint8, torch.float8_e4m3fn), ids=str)
def test_quantized_matrices_are_refused(part, name, dtype, tmp_path):
    """Their layer alone knows the scales."""
    model = saved(tmp_path, "llama")
    matrix = model.get_submodule(part)
    matrix.weight = torch.nn.Parameter(matrix.weight.detach().to(dtype), requires_grad=False)
    with pytest.raises(UnsupportedTargetError, match=f"LlamaForCausalLM has its {name} quantized"):
        mmaccel.accelerate(model, MTPDraft())


def test_a_matrix_that_is_no_tensor_is_refused(tmp_path):
    model = saved(tmp_path, "llama")
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    with pytest.raises(UnsupportedTargetError, match="LlamaForCausalLM has its lm_head quantized"):
        mmaccel.accelerate(model, MTPDraft())
