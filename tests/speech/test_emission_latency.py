"""Latency of emission against figures worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from mmaccel.errors import SettingError
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.stream.emission_latency import (
    Emission,
    Utterance,
    _matches,
    emission_latency,
    emissions_of,
    partial_recognition_latency,
    word_delays,
)


def said(text, every=1.0):
    return [Word(word, i * every, (i + 1) * every) for i, word in enumerate(text.split())]


def shown(text, late=0.25, every=1.0):
    return [Emission(word, (i + 1) * every + late) for i, word in enumerate(text.split())]


def test_partial_recognition_latency():
    assert partial_recognition_latency(Utterance(shown("a b c"), said("a b c"))) == 0.25
    assert partial_recognition_latency(Utterance(shown("a b c"), said("a b c"), speech_end=4.0)) == -0.75
    assert partial_recognition_latency(Utterance(shown("a b x"), said("a b c"))) == 0.25  # right or wrong
    assert partial_recognition_latency(Utterance([], said("a"))) is None
    assert partial_recognition_latency(Utterance(shown("a"), [])) is None


def test_percentiles_over_utterances():
    late = [0.1, 0.2, 0.3, 0.4, 1.0]
    found = emission_latency([Utterance(shown("a b", x), said("a b")) for x in late])
    assert found.pr50 == pytest.approx(0.3)
    assert found.pr90 == pytest.approx(0.76)  # between 0.4 and 1.0
    assert found.delay50 == pytest.approx(0.3) and found.delay_mean == pytest.approx(0.4)
    assert (found.matched, found.words, found.silent, found.utterances) == (10, 10, 0, 5)
    assert str(found).startswith("PR50 300 ms, PR90 760 ms, word delay 400 ms")


def test_what_is_told_early_counts_apart():
    early = [Utterance(shown("a b", 0.5), said("a b"), eager=2.0 + x) for x in (0.1, 0.2, 0.3)]
    found = emission_latency([*early, Utterance(shown("a"), said("a")), Utterance([], [], eager=1.0)])
    assert found.eager50 == pytest.approx(0.2) and found.eager90 == pytest.approx(0.28) and found.pr50 == 0.5
    assert "(told early 200 ms, 280 ms)" in str(found)
    assert emission_latency([Utterance([], [], 3.0, eager=3.25)]).eager50 == 0.25


def test_words_missed_wrong_and_too_many():
    utterance = Utterance(
        [Emission("one", 1.5), Emission("and", 1.75), Emission("three", 3.5), Emission("five", 4.5)],
        said("one two three four"),
    )
    assert word_delays(utterance) == [0.5, None, 0.5, None]
    found = emission_latency([utterance, Utterance([], said("lost words")), Utterance([], [])])
    assert (found.matched, found.words, found.silent, found.utterances) == (2, 6, 1, 3)
    assert found.pr50 == found.pr90 == 0.5


def test_words_compare_without_case_and_punctuation():
    assert word_delays(Utterance(shown("Don't STOP, -- 'now'"), said("don't stop now"))) == [0.25, 0.25, 1.25]
    assert word_delays(Utterance(shown("A"), said("a")), normalize=str) == [None]
    assert word_delays(Utterance(shown("मेरी"), said("मेरा"))) == [None], "another vowel"
    utterances = [Utterance(shown("A"), said("a"))]
    assert emission_latency(utterances).matched == 1 and emission_latency(utterances, normalize=str).matched == 0


def test_nothing_at_all():
    found = emission_latency([])
    assert found.pr50 is None and found.delay_mean is None and found.words == 0
    assert "PR50 unknown" in str(found)


def test_the_alignment_has_the_fewest_edits():
    def edits(one, two):  # the definition
        if not one or not two:
            return len(one) + len(two)
        swap = edits(one[1:], two[1:]) + (one[0] != two[0])
        return min(swap, edits(one[1:], two) + 1, edits(one, two[1:]) + 1)

    def cost(one, two, pairs):
        total, gaps = 0, zip([(-1, -1), *pairs], [*pairs, (len(one), len(two))], strict=True)
        for (i, j), (k, m) in gaps:
            total += max(k - i, m - j) - 1
        return total

    texts = [list(x) for n in range(5) for x in itertools.product("ab", repeat=n)]
    for one, two in itertools.product(texts, texts):
        pairs = _matches(one, two)
        assert all(one[i] == two[j] for i, j in pairs)
        assert cost(one, two, pairs) == edits(one, two)


def test_emissions_of_a_recogniser_that_takes_words_back():
    partials = [
        (1.0, ["I"]),
        (2.0, ["I", "sea"]),
        (3.0, ["I", "see", "the"]),
        (4.0, ["Eye", "see", "the", "sun"]),
        (5.0, ["I", "see", "the", "sun"]),
        (6.0, ["I", "see", "the", "sun."]),
    ]
    assert [e.at for e in emissions_of(partials)] == [5.0, 5.0, 5.0, 5.0]  # a word before them changed at 4
    assert [e.at for e in emissions_of(partials[:3])] == [1.0, 3.0, 3.0]
    assert [e.text for e in emissions_of(partials)] == ["I", "see", "the", "sun."]
    assert [e.at for e in emissions_of(partials[4:], normalize=str)] == [5.0, 5.0, 5.0, 6.0]
    assert emissions_of([]) == [] and emissions_of([(1.0, ["a"]), (2.0, [])]) == []
    with pytest.raises(SettingError, match="order of their time"):
        emissions_of([(2.0, ["a"]), (1.0, ["a"])])


def test_words_alone_do_not_wait_for_a_corrected_one():
    noisy = ["so", "far", "that", "some", "of", "its", "noisiest", "friends", "insisted", "on", "it"]
    partials = [(float(n), noisy[:n]) for n in range(1, 12)] + [(20.0, [*noisy[:6], "noisyest", *noisy[7:]])]
    assert [e.at for e in emissions_of(partials)] == [1, 2, 3, 4, 5, 6, 20, 20, 20, 20, 20]
    assert [e.at for e in emissions_of(partials, alone=True)] == [1, 2, 3, 4, 5, 6, 20, 8, 9, 10, 11]


def test_words_alone_are_aligned_with_what_was_spoken_by_then():
    """The same words come again later, a word is shown as two, one is left out, and one was away for a while."""
    final = ["it", "was", "the", "best", "it", "was", "the", "worst"]
    partials = [(1.0, ["it", "was", "a"]), (2.0, ["it", "was", "the", "best"]), (3.0, final)]
    assert [e.at for e in emissions_of(partials, alone=True)] == [1, 1, 2, 2, 3, 3, 3, 3]
    final = ["icecream", "is", "good", "today"]
    partials = [
        (1.0, ["ice", "cream", "is"]),
        (2.0, ["ice", "cream", "good"]),
        (3.0, ["ice", "cream", "is", "good"]),
        (4.0, final),
    ]
    assert [e.at for e in emissions_of(partials, alone=True)] == [4, 3, 2, 4]
    assert emissions_of([(1.0, ["x"]), (2.0, [])], alone=True) == []
