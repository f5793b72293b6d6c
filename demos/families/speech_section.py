"""The part of the page of model families that shows how recognisers were streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from mmaccel.bench.pages import markdown
from mmaccel.speech.families.rows import REFUSED

from .notes import by_class, note
from .speech_table import TARGET, count_equal

RAN = """Every class that `StreamingRecognizer` and `speech.load` take, built small and untrained, and streamed
by `python -m mmaccel.demos.families.speech_table`. On {equal} of {all} classes the finals are the tokens of the model's
own call on the same samples, they and their times do not depend on chunks and looks, words follow each other inside
their segment, and nothing is left behind. Word errors were only measured for Moonshine and Whisper: we know of no
package with weights of the others. Where the processor needs torchaudio or mistral-common (Fun-ASR, all of Granite
Speech, both Voxtral), the audio came from a feature extractor that does not, and the prompt from a small one."""
_ATTENTION = "encoder and decoder: cross-attention"
KINDS = {
    "moonshine": _ATTENTION,
    "moonshine_streaming": _ATTENTION,
    "whisper": _ATTENTION,
    "ctc": "CTC: frames",
    "transducer": "transducer: frames",
    "streaming_transducer": "cache-aware transducer: frames",
    "speech_chat": "language model with audio tokens: none, words are spread by their letters",
    "codec_frames": "a token for each frame: frames, less the delay of the model",
    "mel_frames": "a token for each frame: frames, less the delay of the model",
}


def section(planned: Iterable[str]) -> Iterator[str]:
    """The table of the recognisers, which were streamed."""
    yield from planned
    found = json.loads(TARGET.read_text(encoding="utf-8"))
    yield RAN.format(equal=count_equal(found), all=len(found))
    lines = [
        [f"`{name}`", KINDS[row["family"]], "once" if row["once"] else "again at each look"]
        for name, row in found.items()
    ]
    yield markdown(("class", "kind, and where times of words come from", "audio is heard"), lines)
    yield note(by_class(REFUSED), "Classes that hear and cannot be streamed")
