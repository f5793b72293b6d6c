"""Drafts that grow from the likeliest guess on: learned shares, measured costs, sources, and trees."""

from __future__ import annotations

import collections
import random
import tracemalloc
from types import SimpleNamespace

import pytest
import torch
from transformers import DynamicCache, Gemma3TextConfig, LlamaConfig
from transformers.cache_utils import DynamicSlidingWindowLayer

import mmaccel
from mmaccel.decoding import Draft, SuffixIndex, Verdict
from mmaccel.decoding.dice import Dice
from mmaccel.decoding.drafters.acceptance import Acceptance
from mmaccel.decoding.drafters.grown_draft import GrownDrafter
from mmaccel.decoding.drafters.pass_cost import FEWEST, STALE, PassCost
from mmaccel.decoding.drafters.sources import EXPECTED, Repeats, Successors
from mmaccel.decoding.generation import Call
from mmaccel.decoding.passes.slots import GAPS, Slots, ancestors
from mmaccel.vlm import FusedDraft, TokenRecycling, examples


# ------------------------------------------------------------------------------------------------- acceptance
def test_shares_begin_as_expected_and_follow_what_is_seen():
    shares = Acceptance({"a": 0.8, "b": 0.2}, weight=4, memory=20)
    assert (shares["a"], shares["b"], shares["other"]) == (0.8, 0.2, 0.1)
    for _ in range(200):
        shares.observe(["a"], False)
        shares.observe(["b"], True)
    assert shares["a"] < 0.15 and shares["b"] > 0.85
    for _ in range(40):
        shares.observe(["a"], True)
    assert shares["a"] > 0.6, "old observations fade"


def test_kinds_that_agree_are_learned_together_and_alone():
    shares = Acceptance({"a": 0.5, "b": 0.3}, weight=1)
    assert shares.of_all(["a", "b"]) == 0.5 and shares.of_all(["b"]) == 0.3
    for _ in range(30):
        shares.observe(["a", "b"], True)
        shares.observe(["a"], False)
    assert shares.of_all(["a", "b"]) > 0.9 and 0.4 < shares["a"] < 0.6 and shares["b"] > 0.9


# ------------------------------------------------------------------------------------------------------- cost
def measured(seconds, most=65):
    cost = PassCost(most)
    for width, value in seconds.items():
        for _ in range(FEWEST):
            cost.observe(width, [1], value)
    return cost


def test_as_many_nodes_as_save_time():
    cheap = measured({1: 1.0, 2: 1.01, 8: 1.02, 64: 1.05})
    dear = measured({1: 1.0, 2: 2.0, 8: 8.0, 64: 64.0})
    shares = [0.9, 0.8, 0.5, 0.3, 0.2, 0.1, 0.1]
    assert cheap.nodes(shares) == 7 and dear.nodes(shares) == 0
    assert measured({1: 1.0, 2: 1.1, 4: 1.2, 8: 4.0}).nodes(shares) == 3
    assert cheap.nodes([]) == 0 and cheap.width() == 65


def test_what_was_not_measured_is_taken_to_be_as_steep_as_elsewhere():
    assert PassCost(9).curve.seconds(2) / PassCost(9).curve.seconds(1) == pytest.approx(1.3)
    cost = measured({1: 0.010})
    assert cost.curve.seconds(1) == pytest.approx(0.010) and cost.curve.seconds(8) == pytest.approx(0.019)
    cost.observe(8, [1], 0.5)
    assert cost.curve.seconds(8) == pytest.approx(0.019), "one pass may have been slow by chance"
    for _ in range(9):
        cost.observe(8, [1], 0.012)
    assert cost.curve.seconds(8) == pytest.approx(0.012), "the old time is forgotten"


