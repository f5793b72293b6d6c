"""A smaller model guesses: the text stays the model's, and it is asked only where that is worth its time."""

import copy
import gc

import pytest
import torch
from draft_models import call, mistral
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3NextForCausalLM, pipeline

import mmaccel
from mmaccel.decoding.drafters.acceptance import Acceptance
from mmaccel.decoding.drafters.assistant import AGAIN, Assistant, AssistantCost, likeliest
from mmaccel.decoding.drafters.grown_draft import GrownDrafter
from mmaccel.decoding.drafters.pass_cost import PassCost
from mmaccel.errors import SettingError
from mmaccel.vlm import FusedDraft, ModelDraft, TokenRecycling, examples, visual_examples
from mmaccel.vlm.drafts import model_draft


class ReadsKeys(LlamaForCausalLM):
    """As the assistants of Gemma 4."""

    def forward(self, inputs_embeds=None, shared_kv_states=None, **more):
        raise ValueError("inputs_embeds and shared_kv_states cannot be None.")


@pytest.fixture(scope="module")
def llama():
    return examples.llama()[0]


def small(vocab_size=None, seed=1):
    torch.manual_seed(seed)
    size = {} if vocab_size is None else {"vocab_size": vocab_size}
    return LlamaForCausalLM(LlamaConfig(**{**examples.TEXT, **size, "num_hidden_layers": 1})).eval()


@pytest.mark.parametrize("assistant", ("stranger", "twin"))
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 0), (3, 4)))
@pytest.mark.parametrize("sampled", (False, True))
def test_the_text_is_the_models(llama, assistant, batch, pad, sampled):
    helper = small() if assistant == "stranger" else copy.deepcopy(llama)
    given = call(batch, pad, do_sample=sampled and batch == 1)
    torch.manual_seed(2)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, ModelDraft(always=True)) as fast:
        for _ in range(2):
            torch.manual_seed(2)
            assert torch.equal(fast.generate(**given, assistant_model=helper), plain)
        report = fast.report
        assert report.exact and not report.warnings
        if assistant == "twin":
            assert report.forwards <= 4, "its guesses are all right, those of what will be drawn too"
        assert not any(isinstance(value, torch.nn.Module) for value in fast.memory.values()), "it may be large"


def test_tokens_that_only_one_of_the_two_has(llama, monkeypatch):
    """The sizes of vocabularies are rounded up otherwise: an assistant is not shown what it has no row for."""
    monkeypatch.setattr(model_draft, "CLOSE", 0.1)
    for size in (60, 66):
        given = call()
        given["input_ids"][:, 3] = 63
        forced = call(suppress_tokens=list(range(60)))  # what is written is what it has not
        for asked in (given, {**forced, "input_ids": given["input_ids"]}):
            plain = llama.generate(**asked)
            with mmaccel.accelerate(llama, ModelDraft(always=True)) as fast:
                assert torch.equal(fast.generate(**asked, assistant_model=small(size)), plain)


def test_what_reading_the_prompt_took_says_nothing_of_a_step(llama):
    plain = PassCost(9)
    cost = AssistantCost(plain)
    helper = Assistant(llama, cost)
    seconds = iter((0.0, 10.0))
    helper._now = lambda: next(seconds, 0.0)
    helper.begin(list(range(4, 60)))
    next(helper.guesses(helper.root()))
    helper._now = iter(number / 100 for number in range(9)).__next__
    for token in (5, 6):
        plain.observe(1, [1], 0.1)
        helper.learn([token], [], [])
        next(helper.guesses(helper.root()))
    assert list(cost.seconds) == pytest.approx([0.01, 0.01]) and cost.is_worth(0.9)


