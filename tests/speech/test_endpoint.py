"""Where speech is, and where segments are cut."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmaccel.errors import MissingExtraError, SettingError, UnknownNameError
from mmaccel.speech.audio import endpoint
from mmaccel.speech.audio.endpoint import EnergyEndpoint, SileroEndpoint, find_endpoint
from mmaccel.speech.stream.segmenter import Cut, Look, Resume, Segmenter

RATE, FRAME = 16_000, 512
silero = pytest.mark.skipif(importlib.util.find_spec("silero_vad") is None, reason="needs the package silero-vad")


def human():
    """10 s of a voice that comes with the speech extra: six short sentences with pauses."""
    spec = importlib.util.find_spec("moonshine_voice")
    if spec is None:
        pytest.skip("needs the package moonshine-voice")
    import wave

    with wave.open(str(Path(spec.origin).parent / "assets" / "beckett.wav")) as file:
        data = bytearray(file.readframes(file.getnframes()))
    return torch.frombuffer(data, dtype=torch.int16).float() / 32768


def frames(samples):
    return samples[: samples.numel() // FRAME * FRAME].view(-1, FRAME)


def noise(seconds, level, seed=0):
    return level * torch.randn(round(seconds * RATE), generator=torch.Generator().manual_seed(seed))


def segments(policy, samples):
    listener, segmenter = policy.listen(), Segmenter(policy, None)
    found = [cut for frame in frames(samples) for cut in segmenter.feed(listener(frame), endpoint.decibels(frame))]
    return found + segmenter.flush(samples.numel())


@silero
def test_silero_is_the_packages_own_network():
    """The state that is passed from call to call gives what the package's stateful wrapper gives."""
    samples = frames(human())[:150]
    wrapper = torch.jit.load(str(endpoint._silero_file()))
    listener = SileroEndpoint().listen()
    with torch.no_grad():
        assert [listener(frame) for frame in samples] == [float(wrapper(frame[None], RATE)) for frame in samples]


@silero
def test_silero_streams_do_not_share_what_they_heard():
    one, other, alone = (SileroEndpoint().listen() for _ in range(3))
    voice, quiet = frames(human())[:60], frames(noise(2.0, 0.01))[:60]
    mixed = [(one(a), other(b))[0] for a, b in zip(voice, quiet, strict=True)]
    assert mixed == [alone(frame) for frame in voice]
    assert one.network is other.network


@silero
def test_silero_leaves_the_number_of_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        SileroEndpoint().listen()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@silero
@pytest.mark.parametrize(("policy", "least"), ((SileroEndpoint(), 5), (EnergyEndpoint(), 3)), ids=("silero", "energy"))
def test_sentences_of_a_voice(policy, least):
    """Six sentences, with loud breaths between them that energy takes for speech."""
    cuts = segments(policy, human())
    assert least <= len(cuts) <= 6
    assert all(cut.paused for cut in cuts[:-1])
    assert all(a.end <= b.start for a, b in zip(cuts, cuts[1:], strict=False))


@pytest.mark.parametrize("level", (0.0, 0.001, 0.02, 0.2))
@pytest.mark.parametrize("policy", (SileroEndpoint(), EnergyEndpoint()), ids=("silero", "energy"))
def test_noise_is_no_speech(policy, level):
    if isinstance(policy, SileroEndpoint) and endpoint._silero_file() is None:
        pytest.skip("needs the package silero-vad")
    assert segments(policy, noise(5.0, level)) == []


def test_energy_follows_the_background():
    """Speech-like bursts are heard in quiet, and over noise that has been there for a while."""
    burst = torch.sin(torch.arange(round(0.6 * RATE)) * 0.5)
    samples = torch.cat([noise(1, 0.001), 0.1 * burst, noise(6, 0.03), burst, noise(1, 0.03)])
    cuts = segments(EnergyEndpoint(), samples)
    assert any(cut.start < 1.0 * RATE < cut.end for cut in cuts)
    last = cuts[-1]
    assert 7.2 * RATE <= last.start <= 7.6 * RATE and 8.1 * RATE <= last.speech_end <= 8.4 * RATE


