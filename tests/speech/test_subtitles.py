"""Subtitles that can be read, and read back."""

import json
import re

import pytest

from mmaccel.errors import SettingError
from mmaccel.speech.families.adapter import Word
from mmaccel.speech.stream.events import Final
from mmaccel.speech.stream.stats import StreamStats
from mmaccel.speech.stream.subtitles import Cue, SubtitleLayout, cues, to_json, to_srt, to_vtt, write_subtitles
from mmaccel.speech.stream.transcribe import Transcript
from mmaccel.speech.stream.units import columns


def said(text, start=0.0, pace=0.4):
    words = tuple(
        Word(word, start + place * pace, start + (place + 0.9) * pace) for place, word in enumerate(text.split())
    )
    return Final(text, words, start, start + len(words) * pace)


LONG = said(
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of"
    " foolishness, it was the epoch of belief, it was the epoch of incredulity."
)


def test_no_word_is_lost_and_lines_are_readable():
    layout = SubtitleLayout()
    shown = cues([LONG, said("Try again.", 40.0)], layout)
    assert " ".join(line for cue in shown for line in cue.lines) == LONG.text + " Try again."
    assert all(len(line) <= 42 for cue in shown for line in cue.lines)
    assert all(len(cue.lines) <= 2 and cue.end - cue.start <= 7.0 for cue in shown)
    assert all(before.end <= after.start for before, after in zip(shown, shown[1:], strict=False))
    assert len(shown) >= 3


def test_short_ones_stay_until_they_are_read():
    (alone,) = cues([said("No.", 3.0, pace=0.2)])
    assert (alone.start, alone.end) == (3.0, 4.0)
    fast, following = cues([said("unbelievably quickly spoken words", 0.0, pace=0.1), said("Next one.", 1.2)])
    assert fast.end == 1.2 == following.start  # 33 characters would want 1.65 s


def test_sentences_and_pauses_part_subtitles():
    first = said("This is the end of a sentence. Here is another.")
    assert [cue.lines for cue in cues([first])] == [("This is the end of a sentence.",), ("Here is another.",)]
    for text in ('He said "no more than that." She left.', "वह कल शाम को घर गया था। वह चला गया।"):
        quoted = said(text)
        end = max(text.find(mark) for mark in ('." ', "। ")) + 2
        assert [cue.lines for cue in cues([quoted])] == [(text[:end].strip(),), (text[end:].strip(),)]
    paused = Final("one two", (Word("one", 0, 1), Word("two", 3, 4)), 0, 4)
    assert [cue.lines for cue in cues([paused])] == [("one",), ("two",)]


def test_a_mark_behind_a_space_stays_with_its_word():
    """As French has them: no line begins with one, or ends with a quote that opens."""
    text = "Il a dit : \u00ab Je viens demain ! \u00bb Et toi ?"
    assert [cue.lines[0] for cue in cues([said(text)])] == [text[:-9], text[-8:]], "two sentences"
    for width in range(10, 30):
        for segment in (said(text), Final(text, (), 0.0, 4.0)):
            shown = cues([segment], SubtitleLayout(width=width))
            lines = [line for cue in shown for line in cue.lines]
            assert " ".join(lines) == text and max(map(len, lines)) <= width
            assert not any(line[0] in ":!?\u00bb" or line[-1] == "\u00ab" for line in lines)


def test_lines_are_of_about_the_same_length():
    (cue,) = cues([said("there are about forty five characters in this", pace=0.2)])
    assert len(cue.lines) == 2 and abs(len(cue.lines[0]) - len(cue.lines[1])) <= 8


def test_text_without_times_is_spread_over_its_segment():
    shown = cues([Final(LONG.text, (), 0.0, 12.0)])
    assert " ".join(line for cue in shown for line in cue.lines) == LONG.text
    assert shown[0].start == 0.0 and 12.0 <= shown[-1].end < 13.0
    assert cues([Final("", (), 0.0, 1.0)]) == []


def test_a_word_longer_than_a_line_is_broken():
    shown = cues([said("a" * 100)])
    assert "".join(line for cue in shown for line in cue.lines) == "a" * 100
    assert all(len(line) <= 42 for cue in shown for line in cue.lines)