def test_no_guess_is_asked_for_where_nothing_can_be_drafted(llama, monkeypatch):
    helper = Assistant(llama, AssistantCost(PassCost(9, always=True)))
    drafter = GrownDrafter([helper], Acceptance({}), PassCost(9, always=True))
    drafter.begin([5, 6, 7])
    monkeypatch.setattr(helper, "_logits", None)
    assert not drafter.propose(0).size
    with pytest.raises(TypeError):
        drafter.propose(1)


def test_a_reader_of_pictures_with_an_assistant_that_sees_none():
    model, arguments = visual_examples.qwen2_5_vl()
    given = arguments(1, max_new_tokens=16)
    plain = model.generate(**given)
    helper = small(model.config.get_text_config(decoder=True).vocab_size)
    with mmaccel.accelerate(model, ModelDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**given, assistant_model=helper), plain)


def test_what_the_cache_holds_is_not_read_again(llama):
    lengths = []
    forward = llama.forward

    def counted(ids, **more):
        lengths.append(ids.shape[1])
        return forward(ids, **more)

    helper = Assistant(llama, AssistantCost(PassCost(9, always=True)))
    llama.forward = counted
    try:
        texts = ([5, 6, 7, 8], [5, 6, 7, 8, 9], [5, 6, 9], [5, 6, 9, 9, 9], [5, 6, 9], [5, 6, 9], [7])
        found = [likeliest(helper._logits(list(text)), 0) for text in texts]
    finally:
        del llama.forward
    assert lengths == [4, 1, 1, 2, 1, 1, 1]
    for text, (token, probability) in zip(texts, found, strict=True):
        share = llama(torch.tensor([text])).logits[0, -1].softmax(-1)
        assert token == int(share.argmax()) and probability == pytest.approx(float(share.max()), abs=1e-5)


def test_an_assistant_may_keep_windows():
    """Of 16 tokens, in texts of more: with guesses that are taken back comes what they pushed out of the windows."""
    model = mistral()
    helper = Assistant(model, AssistantCost(PassCost(9, always=True)))
    text = list(range(5, 45))
    for behind in ([], [7], [7, 8], [9], [9, 9], [9, 9, 4, 5], [9, 9, 4, 6, 7, 8], [9, 9, 4, 6, 5]):
        found = helper._logits([*text, *behind])
        torch.testing.assert_close(found, model(torch.tensor([[*text, *behind]])).logits[0, -1], rtol=1e-3, atol=1e-3)


def test_each_assistant_is_judged_by_itself(llama):
    """And forgotten with it."""
    with mmaccel.accelerate(llama, ModelDraft(always=True)) as fast:
        twin, stranger = copy.deepcopy(llama), small()
        for helper in (twin, stranger):
            fast.generate(**call(), assistant_model=helper)
        costs = fast.memory["vlm.ModelDraft, costs of assistants of 1 rows"]
        assert costs[twin]._right > 0.9 * costs[twin]._expected and costs[stranger]._right < costs[twin]._right
        assert fast.generate(**call(), assistant_model=twin).shape == (1, 66)
        del twin, helper
        gc.collect()
        assert list(costs) == [stranger]


def test_without_a_session_there_is_no_assistant():
    with pytest.raises(SettingError, match=r"use mmaccel.accelerate\(model, vlm.ModelDraft\(\)\), or vlm.FusedDraft"):
        ModelDraft().custom_generate()


def test_it_is_asked_where_it_is_worth_its_time():
    plain = PassCost(9)
    for _ in range(3):
        plain.observe(1, [1], 0.1)
    cost = AssistantCost(plain)
    assert cost.is_worth(0.01), "nothing is known of it yet"
    for _ in range(9):
        cost.observe_step(0.02)
    assert cost.is_worth(0.9) and not cost.is_worth(0.1)
    for _ in range(60):
        cost.observe_guess(False, 0.9)
    asked = [cost.is_worth(1.0) for _ in range(2 * AGAIN)]
    assert sum(asked) == 2, "now and then it is asked again"
    many = AssistantCost(plain, rows=8)
    for _ in range(9):
        many.observe_step(0.02)
    assert not many.is_worth(0.9), "each of eight rows has steps of its own"


