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
    from .audio.audio import read_audio as read_audio
    from .audio.audio import to_samples as to_samples
    from .audio.endpoint import EndpointPolicy as EndpointPolicy
    from .audio.endpoint import EnergyEndpoint as EnergyEndpoint
    from .audio.endpoint import SileroEndpoint as SileroEndpoint
    from .codec.first_byte_meter import FirstByteMeter as FirstByteMeter
    from .codec.growing_blocks import growing_blocks as growing_blocks
    from .codec.streaming_codec_decoder import StreamingCodecDecoder as StreamingCodecDecoder
    from .codec.streaming_speech import StreamingSpeech as StreamingSpeech
    from .decoding.merge_audio_tokens import MergeAudioTokens as MergeAudioTokens
    from .decoding.suffix_draft import SuffixDraft as SuffixDraft
    from .families.adapter import Word as Word
    from .families.weights import load as load
    from .policies.align_att import AlignAtt as AlignAtt
    from .policies.append_only import AppendOnly as AppendOnly
    from .policies.local_agreement import LocalAgreement as LocalAgreement
    from .stream.emission_latency import Emission as Emission
    from .stream.emission_latency import EmissionLatency as EmissionLatency
    from .stream.emission_latency import Utterance as Utterance
    from .stream.emission_latency import emission_latency as emission_latency
    from .stream.emission_latency import emissions_of as emissions_of
    from .stream.events import Eager as Eager
    from .stream.events import Endpoint as Endpoint
    from .stream.events import Event as Event
    from .stream.events import Final as Final
    from .stream.events import Partial as Partial
    from .stream.events import Resumed as Resumed
    from .stream.recognizer import StreamingRecognizer as StreamingRecognizer
    from .stream.stats import StreamStats as StreamStats
    from .stream.stream import SpeechStream as SpeechStream
    from .stream.stream_group import StreamGroup as StreamGroup
    from .stream.subtitles import SubtitleLayout as SubtitleLayout
    from .stream.subtitles import cues as cues
    from .stream.subtitles import to_json as to_json
    from .stream.subtitles import to_srt as to_srt
    from .stream.subtitles import to_vtt as to_vtt
    from .stream.subtitles import write_subtitles as write_subtitles
    from .stream.transcribe import Transcript as Transcript
    from .stream.transcribe import transcribe as transcribe
    from .stream.transcribe import transcribe_samples as transcribe_samples
    from .stream.wrappers import BackgroundStream as BackgroundStream
    from .stream.wrappers import stream_events as stream_events
else:
    __getattr__, __dir__, __all__ = on_demand(__name__, __file__)
