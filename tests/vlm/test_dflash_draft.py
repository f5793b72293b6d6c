"""A draft model fills a block beside the model's hidden states: the text stays the model's, and the block is right."""

import json

import dflash_models
import pytest
import torch
from dflash_models import BLOCK, FORMATS, MASK
from draft_models import NEW, call, gemma3, qwen3_next, sharp
from safetensors.torch import load_file, save_file
from spoiled_heads import told_otherwise, without
from transformers import Qwen3Config, Qwen3ForCausalLM, T5Config, T5ForConditionalGeneration
from transformers.cache_utils import DFlashCache

import mmaccel
from mmaccel.decoding.drafters.assistant import AssistantCost
from mmaccel.decoding.drafters.heads import published
from mmaccel.decoding.drafters.heads.dflash_guesses import BlockGuesses
from mmaccel.decoding.drafters.heads.dflash_head import DFlashHead, layers_read
from mmaccel.decoding.drafters.heads.dflash_steps import BlockSteps
from mmaccel.decoding.drafters.heads.dflash_weights import configuration, load_dflash
from mmaccel.decoding.drafters.heads.steps import HeadStep
from mmaccel.decoding.drafters.pass_cost import PassCost
from mmaccel.decoding.drafters.steps import together
from mmaccel.errors import SettingError, UnsupportedTargetError, WeightsError
from mmaccel.vlm import DFlashDraft, FusedDraft, visual_examples


def qwen3(**more):
    return sharp(Qwen3ForCausalLM, Qwen3Config, head_dim=8, num_hidden_layers=4, **more)


@pytest.fixture(scope="module")
def model():
    return qwen3()


@pytest.fixture(scope="module")
def head(model, tmp_path_factory):
    return dflash_models.write(tmp_path_factory.mktemp("head"), model)


