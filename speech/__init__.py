"""Streaming speech: recognition that shows words while they are spoken, and exact block-wise codec decoding.

`StreamingRecognizer` makes a stream of any recogniser that has an adapter, `transcribe` writes down a recording on the
same parts; `SuffixDraft` makes `generate` faster, exactly. `StreamingSpeech` lets a speech generator sound from its
first frame on; `StreamingCodecDecoder` turns codes into sound block by block.

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

from typing import TYPE_CHECKING

from mmaccel.lazy import on_demand

if TYPE_CHECKING:
    from .audio.audio import read_audio, to_samples
    from .audio.endpoint import EndpointPolicy, EnergyEndpoint, SileroEndpoint
    from .codec.first_byte_meter import FirstByteMeter
    from .codec.growing_blocks import growing_blocks
    from .codec.streaming_codec_decoder import StreamingCodecDecoder
    from .codec.streaming_speech import StreamingSpeech
    from .decoding.merge_audio_tokens import MergeAudioTokens
    from .decoding.suffix_draft import SuffixDraft
    from .families.adapter import Word
    from .families.weights import load
    from .policies.align_att import AlignAtt
    from .policies.append_only import AppendOnly
    from .policies.local_agreement import LocalAgreement
    from .stream.emission_latency import (
        Emission,
        EmissionLatency,
        Utterance,
        emission_latency,
        emissions_of,
    )
    from .stream.events import Eager, Endpoint, Event, Final, Partial, Resumed
    from .stream.recognizer import StreamingRecognizer
    from .stream.stats import StreamStats
    from .stream.stream import SpeechStream
    from .stream.stream_group import StreamGroup
    from .stream.subtitles import SubtitleLayout, cues, to_json, to_srt, to_vtt, write_subtitles
    from .stream.transcribe import Transcript, transcribe, transcribe_samples
    from .stream.wrappers import BackgroundStream, stream_events
else:
    __getattr__, __dir__ = on_demand(__name__, __file__)

__all__ = [
    "AlignAtt",
    "AppendOnly",
    "BackgroundStream",
    "Eager",
    "Emission",
    "EmissionLatency",
    "Endpoint",
    "EndpointPolicy",
    "EnergyEndpoint",
    "Event",
    "Final",
    "FirstByteMeter",
    "LocalAgreement",
    "MergeAudioTokens",
    "Partial",
    "Resumed",
    "SileroEndpoint",
    "SpeechStream",
    "StreamGroup",
    "StreamStats",
    "StreamingCodecDecoder",
    "StreamingRecognizer",
    "StreamingSpeech",
    "SubtitleLayout",
    "SuffixDraft",
    "Transcript",
    "Utterance",
    "Word",
    "cues",
    "emission_latency",
    "emissions_of",
    "growing_blocks",
    "load",
    "read_audio",
    "stream_events",
    "to_json",
    "to_samples",
    "to_srt",
    "to_vtt",
    "transcribe",
    "transcribe_samples",
    "write_subtitles",
]
