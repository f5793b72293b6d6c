"""Small models of transformers' speech recognisers, with their processors.

`speech_models.json` has a line for each class: the sizes of its configuration, and its feature extractor.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from mmaccel.machine import forked_rng
from mmaccel.speech import examples
from mmaccel.speech.examples import Processor
from mmaccel.speech.families.timed import features_of
from mmaccel.testing.untrained import untrained

from .written import read_rows

rows = functools.partial(read_rows, "speech_models.json")
LETTERS = "etaoinshrdlucmfwypvbgkq"  # with blank and word boundary the vocabulary of CTC
RATE = 16_000
WORDS = 70  # the marks come behind them
AUDIO = "<|audio|>"
MARKS = {"audio_token": AUDIO, "audio_bos_token": "<|bos|>", "audio_eos_token": "<|eos|>"}
TEMPLATE = """{% for turn in messages %}w6 {% if turn['content'] is string %}{{ turn['content'] }}{% else %}\
{% for part in turn['content'] %}{% if part['type'] == 'audio' %}<|audio|>{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}w7 {% endfor %}{% if add_generation_prompt %}w8{% endif %}"""


def build(name: str, seed: int = 0) -> tuple[Any, Any]:
    """A small untrained model of a class, and what prepares its audio and reads its tokens."""
    row = rows()[name]
    if row["kind"] == "written":
        return _example(row["example"], seed)
    model = untrained(functools.partial(_made, name, row["config"]), seed)
    made = processor(row)
    with forked_rng(), torch.no_grad():
        torch.manual_seed(seed)
        _KINDS[row["kind"]](model, made.feature_extractor)
    return model, made


def _example(name: str, seed: int) -> tuple[Any, Any]:
    """One of those on which the methods are tried."""
    made = examples.whisper_processor() if name == "whisper" else examples.moonshine_processor()
    return getattr(examples, name)(seed)[0], made


def _made(name: str, sizes: dict[str, Any]) -> Any:
    cls = getattr(transformers, name)
    return cls(cls.config_class(**sizes))


def processor(row: dict[str, Any]) -> Any:
    """A feature extractor and a tokenizer; transformers' own processor, where that can be made of a small tokenizer."""
    extractor = getattr(transformers, row["extractor"])(**row.get("features", {}))
    if row["kind"] == "ctc":
        return Processor(extractor, letters())
    if row["kind"] == "mel":
        return RealtimeProcessor(extractor, words())
    if row["kind"] != "chat":
        return Processor(extractor, words())
    if "processor" in row:
        own = getattr(transformers, row["processor"])
        named = {"audio_token": AUDIO} if "audio_token" in inspect.signature(own).parameters else {}
        return own(extractor, words(), chat_template=TEMPLATE, **named)
    return ChatProcessor(extractor, words())


class RealtimeProcessor(Processor):
    """What a stream uses of Voxtral Realtime's processor, which needs mistral-common: 80 ms for each token."""

    num_delay_tokens, num_left_pad_tokens, num_right_pad_tokens = 3, 4, 6
    num_samples_first_audio_chunk = (num_delay_tokens + 1) * 1280

    def __call__(self, audio: Any, is_streaming: bool, is_first_audio_chunk: bool, return_tensors: str) -> Any:
        count = self.num_left_pad_tokens + self.num_delay_tokens + 1
        return {"input_ids": torch.full((1, count), 5), "num_delay_tokens": self.num_delay_tokens}


