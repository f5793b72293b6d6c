"""Drafts of text, and the rule that follows the model's own choices through them, enumerated in exact fractions."""

from __future__ import annotations

import dataclasses
import itertools
import time
from fractions import Fraction
from types import SimpleNamespace

import exact_rules as exact
import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from mmaccel.decoding import Draft, FixedWidth, Stats, Verdict, draft_and_verify, generation, loop, match, unfit
from mmaccel.decoding.drafters.suffix_method import SuffixMethod
from mmaccel.decoding.generation import Call
from mmaccel.decoding.matching import likeliest_of
from mmaccel.report import Report

TREES = [
    ((), ()),
    ((0,), (-1,)),
    ((1, 0), (-1, 0)),
    ((0, 1), (-1, -1)),
    ((1, 0, 0, 1), (-1, -1, 0, 0)),
    ((1, 0, 0, 1, 1), (-1, 0, -1, 1, 2)),
    ((0, 0, 1), (-1, -1, -1)),
]


# -------------------------------------------------------------------------------------------------- Draft
@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((0, 1), (-1,), "1 parents were given for 2 tokens"),
        ((0, 1), (1, -1), r"parents\[0\]=1 must be -1 or a node before it"),
        ((0, 1), (-1, 1), r"parents\[1\]=1 must be"),
        ((0, 1), (-1, -2), r"parents\[1\]=-2 must be"),
    ],
)
def test_draft_refuses(tokens, parents, message):
    with pytest.raises(ValueError, match=message):
        Draft(tokens, parents)


def test_draft_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Draft((1,)).tokens = (2,)


def test_chains_and_trees():
    chain, tree = Draft((5, 6, 7)), Draft((5, 6, 7), (-1, -1, 1))
    assert chain.is_chain and Draft((5, 6, 7), (-1, 0, 1)).is_chain and not tree.is_chain
    assert (chain.size, chain.depth, tree.size, tree.depth) == (3, 3, 3, 2)
    assert tree.depths == (1, 1, 2) and Draft(()).depth == 0
    assert [chain.child(-1, 5), chain.child(0, 6), chain.child(0, 7), chain.child(2, 5)] == [0, 1, None, None]
    assert [tree.child(-1, 6), tree.child(1, 7), tree.child(0, 7)] == [1, 2, None]


# -------------------------------------------------------------------------------------------------- match
def greedy(draft, rows):
    return match(draft, lambda node: (rows[node + 1], False))


def test_greedy_chain():
    verdict = greedy(Draft((3, 4, 5)), (3, 4, 1, 2))
    assert verdict.path == (0, 1) and verdict.tokens == (3, 4, 1)


def test_greedy_tree_takes_the_second_branch():
    verdict = greedy(Draft((3, 4, 6, 5), (-1, -1, 0, 1)), (4, 0, 5, 0, 7))
    assert verdict.path == (1, 3) and verdict.tokens == (4, 5, 7)


def test_the_end_of_the_text_ends_the_path():
    verdict = match(Draft((3, 4, 5)), lambda node: ((3, 4, 5)[node + 1], node == 0))
    assert verdict.path == (0,) and verdict.tokens == (3, 4)


def path_to(node, draft):
    parents = draft.parents or range(-1, draft.size - 1)
    return () if node < 0 else (*path_to(parents[node], draft), draft.tokens[node])


class Branches:
    """All outcomes of a random program: it is run again and again, and each time draws by another script."""

    def __init__(self):
        self.script, self.place, self.probability = [], 0, exact.ONE

    def draw(self, distribution):
        options = [token for token, mass in enumerate(distribution) if mass]
        if self.place == len(self.script):
            self.script.append([0, len(options)])
        token = options[self.script[self.place][0]]
        self.place += 1
        self.probability *= distribution[token]
        return token

    def outcomes(self, program):
        """`{result: probability}` of `program(draw)`."""
        found = {}
        while True:
            self.place, self.probability = 0, exact.ONE
            result = program(self.draw)
            exact.add(found, result, self.probability)
            while self.script and self.script[-1][0] + 1 == self.script[-1][1]:
                self.script.pop()
            if not self.script:
                return found
            self.script[-1][0] += 1


@pytest.mark.parametrize(("tokens", "parents"), TREES)
@pytest.mark.parametrize("vocabulary", [2, 3, 4])
def test_matching_is_the_rule_for_guesses_made_without_chance(tokens, parents, vocabulary):
    """A guess is accepted with its remaining probability, else zeroed, and the rest renormalised: the same outcomes."""
    draft = Draft(tokens, parents)
    for seed in range(6):
        target = exact.model(f"t{seed}", vocabulary, zeros=seed % 2 == 1)
        found = Branches().outcomes(
            lambda draw, target=target: match(draft, lambda node: (draw(target(path_to(node, draft))), False)).tokens
        )
        assert exact.tv(found, exact.one_hot_emitted(target, tokens, parents)) == 0