def test_srt():
    text = to_srt([Cue(0.0, 1.5, ("Try", "again.")), Cue(3661.2345, 3662.9999, ("a --> b",))])
    assert text == "1\n00:00:00,000 --> 00:00:01,500\nTry\nagain.\n\n2\n01:01:01,234 --> 01:01:03,000\na -> b\n"


def test_vtt_escapes():
    text = to_vtt([Cue(59.9996, 61.0, ("<b> & --> x",))])
    assert text == "WEBVTT\n\n00:01:00.000 --> 00:01:01.000\n&lt;b&gt; &amp; --&gt; x\n"
    assert to_vtt([]) == "WEBVTT\n"


def test_json():
    made = json.loads(to_json([said("Fail better.", 1.0), said("", 4.0), said("caf\u00e9", 5.0)]))
    assert made["text"] == "Fail better. caf\u00e9"
    assert made["segments"][0]["words"][1] == {"text": "better.", "start": 1.4, "end": 1.76}


@pytest.mark.parametrize("suffix", (".srt", ".vtt", ".json", ".SRT"))
def test_files(tmp_path, suffix):
    path = tmp_path / f"talk{suffix}"
    write_subtitles(path, [said("caf\u00e9 ol\u00e9")])
    assert "caf\u00e9" in path.read_text(encoding="utf-8")


def test_other_files_are_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(SettingError, match=r"\.srt, \.vtt, \.json"):
        write_subtitles(tmp_path / "talk.txt", [LONG])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "setting", ({"width": 5}, {"lines": 0}, {"longest": 0.5}, {"shortest": 8.0}, {"reading_speed": 0})
)
def test_bad_layouts(setting):
    (name,) = setting
    with pytest.raises(SettingError, match=rf"SubtitleLayout\({name}=.*such as"):
        SubtitleLayout(**setting)


def test_scripts_without_spaces_are_joined_without():
    text = "\u4f60\u597d\u5417\u3002"
    words = tuple(Word(unit, place, place + 1) for place, unit in enumerate(("\u4f60", "\u597d", "\u5417\u3002")))
    assert cues([Final(text, words, 0, 3)])[0].lines == (text,)
    assert not re.search(r"\s", cues([Final(text, (), 0, 3)])[0].lines[0])
    several = (Word("\u4f60\u597d", 0, 1), Word("\u5417\u3002", 1, 2))
    assert cues([Final(text, several, 0, 3)])[0].lines == (text,)
    assert json.loads(to_json([Final(text, (), 0, 3), Final(text, (), 3, 6)]))["text"] == 2 * text


def test_letters_that_are_twice_as_wide_count_as_two_and_marks_on_a_letter_not_at_all():
    """Lines of Chinese and Korean fit on the screen, and stay as long as they take; vowels of Thai have no width."""
    for text in ("\u4f60\u597d\u5417" * 40, "\ud55c\uad6d\uc5b4 " * 40, "\ud55c" * 100):
        shown = cues([Final(text, (), 0.0, 20.0)])
        lines = [line for cue in shown for line in cue.lines]
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
        assert 15 < max(map(len, lines)) <= 42 and max(map(columns, lines)) <= 42 < 2 * max(map(columns, lines))
    (alone,) = cues([Final("\u4f60" * 15, (), 0.0, 1.0)])
    assert alone.end == 1.5, "fifteen characters at ten a second"
    thai = "\u0e17\u0e35\u0e48" * 40
    assert cues([Final(thai, (), 0.0, 4.0)])[0].lines == (thai,)


def test_no_line_ends_with_a_bracket_that_opens_or_begins_with_one_that_closes():
    text = "\u4ed6\u8bf4\u300c\u4f60\u597dOK\u300d\u548c\u300aABC\u300b\uff08\u597d\uff09\u3002" * 4
    for width in range(10, 40):
        shown = cues([Final(text, (), 0.0, 20.0)], SubtitleLayout(width=width))
        lines = [line for cue in shown for line in cue.lines]
        assert "".join(lines) == text
        assert not any(line[-1] in "\u300c\u300a\uff08" or line[0] in "\u300d\u300b\uff09\u3002" for line in lines)


