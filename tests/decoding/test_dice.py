"""What chance will choose is known before it does, and nothing changes for that."""

from types import SimpleNamespace

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper
from transformers.generation import RepetitionPenaltyLogitsProcessor

from mmaccel.decoding.dice import Dice
from mmaccel.decoding.generation import Call

SIZE = 50


def dice(*processors):
    return Dice(
        SimpleNamespace(ids=torch.ones(1, 3, dtype=torch.long), processors=LogitsProcessorList(processors)), SIZE
    )


def logits(seed=0):
    return 2 * torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def drawn(rows, *warpers):
    """As `generate` draws."""
    scores = [LogitsProcessorList(warpers)(torch.ones(1, 3, dtype=torch.long), row[None].clone()) for row in rows]
    return [int(torch.multinomial(each.softmax(-1), 1)) for each in scores]


@pytest.mark.parametrize("warpers", ((), (TemperatureLogitsWarper(0.5), TopKLogitsWarper(5))), ids=("plain", "warped"))
@pytest.mark.parametrize("seed", range(10))
def test_it_is_what_generate_draws(seed, warpers):
    rows, known = [logits(seed + n) for n in range(4)], dice(*warpers)
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    found = [known.choose(row, depth)[0] for depth, row in enumerate(rows)]
    assert torch.equal(torch.get_rng_state(), before), "nothing was drawn"
    assert drawn(rows, *warpers) == found


def test_warpers_of_a_user_are_not_asked_before_their_turn():
    """They may count their calls."""

    class MirostatWarper(TemperatureLogitsWarper):
        pass

    assert [type(each) for each in dice(MirostatWarper(0.5), TopKLogitsWarper(5)).warpers] == [TopKLogitsWarper]


def test_what_was_not_used_is_kept_and_another_state_is_noticed(monkeypatch):
    rows, known = [logits(n) for n in range(6)], dice()
    count, draw = [], torch.Tensor.exponential_
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda *args, **more: count.append(1) or draw(*args, **more))
    torch.manual_seed(0)
    first = [known.choose(row, depth)[0] for depth, row in enumerate(rows[:4])]
    assert drawn(rows[:2]) == first[:2]
    assert [known.choose(row, depth)[0] for depth, row in enumerate(rows[2:4])] == first[2:]
    assert len(count) == 4, "each number is drawn once"
    torch.rand(3)  # as a processor of the user's may
    found = [known.choose(row, depth)[0] for depth, row in enumerate(rows)]
    assert drawn(rows) == found


def test_another_vocabulary_is_cut_or_filled_up():
    known = dice()
    torch.manual_seed(0)
    token = known.choose(logits(), 0)[0]
    more = torch.cat([logits(), torch.full((3,), 50.0)])
    assert known.choose(more, 0)[0] == token
    assert known.choose(logits()[:20], 0)[0] < 20
    assert drawn([logits()]) == [token]


def test_how_far_it_wins_and_what_is_no_warper():
    known = dice(RepetitionPenaltyLogitsProcessor(2.0), TemperatureLogitsWarper(2.0))
    assert [type(each).__name__ for each in known.warpers] == ["TemperatureLogitsWarper"]
    flat = torch.full((SIZE,), -1e4)
    flat[7] = 0.0
    assert known.choose(flat, 0) == (7, 1.0)
    flat[8] = 0.0
    assert 0.5 <= known.choose(flat, 0)[1] < 1


@pytest.mark.parametrize(
    ("device", "sampled", "rows", "known"),
    (("cpu", True, 1, True), ("mps", True, 1, False), ("cpu", False, 1, False), ("cpu", True, 2, False)),
)
def test_whose_dice_are_known(device, sampled, rows, known):
    text = SimpleNamespace(ids=SimpleNamespace(device=torch.device(device)), do_sample=sampled, processors=[])
    config = SimpleNamespace(get_text_config=lambda decoder: SimpleNamespace(vocab_size=SIZE))
    session = SimpleNamespace(target=SimpleNamespace(config=config), memory={})
    call = Call(session, rows, texts=SimpleNamespace(texts=[text] * rows))
    assert (call.dice is not None) == known and call.dice is call.dice
    assert not known or call.dice.size == SIZE
    assert Call(session).dice is None, "another engine draws"


def test_times_of_a_race():
    torch.manual_seed(0)
    numbers = torch.empty(1, SIZE).exponential_()[0]
    torch.manual_seed(0)
    assert dice().times([(3, 0.5), (9, 0.1)], 0) == pytest.approx([float(numbers[3]) / 0.5, float(numbers[9]) / 0.1])
    cold = dice(TemperatureLogitsWarper(0.5))
    assert cold.times([(3, 0.5)], 0) == pytest.approx([float(numbers[3]) / 0.25])
    assert dice().times([], 0) == []


def test_in_a_race_near_freezing_the_likeliest_win():
    times = dice(TemperatureLogitsWarper(0.001)).times([(9, 0.01), (3, 0.4), (5, 0.05)], 0)
    assert times[1] < times[2] < times[0] < float("inf")
