"""PrefillDrop: later layers compute what is kept as a plain model would, in every pass of an answer."""

import copy

import pytest
import torch
from draft_models import sharp
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

import mmaccel
from mmaccel.errors import ConflictError, SettingError, UnsupportedTargetError
from mmaccel.vlm import CompressKV, PrefillDrop, SparsePrefill, SuffixDecoding, examples

DROP = PrefillDrop(keep=0.4, layer=0, window=8, min_length=32)
TWICE = PrefillDrop(keep=(0.4, 0.15), layer=0, window=8, min_length=32)


def neox():
    """Whose layers get their cache by another name than the model."""
    return sharp(GPTNeoXForCausalLM, GPTNeoXConfig)


MODELS = pytest.mark.parametrize("build", (lambda: examples.llama()[0], neox), ids=("llama", "neox"))


def by_hand(model, ids, steps, *columns):
    """Greedy tokens of a model whose second layer sees only the first `columns` of the prompt, and so on.

    One pass a token; `columns` are those of the columns before.
    """
    decoder, made = model.model, []
    for _ in range(steps):
        whole = torch.cat([ids, torch.tensor([made], dtype=torch.long)], 1)
        places, states = torch.arange(whole.shape[1]), decoder.embed_tokens(whole)
        for number, layer in enumerate(decoder.layers):
            if 1 <= number <= len(columns):
                new = torch.arange(len(places) - (whole.shape[1] - ids.shape[1]), len(places))
                kept = torch.cat([columns[number - 1], new])
                places, states = places[kept], states[:, kept]
            states = layer(states, position_embeddings=decoder.rotary_emb(states, places[None]))
        made.append(int(model.lm_head(decoder.norm(states))[0, -1].argmax()))
    return made


@pytest.fixture
def chosen(monkeypatch):
    """The columns that were kept of each row, as the method chose them."""
    found = []
    choose = PrefillDrop._row

    def noted(self, *given):
        found.append(choose(self, *given))
        return found[-1]

    monkeypatch.setattr(PrefillDrop, "_row", noted)
    return found


@torch.no_grad()
def test_tokens_are_those_of_the_definition(llama, chosen):
    model, arguments = llama
    call = arguments(max_new_tokens=4)
    with mmaccel.accelerate(model, DROP) as fast:
        tokens, report = fast.generate(**call), fast.report
    (columns,) = chosen
    assert columns.shape == (32,) and columns[-8:].tolist() == list(range(72, 80)), "the window is kept"
    assert tokens[0, 80:].tolist() == by_hand(model, call["input_ids"], 4, columns)
    pairs = [80 * 81 // 2 + 81 + 82 + 83, 32 * 33 // 2 + 33 + 34 + 35]
    assert (report.keys, report.plain_keys) == (4 * (pairs[0] + 2 * pairs[1]), 4 * 3 * pairs[0])


@MODELS
@pytest.mark.parametrize("method", (DROP, TWICE), ids=str)
def test_a_padded_row_is_as_alone_also_with_beams(llama, method, build):
    model, (_, arguments) = build(), llama
    for more in ({}, {"num_beams": 3}):
        call = arguments(batch=3, max_new_tokens=5, **more)
        with mmaccel.accelerate(model, method) as fast:
            together = fast.generate(**call)
            assert fast.report.engaged and not fast.report.warnings
            alone = {**call, "input_ids": call["input_ids"][1:2, 5:], "attention_mask": call["attention_mask"][1:2, 5:]}
            assert together[1, 80:].tolist() == fast.generate(**alone)[0, 75:].tolist()


@pytest.mark.parametrize("batch", (1, 2))
def test_no_layer_reads_a_device_back_in_a_step(monkeypatch, batch):
    """A mask is read once a pass, however many layers have it."""
    read, plain = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: read.append(1) or plain(tensor))
    steps = []
    for layers in (3, 6):
        model, arguments = examples.llama(num_hidden_layers=layers)
        counts = []
        with mmaccel.accelerate(model, DROP) as fast:
            for new in (4, 12):
                read.clear()
                fast.generate(**arguments(batch, max_new_tokens=new, eos_token_id=None))
                counts.append(len(read))
                assert fast.report.engaged
        steps.append(counts[1] - counts[0])
    assert steps[0] == steps[1] and (batch > 1 or not steps[0])


