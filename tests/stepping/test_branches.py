"""A number of a guidance branch means the same conditions in every step."""

import pytest
import torch

from mmaccel.stepping.branches import MOST_BRANCHES, Branches

PROMPT, NONE, OTHER = torch.ones(1, 4, 3), torch.zeros(1, 4, 3), torch.full((1, 4, 3), 2.0)


def step(branches, *texts, expert=0):
    return [branches.next(expert, text, is_first=place == 0) for place, text in enumerate(texts)]


def test_passes_are_numbered_in_their_order():
    branches = Branches()
    for _ in range(3):
        assert step(branches, PROMPT.clone(), NONE.clone(), PROMPT.clone()) == [0, 1, 2]
    assert step(branches, None, None) == [0, 1], "without a text by their place"
    assert step(branches, NONE) == [0], "the first leads whatever its text"


@pytest.mark.parametrize("first", (3, 2))
def test_what_comes_in_the_place_of_another_keeps_its_number(first):
    """Guidance ends while layers are still skipped, or begins while they already are."""
    branches, whole, part = Branches(), (PROMPT, NONE, PROMPT), (PROMPT, PROMPT)
    if first == 3:
        assert [step(branches, *texts) for texts in (whole, part, whole)] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    else:
        assert [step(branches, *texts) for texts in (part, whole, part)] == [[0, 1], [0, 2, 1], [0, 1]]


def test_a_new_text_is_a_new_branch_as_long_as_there_are_few():
    branches = Branches()
    numbers = [step(branches, PROMPT, torch.full((1, 4, 3), float(value)))[1] for value in range(2, 20)]
    assert numbers[: MOST_BRANCHES - 1] == list(range(1, MOST_BRANCHES)) and set(numbers[MOST_BRANCHES - 1 :]) == {1}
    assert step(branches, PROMPT, torch.zeros(1, 7, 3)) == [0, 1], "of another length, too"


def test_each_expert_has_texts_of_its_own():
    branches = Branches()
    assert step(branches, PROMPT, NONE) == [0, 1]
    assert step(branches, PROMPT, OTHER, expert=1) == [0, 1]
    assert branches.count == 2
