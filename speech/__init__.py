"""Streaming speech: recognition that shows words while they are spoken, and exact block-wise codec decoding.

`StreamingRecognizer` makes a stream of any recogniser that has an adapter, `transcribe` writes down a recording on the
same parts; `SuffixDraft` makes `generate` faster, exactly. `StreamingCodecDecoder` turns codes into sound block by
block.

Example
-------
>>> from mmaccel import speech
>>> asr = speech.StreamingRecognizer(*speech.load("moonshine-tiny"))  # doctest: +SKIP
>>> with asr.stream(sample_rate=48_000) as stream:  # doctest: +SKIP
...     for chunk in microphone:
...         print(stream.push(chunk))
...     print(stream.finish(), stream.stats)
"""

if __name__ != "mmaccel.speech":  # imported from the root of a checkout, every module would be there twice
    raise ImportError("this folder is mmaccel.speech: write `from mmaccel import speech`")

from . import adapter, moonshine, moonshine_streaming, whisper  # noqa: F401  register themselves
from .adapter import Word
from .align_att import AlignAtt
from .append_only import AppendOnly
from .audio import Resampler, read_audio, to_samples
from .cached_encoder import EncoderStream
from .cross_cache import CrossCache
from .emission_latency import (
    Emission,
    EmissionLatency,
    Utterance,
    emission_latency,
    emissions_of,
    partial_recognition_latency,
    word_delays,
)
from .endpoint import EndpointPolicy, EnergyEndpoint, SileroEndpoint
from .events import Endpoint, Event, Final, Partial
from .fast_emit import lattice_loss, transducer_loss
from .first_byte_meter import FirstByteMeter
from .growing_audio import GrowingAudio
from .growing_blocks import growing_blocks
from .local_agreement import LocalAgreement
from .merge_audio_tokens import MergeAudioTokens
from .nemotron import NemotronStream
from .recognizer import StreamingRecognizer
from .redecode import Hypothesis, decode
from .stats import StreamStats
from .stream import SpeechStream
from .streaming_codec_decoder import StreamingCodecDecoder
from .subtitles import SubtitleLayout, cues, to_json, to_srt, to_vtt, write_subtitles
from .suffix_draft import SuffixDraft
from .transcribe import Transcript, transcribe, transcribe_samples
from .weights import load
from .wrappers import BackgroundStream, stream_events

__all__ = [
    "AlignAtt",
    "AppendOnly",
    "BackgroundStream",
    "CrossCache",
    "Emission",
    "EmissionLatency",
    "EncoderStream",
    "Endpoint",
    "EndpointPolicy",
    "EnergyEndpoint",
    "Event",
    "Final",
    "FirstByteMeter",
    "GrowingAudio",
    "Hypothesis",
    "LocalAgreement",
    "MergeAudioTokens",
    "NemotronStream",
    "Partial",
    "Resampler",
    "SileroEndpoint",
    "SpeechStream",
    "StreamStats",
    "StreamingCodecDecoder",
    "StreamingRecognizer",
    "SubtitleLayout",
    "SuffixDraft",
    "Transcript",
    "Utterance",
    "Word",
    "cues",
    "decode",
    "emission_latency",
    "emissions_of",
    "growing_blocks",
    "lattice_loss",
    "load",
    "partial_recognition_latency",
    "read_audio",
    "stream_events",
    "to_json",
    "to_samples",
    "to_srt",
    "to_vtt",
    "transcribe",
    "transcribe_samples",
    "transducer_loss",
    "word_delays",
    "write_subtitles",
]