@pytest.mark.parametrize("vocabulary", (3, 99, 128, 300, 5120))
def test_the_likeliest_tokens_after_each_node(vocabulary, count=8):
    torch.manual_seed(vocabulary)
    output = 3 * torch.randn(2, 3, vocabulary, dtype=torch.float64)
    shares, tokens = output.softmax(-1).topk(min(count, vocabulary))
    found = likeliest_of(output, count)
    assert [[[token for token, _ in likely] for likely in row] for row in found] == tokens.tolist()
    assert torch.allclose(
        torch.tensor([[[share for _, share in likely] for likely in row] for row in found]), shares.float()
    )
    assert likeliest_of(output, 0) == [()] * 2


def test_equally_likely_tokens_are_told_once_each():
    output = torch.stack([torch.ones(300), torch.arange(300) // 4 / 9])[:, None]
    for (likely,) in likeliest_of(output, 8):
        tokens, shares = zip(*likely, strict=True)
        assert len({*tokens}) == 8 and list(shares) == sorted(shares, reverse=True)
    assert {*tokens} == {*range(292, 300)}


# --------------------------------------------------------------------------------------------------- loop
class Toy:
    """A target that knows what it was fed, as a cache does, and draws its tokens by the rule of text."""

    device = torch.device("cpu")

    def __init__(self, model, length, draw, crops=True):
        self.model, self.length, self.draw, self.crops = model, length, draw, crops
        self.text, self.cache, self.fed = (), (), None

    @property
    def room(self):
        return self.length - len(self.text)

    def forward(self, draft):
        waiting = self.text[len(self.cache) :]
        self.fed, self.cache = draft, self.cache + waiting
        return {node: self.cache + path_to(node, draft) for node in range(-1, draft.size)}

    def judge(self, output, draft):
        return match(draft, lambda node: (self.draw(self.model(output[node])), False))

    def commit(self, verdict):
        tokens = verdict.tokens[: len(verdict.path)]
        self.cache += tokens if self.crops else self.fed.tokens[: len(verdict.tokens)]
        self.text += verdict.tokens
        return [len(verdict.path)]


class Guess:
    """Drafts that depend on all that was committed, so that a stale state would show."""

    def __init__(self, shape):
        self.shape, self.text = shape, ()

    def propose(self, most):
        tokens, parents = self.shape
        count = min(most, len(tokens))
        turned = tuple((token + sum(self.text)) % 2 for token in tokens[:count])
        return Draft(turned, parents[:count])

    def observe(self, verdict):
        self.text += verdict.tokens


def run(model, shape, length, width, draw, crops=True):
    toy, stats = Toy(model, length, draw, crops), Stats()
    draft_and_verify(Guess(shape), toy, FixedWidth(width), stats)
    assert stats.emitted == len(toy.text) == length and stats.rounds == stats.forwards <= length
    return toy.text


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize(("vocabulary", "length"), [(2, 5), (3, 4)])
def test_the_loop_keeps_the_distribution(shape, vocabulary, length):
    """Of whole texts, over several passes, with drafts cut at the end; total variation 0 in exact fractions."""
    for seed, width in itertools.product(range(2), (2, 6)):
        model = exact.model(f"l{seed}", vocabulary, zeros=seed == 1)
        found = Branches().outcomes(lambda draw, m=model, w=width: run(m, shape, length, w, draw))
        assert exact.tv(found, exact.sequence_distribution(model, vocabulary, length)) == 0


def test_mutant_rejected_drafts_left_in_the_cache():
    model = exact.model("l0", 2)
    found = Branches().outcomes(lambda draw: run(model, ((1, 0), (-1, 0)), 5, 3, draw, crops=False))
    assert exact.tv(found, exact.sequence_distribution(model, 2, 5)) > Fraction(1, 100)


def test_statistics_of_the_loop():
    toy, stats, guess = Toy(None, 7, None), Stats(), Guess(((0, 0, 0), (-1, 0, 1)))
    toy.judge = lambda output, draft: match(draft, lambda node: (0, False))
    draft_and_verify(guess, toy, FixedWidth(4), stats)
    assert toy.text == (0,) * 7 and stats.rounds == 2
    assert stats.drafted == 3 + 2 and stats.acceptance == [1.0] * 3 and stats.emitted == 7
    assert set(stats.seconds) == {"draft", "verify", "other"}


def test_statistics_of_a_tree_go_as_deep_as_its_longest_path():
    toy, stats, guess = Toy(None, 3, None), Stats(), Guess(((0, 1, 0), (-1, -1, 0)))
    toy.judge = lambda output, draft: match(draft, lambda node: (0, False))
    draft_and_verify(guess, toy, FixedWidth(4), stats)
    assert stats.drafted == 2 and stats.acceptance == [1.0], "of three places, two nodes side by side"


def test_seconds_of_the_loop_by_what_they_were_spent_on(monkeypatch):
    """The budget sees those until the tokens are committed, and all the drafter does is no part of the pass."""
    now, passes = [0.0], []

    def spends(seconds, function):
        def run(*given):
            now[0] += seconds
            return function(*given)

        return run

    clock = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: now[0])
    monkeypatch.setattr(loop, "time", clock)
    toy, stats, guess, width = Toy(None, 7, None), Stats(), Guess(((0, 0, 0), (-1, 0, 1))), FixedWidth(4)
    toy.forward, toy.commit = spends(10, toy.forward), spends(1000, toy.commit)
    toy.judge = spends(100, lambda output, draft: match(draft, lambda node: (0, False)))
    guess.propose, guess.observe = spends(1, guess.propose), spends(10_000, guess.observe)
    width.observe = lambda *seen: passes.append(seen)
    draft_and_verify(guess, toy, width, stats)
    assert stats.seconds == {"draft": 2, "verify": 20, "other": 2 * 11_100}
    assert passes == [(4, [4], 1111), (3, [3], 1111)]


def test_which_clock_times_a_pass(monkeypatch):
    """The thread's own on a processor; what an accelerator does is seen by the wall alone."""
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(loop, "sys", SimpleNamespace(platform="linux"))
    assert (loop.clock(cpu), loop.clock(cuda)) == (time.thread_time, time.perf_counter)
    monkeypatch.setattr(loop, "sys", SimpleNamespace(platform="win32"))
    assert loop.clock(cpu) is time.perf_counter


# -------------------------------------------------------------------------------------------- text of `generate`
def test_arguments_that_leave_a_call_to_the_model():
    def reason(kwargs, **own):
        return unfit.reason_to_leave(SimpleNamespace(generation_config=SimpleNamespace(**own)), kwargs)

    assert reason({"streamer": object(), "num_beams": 1}) is None
    for name in ("assistant_model", "custom_generate"):
        assert reason({name: object()}) == f"{name} was given"
    settings = {"num_beams": 2, "prompt_lookup_num_tokens": 3, "cache_implementation": "static"}
    for name, value in {**settings, "prefill_chunk_size": 8}.items():
        said = f"{name}={value!r}"
        assert reason({name: value}) == reason({}, **{name: value}) == said
        assert reason({"generation_config": SimpleNamespace(**{name: value})}) == said
    assert reason({"num_beams": 1}, num_beams=4) is None, "the call says more than the model's own configuration"
    config = SimpleNamespace(num_beams=1)
    assert reason({"generation_config": config}, num_beams=4) is None
    assert reason({}, cache_implementation="hybrid") is None, "checkpoints say so, and `generate` takes it back"
    assert reason({"token_healing": True}) == "token_healing=True"
    assert reason({"synced_gpus": False}) is None
    assert reason({"synced_gpus": True}) == "all ranks make the same passes (synced_gpus)"


def off_loaded():
    """As a `DynamicCache(offloading=True)`, which needs a GPU."""
    cache = DynamicCache()
    cache.offloading = True
    return cache


def filled():
    cache = DynamicCache()
    cache.update(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 4), 0)
    return cache


