"""A given text is followed, and found again after what was changed, added or left out."""

import random

import pytest

from mmaccel.decoding.drafters.given_text import LONGEST_SUFFIX, REACH, GivenText, nearest

TEXT = [10, 11, 12, 13, 14, 15, 16, 17]


def first(source):
    return [token for token, _, _ in source.guesses(source.root())]


def copied(source):
    """The tokens of the path of first guesses."""
    tokens, state = [], source.root()
    while (guess := next(source.guesses(state), None)) is not None:
        tokens.append(guess[0])
        state = guess[2]
    return tokens


def written(*tokens, texts=(TEXT,), forbidden=()):
    source = GivenText(texts, forbidden)
    source.begin([1, 2])
    source.learn(list(tokens), (), ())
    return source


def test_it_is_followed_from_its_start_to_its_end():
    assert copied(written()) == TEXT
    assert copied(written(10, 11)) == TEXT[2:]
    source = written(*TEXT)
    assert copied(source) == [] and source.followed == len(TEXT)


@pytest.mark.parametrize(
    ("said", "after"),
    (
        ((10, 11, 99), (13, 12)),  # one token stands for another, or was added
        ((10, 11, 99, 13), (14,)),
        ((10, 11, 99, 12), (13,)),
        ((10, 11, 14), (15, 13, 12)),  # two were left out
        ((10, 11, 14, 15), (16,)),
        ((10, 11, 97, 98, 99, 12), (13, 16, 15)),  # three were added
    ),
)
def test_it_is_found_again(said, after):
    assert tuple(first(written(*said))) == after


def test_a_token_far_from_where_it_was_expected_is_no_match():
    tokens = [*range(10, 40), 5, 6, 7]
    assert nearest(tokens, [5], expected=2) is None
    assert nearest(tokens, [5, 6], expected=2) == 32
    assert nearest(tokens, [30], expected=18) == 21
    assert nearest(tokens, [30], expected=18, shortest=2) is None


def in_plain_words(tokens, written, expected, shortest):
    for length in range(min(LONGEST_SUFFIX, len(written)), shortest - 1, -1):
        ends = [end for end in range(length, len(tokens)) if tokens[end - length : end] == written[-length:]]
        best = min(ends, key=lambda end: abs(end - expected), default=None)
        if best is not None and (length > 1 or abs(best - expected) <= REACH):
            return best
    return None


@pytest.mark.parametrize("shortest", (1, 2))
def test_of_the_longest_matches_the_nearest_is_taken(shortest):
    rng = random.Random(shortest)
    for _ in range(300):
        tokens, said = rng.choices(range(4), k=30), rng.choices(range(5), k=rng.randint(1, 5))
        expected = rng.randrange(32)
        place = in_plain_words(tokens, said, expected, shortest)
        assert nearest(tokens, said, expected, shortest) == place
        ends = [end for end in range(1, 30) if tokens[end - 1] == said[-1]]
        assert nearest(tokens, said, expected, shortest, ends) == place


def test_texts_follow_each_other():
    source = written(10, 11, texts=([10, 11], [20, 21]))
    assert copied(source) == [20, 21]
    assert [kind for _, kind, _ in source.guesses(source.root())] == [("given", "start")]


def test_forbidden_tokens_are_left_out():
    assert copied(written(forbidden={12, 13})) == [10, 11, 14, 15, 16, 17]


def test_kinds_tell_how_long_it_has_been_right():
    kinds = []
    state = written().root()
    source = written()
    for _ in range(5):
        _, kind, state = next(source.guesses(state))
        kinds.append(kind)
    assert kinds == [("given", kind) for kind in ("start", 1, 2, 3, 4)]
    assert next(written(10, 11, 99).guesses(written(10, 11, 99).root()))[1] == ("given", "next")
    assert next(written(10, 11, 14).guesses(written(10, 11, 14).root()))[1] == ("given", "found")


@pytest.mark.parametrize("texts", ((), ((),), ((), ())))
def test_an_empty_text(texts):
    assert copied(written(5, 6, texts=texts)) == []
