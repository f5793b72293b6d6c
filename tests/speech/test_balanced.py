"""Lines and subtitles of about the same length, for many texts, against all ways to cut them."""

import itertools
import random

import pytest

from mmaccel.speech.families.adapter import Word
from mmaccel.speech.stream.balanced import balanced
from mmaccel.speech.stream.events import Final
from mmaccel.speech.stream.subtitles import SubtitleLayout, cues

SEEDS = range(60)


def text_of(seed, most=24):
    """Words of 1 to 12 letters."""
    draw = random.Random(seed)
    return ["abcdefghijkl"[: draw.choice((1, 2, 3, 3, 4, 5, 6, 8, 12))] for _ in range(draw.randint(1, most))]


def said(words, pace=0.3):
    times = [Word(word, place * pace, place * pace + 0.2) for place, word in enumerate(words)]
    return Final(" ".join(words), tuple(times), 0.0, len(words) * pace)


def all_cuts(words, fits):
    """Every way to cut words into parts that fit."""
    for places in itertools.product((False, True), repeat=len(words) - 1):
        ends = [place + 1 for place, cut in enumerate(places) if cut] + [len(words)]
        parts = [tuple(words[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
        if all(len(part) == 1 or fits(" ".join(part)) for part in parts):
            yield parts


def rank(parts):
    """What makes one way better than another."""
    alone = len(parts) > 1 and len(parts[-1]) == 1
    return len(parts), alone, sum(len(" ".join(part)) ** 2 for part in parts)


@pytest.mark.parametrize("seed", SEEDS)
def test_lines_are_the_best_of_all_ways(seed):
    words, layout = text_of(seed, most=11), SubtitleLayout(width=16)
    lines = layout.wrap(" ".join(words))
    best = min(map(rank, all_cuts(words, lambda text: len(text) <= 16)))
    assert rank([tuple(line.split()) for line in lines]) == best
    assert all(len(line) <= 16 for line in lines)


@pytest.mark.parametrize("seed", SEEDS)
def test_subtitles_of_a_sentence_are_the_best_of_all_ways(seed):
    words, layout = text_of(seed, most=12), SubtitleLayout(width=12)
    shown = [tuple(" ".join(cue.lines).split()) for cue in cues([said(words)], layout)]
    assert rank(shown) == min(map(rank, all_cuts(words, layout.fits)))


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_are_kept_and_no_word_is_lost(seed):
    words = text_of(seed, most=150)
    layout = SubtitleLayout(width=random.Random(seed).randint(12, 50), lines=1 + seed % 3, longest=1.0 + seed % 7)
    shown = cues([said(words)], layout)
    assert " ".join(line for cue in shown for line in cue.lines).split() == words
    assert all(len(line) <= layout.width for cue in shown for line in cue.lines)
    assert all(len(cue.lines) <= layout.lines for cue in shown)
    assert all(cue.end - cue.start <= layout.longest + 1e-9 for cue in shown)


def test_no_last_word_is_alone():
    layout = SubtitleLayout(width=20)
    lines = layout.wrap("one two three four five")  # 18 letters would fill the first line, and leave one word
    assert lines == ["one two three", "four five"]
    words = ["it", "was", "the", "best", "of", "times", "and", "it", "was", "the", "worst", "of"]
    shown = cues([said(words)], layout)
    assert [len(" ".join(cue.lines).split()) for cue in shown] == [6, 6]


def test_a_word_stays_alone_where_nothing_else_fits():
    assert SubtitleLayout(width=10).wrap("again incredulous") == ["again", "incredulou", "s"]
    assert balanced(2, lambda start, end: False, lambda start, end: end - start) == [(0, 1), (1, 2)]
    assert balanced(0, lambda start, end: True, lambda start, end: end - start) == []


def test_scripts_without_spaces_are_balanced_by_characters():
    lines = SubtitleLayout(width=12).wrap("\u4f60" * 12)
    assert [len(line) for line in lines] == [6, 6]