def test_prompts_say_nothing_of_drafts():
    """Where accepted drafts are read again, drafts are given up once they have lost too much."""
    cost, shares = measured({1: 1.0, 2: 1.01, 8: 1.02}, most=33), [0.9] * 8
    known = cost.curve.seconds(40)
    for _ in range(10):
        cost.begin()
        cost.leave_out(7.0)
        cost.observe(40, [1], 5.0)
    assert cost.nodes(shares, again=True) > 0 and cost.curve.seconds(40) == known
    cost.observe(1, [1], 1.0)
    assert cost.curve.seconds(1) == 1.0, "what was left out of the prompt's pass is no part of the next"
    for _ in range(2):
        cost.observe(9, [1], 5.0)
    assert cost.nodes(shares, again=True) == 0 and cost.nodes(shares) > 0


def test_the_prompt_of_each_text_is_no_pass_that_is_learned():
    model = examples.llama()[0]
    with mmaccel.accelerate(model, FusedDraft()) as fast:
        for _ in range(3):
            fast.generate(torch.arange(4, 30)[None], max_new_tokens=5, do_sample=False, eos_token_id=None)
            cost = fast.memory[f"{FusedDraft.name}, cost of 1 rows"]
            assert 1 in cost._seconds and 26 not in cost._seconds


def test_asking_what_a_pass_costs_leaves_no_pass_out():
    method, call = FusedDraft(), Call(SimpleNamespace(memory={}))
    cost = method.width(call)
    for _ in range(FEWEST):
        assert method.width(call) is cost
        cost.observe(1, [1], 5.0)
    assert cost.curve.seconds(1) == 5.0


def test_a_plain_pass_is_timed_again_where_drafts_save_little():
    cost = measured({1: 1.0, 2: 1.1})
    assert cost.nodes([0.5]) == 1
    for _ in range(STALE):
        cost.observe(2, [1], 1.1)
    assert cost.nodes([0.5]) == 0, "what a plain pass costs may have changed"
    assert cost.nodes([0.99] * 3) == 3, "where drafts save much it does not matter"
    cost.observe(1, [1], 1.0)
    assert cost.nodes([0.5]) == 1


# ---------------------------------------------------------------------------------------------------- sources
def test_successors_of_the_longest_context_that_is_known():
    source = Successors({}, frozenset({9}), longest=2)
    source.begin([1, 2, 3])
    assert source.root() == ((2, 3), 0)
    source.learn([4], ends=[(1, 2, 3)], likely=[[(4, 0.7), (9, 0.2), (5, 0.001)]])
    assert source.root() == ((3, 4), 0) and set(source.known) == {(3,), (2, 3)}
    guesses = list(source.guesses(((2, 3), 0)))
    assert [(token, state) for token, _, state in guesses] == [(4, ((3, 4), 1))], (
        "forbidden and unlikely ones are left out"
    )
    assert guesses[0][1] == ("recycled", 7, 2) and next(source.guesses(((7, 3), 0)))[1] == ("recycled", 7, 1)
    assert not list(source.guesses(((3, 7), 0)))
    source.learn([5], ends=[(3,), (8,)], likely=[[(6, 0.5)], ()])
    assert [token for token, *_ in source.guesses(((3,), 0))] == [6] and (8,) not in source.known


def test_successors_of_a_sampled_text_race_as_they_will():
    """As often first as their probability is, with numbers that `torch.multinomial` then uses."""
    shares = [(5, 0.5), (6, 0.3), (7, 0.1)]
    first, won = collections.Counter(), 0
    for seed in range(400):
        torch.manual_seed(seed)
        text = SimpleNamespace(ids=torch.ones(1, 1), processors=[])
        source = Successors({}, frozenset({7}), dice=Dice(text, 10))
        source.begin([3])
        source.learn([3], ends=[(3,)], likely=[shares])
        torch.rand(1)  # the state may be another when guesses are asked for
        (token, kind, _), (_, second, _) = list(source.guesses(source.root()))[:2]
        assert kind[0] == second[0] == "drawn" and kind[1] < second[1] and kind[2] >= second[2] and kind[3] == 1
        first[token] += 1
        rest = torch.tensor([[0.02] * 5 + [0.5, 0.3, 0.1, 0.0, 0.0]])
        won += int(torch.multinomial(rest, 1)) == token
    assert set(first) == {5, 6} and 0.54 < first[5] / 400 < 0.74
    assert won / 400 > 0.75, "a blind guess is right in half of the draws"