@pytest.mark.parametrize("policy", (SileroEndpoint(), EnergyEndpoint()), ids=("silero", "energy"))
def test_a_constant_offset_hides_no_speech(policy):
    """As of cheap microphones."""
    if isinstance(policy, SileroEndpoint) and endpoint._silero_file() is None:
        pytest.skip("needs the package silero-vad")
    voice = human() if isinstance(policy, SileroEndpoint) else torch.cat([noise(1, 0.001), 0.05 * noise(1, 1.0)])
    plain = segments(policy, voice)
    shifted = segments(policy, voice + 0.1)
    assert len(shifted) == len(plain) > 0
    for one, other in zip(plain, shifted, strict=True):
        assert abs(one.start - other.start) <= 2 * FRAME and abs(one.end - other.end) <= 2 * FRAME


def likelihood(policy, *levels):
    """Of the last of so many frames, each of a level in decibels."""
    listener, wave = policy.listen(), torch.ones(FRAME)
    wave[::2] = -1
    return [listener(wave * 10 ** (level / 20)) for level in levels][-1]


def test_settings_of_the_energy_by_hand():
    """Half a `margin` above the background and `reach` below the loudest count as 0.5, nothing below `floor`."""
    quiet = [-50.0] * 4
    assert likelihood(EnergyEndpoint(margin=20), *quiet, -44) == pytest.approx(0.5 - 4 / 20, abs=1e-4)
    assert likelihood(EnergyEndpoint(reach=30), *quiet, -10, -38) == pytest.approx(0.5 + 2 / 12, abs=1e-4)
    assert likelihood(EnergyEndpoint(), *quiet, -35) == 1.0
    assert likelihood(EnergyEndpoint(floor=-30), *quiet, -35) == 0.0


def test_the_energy_forgets():
    """After half a second, 16 frames; the background is the mean of three."""
    policy = EnergyEndpoint(memory=0.5)
    assert likelihood(policy, *[-50] * 4, *[-20] * 17) == pytest.approx(0.5 + 4 / 12, abs=1e-4)
    assert likelihood(policy, *[-50] * 4, *[-20] * 18) == pytest.approx(0.0, abs=1e-4)
    assert likelihood(policy, *[-50] * 4, -10, *[-50] * 14, -38) == 0.0, "far below the loudest of half a second"
    assert likelihood(policy, *[-50] * 4, -10, *[-50] * 15, -38) == pytest.approx(1.0, abs=1e-4)


def test_silero_keeps_the_end_of_a_frame_and_no_graph():
    weight = torch.ones(1, requires_grad=True)
    listener = endpoint._SileroDetector(lambda samples, state: (samples.mean() * weight, state + weight))
    assert listener(torch.ones(FRAME)) == pytest.approx(512 / 576)
    assert listener(torch.ones(FRAME)) == 1.0, "the end of the frame before is heard with it"
    assert not listener.state.requires_grad
    assert listener.context.untyped_storage().nbytes() == 4 * 64, "a view holds the frame"


def feed(segmenter, likelihoods, levels=None):
    levels = levels or [-20.0] * len(likelihoods)
    return [task for pair in zip(likelihoods, levels, strict=True) for task in segmenter.feed(*pair)]


def test_segments_by_hand():
    """Two frames are no speech, three are; the segment has its padding; 16 silent frames (512 ms) end it."""
    policy = EnergyEndpoint(silence=0.5, padding=0.1, tail=0.1)
    segmenter = Segmenter(policy, None)
    assert feed(segmenter, [0, 0, 1, 1, 0] + [0] * 20 + [1] * 10 + [0] * 15) == []
    (cut,) = feed(segmenter, [0])
    assert cut == Cut(25 * FRAME - 1600, 35 * FRAME + 1600, 35 * FRAME, True)
    assert segmenter.flush(10**6) == []


def test_a_flicker_between_the_thresholds_goes_on():
    """The lower threshold counts only directly behind a frame of speech."""
    policy = EnergyEndpoint(silence=0.1, padding=0.0, tail=0.0)
    segmenter = Segmenter(policy, None)
    assert feed(segmenter, [0.4] * 30) == [] and segmenter.start is None  # 0.4 does not begin speech
    assert feed(segmenter, [0.6] + [0.4] * 30) == [] and segmenter.start == 30 * FRAME  # it goes on with it
    (cut,) = feed(segmenter, [0.2] + [0.4] * 3)  # and does not take it up again
    assert cut == Cut(30 * FRAME, 61 * FRAME, 61 * FRAME, True)
    assert feed(segmenter, [0.4] * 30) == [] and segmenter.start is None


