"""What each rule commits, on blocks made by hand."""

import pytest
import torch

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.canvas.method import MASKS, Block
from mmaccel.canvas.presets import PRESETS
from mmaccel.errors import SettingError


def block(*rows, masked=None, step=0, steps=8):
    """A block whose likeliest token at each position has this chance, the rest being one other token's."""
    chances = torch.tensor(rows)
    logits = torch.stack([chances, 1 - chances], -1).clamp(min=1e-9).log()
    shown = torch.ones_like(chances, dtype=torch.bool) if masked is None else torch.tensor(masked).bool()
    return Block(logits, torch.zeros_like(chances, dtype=torch.long), chances, shown, step, steps)


def chosen(rule, *rows, **more):
    return rule.choose(block(*rows, **more)).int().tolist()


def test_factor_commit_takes_as_many_as_the_last_one_allows():
    # (n + 1)(1 - c) < 0.5: 2 * 0.01, 3 * 0.1, 4 * 0.2 is too much
    assert chosen(canvas.FactorCommit(0.5), [0.8, 0.99, 0.9, 0.6]) == [[0, 1, 1, 0]]
    assert chosen(canvas.FactorCommit(0.5), [0.6, 0.6, 0.6, 0.6]) == [[0, 0, 0, 0]]


def test_factor_commit_goes_on_behind_a_gap():
    """The largest n counts, not the first that fails: 2 * 0.3 is too much for 0.5, and so is all that follows."""
    assert chosen(canvas.FactorCommit(0.7), [0.7, 0.7, 0.85, 0.2]) == [[0, 0, 1, 0]]
    assert chosen(canvas.FactorCommit(1.3), [0.7, 0.7, 0.7, 0.2]) == [[1, 1, 1, 0]]


@pytest.mark.parametrize("preset", PRESETS[MASKS].values(), ids=PRESETS[MASKS])
def test_presets_say_what_is_left_to_add_to_the_threshold_of_the_pipeline(preset):
    """One beside a sure token, that is not above 0.7."""
    (rule,) = preset.methods
    assert chosen(rule, [0.999, 0.69]) == [[1, int("nothing to add" not in preset.note)]]


def test_committed_positions_are_left_alone_and_rows_are_apart():
    rows = [[0.99, 0.99, 0.5, 0.5], [0.5, 0.5, 0.99, 0.99]]
    assert chosen(canvas.FactorCommit(), *rows, masked=[[0, 1, 1, 1], [1, 1, 1, 1]]) == [[0, 1, 0, 0], [0, 0, 1, 1]]


def test_entropy_bound_counts_all_but_the_largest():
    entropy = torch.distributions.Categorical(torch.tensor([0.9, 0.1])).entropy().item()
    assert chosen(canvas.EntropyBound(0.5 * entropy), [0.9, 0.9, 0.9, 0.5]) == [[1, 0, 0, 0]]
    assert chosen(canvas.EntropyBound(2.5 * entropy), [0.9, 0.9, 0.9, 0.5]) == [[1, 1, 1, 0]]
    assert chosen(canvas.EntropyBound(3.5 * entropy), [0.9, 0.9, 0.9, 0.5]) == [[1, 1, 1, 1]]


def test_local_leap_lets_neighbours_of_anchors_in():
    row = [0.8, 0.95, 0.8, 0.7, 0.8]
    assert chosen(canvas.LocalLeap(radius=1), row) == [[1, 1, 1, 0, 0]]
    assert chosen(canvas.LocalLeap(radius=3), row) == [[1, 1, 1, 0, 1]]
    assert chosen(canvas.LocalLeap(radius=3), row, masked=[[1, 0, 1, 1, 1]]) == [[0, 0, 0, 0, 0]], "no anchor is left"


def test_credit_grows_for_what_stays_likely_and_is_of_one_block():
    rule, memory = canvas.CreditDecoding(decay=0.5, power=1.0, weight=1.0), {}
    logits = torch.tensor([[[1.0, 0.0]]])
    chance = logits.softmax(-1)[0, 0, 0]
    masked = torch.ones(1, 1, dtype=torch.bool)
    first = rule.adjust(logits, masked, memory)
    assert torch.allclose(first[0, 0], torch.stack([1 + (1 + chance).log(), torch.tensor(0.0)]))
    second = rule.adjust(logits, masked, memory)
    assert torch.allclose(second[0, 0, 0], 1 + (1 + 1.5 * chance).log())
    assert torch.equal(rule.adjust(logits, masked, {}), first)