def test_successors_forget_the_oldest(monkeypatch):
    monkeypatch.setattr("mmaccel.decoding.drafters.sources.REMEMBER", 2)
    source = Successors({}, frozenset())
    source.begin([])
    for token in (1, 2, 1, 3):
        source.learn([0], ends=[(token,)], likely=[[(token, 0.9)]])
    assert list(source.known) == [(1,), (3,)]


@pytest.mark.parametrize(("method", "longest"), ((TokenRecycling, 1), (FusedDraft, 3)))
def test_what_is_learned_takes_no_more_memory_than_is_told(method, longest, most=35e6):
    assert f"up to {most / 1e6:.0f} MB for what is learned" in method.advice.costs
    source, rng, count = Successors({}, frozenset(), longest), random.Random(0), 3000
    tracemalloc.start()
    while len(source.known) < count:
        end = tuple(rng.randrange(1000, 10**6) for _ in range(4))
        source.learn([0], [end], [[(rng.randrange(1000, 10**6), 0.02 + rng.random() / 9) for _ in range(8)]])
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert used * 65_536 / count < most


@pytest.mark.parametrize("remember", (0, 5, 40))
def test_an_index_forgets_as_if_it_were_made_of_what_is_left(remember, monkeypatch):
    """Without reading that again, which took as long in each call as an answer of 4,096 tokens."""
    rng, index, added = random.Random(0), SuffixIndex(4, 2, remember, frozenset({0})), []
    add = SuffixIndex.add
    monkeypatch.setattr(index, "add", lambda token: added.append(token) or add(index, token))
    for _ in range(60):
        text, before = [rng.randrange(4) for _ in range(rng.randrange(1, 25))], len(added)
        index.begin(text)
        assert len(added) <= before + 1 + len(text)
        again = SuffixIndex(4, 2, remember, frozenset({0}))
        for token in index._tokens:
            again.add(token)
        assert index._tokens == again._tokens
        assert {gram: place - index._gone for gram, place in index._next.items()} == again._next
        assert len(index) <= remember + len(text)


def test_repeats_go_on_past_their_own_end_and_stop_between_texts():
    index = SuffixIndex(4, 1, 100, frozenset({0}))
    source = Repeats(index)
    source.begin([5, 6, 7, 5, 6])
    state, copied = source.root(), []
    assert state == (2, 2, 2)
    for _ in range(5):
        ((token, _, state),) = source.guesses(state)
        copied.append(token)
    assert copied == [7, 5, 6, 7, 5]
    source.learn([8], [], [])
    assert source.root() is None and len(index) == 6
    source.begin([0, 5])
    ((token, kind, _),) = source.guesses(source.root())
    assert (token, kind) == (6, ("repeated", 1)), "matches reach back to the text before"
    source.begin([7, 0])
    assert source.root() is None and index.token(len(index) - 1) is None


# ----------------------------------------------------------------------------------------------------- drafts
class Listed:
    """A source that says the same after each token, and notes what it is told."""

    def __init__(self, after):
        self.after, self.told, self.end = after, [], None

    def begin(self, tokens):
        self.end = tokens[-1]

    def root(self):
        return self.end

    def guesses(self, state):
        yield from ((token, kind, token) for token, kind in self.after.get(state, ()))

    def learn(self, tokens, ends, likely):
        self.told.append((tokens, ends, likely))
        self.end = tokens[-1]


FREE = PassCost(10, always=True)  # all that is grown is verified


def test_the_likeliest_nodes_first_each_behind_its_parent():
    source = Listed({1: [(2, "good"), (3, "poor")], 2: [(4, "good"), (5, "poor")], 3: [(6, "good")]})
    drafter = GrownDrafter([source], Acceptance({"good": 0.6, "poor": 0.3}), FREE)
    drafter.begin([1])
    draft = drafter.propose(9)
    assert draft.tokens == (2, 4, 3, 5, 6) and draft.parents == (-1, 0, -1, 0, 2)
    assert drafter.propose(2).tokens == (2, 4)
    chain = GrownDrafter([source], Acceptance({"good": 0.6, "poor": 0.3}), FREE, branches=False)
    chain.begin([1])
    assert chain.propose(9).is_chain and chain.propose(9).tokens == (2, 4)


