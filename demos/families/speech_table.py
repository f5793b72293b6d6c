"""The table of the recognisers of transformers in streams: a small model of every class is streamed, and compared.

    python -m mmaccel.demos.families.speech_table

It writes `docs/speech_families.json`, from which the site makes its page; takes about half a minute on one core. Run it
whenever a class was added to `speech_models.json`. A test runs it on every class, and compares.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers

from mmaccel.speech.audio.endpoint import EnergyEndpoint
from mmaccel.speech.stream.events import Event, Final, Partial
from mmaccel.speech.stream.recognizer import StreamingRecognizer
from mmaccel.testing.snapshot import snapshot

from .speech_models import RATE, build, rows, sound
from .speech_offline import offline
from .written import DOCS, write

TARGET = DOCS / "speech_families.json"
ENDPOINT = EnergyEndpoint(longest=3.4)  # of which a small model's window holds all
CHUNK = 777
SETTLED = 1e-6  # seconds by which times may differ


def main() -> None:
    transformers.logging.set_verbosity_error()
    write(TARGET, rows(), tried)


def recording() -> torch.Tensor:
    """Two stretches of sound with a pause between them."""
    pause = torch.zeros(round(0.8 * RATE))
    return torch.cat([0.3 * pause, sound(1.5), pause, sound(1.1, seed=1), pause])


def tried(name: str) -> dict[str, Any]:
    """What a stream of a small model of a class was like.

    Returns
    -------
    The adapter's family; whether the model hears audio once; how many words came, and how many partials before finals;
    and whether finals are the tokens of the model's own call on the same samples, whether they and their times do not
    depend on chunks and looks, whether times rise inside their segment, and whether the model was left as it was.
    """
    model, processor = build(name)
    samples, recognizer = recording(), StreamingRecognizer(model, processor, endpoint=ENDPOINT)
    whole = streamed(recognizer, samples, len(samples), None)
    before = snapshot(model)  # some compute constants of their own in their first run
    events = streamed(recognizer, samples, CHUNK, 0.5)
    finals = [event for event in events if isinstance(event, Final)]
    clean = snapshot(model) == before  # the model's own call leaves things behind on some
    kind = rows()[name]["kind"]
    pieces = [samples[round(one.start * RATE) : round(one.end * RATE)] for one in finals]
    own = [offline(recognizer.adapter, kind, piece) for piece in pieces]
    return {
        "family": recognizer.adapter.family,
        "once": recognizer.adapter.appends,
        "words": sum(len(one.words) for one in finals),
        "partials": sum(isinstance(event, Partial) for event in events),
        "offline": len(finals) == 2 and [list(one.tokens) for one in finals] == own,
        "same": finals == [event for event in whole if isinstance(event, Final)],
        "times": all(rising(one) for one in finals),
        "clean": clean,
    }


def streamed(recognizer: StreamingRecognizer, samples: torch.Tensor, chunk: int, interval: float | None) -> list[Event]:
    """All events of samples that are pushed in chunks."""
    with recognizer.stream(update_interval=interval) as stream:
        events = [event for piece in samples.split(chunk) for event in stream.push(piece)]
        return events + stream.finish()


def rising(final: Final) -> bool:
    """Whether the words of a segment begin one after the other, inside of it."""
    starts = [word.start for word in final.words]
    inside = all(final.start - SETTLED <= word.start <= word.end <= final.end + SETTLED for word in final.words)
    return bool(starts) and inside and starts == sorted(starts)


def count_equal(found: dict[str, Any]) -> int:
    """Classes whose finals are those of the model's own call, with times, whatever the chunks, and without a trace."""
    return sum(row["offline"] and row["same"] and row["times"] and row["clean"] for row in found.values())


if __name__ == "__main__":
    main()