def test_doubling_doubles():
    row = [0.1 * n for n in range(1, 9)]
    counts = [sum(chosen(canvas.Doubling(), row, step=step)[0]) for step in range(5)]
    assert counts == [1, 2, 4, 8, 8] and chosen(canvas.Doubling(), row)[0][-1] == 1


def test_prophet_asks_for_less_from_third_to_third():
    logits = torch.tensor([[[6.0, 0.0]] * 4])
    made = block([0.9] * 4)
    for step, all_of_it in ((0, False), (3, True), (7, True)):
        told = Block(logits, made.tokens, made.chances, made.masked, step, 8)
        assert canvas.Prophet().choose(told).all() == all_of_it
    narrow = Block(logits / 2, made.tokens, made.chances, made.masked, 7, 8)
    assert canvas.Prophet().choose(narrow).all() and not canvas.Prophet(last=4).choose(narrow).any()


def test_coherent_context_waits_for_agreement():
    rule, memory = canvas.CoherentContext(threshold=0.7, steps=2), {}
    first, second = block([0.9, 0.9, 0.4]), block([0.6, 0.2, 0.9])
    second.tokens = second.logits.argmax(-1)
    first.memory = second.memory = memory
    assert not rule.choose(first).any(), "there is one step only"
    assert rule.choose(second).int().tolist() == [[1, 0, 0]]  # 0.75 on the mean; two changed their mind
    assert canvas.CoherentContext(threshold=0.7, steps=1).choose(block([0.9, 0.6])).int().tolist() == [[1, 0]]


def test_sched_falls_smoothly():
    logits = torch.tensor([[[6.0, 0.0]] * 4])
    made = block([0.9] * 4)
    rule = canvas.SchED(first=10, last=2)
    taken = [bool(rule.choose(Block(logits, made.tokens, made.chances, made.masked, n, 9)).all()) for n in range(9)]
    assert taken == [False] * 4 + [True] * 5  # 6 is half way


@pytest.mark.parametrize("batch", (1, 2))
def test_passes_without_a_rule_are_as_many_as_the_pipeline_makes(batch):
    """In blocks of masks alone, whose rows a rule fills at their own pace."""
    pipe, arguments = examples.bidirectional()
    passes = []
    with pipe.model.register_forward_pre_hook(lambda *_: passes.append(None)):
        pipe(**arguments(batch, length=3 * examples.BLOCK))
    with mmaccel.accelerate(pipe, canvas.FactorCommit(8.0)) as fast:
        fast(**arguments(batch, length=3 * examples.BLOCK))
        assert fast.report.plain_forwards == len(passes)


def test_what_is_committed_of_a_text_that_has_ended_saves_no_pass():
    class FirstRow(canvas.FactorCommit):
        def choose(self, block):
            return block.masked & torch.tensor([[True], [False]])

    pipe, _ = examples.bidirectional()
    logits = torch.zeros(2, examples.BLOCK, examples.VOCABULARY)
    masks = torch.full((2, examples.BLOCK), examples.MASK)
    with mmaccel.accelerate(pipe, FirstRow()) as fast:
        pipe.scheduler.set_timesteps(examples.BLOCK)
        fast.adapter.decoder.finished = torch.tensor([True, False])
        pipe.scheduler.step(logits, 0, masks, mask_token_id=examples.MASK, threshold=2.0)
        assert fast.adapter.decoder.plain_steps == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: canvas.FactorCommit(-1), "factor=-1"),
        (lambda: canvas.EntropyBound(float("nan")), "bound=nan"),
        (lambda: canvas.LocalLeap(anchor=2), "anchor=2"),
        (lambda: canvas.LocalLeap(radius=1.5), "radius=1.5"),
        (lambda: canvas.CreditDecoding(decay=2), "decay=2"),
        (lambda: canvas.Doubling(0.5), "base=0.5"),
        (lambda: canvas.Prophet(middle=-1), "middle=-1"),
        (lambda: canvas.CoherentContext(steps=0), "steps=0"),
        (lambda: canvas.SchED(last=-1), "last=-1"),
        (lambda: canvas.FreeDave(0), "drafts=0"),
        (lambda: canvas.PrefixCache(-1), "refresh=-1"),
    ],
)
def test_settings_out_of_range(make, says):
    with pytest.raises(SettingError, match=says):
        make()