EMPTY, SEEN = DynamicCache(), torch.ones(1, 3)
WITHOUT = "use_cache=False, as given or as configs of MPT have it, leaves no cache to take drafts back from"
NO_CACHE, PADDED = "there is no cache to take drafts back from", "the prompt is padded"
OFF_LOADED = "the cache is off-loaded, and drafts would have to move what it keeps elsewhere"
OWN_MASK = "the prompt is padded at its end, or has a mask of its own"
NEW_ALONE = "only the new tokens of a text were given, and those before are in the cache alone"


@pytest.mark.parametrize(
    ("encoder", "more", "reason"),
    (
        (False, {"past_key_values": EMPTY, "attention_mask": SEEN}, None),
        (False, {"past_key_values": EMPTY, "attention_mask": 1 - SEEN}, OWN_MASK),
        (False, {"past_key_values": EMPTY, "attention_mask": SEEN[None, None]}, OWN_MASK),
        (False, {"past_key_values": EMPTY, "use_cache": False}, WITHOUT),
        (False, {"past_key_values": EMPTY, "inputs_embeds": SEEN}, None),
        (False, {"past_key_values": off_loaded()}, OFF_LOADED),
        (False, {"past_key_values": filled(), "inputs_embeds": SEEN}, "embeddings go on from a cache"),
        (False, {"past_key_values": filled()}, None),
        (False, {"past_key_values": filled(), "attention_mask": torch.ones(1, 5)}, NEW_ALONE),
        (False, {}, NO_CACHE),
        (True, {"past_key_values": EncoderDecoderCache(EMPTY, EMPTY), "attention_mask": SEEN - 1}, None),
        (True, {"past_key_values": EncoderDecoderCache(EMPTY, EMPTY), "decoder_attention_mask": SEEN}, None),
        (True, {"past_key_values": EncoderDecoderCache(EMPTY, EMPTY), "decoder_attention_mask": SEEN > SEEN}, PADDED),
        (True, {"past_key_values": EncoderDecoderCache(EMPTY, EMPTY), "decoder_position_ids": SEEN}, PADDED),
        (True, {"past_key_values": EMPTY}, NO_CACHE),
    ),
)
def test_texts_that_are_left_to_the_model(encoder, more, reason):
    config = SimpleNamespace(is_encoder_decoder=encoder)
    parts = {"modules": list, "parameters": list, "training": False}
    model = SimpleNamespace(config=config, prepare_inputs_for_generation=None, **parts)
    config = SimpleNamespace(output_attentions=False, output_hidden_states=False, _mask_length=3)
    assert unfit.unfit(model, SEEN, config, more) == reason
    for name in ("output_attentions", "output_hidden_states"):
        asked = SimpleNamespace(**{**vars(config), name: True})
        assert unfit.unfit(model, SEEN, asked, more) == "attentions or hidden states are asked for"