def test_sources_that_agree_make_one_node():
    one, two = Listed({1: [(2, "a")], 2: [(3, "a")]}), Listed({1: [(2, "b")], 2: [(4, "b")]})
    drafter = GrownDrafter([one, two], Acceptance({"a": 0.5, "b": 0.4}), FREE)
    drafter.begin([1])
    assert drafter.propose(9) == Draft((2, 3, 4), (-1, 0, 0)), "both go on behind it"


def test_what_is_learned_from_a_pass():
    source, shares = Listed({1: [(2, "a"), (3, "b")], 2: [(4, "a")]}), Acceptance({"a": 0.5, "b": 0.4}, weight=1)
    drafter = GrownDrafter([source], shares, FREE)
    drafter.begin([7, 1])
    drafter.propose(9)
    likely = [[(2, 0.9)], [(5, 0.8)], [(6, 0.7)], []]
    drafter.observe(Verdict((0,), (2, 5), likely))
    assert source.told == [((2, 5), [(7, 1), (7, 1, 2), (7, 1, 3), (7, 1, 2, 4)], likely)] or source.told == [
        ((2, 5), [(7, 1), (7, 1, 2), (7, 1, 2, 4), (7, 1, 3)], likely)
    ]
    assert shares["a"] == pytest.approx((0.5 + 0.99) / (1 + 1.99)) and shares["b"] == pytest.approx(0.4 / 2)


def test_a_token_that_nothing_was_drafted_for_says_nothing_of_older_guesses():
    """As of a text that was ahead of others: it is read on, and its drafter is not asked."""
    source, shares = Listed({1: [(2, "a")]}), Acceptance({"a": 0.5})
    drafter = GrownDrafter([source], shares, FREE)
    drafter.begin([1])
    drafter.propose(9)
    drafter.observe(Verdict((0,), (2, 7)))
    share = shares["a"]
    drafter.observe(Verdict((), (9,)))
    assert shares["a"] == share > 0.5
    assert source.told[-1] == ((9,), [(1, 2, 7)], ()), "it is learned from"


def test_guesses_are_judged_where_nothing_is_verified():
    """A text that its drafts do not suit is decoded plainly, and drafted again when they do."""
    source = Listed({token: [(token + 1, "next")] for token in range(2000)})
    cost = measured({1: 1.0, 2: 1.3, 3: 1.6, 4: 1.9})
    drafter = GrownDrafter([source], Acceptance({"next": 0.9}, memory=1e9), cost)
    drafter.begin([0])
    assert drafter.propose(3).size == 3
    for _ in range(60):
        drafter.propose(3)
        drafter.observe(Verdict((), (0,)))
    assert drafter.propose(3).size == 0
    for text in range(1, 201):
        drafter.propose(3)
        drafter.observe(Verdict((), (text,)))
    assert drafter.propose(3).size == 3
    drafter.begin([0])
    assert drafter.propose(3).size > 0, "another text is another matter"


