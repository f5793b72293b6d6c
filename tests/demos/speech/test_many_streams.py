"""The scripts that measure many streams and the first sound, on untrained models."""

import pytest
import torch

from mmaccel.comparison import results
from mmaccel.demos.speech import first_sound, many_streams
from mmaccel.speech import examples
from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.stream.recognizer import StreamingRecognizer


@pytest.fixture(scope="module")
def asr():
    endpoint = EnergyEndpoint(longest=3, silence=0.2, padding=0.2)
    return StreamingRecognizer(examples.moonshine()[0], examples.moonshine_processor(), endpoint=endpoint)


def test_streams_are_measured_and_compared(asr, monkeypatch, tmp_path):
    sound = torch.cat([torch.zeros(4_000), examples.sound()[0]])
    monkeypatch.setattr(many_streams, "inputs", lambda count, seconds: [sound[100 * n :] for n in range(count)])
    monkeypatch.setattr(many_streams, "load", lambda name: ())
    monkeypatch.setattr(many_streams, "StreamingRecognizer", lambda: asr)
    for name, value in {"COUNTS": (1, 2), "LONG": 2, "MINUTES": 0.01}.items():
        monkeypatch.setattr(many_streams, name, value)
    result = many_streams.measure(1.25)
    made = result["rows"]
    assert [(row["streams"], row["equal"]) for row in made[:2]] == [(1, 1), (2, 2)]
    assert made[0]["batch"]["passes"] == 1 < made[1]["batch"]["passes"] <= 2 and made[2]["peak_bytes"] > 0
    page = many_streams.page(result)
    assert "2 of 2" in page and f"| {made[1]['share']:.2f} |" in page
    many_streams.plot(result, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_stream_whose_codes_differ_has_no_figures():
    codes = torch.zeros(1, 2, 3, dtype=torch.long)
    assert first_sound._differs(codes, codes) == "" and first_sound._differs(codes, codes + 1) == "codes differ"
    row = first_sound._row("stream", 1.0, refused="codes differ", first_sound=0.1)
    assert row == {"way": "stream", "refused": "codes differ"}
    told = {"rows": [first_sound._row("plain", 2.0, first_sound=2.0), row], "frames": 2, "rounds": 1}
    page = first_sound.page({**results.result([]), **told, "millions": {"millions": 1.0, "codec": 0.5}})
    assert "| stream | codes differ |  |  |" in page and "| plain | 2.00 | 2.00 |  |" in page