def report_of(accepted, drafted, engaged=False, reasons=(), left=0):
    run = generation.DraftedRun(SimpleNamespace(memory={}), SuffixMethod(), left=left)
    run.tokens, run.plain_forwards = 9, 4 if accepted else 0
    for count in accepted:
        run.stats.observe([count], drafted)
    for reason in reasons:
        run.warn(reason)
    report = Report(["m"], True, engaged=engaged)
    generation.fill(report, run)
    return report


def test_a_report_of_drafts():
    found = report_of((2, 0), 3)
    assert (found.tokens, found.forwards, found.plain_forwards, found.engaged) == (9, 2, 4, True)
    assert found.details == {"drafted": 6, "accepted": 2} and not found.warnings
    wrong = report_of((0, 0), 3)
    assert not wrong.engaged and "none of 6 drafted tokens was right" in wrong.warnings[0]
    assert report_of((0,), 3, engaged=True).engaged, "a method beside it may have"
    partly = report_of((2, 0), 3, left=7)
    assert (partly.forwards, partly.plain_forwards) == (9, 11), "those of segments that were left to the model too"
    assert report_of((), 0, left=7).plain_forwards == 0, "a call that was left to it whole says nothing of passes"
    several = report_of((), 0, reasons=("it is long", "it is long", "it is wide"))
    assert several.warnings == [f"the model's own loop ran: it is {word}" for word in ("long", "wide")]


def test_a_draft_method_says_what_drafts_and_how_far():
    """Blocks of drafts are between 0, which is plain decoding, and 256 tokens."""
    session = SimpleNamespace(memory={}, target=SimpleNamespace(config=SimpleNamespace(image_token_id=6)))
    method = SuffixMethod(longest=5, shortest=3, remember=7)
    index, other = method.drafters(Call(session, 2))
    assert (index.longest, index.shortest, index.remember) == (5, 3, 7) and other is not index
    assert method.drafters(Call(session, 1, branches=False)) == [index], "kept for the next text of the row"
    assert method.width(Call(session, 2)).width() == method.block + 1
    assert index.forbidden == {6}, "what stands for pictures is no text"
    index.observe(Verdict((), (4, 5)))
    assert len(index) == 2
    assert (SuffixMethod(block=0).block, SuffixMethod(block=256).block) == (0, 256)
    for settings in ({"block": 257}, {"block": -1}, {"remember": -1}, {"longest": 33}, {"longest": 4, "shortest": 5}):
        with pytest.raises(ValueError, match=list(settings)[-1]):
            SuffixMethod(**settings)