@pytest.mark.parametrize("again", (False, True))
def test_what_is_not_grown_would_be_in_no_draft(again, monkeypatch):
    """A tree that stops where no wider pass can pay gives the drafts of a whole one, and learns the same from them."""

    def written(seed):
        rng, nodes = random.Random(seed), 0
        cost = measured({width: 1 + rng.random() * (width - 1) ** rng.random() for width in (1, 2, 8, 32)})
        kinds = {place: rng.random() ** 2 for place in range(6)}
        after = {token: [(rng.randrange(40), rng.randrange(6)) for _ in range(6)] for token in range(40)}
        drafter = GrownDrafter([Listed(after)], Acceptance(kinds, memory=20), cost, again=lambda: again)
        drafter.begin([0])
        drafts = []
        for _ in range(30):
            draft = drafter.propose(33)
            nodes += len(drafter._nodes)
            node = draft.child(-1, rng.choice(after[drafter.sources[0].end])[0])
            tokens = (rng.randrange(40),) if node is None else (draft.tokens[node], rng.randrange(40))
            drafts.append((draft, drafter._wanted))
            drafter.observe(Verdict(() if node is None else (node,), tokens))
        return (drafts, drafter.acceptance._seen, drafter._right, drafter._expected), nodes

    short, grown = zip(*[written(seed) for seed in range(40)], strict=True)
    monkeypatch.setattr(PassCost, "may_grow", lambda *_: True)
    whole, most = zip(*[written(seed) for seed in range(40)], strict=True)
    assert short == whole and any(draft.size > 3 for drafts, *_ in short for draft, _ in drafts)
    assert sum(grown) < 0.8 * sum(most), "much need not be grown"


def test_every_kind_of_guess_has_a_share_that_is_expected():
    source = Successors({}, frozenset(), longest=4)
    source.begin([1, 2, 3, 4])
    for share in (0.01, 0.05, 0.3, 0.6, 0.95, 1.0):
        source.learn([5], ends=[(1, 2, 3, 4)], likely=[[(5, share)]])
        for length in (1, 2, 3, 4):
            ((_, kind, _),) = source.guesses(((1, 2, 3, 4)[-length:], 0))
            assert 0 < EXPECTED[kind] <= share
    source.dice = SimpleNamespace(times=lambda likely, depth: [1000.0 ** (n - 1) for n in range(len(likely))])
    source.learn([5], ends=[(1, 2, 3, 4)], likely=[[(5, 0.5), (6, 0.2), (7, 0.1), (8, 0.1)]])
    kinds = [kind for _, kind, _ in source.guesses(((1, 2, 3, 4), 0))]
    assert kinds == [("drawn", 0, 10, 4), ("drawn", 1, 9, 4), ("drawn", 2, 0, 4), ("drawn", 2, 0, 4)]
    assert EXPECTED[kinds[0]] > EXPECTED[kinds[1]] > EXPECTED[kinds[2]]
    assert all(0 < share < 1 for share in EXPECTED.values())


# ------------------------------------------------------------------------------------------------------ places
def test_what_a_node_sees():
    tree = Draft((1, 2, 3, 4), (-1, -1, 0, 2))
    seen = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]
    assert ancestors(tree, 5).int().tolist() == seen
    assert torch.equal(ancestors(Draft((1,)), 3), torch.ones(3, 3).tril().bool())


FULL = LlamaConfig(num_hidden_layers=2)


def numbered(rows, count):
    """A cache whose keys and values are the numbers of their places."""
    cache = DynamicCache()
    values = torch.arange(float(count))[None, None, :, None].expand(rows, 1, -1, 2)
    for layer in range(2):
        cache.update(values.clone(), -values, layer)
    return cache


def test_rows_keep_their_paths():
    cache = numbered(3, 9)
    seen = torch.ones(3, 4)
    seen[1, 0] = 0
    slots = Slots(cache, FULL, seen)
    tree, none = Draft((1, 2, 3, 4), (-1, -1, 1, 0)), Draft(())
    mask = slots.mask([tree, Draft((5, 6)), none], torch.tensor([[0, *tree.depths], [0, 1, 2, 0, 0], [0] * 5]))
    assert mask.shape == (3, 1, 5, 9) and not mask[1, 0, 0, 0]
    assert mask[0, 0, 3].tolist() == [True] * 5 + [False, True, True, False]
    slots.keep([(1, 2), (0,), ()], 5)
    keys, values = cache.layers[1].keys[:, 0, :, 0], cache.layers[0].values[:, 0, :, 1]
    assert keys[0].tolist() == [0, 1, 2, 3, 4, 6, 7] and torch.equal(keys, -values)
    assert keys[1, :6].tolist() == [0, 1, 2, 3, 4, 5]
    assert slots.seen.int().tolist() == [[1] * 7, [0, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0, 0]]