@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 0), (3, 4)))
@pytest.mark.parametrize("sampled", (False, True))
@pytest.mark.filterwarnings("error:.past_key_values. is deprecated:FutureWarning")
def test_the_text_is_the_models(model, head, batch, pad, sampled):
    given = call(batch, pad, do_sample=sampled and batch == 1)
    torch.manual_seed(2)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, DFlashDraft(head=head, always=True)) as fast:
        for _ in range(2):
            torch.manual_seed(2)
            assert torch.equal(fast.generate(**given), plain)
            assert fast.report.exact and not fast.report.warnings and fast.report.details["drafted"]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("make", (gemma3, qwen3_next), ids=lambda make: make.__name__)
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 4)))
def test_windows_and_layers_with_a_state(make, batch, pad, tmp_path):
    """In chains too, and in a sampled batch, which is drawn from the model's distribution."""
    model, given = make(), call(batch, pad)
    path = dflash_models.write(tmp_path, model, dflash_config={"target_layer_ids": [0, 1]}, seed=1)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({**weights, "fc.weight": weights["fc.weight"][:, :64].contiguous()}, tmp_path / "model.safetensors")
    plain = model.generate(**given)
    with mmaccel.accelerate(model, DFlashDraft(head=path, always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain) and fast.report.details["drafted"]
        fast.generate(**{**given, "do_sample": True})
        assert not fast.report.warnings


@pytest.mark.parametrize("window", (None, 9))
def test_a_block_is_that_of_transformers_own_class(model, tmp_path, window):
    """With its cache, over passes that accept 3, 1 and 8 tokens."""
    draft = dflash_models.untrained(model, window=window).double()
    steps = BlockSteps(
        doubled(load_dflash(dflash_models.save(tmp_path, draft, model, "transformers"), model)), always()
    )
    generator = torch.Generator().manual_seed(5)
    text, states = torch.randint(4, 60, (40,), generator=generator), torch.randn(40, 96, generator=generator).double()
    cache, read = DFlashCache(config=draft.config), 0
    cache.activate_past_recording()
    for end in (20, 23, 24, 32):
        cache.set_previous_accepted_tokens(end - read)
        if read:
            cache.crop(-BLOCK)
        block = torch.tensor([[text[end], *[MASK] * (BLOCK - 1)]])
        expected = draft(
            noise_embeds=model.get_input_embeddings()(block).double(),
            context_hidden_states=states[None, read:end],
            position_ids=torch.arange(read, end + BLOCK)[None],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state[0, 1:]
        step = HeadStep(steps, 0, block[0].tolist(), end, states[read:end])
        steps.take([step])
        torch.testing.assert_close(torch.stack(step.hidden), expected)
        read = end


def doubled(head):
    head = head.double()
    head.embedding, head.output = head.embedding.double(), head.output.double()
    return head


def always():
    return AssistantCost(PassCost(9, always=True))


SEES = (
    [(None, False), (None, False)],
    [(9, False), (None, False)],
    [(9, True), (None, True)],
    [(4, True), (5, False)],
)


@pytest.mark.parametrize("sees", SEES, ids=str)
def test_blocks_for_the_texts_of_a_batch_are_those_of_each_read_alone(model, head, sees):
    """Of prompts of other lengths, where one waits for a pass and another begins again."""
    found = doubled(load_dflash(head, model))
    found.config.sees = sees
    steps = BlockSteps(found, always(), rows=3)
    rows = [
        Row(steps, 0, 24, (26, 30, 31)),
        Row(steps, 1, 9, (10, 12, 20)),
        Row(steps, 2, 14, (18, 19, 20)),
    ]
    for passed in range(3):
        for row in rows:
            row.learn()
        going = [row for row in rows if row.number != passed]  # the other reads two passes the next time
        together([row.guesses.asking(0) for row in going])
        for row in going:
            row.expect_what_is_read_alone()
    steps.forget(1)
    rows[1] = Row(steps, 1, 11, (12, 13))
    rows[1].learn()
    together([row.guesses.asking(0) for row in rows[1:]])
    rows[1].expect_what_is_read_alone()
    rows[2].expect_what_is_read_alone()


class Row:
    """A text of a batch, whose model has read it in some parts."""

    def __init__(self, steps, number, prompt, ends):
        generator = torch.Generator().manual_seed(number)
        self.text = torch.randint(4, 60, (40,), generator=generator).tolist()
        self.states = torch.randn(40, 96, generator=generator).double()
        self.steps, self.number, self.ends, self.end, self.known = steps, number, list(ends), prompt, 0
        self.guesses = BlockGuesses(steps, self.take, row=number)
        self.guesses.begin(self.text[:prompt])

    def take(self):
        begin, self.known = self.known, self.end - 1
        return self.states[begin : self.known]

    def learn(self):
        begin, self.end = self.end, self.ends.pop(0)
        self.guesses.learn(self.text[begin : self.end], (), ())

    def expect_what_is_read_alone(self):
        head, anchor = self.steps.head, self.end - 1
        likely = alone(head, self.states[:anchor], self.text[anchor]).softmax(-1)
        assert len(self.guesses._block) == BLOCK - 1
        for shares, found in zip(likely, self.guesses._block, strict=True):
            tokens, given = zip(*found, strict=True) if found else ((), ())
            torch.testing.assert_close(torch.tensor(given).double(), shares[list(tokens)], rtol=1e-4, atol=1e-6)
            assert not found or tokens[0] == int(shares.argmax())


def alone(head, states, anchor):
    """Logits at the places of a block behind a text, by the formula, token by token and without a cache."""
    count, config = len(states), head.config
    places = torch.arange(count + BLOCK)
    turned = head.rotary_emb(states, places[None])
    known = head.hidden_norm(head.fc(states))
    hidden = head.embedding[torch.tensor([anchor, *[MASK] * (BLOCK - 1)])]
    for layer, (window, is_causal) in zip(head.layers, config.sees, strict=True):
        own, attention = layer.input_layernorm(hidden), layer.self_attn
        both = torch.cat([known, own])
        parts = [rotated(attention.q_norm(split(attention.q_proj(own))), turned, count)]
        parts += [rotated(attention.k_norm(split(attention.k_proj(both))), turned, 0), split(attention.v_proj(both))]
        queries, keys, values = parts
        rows = []
        for place in range(BLOCK):
            at = count + place
            seen = [
                key for key in range(count + BLOCK)
                if (window is None or abs(at - key) < window) and (key <= at or not is_causal)
            ]  # fmt: skip
            heads = []
            for number in range(config.num_attention_heads):
                group = number // (config.num_attention_heads // config.num_key_value_heads)
                scores = keys[seen, group] @ queries[place, number] / config.head_dim**0.5
                heads.append(scores.softmax(0) @ values[seen, group])
            rows.append(torch.cat(heads))
        hidden = hidden + attention.o_proj(torch.stack(rows))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return (head.norm(hidden) @ head.output.T)[1:]


def split(values):
    return values.unflatten(-1, (-1, 8))


def rotated(values, turned, first):
    cos, sin = (each[0, first:, None] for each in turned)
    left, right = values.chunk(2, -1)
    return values * cos + torch.cat([-right, left], -1) * sin


@pytest.fixture(scope="module")
def learned(model):
    """Prompts, what the model writes after them, and a draft model that learned it by transformers' own class."""
    given = call(4)
    longer = model.generate(**{**given, "max_new_tokens": NEW + BLOCK})
    return given, longer[:, :-BLOCK], dflash_models.trained(model, longer)


def forwards(model, path, given, monkeypatch):
    """Passes for a text of which blocks alone are drafted, and what was written."""
    monkeypatch.setattr(FusedDraft, "sources", lambda *_: [])
    with mmaccel.accelerate(model, DFlashDraft(head=path, always=True)) as fast:
        return fast.generate(**given), fast.report.forwards


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_draft_model_learned_is_accepted(model, learned, tmp_path, monkeypatch, form):
    """Trained without any code of this package: positions, layers, norms and masks are those of the format."""
    given, texts, draft = learned
    path = dflash_models.save(tmp_path, draft, model, form)
    found, passes = forwards(model, path, given, monkeypatch)
    assert torch.equal(found, texts) and passes < NEW / 2
    one = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    found, passes = forwards(model, path, one, monkeypatch)
    assert torch.equal(found, texts[:1]) and passes < NEW / 2


WRONG = {
    "layers": {"dflash_config": {"target_layer_ids": [2, 1, 0]}},
    "mask": {"dflash_config": {"mask_token_id": 5}},
    "rotary": {"rope_parameters": {"rope_type": "default", "rope_theta": 10.0}},
    "window": {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention"] * 2},
    "anchor": {"sample_from_anchor": True},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_and_no_longer_where_it_is_read_otherwise(model, learned, tmp_path, monkeypatch, wrong):
    given, texts, draft = learned
    right = forwards(model, dflash_models.save(tmp_path / "right", draft, model), given, monkeypatch)[1]
    path = dflash_models.save(tmp_path / "wrong", draft, model, **WRONG[wrong])
    found, passes = forwards(model, path, given, monkeypatch)
    assert torch.equal(found, texts) and passes > 1.5 * right


def test_nor_where_places_are_counted_otherwise(model, learned, tmp_path, monkeypatch):
    given, texts, draft = learned
    path = dflash_models.save(tmp_path, draft, model)
    right = forwards(model, path, given, monkeypatch)[1]
    plain = HeadStep.places
    monkeypatch.setattr(HeadStep, "places", property(lambda step: plain.fget(step) + 2))
    found, passes = forwards(model, path, given, monkeypatch)
    assert torch.equal(found, texts) and passes > 1.5 * right


def test_a_sampled_text_is_guessed_as_it_will_be_drawn(model, learned, tmp_path, monkeypatch):
    """Cold enough that what was learned is drawn as a rule."""
    given, _, draft = learned
    path = dflash_models.save(tmp_path, draft, model)
    one = {name: value[:1] if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    one |= {"do_sample": True, "temperature": 0.1}
    torch.manual_seed(3)
    plain = model.generate(**one)
    torch.manual_seed(3)
    found, passes = forwards(model, path, one, monkeypatch)
    assert torch.equal(found, plain) and passes < NEW


def test_what_formats_say(model, tmp_path):
    configs = {
        form: load_dflash(dflash_models.write(tmp_path / form, model, form, window=6), model).config for form in FORMATS
    }
    for config in configs.values():
        assert (config.layers_read, config.block, config.mask_token) == ((1, 2, 3), BLOCK, MASK)
    assert configs["z-lab"].sees == configs["speculators"].sees == [(6, True), (None, False)]
    assert configs["transformers"].sees == [(7, False), (None, False)], "it counts the tokens on each side"
    plain = {"dflash_config": {"projector_type": "dflash", "shift_label": True}, "attention_mode": "GQA"}
    assert load_dflash(dflash_models.write(tmp_path / "plain", model, **plain), model).config.from_anchor
    said = {"sliding_window_non_causal": True}
    other = load_dflash(dflash_models.write(tmp_path / "other", model, "speculators", window=6, **said), model).config
    assert other.sees == [(6, False), (None, False)]
    swa = {"dflash_config": {"use_swa": True, "swa_window_size": 5}}
    assert load_dflash(dflash_models.write(tmp_path / "swa", model, **swa), model).config.sees == [(5, False)] * 2
    every = load_dflash(dflash_models.write(tmp_path / "every", model, window=6, is_causal=False), model).config
    assert every.sees == [(6, False), (None, False)]


def test_which_layers_are_read_where_a_checkpoint_does_not_say():
    """Of Qwen3-4B, with the numbers that its draft model says."""
    assert layers_read(36, 5) == (2, 10, 18, 26, 34)
    assert layers_read(30, 5) == (2, 9, 15, 21, 28), "halves as they are rounded there"
    assert layers_read(64, 1) == (33,) and layers_read(64, 2) == (2, 62)


PUBLISHED = {  # as z-lab/Qwen3-4B-DFlash-b16 says
    "architectures": ["DFlashDraftModel"],
    "attention_bias": False,
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "dtype": "bfloat16",
    "head_dim": 128,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "layer_types": ["full_attention"] * 5,
    "max_position_embeddings": 40960,
    "max_window_layers": 5,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_the_sizes_of_a_published_one(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    sizes = {name: PUBLISHED[name] for name in ("hidden_size", "intermediate_size", "head_dim", "vocab_size")}
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 36}
    with torch.device("meta"):
        found = DFlashHead(configuration(str(tmp_path), Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))))
    config, shapes = found.config, {name: tuple(value.shape) for name, value in found.state_dict().items()}
    assert (config.layers_read, config.block, config.sees) == ((2, 10, 18, 26, 34), 16, [(None, False)] * 5)
    assert config.rope_parameters["rope_theta"] == 1000000
    assert shapes["fc.weight"] == (2560, 5 * 2560) and shapes["layers.4.self_attn.q_norm.weight"] == (128,)
    assert 2 * sum(value.numel() for value in found.parameters()) == pytest.approx(1.07e9, rel=0.01), "of its file"


def test_a_part_of_the_vocabulary_is_drafted(model, tmp_path):
    path = dflash_models.write(tmp_path, model, "speculators", draft_vocab_size=32)
    weights = load_file(tmp_path / "model.safetensors")
    more = {"d2t": torch.arange(32), "t2d": torch.arange(64) % 2 == 0, "lm_head.weight": torch.randn(32, 32)}
    more["embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
    save_file({**weights, **more}, tmp_path / "model.safetensors")
    found = load_dflash(path, model)
    assert found.draft_tokens.tolist() == list(range(0, 64, 2))
    assert found.embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr(), "the same matrix once more"
    plain = model.generate(**call())
    with mmaccel.accelerate(model, DFlashDraft(head=path, always=True)) as fast:
        assert torch.equal(fast.generate(**call()), plain) and fast.report.details["drafted"]


def test_the_place_of_the_last_token_guesses_too_where_it_learned_to(model, tmp_path):
    path = dflash_models.write(tmp_path, model, "speculators", sample_from_anchor=True)
    guesses = BlockGuesses(BlockSteps(load_dflash(path, model), always()), lambda: torch.randn(3, 96))
    guesses.begin([5, 6, 7])
    guesses.learn([8], (), ())
    together([guesses.asking(0)])
    assert len(guesses._block) == BLOCK


def test_embeddings_and_logits_are_scaled_as_the_models(tmp_path):
    scaled = gemma3()
    told = {"input_embedding_scale": 0.5, "output_multiplier": 0.25, "final_logit_softcapping": 2.0}
    found = load_dflash(
        dflash_models.write(tmp_path, scaled, dflash_config={**told, "target_layer_ids": [0, 1, 1]}), scaled
    )
    tokens, hidden = torch.tensor([[5, 6]]), torch.randn(1, 2, 32)
    torch.testing.assert_close(found.embedded(tokens, hidden), 0.5 * scaled.get_input_embeddings()(tokens))
    plain = scaled.lm_head(hidden)
    torch.testing.assert_close(found.logits(hidden), 2 * torch.tanh(plain / 8))


def test_a_long_read_is_no_step_and_its_block_is_one(model, head):
    cost = always()
    guesses = BlockGuesses(BlockSteps(load_dflash(head, model), cost), lambda: torch.randn(40, 96))
    guesses.begin(list(range(4, 44)))
    assert guesses.root() is None, "nothing was read yet"
    guesses.learn([5], (), ())
    taken = list(guesses.guesses(guesses.root()))
    assert len(cost.seconds) == 1 and taken[0][2] == 1
    assert guesses.is_worth(3, 0.0), "a block that is there costs nothing more"


def test_a_block_is_worth_what_all_of_its_tokens_are():
    """Each of a path counts as far as those before it are right, and less the place that it takes in a pass."""
    plain = PassCost(9)
    for _ in range(3):
        plain.observe(1, [1], 0.1)
    costs = {length: AssistantCost(plain) for length in (1, 4)}
    for length, cost in costs.items():
        for _ in range(64):
            cost.observe_path(length, length, tuple(0.9**number for number in range(1, length + 1)))
        for _ in range(9):
            cost.observe_step(0.15)
    assert costs[4].pays(1.0) and not costs[1].pays(1.0), "a step takes longer than a pass"
    assert not costs[4].pays(0.3) and not costs[4].pays(1.0, place=0.7)
    for _ in range(64):
        costs[4].observe_path(0, 4, tuple(0.9**number for number in range(1, 5)))
    assert not costs[4].pays(1.0), "it was wrong about itself"


@pytest.mark.parametrize(
    ("tokens", "right", "judged"), (([7, 8], 2, 2), ([7, 1], 1, 3), ([1], 0, 3), ([7, 8, 9, 1], 3, 3))
)
def test_what_was_not_written_is_not_judged(model, head, tokens, right, judged, monkeypatch):
    cost, seen = always(), []
    monkeypatch.setattr(AssistantCost, "observe_path", lambda self, *told: seen.append(told))
    guesses = BlockGuesses(BlockSteps(load_dflash(head, model), cost), lambda: torch.randn(3, 96))
    guesses.begin([4, 5, 6])
    guesses._block = [[(7, 0.5), (3, 0.2)], [(8, 0.5)], [(9, 0.4)], [], [(3, 0.9)]]
    guesses.learn(tokens, (), ())
    assert seen == [(right, judged, (0.5, 0.25, 0.1))]


def test_it_is_asked_again_where_it_was_not_worth_its_time(model, head, monkeypatch):
    monkeypatch.setattr(AssistantCost, "pays", lambda self, share, place=0.0: False)
    monkeypatch.setattr("mmaccel.decoding.drafters.assistant.AGAIN", 8)
    rows, take = set(), BlockSteps.take
    monkeypatch.setattr(BlockSteps, "take", lambda self, steps: (rows.update(s.row for s in steps), take(self, steps)))
    plain = model.generate(**call(4))
    with mmaccel.accelerate(model, DFlashDraft(head=head)) as fast:
        assert torch.equal(fast.generate(**call(4)), plain)
    assert rows == {0, 1, 2, 3}


def test_it_follows_the_model_to_another_type(tmp_path):
    model = qwen3()
    with mmaccel.accelerate(model, DFlashDraft(head=dflash_models.write(tmp_path, model), always=True)) as fast:
        fast.generate(**call())
        model.bfloat16()
        fast.generate(**call())
        assert fast.report.details["drafted"] and fast.report.peak_extra_bytes > 0


def test_a_reader_of_pictures(tmp_path):
    model, arguments = visual_examples.qwen2_5_vl()
    given = arguments(1, max_new_tokens=16)
    plain = model.generate(**given)
    path = dflash_models.write(tmp_path, model, dflash_config={"mask_token_id": 3})
    with mmaccel.accelerate(model, DFlashDraft(head=path, always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)


def test_in_plain_transformers(model, head):
    given = call()
    drafts = DFlashDraft(head=head, always=True).custom_generate()
    assert torch.equal(model.generate(**given, custom_generate=drafts), model.generate(**given))
    assert drafts.report.details["drafted"]
    with pytest.raises(SettingError, match=r"reads hidden states .*: use vlm.FusedDraft\(\) for an engine"):
        DFlashDraft(head=head).custom_generate().drafters()


def test_without_a_draft_model_it_drafts_as_fused_draft_and_says_so(model):
    details = []
    for method in (DFlashDraft(always=True), FusedDraft(always=True)):
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**call())
            details.append(fast.report.details)
            warned = any("name one, as in DFlashDraft(head=" in warning for warning in fast.report.warnings)
            assert warned == isinstance(method, DFlashDraft)
    assert details[0] == details[1]


def test_a_model_whose_tokens_change(tmp_path, monkeypatch):
    """Some are added in a session or before; or cut off, but not the mask, which the model's embedding has."""
    monkeypatch.setattr(published, "CLOSE", 0.1)
    model = qwen3(tie_word_embeddings=True)
    path = dflash_models.write(tmp_path, model)
    for first, size in ((64, 66), (66, 63), (63, 62)):
        model.resize_token_embeddings(first)
        given = call()
        given["input_ids"] = given["input_ids"] % min(first, size)
        with mmaccel.accelerate(model, DFlashDraft(head=path, always=True)) as fast:
            fast.generate(**given)
            model.resize_token_embeddings(size)
            given["input_ids"] = torch.where(given["input_ids"] % 7 == 0, size - 1, given["input_ids"])
            written = fast.generate(**given)
            assert fast.report.details["drafted"] and not fast.report.warnings
        assert torch.equal(model.generate(**given), written)
    lacks = "token 61, its mask, and the model has embeddings of 61 tokens: keep 62 or more"
    with mmaccel.accelerate(model, DFlashDraft(head=path)) as fast:
        model.resize_token_embeddings(61)
        with pytest.raises(UnsupportedTargetError, match=lacks):
            fast.generate(**{**call(), "input_ids": call()["input_ids"] % 61})
    with pytest.raises(UnsupportedTargetError, match=lacks):
        mmaccel.accelerate(model, DFlashDraft(head=path))


@pytest.mark.parametrize(
    ("spoiled", "error", "said"),
    (
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), WeightsError, "save_file"),
        (lambda folder: (folder / "config.json").unlink(), WeightsError, "config.json"),
        (without("hidden_norm.weight"), WeightsError, r"is not what its config.json says: \['hidden_norm.weight'\]"),
        (
            told_otherwise(model_type="mamba"),
            WeightsError,
            "has layers of mamba, and only those of qwen3, llama, muse",
        ),
        (
            told_otherwise(dflash_config={"selector_rank": 8}),
            WeightsError,
            "one with selector_rank: give one of DFlash",
        ),
        (told_otherwise(dflash_config={"projector_type": "domino"}), WeightsError, "but of one with projector_type"),
        (told_otherwise(dflash_config={"mask_token_id": None}), WeightsError, "but of one without a mask_token_id"),
        (told_otherwise(speculators_model_type="dspark"), WeightsError, "but of one of dspark: give one of DFlash"),
        (told_otherwise(rope_parameters={"rope_type": "spiral"}), WeightsError, "rotary embeddings of kind 'spiral'"),
        (
            told_otherwise(layer_types=["linear_attention"] * 2),
            WeightsError,
            "has 2 layers of linear_attention, which",
        ),
        (told_otherwise(dflash_config={"mask_token_id": 64}), WeightsError, "mask"),
        (told_otherwise(dflash_config={"target_layer_ids": [0, 1, 7]}), UnsupportedTargetError, r"layers \(1, 2, 8\)"),
        (told_otherwise(hidden_size=64), UnsupportedTargetError, "model of hidden size 64, .* has 32: give"),
        (told_otherwise(vocab_size=99), UnsupportedTargetError, "of 99 tokens, Qwen3ForCausalLM has 64: give"),
        (told_otherwise(intermediate_size=64), WeightsError, "is not what its config.json says"),
    ),
    ids=(
        "pickled",
        "no configuration",
        "a matrix is missing",
        "kind",
        "DFlash 2",
        "Domino",
        "no mask",
        "DSpark",
        "rotary",
        "layers with a state",
        "a mask that is no token",
        "layers",
        "other model",
        "other vocabulary",
        "other sizes",
    ),  # fmt: skip
)
def test_what_is_no_draft_model_for_the_model_is_refused(model, tmp_path, spoiled, error, said):
    path = dflash_models.write(tmp_path, model)
    spoiled(tmp_path)
    with pytest.raises(error, match=said) as raised:
        mmaccel.accelerate(model, DFlashDraft(head=path))
    assert "\n" not in str(raised.value)
    with mmaccel.accelerate(model, FusedDraft()):
        pass


@pytest.mark.parametrize(("part", "name"), (("model.embed_tokens", "embedding"), ("lm_head", "lm_head")))
def test_what_it_reads_may_not_be_off_loaded(head, part, name):
    model = qwen3(tie_word_embeddings=False)
    model.get_submodule(part).to("meta")  # where accelerate leaves it between passes
    with pytest.raises(UnsupportedTargetError, match=f"has its {name} off-loaded, .* keep embedding and lm_head on a"):
        mmaccel.accelerate(model, DFlashDraft(head=head))


def test_encoder_decoders_are_refused(head):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
    with pytest.raises(UnsupportedTargetError):
        mmaccel.accelerate(T5ForConditionalGeneration(T5Config(**sizes)), DFlashDraft(head=head))


def test_a_draft_model_is_named_by_text():
    with pytest.raises(SettingError, match="head"):
        DFlashDraft(head=3)