@pytest.mark.parametrize("threshold", (0.05, 0.15))
def test_silence_ends_speech_at_a_low_threshold_too(threshold):
    """The lower one would be none, and every silence speech."""
    segmenter = Segmenter(EnergyEndpoint(threshold=threshold, silence=0.5, padding=0.0, tail=0.0), None)
    (cut,) = feed(segmenter, [1] * 5 + [0.009] * 16)
    assert cut == Cut(0, 5 * FRAME, 5 * FRAME, True)
    assert feed(segmenter, [threshold] + [0.009] * 30) == [] and segmenter.start is None, "and begins none"


def test_no_sample_is_in_two_segments():
    """Where the padding of the next speech reaches into what the segment before has already."""
    segmenter = Segmenter(EnergyEndpoint(silence=0.5, padding=0.5, tail=0.5), None)
    cuts = feed(segmenter, [1] * 10 + [0] * 16 + [1] * 10 + [0] * 16)
    assert [cut.start for cut in cuts] == [0, cuts[0].end] and cuts[0].end == 10 * FRAME + 8000


def test_what_a_segment_may_still_want_is_held():
    """Until speech begins: all that its padding reaches back to, whatever came of the frames before."""
    segmenter = Segmenter(EnergyEndpoint(padding=0.2, tail=0.2), None)
    for likelihood in (0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1):
        feed(segmenter, [likelihood])
    held = segmenter.needed_from
    feed(segmenter, [1])
    assert segmenter.start == 10 * FRAME - 3200 and held <= segmenter.start


def test_limits_are_inclusive():
    """Silence of just 16 frames ends a segment, speech of just 64 is cut."""
    segmenter = Segmenter(
        EnergyEndpoint(silence=16 * FRAME / RATE, longest=64 * FRAME / RATE, padding=0.0, tail=0.0), None
    )
    assert feed(segmenter, [1] * 3 + [0] * 15) == []
    assert [cut.paused for cut in feed(segmenter, [0])] == [True]
    assert feed(segmenter, [1] * 63) == []
    assert [cut.paused for cut in feed(segmenter, [1])] == [False]


def test_a_stream_that_ends_within_a_frame():
    """The frame is filled up with silence, which is no part of the speech."""
    segmenter = Segmenter(EnergyEndpoint(padding=0.1, tail=0.1), None)
    feed(segmenter, [1] * 5)
    assert segmenter.flush(5 * FRAME - 100) == [Cut(0, 5 * FRAME - 100, 5 * FRAME - 100, False)]


def test_the_stream_ends_in_a_pause():
    """The last segment has its padding, and no more of a silence that was too short to end it."""
    segmenter = Segmenter(EnergyEndpoint(silence=1.0, padding=0.1, tail=0.1), None)
    feed(segmenter, [1] * 5 + [0] * 20)
    assert segmenter.flush(25 * FRAME) == [Cut(0, 5 * FRAME + 1600, 5 * FRAME, False)]


def test_looks_by_hand():
    """Every interval while there is new speech, once when a pause suffices for the final, and not in silence."""
    policy = EnergyEndpoint(silence=0.5, padding=0.2, tail=0.2)
    segmenter = Segmenter(policy, 16 * FRAME / RATE)
    looks = feed(segmenter, [1] * 3 + [1] * 40 + [0] * 30)
    start = 0
    ends = [19 * FRAME, 35 * FRAME, 43 * FRAME + 3200]
    assert looks[:-1] == [Look(start, end, settled=end == ends[-1]) for end in ends]
    assert looks[-1] == Cut(start, ends[-1], 43 * FRAME, True)


def test_looks_after_a_pause():
    """The interval is counted from the look that speech behind a pause gets at once, not from the plan before it."""
    segmenter = Segmenter(EnergyEndpoint(silence=2.0, padding=0.1, tail=0.1), 16 * FRAME / RATE)
    looks = feed(segmenter, [1] * 20 + [0] * 33 + [1] * 18)
    settled = Look(0, 20 * FRAME + 1600, settled=True)
    assert looks == [Look(0, 19 * FRAME), settled, Resume(), Look(0, 54 * FRAME), Look(0, 70 * FRAME)]