def test_none_is_shown_for_longer_than_the_layout_allows():
    """However slowly one reads, and however short the words are."""
    slow = SubtitleLayout(longest=3.0, shortest=0.0, reading_speed=1.0)
    (alone,) = cues([said("Try again", 1.0, pace=0.2)], slow)
    assert (alone.start, alone.end) == (1.0, 4.0)
    shown = cues([said("a b c d e f g h i j k l m", 0.0, pace=1.0)], slow)
    assert len(shown) > 3 and all(cue.end - cue.start <= 3.0 for cue in shown)


def test_short_sentences_stay_together_and_only_a_pause_behind_the_last_word_parts():
    assert [cue.lines for cue in cues([said("Yes. No. Maybe.")])] == [("Yes. No. Maybe.",)]
    even = Final(
        "one two three",
        tuple(Word(text, place, place + 0.5) for place, text in enumerate(("one", "two", "three"))),
        0,
        3,
    )
    assert len(cues([even])) == 1


def test_words_without_times_begin_where_their_segment_does():
    (shown,) = cues([Final("Try again", (), 10.0, 12.0)])
    assert (shown.start, shown.end) == (10.0, 12.0)


@pytest.mark.parametrize(("suffix", "written"), ((".srt", to_srt), (".vtt", to_vtt)))
def test_files_follow_the_layout(tmp_path, suffix, written):
    layout, path = SubtitleLayout(width=10, lines=1), tmp_path / f"talk{suffix}"
    write_subtitles(path, [LONG], layout)
    assert path.read_text() == written(cues([LONG], layout)) != written(cues([LONG]))
    Transcript(LONG.text, LONG.words, (LONG,), StreamStats()).save(path, layout)
    assert path.read_text() == written(cues([LONG], layout))


def test_a_time_before_the_start_is_the_start():
    assert to_srt([Cue(-0.5, 1.0, ("a",))]).startswith("1\n00:00:00,000 --> 00:00:01,000")


def test_bounds_of_a_layout_include_their_ends():
    least = {"width": 10, "lines": 1, "longest": 1, "shortest": 0, "reading_speed": 1}
    most = {"width": 200, "lines": 10, "longest": 60, "shortest": 60, "reading_speed": 1000}
    for ends in (least, most):
        made = SubtitleLayout(**ends)
        assert {name: getattr(made, name) for name in ends} == ends
    assert SubtitleLayout(longest=2, shortest=2).shortest == 2
    for setting in ({"width": 201}, {"lines": 11}, {"longest": 60.1}, {"shortest": -0.1}, {"reading_speed": 1000.1}):
        with pytest.raises(SettingError, match=f"SubtitleLayout.{next(iter(setting))}="):
            SubtitleLayout(**setting)


def test_words_that_the_text_writes_otherwise_keep_their_times():
    words = (Word(" Dr.", 1.0, 1.5), Word(" Who ", 1.5, 2.5))
    (shown,) = cues([Final("Doctor who is it", words, 1.0, 2.5)])
    assert shown.lines == ("Dr. Who",) and (shown.start, shown.end) == (1.0, 2.5)


def test_one_that_begins_before_the_one_before_it_ends_neither_early_nor_at_once():
    first, second = cues([said("Try again.", 5.0), said("Fail again.", 4.0)])
    assert (first.start, first.end) == (5.0, 5.0) and second.start == 4.0


@pytest.mark.parametrize("end", (".", "?", "!", "\u3002", "\uff1f", "\uff01"))
def test_every_end_of_a_sentence_parts(end):
    first, second = cues([said(f"this is a sentence of some length{end} And more")])
    assert first.lines == (f"this is a sentence of some length{end}",) and second.lines == ("And more",)


def test_segments_have_their_times_to_the_millisecond():
    word = Word("one", 1.00049, 1.99951)
    made = json.loads(to_json([Final("one", (word,), 0.90049, 2.10051)]))["segments"]
    assert made == [{"start": 0.9, "end": 2.101, "text": "one", "words": [{"text": "one", "start": 1.0, "end": 2.0}]}]


def test_a_file_stays_as_it_was_where_subtitles_cannot_be_made(tmp_path):
    (tmp_path / "talk.srt").write_text("before")
    with pytest.raises(AttributeError):
        write_subtitles(tmp_path / "talk.srt", [None])
    assert [path.name for path in tmp_path.iterdir()] == ["talk.srt"] and (
        tmp_path / "talk.srt"
    ).read_text() == "before"