@pytest.mark.parametrize("method", (DROP, TWICE), ids=str)
def test_a_short_row_beside_a_long_one_keeps_everything(llama, method):
    model, arguments = llama
    call = arguments(batch=2, max_new_tokens=5)
    call["attention_mask"][1, :60] = 0
    short = {**call, "input_ids": call["input_ids"][1:, 60:], "attention_mask": call["attention_mask"][1:, 60:]}
    plain = model.generate(**short)
    with mmaccel.accelerate(model, method) as fast:
        assert fast.generate(**call)[1, 80:].tolist() == plain[0, 20:].tolist() and fast.report.engaged
        assert torch.equal(fast.generate(**short), plain) and not fast.report.engaged
        assert "no prompt of min_length=32 tokens or more" in fast.report.warnings[0]


@pytest.mark.parametrize("lengths", ((80, 30), (80, 40, 31)), ids=str)
def test_rows_that_are_shorter_than_min_length_take_no_drop_from_others(llama, lengths):
    """The short row is the widest after the first drop."""
    model, arguments = llama
    method = PrefillDrop(keep=(0.3, 0.1), layer=0, window=4, min_length=32)
    call = arguments(batch=len(lengths), max_new_tokens=5)
    for row, length in enumerate(lengths):
        call["attention_mask"][row, : 80 - length] = 0
    keys = []
    with mmaccel.accelerate(model, method) as fast:
        together = fast.generate(**call)
        assert fast.report.engaged and not fast.report.warnings
        keys.append(fast.report.keys)
        for row, length in enumerate(lengths):
            alone = {name: call[name][row : row + 1, 80 - length :] for name in ("input_ids", "attention_mask")}
            tokens = fast.generate(**{**call, **alone})
            assert together[row, 80:].tolist() == tokens[0, length:].tolist()
            keys.append(fast.report.keys)
    assert keys[0] == sum(keys[1:])


def test_a_batch_of_short_rows_is_plain_however_it_is_padded(llama):
    model, arguments = llama
    call = arguments(batch=2, max_new_tokens=3)
    call["attention_mask"][0, :50], call["attention_mask"][1, :55] = 0, 0
    with mmaccel.accelerate(model, DROP) as fast:
        tokens = fast.generate(**call)
        assert not fast.report.engaged and "no prompt of min_length=32 tokens or more" in fast.report.warnings[0]
    assert torch.equal(tokens, model.generate(**call))


def test_a_second_turn_goes_on_with_what_was_kept(llama, chosen):
    model, arguments = llama
    call = arguments(max_new_tokens=3, return_dict_in_generate=True)
    with mmaccel.accelerate(model, DROP) as fast:
        first = fast.generate(**call)
        ids = torch.cat([first.sequences, call["input_ids"][:, :6]], 1)
        second = fast.generate(input_ids=ids, past_key_values=first.past_key_values, max_new_tokens=3, do_sample=False)
        assert len(chosen) == 1 and not fast.report.warnings
    kept = torch.cat([chosen[0], torch.arange(80, ids.shape[1])])
    with torch.no_grad():
        assert second[0, ids.shape[1] :].tolist() == by_hand(model, ids, 3, kept)


@MODELS
@pytest.mark.parametrize("batch", (1, 2))
@torch.no_grad()
def test_a_second_turn_and_direct_calls_go_on_alike(llama, batch, build):
    """In one pass over several tokens, and in one for each."""
    model, (_, arguments) = build(), llama
    call = arguments(batch, max_new_tokens=3, return_dict_in_generate=True)
    with mmaccel.accelerate(model, DROP) as fast:
        first, found = fast.generate(**call), []
        ids = torch.cat([first.sequences, call["input_ids"][:, -5:]], 1)
        mask = torch.nn.functional.pad(call["attention_mask"], (0, 8), value=1)
        places = mask.cumsum(1) - 1
        for width in (6, 1):
            cache, logits = copy.deepcopy(first.past_key_values), []
            assert cache.layers[2].get_seq_length() < cache.get_seq_length() == 82
            for part in (slice(at, at + width) for at in range(82, 88, width)):
                more = {"attention_mask": mask[:, : part.stop], "position_ids": places[:, part]}
                logits.append(fast(ids[:, part], past_key_values=cache, **more).logits)
            found.append(torch.cat(logits, 1))
        assert torch.allclose(*found, atol=1e-4)
        more = {"past_key_values": first.past_key_values, "max_new_tokens": 1, "do_sample": False}
        tokens = fast.generate(ids, attention_mask=mask, **more)
        assert torch.equal(tokens[:, -1], found[0][:, -1].argmax(-1))