def test_what_is_behind_a_cut_is_looked_at_anew():
    """A pause was looked at, and then the segment is cut before it: the words in between belong to a new one."""
    segmenter = Segmenter(EnergyEndpoint(silence=1.0, longest=2.0, padding=0.1, tail=0.1), 1.0)
    levels = [-20.0] * 45 + [-70.0] * 5 + [-20.0] * 5 + [-60.0] * 9
    tasks = feed(segmenter, [1] * 55 + [0] * 9, levels)
    settled, at = 55 * FRAME + 1600, 47 * FRAME + FRAME // 2
    assert tasks[-3:] == [Look(0, settled, True), Cut(0, at, at, False), Look(at, settled, True)]


def test_without_padding_a_pause_is_settled_once_and_speech_is_not_looked_at_in_every_frame():
    segmenter = Segmenter(EnergyEndpoint(silence=2.0, padding=0.0, tail=0.0), 16 * FRAME / RATE)
    looks = feed(segmenter, [1] * 25 + [0] * 9 + [1] * 8)
    assert looks == [Look(0, 19 * FRAME), Look(0, 25 * FRAME, True), Resume(), Look(0, 42 * FRAME)]


def test_without_a_tail_a_pause_is_settled_though_all_of_its_speech_was_looked_at():
    segmenter = Segmenter(EnergyEndpoint(silence=2.0, padding=0.0, tail=0.0), 16 * FRAME / RATE)
    assert feed(segmenter, [1] * 19 + [0] * 9) == [Look(0, 19 * FRAME), Look(0, 19 * FRAME, settled=True)]


def test_long_speech_is_cut_where_it_is_quietest():
    policy = EnergyEndpoint(longest=3.0, padding=0.0, tail=0.0)
    segmenter = Segmenter(policy, None)
    levels = [-20.0] * 200
    levels[50:55], levels[73:78] = [-60.0] * 5, [-40.0] * 5  # before the last third nothing is quiet enough
    cuts = feed(segmenter, [1.0] * 200, levels)
    assert cuts[0] == Cut(0, 75 * FRAME + FRAME // 2, 75 * FRAME + FRAME // 2, False)
    assert all(a.end == b.start for a, b in zip(cuts, cuts[1:], strict=False))
    (last,) = segmenter.flush(200 * FRAME)
    assert last.start == cuts[-1].end and last.end == 200 * FRAME


def test_a_pause_that_is_on_is_waited_for():
    """At the length cap in the middle of a pause: what ends the segment is the pause."""
    policy = EnergyEndpoint(longest=3.0, padding=0.1, tail=0.1)
    segmenter = Segmenter(policy, None)
    likelihoods = [1.0] * 90 + [0.0] * 30
    (cut,) = feed(segmenter, likelihoods, [-20.0 if likelihood else -60.0 for likelihood in likelihoods])
    assert cut.paused and cut.speech_end == 90 * FRAME


def test_names():
    assert isinstance(find_endpoint("energy"), EnergyEndpoint)
    policy = EnergyEndpoint(silence=0.7)
    assert find_endpoint(policy) is policy
    with pytest.raises(UnknownNameError, match="silero"):
        find_endpoint("sileri")


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(endpoint, "find_spec", lambda name: None)
    endpoint._silero_network.cache_clear()
    assert isinstance(find_endpoint("auto"), EnergyEndpoint)
    with pytest.raises(MissingExtraError, match=r'pip install "mmaccel\[speech\]"'):
        SileroEndpoint().listen()


def test_a_package_without_its_network(monkeypatch, tmp_path):
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(endpoint, "find_spec", lambda name: spec)
    assert isinstance(find_endpoint("auto"), EnergyEndpoint)


@silero
def test_auto_is_silero():
    assert isinstance(find_endpoint("auto"), SileroEndpoint)


@pytest.mark.parametrize(
    "setting",
    (
        {"silence": 0.0},
        {"longest": 1},
        {"threshold": 1.0},
        {"padding": 1.1},
        {"tail": 0.6},
        {"silence": float("nan")},
        {"margin": 0},
        {"reach": 61},
        {"floor": 1},
        {"memory": 0.4},
    ),
)
def test_bad_settings(setting):
    (name,) = setting
    with pytest.raises(SettingError, match=rf"EnergyEndpoint\({name}=.*such as"):
        EnergyEndpoint(**setting)


def test_the_advice_fits_a_short_silence():
    with pytest.raises(SettingError, match=r"between 0 and silence=0.1 seconds, such as 0.1"):
        EnergyEndpoint(silence=0.1)
