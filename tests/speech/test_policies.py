"""Which words of a hypothesis stay."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import scripted_recognizer as scripted
import torch

from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.policies.align_att import AlignAtt
from mmaccel.speech.policies.append_only import AppendOnly
from mmaccel.speech.policies.local_agreement import LocalAgreement, agreed
from mmaccel.speech.policies.policy import SegmentHypothesis
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.speech.stream.segment import remainder
from mmaccel.speech.stream.units import _edits, covered, matches, plain, units


class Spelling:
    """An adapter whose tokens are the hypothesis itself."""

    @staticmethod
    def text(tokens):
        return "".join(tokens)


def heard(text, ended=True, seconds=0.0):
    return SegmentHypothesis(Spelling(), SimpleNamespace(seconds=seconds), (), tuple(text), ended)


def follow(policy, texts, committed=(), every=0.5):
    commitment = policy.begin(committed)
    for place, text in enumerate(texts):
        before = list(commitment.committed)
        new = commitment.update(heard(text, seconds=place * every))
        assert commitment.committed == before + new  # it only grows
        yield "".join(commitment.committed)


def test_two_hypotheses_agree():
    """By hand: a word stays when the hypothesis after it says the same."""
    texts = ["try", "try again", "try again fell", "try again fail", "try again fail again."]
    assert list(follow(LocalAgreement(2), texts)) == ["", "try", "try again", "try again", "try again fail"]


def test_three_hypotheses_agree():
    texts = ["a b", "a b c", "a b c d", "a b c d", "a b c d e"]
    assert list(follow(LocalAgreement(3), texts)) == ["", "", "a b", "a b c", "a b c d"]


def test_a_word_that_changes_again_and_again_does_not_hold_back_those_behind_it():
    """By hand, from a stream: two hypotheses differ in a number, and agree on the words behind."""
    texts = [
        "like the 22th that",
        "like the 20 pair some of",
        "like the 22th that some of the",
        "like the 20th some of the loud",
    ]
    assert list(follow(LocalAgreement(bridge=0), texts)) == ["", "like the", "like the", "like the"]
    assert list(follow(LocalAgreement(), texts))[-1] == "like the 20th some of the"
    assert list(follow(LocalAgreement(bridge=4), texts))[-1] == "like the"
    far = ["the one two three four like any other", "the five six seven eight like any other"]
    assert list(follow(LocalAgreement(), far))[-1] == "the", "more than two words are no slip"


def test_what_agrees_after_a_bridge_stays_once():
    texts = ["a x b c d", "a y b c d e", "a x b c d e f", "a x b c d e f"]
    assert list(follow(LocalAgreement(), texts)) == ["", "a y b c d", "a y b c d e", "a y b c d e f"]
    assert agreed(["the", " the", " cat"], ["the", " cat"], bridge=3) == 1, "words that repeat do not hide what agrees"


def test_hypotheses_of_the_same_audio_are_one():
    """The look at an interval and the look at a pause can be a frame apart."""
    assert list(follow(LocalAgreement(), ["a b", "a b", "a b c"], every=0.1)) == ["", "", "a b"]
    assert list(follow(LocalAgreement(3), ["a", "a", "a", "a", "a"], every=0.1)) == ["", "", "", "", "a"]
    assert list(follow(LocalAgreement(10), ["a"] * 19, every=0.125))[-2:] == ["", "a"]


def test_one_hypothesis_commits_all():
    assert list(follow(LocalAgreement(1), ["a b", "a c d"])) == ["a b", "a b d"]


def test_case_and_punctuation_do_not_hold_back():
    texts = ["Ever tried.", "ever tried, ever", "Ever tried. Ever failed."]
    assert list(follow(LocalAgreement(), texts)) == ["", "ever tried,", "ever tried, Ever"]


def test_a_change_of_heart_does_not_repeat_or_lose_later_words():
    texts = ["ice cream", "ice cream is", "icecream is good", "icecream is good", "i scream is good now"]
    assert list(follow(LocalAgreement(), texts))[-2:] == ["ice cream is good", "ice cream is good"]


def test_words_behind_what_stays_have_a_space():
    """Also where a hypothesis leaves out all that is committed, as behind a cut."""
    texts = ["Unless a system", "Unless a system"]
    assert list(follow(LocalAgreement(), texts, ["I'm"]))[-1] == "I'm Unless a system"


def test_what_is_committed_before_the_first_hypothesis():
    assert list(follow(LocalAgreement(), ["no matter try", "no matter try"], ["no", " matter"])) == [
        "no matter",
        "no matter try",
    ]


def test_a_loop_commits_nothing():
    commitment = LocalAgreement().begin()
    commitment.update(heard("so so so so"))
    assert commitment.update(heard("so so so so", ended=False, seconds=1.0)) == []
    assert "".join(commitment.tail) == "so so so so"


def test_scripts_without_spaces_commit_by_character():
    assert list(follow(LocalAgreement(), ["\u4f60\u597d", "\u4f60\u597d\u5417"]))[-1] == "\u4f60\u597d"


def test_an_empty_hypothesis_keeps_what_stays():
    assert list(follow(LocalAgreement(), ["a", "a", "", "a b", "a b"])) == ["", "a", "a", "a", "a b"]


def test_append_only_holds_back_the_last_words():
    texts = ["no mat", "no matter try", "no matter try again"]
    assert list(follow(AppendOnly(), texts)) == ["no", "no matter", "no matter try"]
    assert list(follow(AppendOnly(hold=0), texts[1:])) == ["no matter try", "no matter try again"]
    assert list(follow(AppendOnly(hold=5), texts)) == ["", "", ""]


def test_append_only_promises_no_word_that_was_drawn_with_silence_in_place_of_what_follows():
    commitment, tokens = AppendOnly(hold=0).begin(), ("no", " mat", "ter", " try")
    for settled, stays in ((0, ""), (2, "no"), (3, "no matter"), (4, "no matter try")):
        commitment.update(replace(heard(tokens), settled=settled))
        assert "".join(commitment.committed) == stays
    commitment = AppendOnly(hold=1).begin()
    assert commitment.update(replace(heard(tokens), settled=3)) == ["no"], "speech may go on with what it holds back"
    assert commitment.update(replace(heard(tokens), settled=4)) == [" matter"]


def test_append_only_needs_such_an_encoder():
    with pytest.raises(UnsupportedTargetError, match="LocalAgreement"):
        StreamingRecognizer(scripted.ScriptedAdapter(), policy=AppendOnly(), endpoint="energy")
    asr = StreamingRecognizer(scripted.ScriptedAdapter(appends=True), policy=AppendOnly(), endpoint=EnergyEndpoint())
    with asr.stream() as stream:
        events = stream.push(scripted.spoken(range(5))) + stream.finish()
    assert events[-1].text == "w0 w1 w2 w3 w4"
    assert stream.stats.retracted == 0 < stream.stats.committed


@pytest.mark.parametrize("n", (0, 11, 1.5, True, "2"))
def test_bad_counts(n):
    with pytest.raises(SettingError, match="between 1 and 10"):
        LocalAgreement(n)
    if n != 0:
        with pytest.raises(SettingError, match="between 0 and 10 words, such as 3"):
            LocalAgreement(bridge=n)
        with pytest.raises(SettingError, match="between 0 and 10"):
            AppendOnly(n)


def test_units_are_the_text():
    for text in ("Try again.  Fail -- again?", "\u4f60\u597d\u3002 ok \u5417", "", "one"):
        assert "".join(units(text)) == text
    assert plain(" Don't,") == "dont" and plain("--") == "--"


def test_words_that_differ_in_vowel_signs_alone_are_others():
    """Of "mera" and "meri" in Hindi, and of two syllables in Thai; a Turkish capital differs in its case alone."""
    assert plain("मेरा") != plain("मेरी") and plain("\u0e01\u0e34") != plain("\u0e01\u0e35")
    assert agreed(["मेरा", " घर"], ["मेरी", " घर"], bridge=0) == 0 == agreed(["मेरी"], ["मेरा"], bridge=0)
    assert plain("İstanbul,") == plain("istanbul") and plain("snake_case") == "snakecase"


def test_covered_by_the_least_edits():
    assert covered([], ["a"]) == 0
    assert covered(["a", "b"], []) == 0
    assert covered(["it", "was", "the", "best"], ["it", "was", "a", "best", "of"]) == 4
    assert covered(["try", "again", "fail"], ["try", "fail", "again"]) == 2
    assert covered(["try", "again", "better"], ["try", "again", "much", "better", "than"]) == 4
    assert _edits("kitten", "sitting") == [6, 6, 5, 4, 3, 3, 2, 3]
    assert _edits("", "ab") == [0, 1, 2] and _edits("ab", "") == [2]


def test_matches_and_remainder():
    assert matches(["a", "b", "c", "d"], ["a", "c", "d"]) == [(0, 0), (2, 1), (3, 2)]
    assert remainder((1, 2, 3, 4), ()) == (1, 2, 3, 4)
    assert remainder((1, 2, 3, 4), (1, 2, 3, 4)) == ()


class Looking(Spelling):
    """An adapter whose decoder looks at given frames of 0.1 s."""

    frame_seconds = 0.1

    def __init__(self, frames):
        self.frames = frames

    def attention(self, encoded, tokens, prompt):
        scores = torch.zeros(len(tokens) + 1, 100)
        for row, frame in enumerate(self.frames[: len(tokens)]):
            scores[row, frame] = 1.0
        return scores


def look(commitment, tokens, frames, seconds):
    encoded = SimpleNamespace(seconds=seconds)
    return commitment.update(SegmentHypothesis(Looking(frames), encoded, (), tuple(tokens), True))


class Watching(scripted.ScriptedAdapter):
    """A scripted adapter that looks at the end of each word."""

    looks = 0

    def attention(self, encoded, tokens, prompt):
        self.looks += 1
        ends = [round(last) for _, _, last in encoded.hidden_states[0].tolist()]
        return torch.nn.functional.one_hot(torch.tensor([*ends, 2_999]), 3_000).float()


def test_passes_of_a_policy_are_counted():
    asr = StreamingRecognizer(Watching(), policy=AlignAtt(), endpoint=EnergyEndpoint())
    with asr.stream() as stream:
        stream.push(scripted.spoken(range(9)))
        stream.finish()
    assert asr.adapter.looks > 3 and stream.stats.committed > 3
    assert stream.stats.decoder_calls == asr.adapter.target.calls + asr.adapter.looks


def test_align_att_by_hand():
    """Half a second before the end words are open, and so is a word whose last part is."""
    commitment = AlignAtt(margin=0.5).begin()
    assert look(commitment, ["try", " again", " fail"], [2, 8, 14], 2.0) == ["try", " again", " fail"]
    assert look(commitment, ["try", " again", " fail", " bett", "er"], [2, 8, 14, 19, 26], 3.0) == []
    assert look(commitment, ["try", " again", " fail", " bett", "er"], [2, 8, 14, 19, 26], 3.2) == [" better"]
    assert commitment.tail == []


def test_align_att_stops_at_a_rewind():
    commitment = AlignAtt(rewind=4.0).begin()
    assert look(commitment, ["a", " b", " c", " d"], [2, 60, 1, 70], 9.0) == ["a", " b"]
    assert commitment.tail == [" c", " d"]


def test_align_att_does_not_promise_what_is_promised():
    commitment = AlignAtt().begin(["a", " b"])
    assert look(commitment, ["A", " b"], [2, 5], 9.0) == []
    assert look(commitment, ["A", " b", " c"], [2, 5, 8], 9.0) == [" c"]
    assert look(commitment, [], [], 9.0) == []


def test_align_att_needs_to_see():
    with pytest.raises(UnsupportedTargetError, match="LocalAgreement"):
        StreamingRecognizer(scripted.ScriptedAdapter(), policy=AlignAtt(), endpoint="energy")
    for setting in ({"margin": -1}, {"rewind": 0}):
        with pytest.raises(SettingError, match="such as"):
            AlignAtt(**setting)


def test_align_att_holds_back_what_is_just_within_its_margin():
    assert AlignAtt(margin=0.5).settled([0.25, 1.5], seconds=2.0) == 1
    assert AlignAtt(margin=0.5).settled([0.25, 1.25], seconds=2.0) == 2
    assert AlignAtt(margin=0.0, rewind=4.0).settled([5.0, 1.0, 0.5], seconds=9.0) == 3, "just as far back as allowed"


def test_bounds_of_the_settings_include_their_ends():
    assert LocalAgreement(10).n == AppendOnly(10).hold == 10 and AlignAtt(10, 60).rewind == 60
    assert AlignAtt(margin=0, rewind=0.1).margin == 0
    for setting in ({"margin": 10.1}, {"rewind": 60.1}, {"rewind": 0.09}):
        with pytest.raises(SettingError, match=f"AlignAtt.{next(iter(setting))}="):
            AlignAtt(**setting)


def test_align_att_looks_with_the_prompt_of_the_segment():
    asked = []
    adapter, encoded = Looking([2]), SimpleNamespace(seconds=9.0)
    attention = adapter.attention
    adapter.attention = lambda *given: asked.append(given) or attention(*given)
    AlignAtt().begin().update(SegmentHypothesis(adapter, encoded, (7, 8), ("a",)))
    assert asked == [(encoded, ("a",), (7, 8))]