def cost_of(most, seconds):
    """Of passes that were measured, by their width."""
    plain = PassCost(most)
    for width, each in seconds.items():
        for _ in range(3):
            plain.observe(width, [1], each)
    return plain


def test_guesses_share_the_price_of_a_pass_that_is_no_longer_plain():
    """As of weights in 4 bits: a second token is dear, more of them are not."""
    plain = cost_of(9, {1: 0.1, 2: 0.25, 4: 0.25, 8: 0.25})
    assert plain.nodes([0.9**n for n in range(1, 8)]) == 7
    cost = AssistantCost(plain)
    for number in range(200):
        cost.observe_guess(number % 10 < 9, 0.9)
    for _ in range(9):
        cost.observe_step(0.005)
    assert cost.pays(1.0, plain.place(1)) and not cost.pays(0.1, plain.place(1))


def test_a_guess_must_be_worth_its_place_too():
    """A step costs little here, what it guesses is verified in a pass that is wider by one token."""
    plain = cost_of(2, {1: 0.1, 2: 0.13})
    assert plain.place(1) == pytest.approx(1.2 * 0.3) and plain.place(2) == 0.0, "a pass holds no third"
    assert PassCost(9, always=True).place(1) == 0.0
    costs = {sure: AssistantCost(plain) for sure in (0.3, 0.9)}
    for sure, cost in costs.items():
        for number in range(200):
            cost.observe_guess(number % 10 < 10 * sure, sure)
        for _ in range(9):
            cost.observe_step(0.01)
    place = plain.place(1)
    assert costs[0.3].pays(1.0) and not costs[0.3].pays(1.0, place), "it would never be verified"
    assert costs[0.9].pays(1.0, place) and not costs[0.9].pays(0.4, place)
    for number in range(400):  # as sure on average, but now and then it knows
        costs[0.3].observe_guess(number % 10 < 3, 0.9 if number % 10 < 3 else 0.04)
    assert costs[0.3].pays(1.0, place), "what is not verified costs no place"


def test_its_time_is_no_part_of_a_pass():
    plain = PassCost(9)
    cost = AssistantCost(plain)
    for _ in range(2):
        cost.observe_step(0.3)
        cost.observe_step(0.3)
        plain.observe(1, [1], 0.7)
    assert plain.curve.seconds(1) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("assistant", "said"),
    (
        (lambda model: model, "assistant_model is the model itself"),
        (lambda model: small(200), "assistant_model=LlamaForCausalLM has 200 tokens, this model 64"),
        (lambda model: examples.clip()[0].vision_model, "has no vocabulary of its own, .*: give a plain decoder"),
        (lambda model: hybrid(), "assistant_model=Qwen3NextForCausalLM has no cache that guesses can be taken back"),
        (lambda model: "small", r"assistant_model='small' is no model: load it with from_pretrained\(\) first"),
        (lambda model: small().to("meta"), "assistant_model=LlamaForCausalLM has no weights yet, its device is meta"),
        (lambda model: small().model, "assistant_model=LlamaModel has no lm_head: load it with AutoModelForCausalLM"),
        (
            lambda model: ReadsKeys(small().config),
            "assistant_model=ReadsKeys reads the keys of the model .* vlm.Fused",
        ),
    ),
    ids=("itself", "vocabulary", "no vocabulary", "state", "name", "meta", "no output", "no keys"),
)
def test_what_cannot_help_is_refused(llama, assistant, said):
    given = call()
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, ModelDraft()) as fast:
        with pytest.raises(SettingError, match=said):
            fast.generate(**given, assistant_model=assistant(llama))
        assert torch.equal(fast.generate(**given), plain)


WORDS = [f"w{number}" for number in range(64)]


def tokenizer(words):
    found = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=found)


