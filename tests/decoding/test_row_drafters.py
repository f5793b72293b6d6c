"""How large the drafts of a batch are."""

from dataclasses import dataclass

import pytest
import torch

from mmaccel.decoding.matching import Draft
from mmaccel.decoding.row_drafters import AHEAD, RowDrafters


@dataclass
class Text:
    """A text of which so many tokens are written."""

    length: int
    finished: bool = False
    room: int = 100
    unread: int = 0
    ahead: int = 0

    @property
    def ids(self) -> torch.Tensor:
        return torch.zeros(1, self.length, dtype=torch.long)


class Proposes:
    """A drafter that always guesses the same."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def propose(self, most: int) -> Draft:
        return self.draft


def proposed(texts: list[Text], sizes: list[int]) -> list[int]:
    drafters = [Proposes(Draft(tuple(range(size)))) for size in sizes]
    return [draft.size for draft in RowDrafters(drafters, texts, branches=True).propose(16).rows]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([8], [8]), ([8, 0], [0, 0]), ([8, 6, 0], [6, 6, 0]), ([8, 0, 0, 0], [0, 0, 0, 0]), ([4, 8, 8, 8], [4, 8, 8, 8])],
)
def test_a_batch_is_drafted_as_far_as_most_of_its_texts(sizes, expected):
    assert proposed([Text(10)] * len(sizes), sizes) == expected


def test_texts_that_are_ahead_or_have_ended_do_not_say_how_wide_a_pass_is():
    behind, ahead, ended = Text(10), Text(11 + AHEAD), Text(5, finished=True)
    assert proposed([behind, ahead, ahead], [0, 8, 8]) == [0, 0, 0]
    assert proposed([behind, ahead, ahead], [4, 0, 8]) == [4, 0, 4]
    assert proposed([ended, behind, ahead], [8, 2, 8]) == [0, 2, 2]


def test_a_tree_is_cut_to_its_first_nodes():
    tree = Draft((5, 6, 7), parents=(-1, -1, 0))
    assert tree.first(2) == Draft((5, 6), parents=(-1, -1))
    assert tree.first(0) == Draft(())
    assert tree.first(9) is tree
