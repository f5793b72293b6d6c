"""Which classes of transformers are recognisers, what their source does not tell, and why some cannot be served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Each frame has a token or a blank.
CTC = (
    "Data2VecAudioForCTC",
    "GraniteSpeech5ForCTC",
    "HubertForCTC",
    "LasrForCTC",
    "ParakeetForCTC",
    "SEWDForCTC",
    "SEWForCTC",
    "UniSpeechForCTC",
    "UniSpeechSatForCTC",
    "Wav2Vec2BertForCTC",
    "Wav2Vec2ConformerForCTC",
    "Wav2Vec2ForCTC",
    "WavLMForCTC",
)
# Transducers whose encoder looks at all of the audio.
TRANSDUCERS = ("ParakeetForRNNT", "ParakeetForTDT")
# Transducers with a cache-aware encoder.
STREAMING_TRANSDUCERS = ("Nemotron3_5AsrForRNNT", "NemotronAsrStreamingForRNNT")

# A token for each frame of a codec, or of a causal encoder.
CODEC_FRAMES = ("KyutaiSpeechToTextForConditionalGeneration",)
MEL_FRAMES = ("VoxtralRealtimeForConditionalGeneration",)


@dataclass(frozen=True)
class TranscriptionPrompt:
    """How a language model is asked to write down speech.

    Attributes
    ----------
    ask
        ``ask(processor, audio, rate, told)``: the arguments of `generate` for samples `[n]`.
    language
        Whether the processor takes a language.
    hotwords
        The argument of the processor for names and rare words; empty if it takes none.
    read
        Arguments of the processor's `decode` that leave the transcript alone; None for the tokenizer's.
    lora
        Whether the model has a LoRA for audio, which its `generate` turns on for audio and off for text alone.
    """

    ask: Callable[[Any, Any, int, dict[str, Any]], Any]
    language: bool = False
    hotwords: str = ""
    read: dict[str, Any] | None = None
    lora: bool = False


def _request(processor: Any, audio: Any, rate: int, told: dict[str, Any]) -> Any:
    """By the processor's own request for a transcript."""
    return processor.apply_transcription_request([audio], **told)


def _voxtral(processor: Any, audio: Any, rate: int, told: dict[str, Any]) -> Any:
    """Mistral's request, which names a model that it does not look up, and wants a file's format."""
    return processor.apply_transcription_request(
        [audio], model_id="voxtral", sampling_rate=rate, format=["WAV"], **told
    )


def _chat(question: str, placeholder: str = "") -> Callable[[Any, Any, int, dict[str, Any]], Any]:
    """By a question about the audio; some templates want its placeholder as text."""
    parts = [{"type": "audio"}, {"type": "text", "text": question}]
    turn = [{"role": "user", "content": f"{placeholder}{question}" if placeholder else parts}]

    def ask(processor: Any, audio: Any, rate: int, told: dict[str, Any]) -> Any:
        template = processor.tokenizer if placeholder else processor
        text = template.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        asked = {} if placeholder else {"sampling_rate": rate}  # else it warns at each look; Granite's has one rate
        return processor(text=[text], audio=[audio], return_tensors="pt", **asked)

    return ask


GRANITE = TranscriptionPrompt(_chat("can you transcribe the speech into a written format?", "<|audio|>"), lora=True)
# Language models whose prompt holds audio tokens.
CHAT: dict[str, TranscriptionPrompt] = {
    "AudioFlamingo3ForConditionalGeneration": TranscriptionPrompt(_request, read={"strip_prefix": True}),
    "FunAsrNanoForConditionalGeneration": TranscriptionPrompt(_request, language=True, hotwords="keywords"),
    "GlmAsrForConditionalGeneration": TranscriptionPrompt(_request),
    "GraniteSpeechForConditionalGeneration": GRANITE,
    "GraniteSpeechPlusForConditionalGeneration": GRANITE,
    "Qwen2AudioForConditionalGeneration": TranscriptionPrompt(
        _chat("Write down what is said, word for word, and nothing else.")
    ),
    "Qwen3ASRForConditionalGeneration": TranscriptionPrompt(
        _request, language=True, hotwords="prompt", read={"return_format": "transcription_only"}
    ),
    "VoxtralForConditionalGeneration": TranscriptionPrompt(_voxtral, language=True),
}

UNTRIED = "nobody has run it in a stream yet: CONTRIBUTING.md says what an adapter has to tell"
_SPEAKERS = "it writes who spoke when in a whole recording, which a stream does not have"
# Classes that hear, and why they are no recognisers of streams.
REFUSED: dict[str, str] = {
    "DiaForConditionalGeneration": "it makes speech of text",
    "MossTranscribeDiarizeForConditionalGeneration": _SPEAKERS,
    "MusicFlamingoForConditionalGeneration": "it describes music",
    "Nemotron3_5TranscribeForConditionalGeneration": _SPEAKERS,
    "Pop2PianoForConditionalGeneration": "it makes notes of music",
    "VibeVoiceAsrForConditionalGeneration": _SPEAKERS,
    "VibeVoiceForConditionalGeneration": "it makes speech of text",
    **dict.fromkeys(
        (
            "CanaryForConditionalGeneration",
            "CohereAsrForConditionalGeneration",
            "Gemma3nForConditionalGeneration",
            "Gemma4ForConditionalGeneration",
            "OmniASRForCTC",
            "OmniASRForConditionalGeneration",
            "Phi4MultimodalForCausalLM",
            "Qwen2_5OmniForConditionalGeneration",
            "Qwen2_5OmniThinkerForConditionalGeneration",
            "Qwen3OmniMoeForConditionalGeneration",
            "Qwen3OmniMoeThinkerForConditionalGeneration",
            "SeamlessM4TForSpeechToText",
            "SeamlessM4Tv2ForSpeechToText",
            "Speech2TextForConditionalGeneration",
            "SpeechEncoderDecoderModel",
            "SpeechT5ForSpeechToText",
        ),
        UNTRIED,
    ),
}