@pytest.mark.parametrize("words", (WORDS, WORDS[:60], [*WORDS[:61], "x", "y", "z"]), ids=("equal", "fewer", "renamed"))
def test_an_assistant_with_the_same_tokens_drafts(llama, words, monkeypatch):
    """Transformers asks for both tokenizers where the sizes of the vocabularies are rounded up otherwise."""
    monkeypatch.setattr(model_draft, "CLOSE", 0.1)
    monkeypatch.setattr(model_draft, "EVERY", 2)
    given = {"assistant_model": small(66), "tokenizer": tokenizer(WORDS), "assistant_tokenizer": tokenizer(words)}
    plain, beams = llama.generate(**call()), llama.generate(**call(num_beams=2))
    with mmaccel.accelerate(llama, ModelDraft(always=True)) as fast:
        assert torch.equal(fast.generate(**call(), **given), plain)
        assert fast.report.details["drafted"] > 0 and not fast.report.warnings
        assert torch.equal(fast.generate(**call(num_beams=2), **given), beams)
        assert fast.report.warnings == ["the model's own loop ran: num_beams=2"]


def test_an_assistant_with_other_tokens_is_refused(llama):
    """Its vocabulary may have as many, and they are others."""
    given = {"assistant_model": small(), "assistant_tokenizer": tokenizer(WORDS[::-1])}
    with mmaccel.accelerate(llama, ModelDraft()) as fast:
        with pytest.raises(SettingError, match="assistant_tokenizer= are others than those of tokenizer="):
            fast.generate(**call(), **given, tokenizer=tokenizer(WORDS))
        with pytest.raises(SettingError, match="give tokenizer= as well, or leave assistant_tokenizer= out"):
            fast.generate(**call(), **given)
        assert torch.equal(fast.generate(**call(), assistant_model=small()), llama.generate(**call()))


def test_a_pipeline_with_an_assistant_drafts(llama):
    """It gives both tokenizers with each call, where special tokens of the two configs differ."""
    helper = small()
    helper.config.pad_token_id = 1
    given = {"tokenizer": tokenizer(WORDS), "assistant_model": helper, "assistant_tokenizer": tokenizer(WORDS)}
    text, more = " ".join(WORDS[9:30]), {"max_new_tokens": 20, "do_sample": False}
    write = pipeline("text-generation", llama, tokenizer=tokenizer(WORDS))
    plain = write(text, **more)
    write = pipeline("text-generation", llama, **given)
    assert write.assistant_tokenizer is not None
    with mmaccel.accelerate(write.model, ModelDraft(always=True)) as fast:
        assert write(text, **more) == plain
        assert fast.report.details["drafted"] > 0 and not fast.report.warnings


def hybrid():
    return Qwen3NextForCausalLM(
        Qwen3NextForCausalLM.config_class(**{**examples.TEXT, "num_experts": 2, "num_experts_per_tok": 1})
    )


def test_other_drafters_leave_an_assistant_to_the_model(llama):
    with mmaccel.accelerate(llama, TokenRecycling()) as fast:
        fast.generate(**call(), assistant_model=small())
        assert fast.report.warnings == ["the model's own loop ran: assistant_model was given"]


def test_an_assistant_is_for_no_other_run_of_a_comparison(llama):
    """The model's own assisted generation serves no batch, and is not what a method is compared with."""
    methods, given = (ModelDraft(always=True), FusedDraft()), call(2)
    found = mmaccel.compare(llama, *methods, assistant_model=small(), simple=False, rounds=1, **given)
    assert [row["label"] for row in found.rows] == ["plain", *map(str, methods)]
    assert all(row["equal"] for row in found.rows) and "assistant_model was given" not in str(found)
    alone = mmaccel.compare(llama, FusedDraft(), assistant_model=small(), simple=False, rounds=1, **call())
    assert "assistant_model was given" in str(alone), "no method takes it: it is an argument of the model as any other"