def test_a_cache_is_left_in_one_piece():
    """As the model's own loop leaves it: each row's tokens follow each other."""
    cache = numbered(2, 6)
    slots = Slots(cache, FULL, torch.ones(2, 2))
    slots.seen = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()  # a pass, of which one row kept less
    slots.seen = torch.cat([slots.seen, torch.ones(2, 2).bool()], 1)  # another pass, of 4 and 5
    cache.layers[0].keys[:, 0, :, 0] = cache.layers[1].keys[:, 0, :, 0] = torch.arange(6.0)
    slots.close(4)
    assert cache.layers[0].keys[0, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert cache.layers[1].keys[1, 0, :5, 0].tolist() == [0, 1, 2, 4, 5]


def test_a_cache_stays_as_long_as_its_longest_row():
    """Of two rows that take turns to write many tokens, which leaves gaps in both."""
    cache, rows = numbered(2, 3), [[0.0, 1, 2], [0.0, 1, 2]]
    slots, width = Slots(cache, FULL, torch.ones(2, 3)), 6
    for step in range(100):
        first = 10.0 * (step + 1)
        new = (first + torch.arange(width))[None, None, :, None].expand(2, 1, -1, 2)
        for layer in range(2):
            cache.update(new.clone(), -new, layer)
        paths = [(1, 2, 3, 4), ()] if step % 10 < 5 else [(), (0, 1, 2, 3)]
        slots.keep(paths, width)
        for row, path in zip(rows, paths, strict=True):
            row.extend([first, *(first + 1 + node for node in path)])
        assert slots.seen.shape[1] == cache.get_seq_length() <= 3 + max(5 * len(rows[0]) / 4, len(rows[0]) + GAPS)
        for row, seen, keys in zip(rows, slots.seen, cache.layers[1].keys[:, 0, :, 0], strict=True):
            assert keys[seen].tolist() == row
    assert 1.3 * slots.seen.shape[1] < 100 * 5, "without it each pass would leave five places"
    slots.close(len(rows[0]) - 3)
    assert cache.layers[0].values[:, 0, :, 1].neg().tolist() == rows


def test_windows_are_counted_in_tokens_of_a_row():
    """Of three tokens: places that a row has given up are no part of it, and what no row sees is dropped."""
    cache = DynamicCache()
    cache.layers.append(DynamicSlidingWindowLayer(3))
    cache.update(*[torch.arange(8.0).view(1, 1, 8, 1).expand(2, -1, -1, -1)] * 2, 0)
    layer = cache.layers[0]
    assert layer.keys[0, 0, :, 0].tolist() == [6, 7]
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(num_hidden_layers=2, layer_types=kinds, sliding_window=3)
    slots = Slots(cache, config, torch.ones(2, 8))
    cache.update(*[torch.arange(8.0, 13).view(1, 1, 5, 1).expand(2, -1, -1, -1)] * 2, 0)
    tree = Draft((1, 2, 3, 4), (-1, 0, -1, 2))
    slots.mask([tree, tree], torch.tensor([[0, *tree.depths]] * 2))
    assert slots.windows.mask(0, 7)[0, 0].int().tolist() == [
        [1, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 1, 1],
    ]
    assert slots.windows.mask(1, 7) is None
    slots.keep([(2, 3), ()], 5)
    assert cache.layers[0].keys[:, 0, :, 0].tolist() == [[6, 7, 8, 11, 12], [6, 7, 8, 8, 8]]
    cache.update(*[torch.full((2, 1, 2, 1), 20.0)] * 2, 0)
    slots.keep([(0,), (0,)], 2)
    assert cache.layers[0].keys[:, 0, :, 0].tolist() == [[8, 11, 12, 20, 20], [8, 8, 8, 20, 20]]
    slots.close(4)
    assert cache.layers == [layer] and layer.get_seq_length() == 12
    assert layer.keys[:, 0, :, 0].tolist() == [[12, 20], [20, 8]], "the second row has three tokens, and then a hole"
