"""Where things are in Whisper."""

from __future__ import annotations

import copy
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from mmaccel.adapter import register_adapter
from mmaccel.errors import SettingError, shown, unknown_name
from mmaccel.linears.packed import has_twin
from mmaccel.method import is_count

from ..stream.units import units
from .adapter import Encoded
from .encoder_decoder import EncoderDecoderAdapter
from .languages import AUTO, whisper_code

CONTEXT_FRAMES = 200  # 2 s of silence behind the speech; with half of it texts break off or loop
SHORTEST_FRAMES = 800  # 8 s; with 4 s single phrases of a second, such as "No matter.", are said again and again
TASKS = ("transcribe", "translate")
MULTILINGUAL_VOCABULARY = 51_865  # tokens of the smallest of OpenAI's multilingual models; English ones have one less
MULTILINGUAL_TOKENS_PER_SECOND = 40.0  # a guard against loops that no language comes near
FRAME_SAMPLES = 160  # of the log-mel spectrogram, 10 ms
MARK = re.compile(r"<\|[^|>]*\|>")  # such as a language's, which the tokenizer finds in any text


@register_adapter
class WhisperAdapter(EncoderDecoderAdapter):
    """Robust Speech Recognition via Large-Scale Weak Supervision (Radford et al., 2022).

    Whisper's encoder always takes 30 seconds, of which short speech fills only a little. With a short context it gets
    only the speech and some silence, in its first positions. That is lossy: on 10 clips of LibriSpeech 10.4 % of the
    words were wrong instead of 9.1 %, for a quarter of the encoder's work (tiny.en, measured with at least 4 s of
    context; here it is at least 8 s, which prevents most loops). A text that the model does not end, or that repeats
    itself, is decoded again with the full 30 seconds. The model itself is not changed.

    Attributes
    ----------
    context_frames
        Frames of 10 ms of silence behind the speech, at least 8 s in all; default 200, None for the full 30 s, which
        is exact. An encoder with a part that is compiled or has another `forward` gets the full 30 s too.
    language, task
        Of multilingual models, such as ``"de"`` and ``"translate"``: those that the checkpoint's `generation_config`
        asks for, until :meth:`instruct` says others. A language of None is the one that each segment is heard in.
    hint
        Words that may occur.
    """

    family = "whisper"
    classes: ClassVar[tuple[str, ...]] = ("WhisperForConditionalGeneration",)
    longest = 30.0

    def __init__(self, target: Any, context_frames: int | None = CONTEXT_FRAMES) -> None:
        super().__init__(target)
        if context_frames is not None and not is_count(context_frames, 0):
            raise SettingError(
                f"WhisperAdapter(context_frames={context_frames!r}): pass frames of 10 ms, such as 200, or None"
            )
        self.context_frames = context_frames
        self.language, self.task = self._of_checkpoint() if self._languages else (None, "transcribe")
        self.hint = ""

    def instruct(self, language: str | None = None, task: str | None = None, prompt: str = "") -> None:
        told = {"language": whisper_code(language) if language and language != AUTO else "", "task": task or ""}
        self._check_told(**told)
        self._check_hint(prompt)
        if language and self._languages:
            self.language = told["language"] or None
        self.task, self.hint = task or self.task, prompt.strip()

    def _check_told(self, language: str, task: str) -> None:
        if task and task not in TASKS:
            raise unknown_name("task", task, TASKS)
        if self._languages:
            if language:
                self._language_token(language)
            return
        if task == "translate" or language not in ("", "" if self._is_multilingual else "en"):
            raise SettingError(f"language={language!r}, task={task!r}: {self._why_not}")

    @property
    def _why_not(self) -> str:
        """Why this model cannot be told a language."""
        if self._is_multilingual:
            return (
                "this checkpoint's generation_config is of an old kind that names no languages:"
                " model.generation_config = GenerationConfig.from_pretrained('openai/whisper-tiny')"
            )
        return "this Whisper knows English only, take a multilingual one such as openai/whisper-tiny"

    def _check_hint(self, prompt: str) -> None:
        if prompt.strip() and getattr(self.target.generation_config, "prev_sot_token_id", None) is None:
            raise SettingError(f"prompt={shown(prompt)}: this Whisper's generation_config has no prev_sot_token_id")
        if found := MARK.search(prompt):
            raise SettingError(f"prompt={shown(prompt)}: {found[0]} is a mark of Whisper's and no word, leave it out")
        foreign = [letter for letter in prompt if letter.isalpha() and "LATIN" not in unicodedata.name(letter, "")]
        if foreign and not self._is_multilingual:
            raise SettingError(
                f"prompt={shown(prompt)}: this Whisper writes Latin letters only, not {foreign[0]!r}: spell it in"
                " them, or take a multilingual one such as openai/whisper-tiny"
            )

    def _of_checkpoint(self) -> tuple[str | None, str]:
        """Language and task as `generate` finds them in the checkpoint: by name, or in older ones as tokens."""
        settings = self.target.generation_config
        language, task = getattr(settings, "language", None), getattr(settings, "task", None)
        if language is None and task is None:
            forced = self._forced()
            language = next((name for name, token in self._languages.items() if token in forced), None)
            task = next((name for name, token in getattr(settings, "task_to_id", {}).items() if token in forced), None)
        return whisper_code(language) if isinstance(language, str) else None, task or "transcribe"

    def _forced(self) -> list[int]:
        """Tokens that an older checkpoint has behind the start."""
        settings, config = self.target.generation_config, self.target.config
        found = getattr(settings, "forced_decoder_ids", None) or getattr(config, "forced_decoder_ids", None) or ()
        return [token for _, token in found if token is not None]

    @property
    def tokens_per_second(self) -> float:
        """Those of English; of a multilingual model those of Thai or Telugu, whose letters are several tokens each."""
        return MULTILINGUAL_TOKENS_PER_SECOND if self._is_multilingual else super().tokens_per_second

    @property
    def only_language(self) -> str:
        return "" if self._is_multilingual else "en"

    @property
    def _is_multilingual(self) -> bool:
        told = getattr(self.target.generation_config, "is_multilingual", None)  # missing in configurations of 2022
        return bool(self.target.config.vocab_size >= MULTILINGUAL_VOCABULARY if told is None else told)

    @property
    def _languages(self) -> dict[str, int]:
        """Marks of languages and their tokens; empty where the model has no others, or its configuration no names."""
        known = getattr(self.target.generation_config, "lang_to_id", None) if self._is_multilingual else None
        return known or {}

    @property
    def frame_samples(self) -> int:
        return FRAME_SAMPLES * self._stride()

    def _stride(self) -> int:
        encoder = self.target.get_encoder()
        return int(encoder.conv1.stride[0] * encoder.conv2.stride[0])

    def encode_in_full(self, samples: torch.Tensor) -> Encoded | None:
        whole = copy.copy(self)
        whole.context_frames = None
        return None if self._positions(samples) == whole._positions(samples) else whole.encode(samples)

    def encode_all(self, samples: Sequence[torch.Tensor], growing: Sequence[Any] | None = None) -> list[Encoded]:
        """Pieces that have the same number of positions at once; those of up to 6 s have, with a short context."""
        positions = [self._positions(self._checked(one)) for one in samples]
        found: dict[int, Encoded] = {}
        for size in dict.fromkeys(positions):
            places = [place for place, other in enumerate(positions) if other == size]
            with torch.no_grad():
                states = self._states(torch.cat([self._spectrum(samples[place], size) for place in places]), size)
            seconds = [len(samples[place]) / self.sample_rate for place in places]
            found |= {at: Encoded(*one) for at, *one in zip(places, states.split(1), seconds, strict=True)}
        return [found[place] for place in range(len(samples))]

    def _encode(self, samples: torch.Tensor) -> torch.Tensor:
        positions = self._positions(samples)
        return self._states(self._spectrum(samples, positions), positions)

    def _positions(self, samples: torch.Tensor) -> int:
        """Encoder positions of samples and the silence behind them; all where no shorter encoder can be made."""
        encoder, stride = self.target.get_encoder(), self._stride()
        most = int(encoder.config.max_source_positions)
        if self.context_frames is None or not has_twin(encoder):
            return most
        frames = max(math.ceil(samples.numel() / FRAME_SAMPLES) + self.context_frames, SHORTEST_FRAMES)
        return min(most, math.ceil(frames / stride))

    def _spectrum(self, samples: torch.Tensor, positions: int) -> torch.Tensor:
        return self._features(samples, padding="max_length", max_length=positions * self.frame_samples)

    def _states(self, features: torch.Tensor, positions: int) -> torch.Tensor:
        return shortened(self.target.get_encoder(), positions)(features).last_hidden_state

    def prompt(self, context: str = "") -> list[int]:
        """The text before, in the form that Whisper expects, then the marks of language, task and no times."""
        silent = getattr(self.target.generation_config, "no_timestamps_token_id", None)
        marks = [mark for mark in self._language_and_task() if mark != silent]
        return [*self._before(context), self._start(), *marks, *([] if silent is None else [silent])]

    def _before(self, context: str) -> list[int]:
        """At most half of what the decoder has positions for: the end of the hint, and that of the text before."""
        mark = getattr(self.target.generation_config, "prev_sot_token_id", None)
        if mark is None or not (self.hint or context.strip()):
            return []
        room = self.target.config.max_target_positions // 2 - 1
        hint = self._last_ids(self.hint, room)
        told = [*hint, *self._last_ids(context, room - len(hint))]
        return [mark, *told] if told else []

    def _last_ids(self, text: str, room: int) -> list[int]:
        """The tokens of the last words of a text, as many as there is room for."""
        words = units(text)
        counts = range(1, len(words) + 1)
        fitting = bisect_right(counts, room, key=lambda count: len(self._ids("".join(words[-count:]).strip())))
        return self._ids("".join(words[len(words) - fitting :]).strip())

    def _ids(self, text: str) -> list[int]:
        return list(self._processor().tokenizer(f" {text}", add_special_tokens=False).input_ids) if text else []

    def _language_and_task(self) -> list[int]:
        if not self._languages:
            return self._forced()
        language = self.language or next(iter(self._languages))  # until one is heard
        return [self._language_token(language), self.target.generation_config.task_to_id[self.task]]

    def _language_token(self, language: str) -> int:
        known = {name.strip("<|>"): token for name, token in self._languages.items()}
        if language.strip("<|>") not in known:
            raise unknown_name("language", language, known)
        return int(known[language.strip("<|>")])

    @property
    def detects(self) -> bool:
        return bool(self._languages) and not self.language

    def language_of(self, encoded: Encoded | None) -> str:
        return self.detect_language(encoded) if encoded is not None and self.detects else self.language or ""

    def in_language(self, prompt: Sequence[int], language: str) -> Sequence[int]:
        if not language:
            return prompt
        place = list(prompt).index(self._start()) + 1
        return [*prompt[:place], self._language_token(language), *prompt[place + 1 :]]

    def detect_language(self, encoded: Encoded) -> str:
        """The likeliest language of a piece of speech, for a multilingual model; one forward of the decoder."""
        names, tokens = zip(*self._languages.items(), strict=True)
        with torch.no_grad():
            logits = self.target.get_output_embeddings()(self._decoded(encoded, [self._start()]))[-1]
        return str(names[int(logits[list(tokens)].argmax())].strip("<|>"))

    def room(self, prompt: Sequence[int]) -> int:
        return int(self.target.config.max_target_positions) - len(prompt)

    def has_room(self, prompt: Sequence[int], seconds: float) -> bool:
        """Where other languages could fill all positions: for the half of them that no prompt takes."""
        most = self.target.config.max_target_positions // 2 - 4
        return self.room(prompt) >= min(self.limit(seconds), most)

    def timestamp(self, token: int) -> float | None:
        """Seconds that a token of a time stands for, None of any other.

        They come after the mark that asks for none, 0.00 s first. Counting from the tokenizer's last special token,
        as transformers' decoder of offsets does, is wrong wherever a tokenizer leaves out some of those.
        """
        first = getattr(self.target.generation_config, "no_timestamps_token_id", None)
        return None if first is None or token <= first else (token - first - 1) * 0.02

    def _spoken(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in super()._spoken(tokens) if self.timestamp(token) is None]

    def heads(self) -> dict[int, list[int]]:
        """The alignment heads of the checkpoint; without any, all heads of the upper half of the layers.

        A distilled model may have kept those of its teacher, some of which are in layers that it does not have.
        """
        layers, width = self.target.config.decoder_layers, self.target.config.decoder_attention_heads
        chosen = getattr(self.target.generation_config, "alignment_heads", None)
        if not chosen or not all(layer < layers and head < width for layer, head in chosen):
            chosen = [(layer, head) for layer in range(layers // 2, layers) for head in range(width)]
        heads: dict[int, list[int]] = {}
        for layer, head in chosen:
            heads.setdefault(layer, []).append(head)
        return heads


def shortened(encoder: Any, positions: int) -> Any:
    """A Whisper encoder for fewer positions, which shares all weights; the given one is not touched.

    The copy is shallow: other modules than the table of positions are the encoder's own, and its class's forward runs.
    Not for one that is compiled or has another `forward`, which a copy would share.
    """
    if positions == encoder.config.max_source_positions:
        return encoder
    short = copy.copy(encoder)
    short.config = copy.copy(encoder.config)
    short.config.max_source_positions = positions
    table = encoder.embed_positions.weight[:positions]
    short._modules = dict(encoder._modules)
    short._modules["embed_positions"] = torch.nn.Embedding.from_pretrained(table, freeze=True)
    return short