@pytest.mark.parametrize("batch", (1, 2))
def test_windows_that_no_text_fills_are_full_attention(llama, batch):
    """As those of Phi-4-mini."""
    _, arguments = llama
    call, found = arguments(batch, return_dict_in_generate=True), []
    for window in (None, 128):
        model = sharp(Phi3ForCausalLM, Phi3Config, sliding_window=window, max_position_embeddings=128)
        with mmaccel.accelerate(model, DROP) as fast:
            first = fast.generate(**call)
            assert fast.report.engaged and not fast.report.warnings
            ids = torch.cat([first.sequences, call["input_ids"][:, -6:]], 1)
            mask = torch.nn.functional.pad(call["attention_mask"], (0, 12), value=1)
            more = {"past_key_values": first.past_key_values, "max_new_tokens": 3, "do_sample": False}
            found.append(fast.generate(ids, attention_mask=mask, **more))
    assert torch.equal(*found)


@torch.no_grad()
def test_tokens_are_dropped_twice(llama, chosen):
    model, arguments = llama
    call = arguments(max_new_tokens=4)
    with mmaccel.accelerate(model, TWICE) as fast:
        tokens, pairs = fast.generate(**call), (fast.report.keys, fast.report.plain_keys)
        more = torch.cat([tokens, call["input_ids"][:, :6]], 1)
        first = fast.generate(**call, return_dict_in_generate=True)
        second = fast.generate(input_ids=more, past_key_values=first.past_key_values, max_new_tokens=3, do_sample=False)
    assert [len(columns) for columns in chosen] == [32, 12] * 2
    assert tokens[0, 80:].tolist() == by_hand(model, call["input_ids"], 4, *chosen[:2])
    counts = [4 * sum(range(n + 1, n + 4)) + 4 * n * (n + 1) // 2 for n in (80, 32, 12)]
    assert pairs == (sum(counts), 3 * counts[0])
    later = [torch.cat([columns, torch.arange(n, n + 10)]) for columns, n in zip(chosen, (80, 32), strict=False)]
    assert second[0, more.shape[1] :].tolist() == by_hand(model, more, 3, *later)


@pytest.mark.parametrize("method", (DROP, TWICE), ids=str)
def test_together_with_sparse_prefill_and_with_drafts(llama, method):
    model, arguments = llama
    sparse = SparsePrefill(budget=1.0)
    with mmaccel.accelerate(model, method) as fast:
        alone = fast.generate(**arguments(max_new_tokens=12))
    for other in (sparse, SuffixDecoding()):
        with mmaccel.accelerate(model, method, other) as fast:
            assert torch.equal(fast.generate(**arguments(max_new_tokens=12)), alone)
    with mmaccel.accelerate(model, method, SparsePrefill(**SparsePrefill.engaging)) as fast:
        fast.generate(**arguments())
        assert fast.report.engaged and fast.report.work_ratio < 0.5


def test_what_does_not_fit_is_refused_or_told(llama):
    model, arguments = llama
    with pytest.raises(ConflictError):
        mmaccel.plan(model, PrefillDrop(), CompressKV())
    with pytest.raises(SettingError, match=r"layer must be at most 1, since LlamaForCausalLM has 3 layers"):
        mmaccel.plan(model, PrefillDrop(layer=2))
    with pytest.raises(SettingError, match=r"layer must be at most 0, since LlamaForCausalLM has 3 layers"):
        mmaccel.plan(model, PrefillDrop(keep=(0.4, 0.2), layer=1))
    with pytest.raises(SettingError, match=r"keep must have fewer shares, since LlamaForCausalLM has 3 layers"):
        mmaccel.plan(model, PrefillDrop(keep=(0.4, 0.2, 0.1)))
    assert PrefillDrop(keep=(0.4, 0.2)).drops(30) == {18: 0.4, 21: 0.2} and PrefillDrop().drops(3) == {1: 0.3}
    assert PrefillDrop(keep=[0.4, 0.2]) == PrefillDrop(keep=(0.4, 0.2))
    settings = (
        {"keep": 0},
        {"keep": (0.1, 0.4)},
        {"keep": (0.4, 0.4)},
        {"keep": ()},
        {"layer": -1},
        {"window": 0},
        {"kernel": 4},
    )
    for bad in (*settings, {"min_length": 1}):
        with pytest.raises(SettingError, match=next(iter(bad))):
            PrefillDrop(**bad)
    small = {"hidden_size": 32, "ffn_dim": 32, "num_attention_heads": 2, "num_hidden_layers": 4, "vocab_size": 40}
    opt = OPTForCausalLM(OPTConfig(**small, word_embed_proj_dim=32))
    gpt = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=4, vocab_size=40))
    for other in (opt, gpt):
        with pytest.raises(UnsupportedTargetError, match="are not given the places of their tokens"):
            mmaccel.plan(other, PrefillDrop())
    gemma = Gemma3ForCausalLM(Gemma3TextConfig(**{**examples.TEXT, "head_dim": 8, "num_hidden_layers": 6}))
    with pytest.raises(UnsupportedTargetError, match="layers with a window or a state"):
        mmaccel.plan(gemma, PrefillDrop())
    sizes = {"n_routed_experts": 4, "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "n_group": 1}
    heads = {"qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "topk_group": 1, "num_experts_per_tok": 2}
    latent = DeepseekV3ForCausalLM(DeepseekV3Config(**{**examples.TEXT, **sizes, **heads, "num_key_value_heads": 4}))
    for method in (PrefillDrop(), CompressKV()):
        with pytest.raises(UnsupportedTargetError):
            mmaccel.plan(latent, method)
    call = arguments(max_new_tokens=3, return_dict_in_generate=True)
    plain = model.generate(**call)
    more = {"input_ids": torch.cat([plain.sequences, call["input_ids"]], 1), "do_sample": False}
    with mmaccel.accelerate(model, DROP) as fast:
        fast.generate(**more, past_key_values=plain.past_key_values, max_new_tokens=2)
        assert "dropped nothing: the prompt goes on from a cache" in fast.report.warnings[0]


@pytest.mark.parametrize("guesses", (3, 10))
def test_nothing_is_dropped_where_guesses_come_with_the_prompt(llama, guesses):
    """They would vote in place of the end of the prompt, and hide it where there are more of them than votes."""
    model, arguments = llama
    call = arguments(max_new_tokens=8)
    call["input_ids"][:, 40:] = call["input_ids"][:, :40]  # something to look up
    with mmaccel.accelerate(model, DROP) as fast:
        tokens = fast.generate(**call, prompt_lookup_num_tokens=guesses)
        assert fast.report.warnings == ["PrefillDrop dropped nothing: prompt_lookup_num_tokens was given"]
    assert torch.equal(tokens, model.generate(**call))


@pytest.mark.parametrize("method", (DROP, TWICE), ids=str)
def test_rows_of_a_kept_cache_become_several(llama, method):
    model, arguments = llama
    call = arguments(batch=2, max_new_tokens=3, return_dict_in_generate=True)
    rows, question = torch.tensor([0, 0, 0, 1, 1, 1]), call["input_ids"][:1, :6]
    with mmaccel.accelerate(model, method) as fast:

        def turns(repeats):
            first = fast.generate(**call)
            first.past_key_values.batch_repeat_interleave(repeats)
            ids = torch.cat([first.sequences, question.expand(2, -1)], 1)
            seen = torch.nn.functional.pad(call["attention_mask"], (0, ids.shape[1] - 80), value=1)
            ids, seen = (x.repeat_interleave(repeats, 0) for x in (ids, seen))
            more = {"past_key_values": first.past_key_values, "max_new_tokens": 3, "do_sample": False}
            return fast.generate(input_ids=ids, attention_mask=seen, **more), fast.report.plain_keys

        (once, keys), (thrice, more_keys) = turns(1), turns(3)
    assert torch.equal(thrice, once[rows]) and more_keys == 3 * keys