class ChatProcessor(Processor):
    """For models whose own processor needs torchaudio or mistral-common: a prompt with places for the audio."""

    def apply_transcription_request(self, audio: list[Any], **_: Any) -> Any:
        """As Voxtral's, windows of 4 s and a token for each eight frames, or as Fun-ASR's, a token for each frame."""
        options = {"sampling_rate": RATE, "return_tensors": "pt"}
        if isinstance(self.feature_extractor, transformers.WhisperFeatureExtractor):
            features = self.feature_extractor(audio[0], padding="max_length", **options).input_features
            return {**self._prompt(features.shape[2] // 8), "input_features": features}
        features = self.feature_extractor(audio[0], **options).input_features
        mask = torch.ones(features.shape[:2], dtype=torch.long)
        return {**self._prompt(features.shape[1]), "input_features": features, "input_features_mask": mask}

    def _prompt(self, count: int) -> Any:
        return self.tokenizer(f"w5 {AUDIO * count}w8", return_tensors="pt")

    def __call__(self, text: list[str], audio: list[Any], return_tensors: str) -> Any:
        """As Granite's: three tokens for each window of 15 frames."""
        features = self.feature_extractor(audio[0], sampling_rate=RATE, return_tensors=return_tensors).input_features
        count = -(-features.shape[1] // 15) * 3
        prompt = text[0].replace(AUDIO, AUDIO * count)
        return {**self.tokenizer(prompt, return_tensors=return_tensors), "input_features": features}


def letters() -> Any:
    """The tokenizer of Wav2Vec2 for letters, blank first."""
    import tempfile

    names = {token: number for number, token in enumerate(["<pad>", "|", *LETTERS])}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.json"
        file.write_text(json.dumps(names))
        return transformers.Wav2Vec2CTCTokenizer(str(file), unk_token="|", bos_token=None, eos_token=None)


def words() -> PreTrainedTokenizerFast:
    """Tokens that are words of their own, `w3`, but for every fourth, which goes on with the word before."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = [f"w{number}" if number % 4 == 0 else f"▁w{number}" for number in range(WORDS)]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="w0"))
    inner.decoder, inner.pre_tokenizer = decoders.Metaspace(), pre_tokenizers.Metaspace()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", extra_special_tokens=MARKS)
    made.chat_template = TEMPLATE
    return made


def sound(seconds: float, seed: int = 0) -> torch.Tensor:
    """Noise as loud as chance says for each tenth of a second, `[n]` at 16,000 a second."""
    generator, count = torch.Generator().manual_seed(seed), round(seconds * RATE)
    loud = torch.rand(count // 1600 + 1, generator=generator).repeat_interleave(1600)[:count]
    return 0.3 * loud * torch.randn(count, generator=generator)


def _balance(head: torch.nn.Module, logits: torch.Tensor, blank: int) -> None:
    """A bias with which no token is likelier than another over frames `[n, V]`, but blank in half of them."""
    head.bias -= logits.mean(0)
    centred = logits - logits.mean(0)
    others = centred.clone()
    others[:, blank] = -torch.inf
    head.bias[blank] += (others.amax(1) - centred[:, blank]).median()


def _ctc(model: Any, extractor: Any) -> None:
    head = model.ctc_head if hasattr(model, "ctc_head") else model.lm_head
    if hasattr(model, "ctc_head"):
        _loud(model.encoder)
    head.weight.normal_(0.0, 8.0 * head.weight[0].numel() ** -0.5)
    logits = model(**features_of(extractor, sound(4.0), RATE, model)).logits
    _balance(head, logits[0], model.config.pad_token_id)


def _loud(module: torch.nn.Module, scale: float = 1.5) -> None:
    """Weights outside of the layers so large that sounds differ behind them."""
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1 and "layers." not in name:
            parameter.normal_(0.0, scale * parameter[0].numel() ** -0.5)


def _transducer(model: Any, extractor: Any) -> None:
    for name, part in model.named_children():
        if "encoder" in name or "projector" in name:
            _loud(part)
    for part in (model.decoder, model.joint):
        _loud(part, 3.0)
    config = model.config
    model.generation_config.decoder_start_token_id = config.blank_token_id
    frames = model.get_audio_features(**features_of(extractor, sound(4.0), RATE, model)).pooler_output
    states = model.decoder(torch.arange(config.vocab_size)[:, None])  # behind each token
    logits = model.joint(encoder_hidden_states=frames[0, :, None], decoder_hidden_states=states[None, :, 0])
    logits = logits.flatten(0, 1)
    _balance(model.joint.head, logits, config.blank_token_id)
    # scores of durations are no tokens, as the released checkpoints say
    model.generation_config.suppress_tokens = [*range(config.vocab_size, logits.shape[-1])] or None


def _chat(model: Any, extractor: Any) -> None:
    for parameter in model.parameters():
        if parameter.ndim > 1 or not parameter.any():
            parameter.normal_(0.0, 2.0 * parameter[0].numel() ** -0.5)
    model.generation_config.eos_token_id = [2]
    model.generation_config.suppress_tokens = [WORDS]  # the place of audio, which trained models never write


def _codec(model: Any, extractor: Any) -> None:
    examples.audible(model.codec_model)
    model.model.embed_tokens.embed_tokens.weight.normal_()
    _spoken(model)


def _spoken(model: Any) -> None:
    """A head that says something else at every other frame; nothing ends the text."""
    for parameter in model.lm_head.parameters():
        parameter.normal_()
    model.generation_config.eos_token_id = None


def _mel(model: Any, extractor: Any) -> None:
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, 2.0 * parameter[0].numel() ** -0.5)
    _spoken(model)


_KINDS: dict[str, Callable[[Any, Any], None]] = {
    "ctc": _ctc,
    "transducer": _transducer,
    "chat": _chat,
    "codec": _codec,
    "mel": _mel,
}
