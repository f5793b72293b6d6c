"""Where the frames of a speech generator are, for each family; no algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from transformers.generation.streamers import BaseStreamer

from mmaccel.decoding.setting import setting
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.patching import wrap_in_thread

from .depth_decoding import DepthDecoding
from .frames import Frames, Latents

Take = Callable[[torch.Tensor], None]


class Speaker(ABC):
    """A speech generator and its codec.

    Parameters
    ----------
    model
        Its `generate` makes the frames.
    codec
        What makes sound of them; None where the model has it.
    """

    name: ClassVar[str]
    frames: ClassVar[type[Frames]] = Frames  # what its codec makes sound of

    def __init__(self, model: Any, codec: Any = None) -> None:
        self.model, self.codec = model, codec

    @abstractmethod
    def follow(self, stack: ExitStack, take: Take) -> dict[str, Any]:
        """Have `take` called with each frame, `[B, Q, 1]`, until `stack` closes; returns what `generate` needs for it.

        Rows that have ended are zeros.
        """

    def check(self, inputs: dict[str, Any]) -> None:  # noqa: B027  most take all arguments
        """Raise a `SettingError` for arguments of `generate` that do not suit."""

    def check_codec(self, frames: Frames) -> None:
        """Raise a `SettingError` for a codec that makes sound of other frames."""
        if type(frames) is not self.frames:
            raise SettingError(f"codec={type(self.codec).__name__}: {self.name} needs a {self.frames.name}")


class CsmSpeaker(Speaker):
    """CSM: codes of Mimi, the first of each frame by the backbone, the others by a depth decoder."""

    name = "CsmForConditionalGeneration"

    def __init__(self, model: Any, codec: Any = None) -> None:
        super().__init__(model, model.codec_model if codec is None else codec)

    def follow(self, stack: ExitStack, take: Take) -> dict[str, Any]:
        DepthDecoding(self.model.depth_decoder).attach(stack)
        return {"streamer": _Codes(take, self.model.config.codebook_eos_token_id)}

    def check(self, inputs: dict[str, Any]) -> None:
        if inputs.get("output_audio"):
            raise SettingError("output_audio=True: the sound comes block by block; leave it out")


class _Codes(BaseStreamer):
    """Gets the prompt first, then the codes of each frame, `[B, Q]`."""

    def __init__(self, take: Take, end: int) -> None:
        self.take, self.end_token = take, end
        self._live: torch.Tensor | None = None

    def put(self, value: torch.Tensor) -> None:
        if self._live is None:
            self._live = torch.ones(len(value), 1, dtype=torch.bool)
            return
        self._live = self._live & ~(value == self.end_token).all(-1, keepdim=True)
        if self._live.any():
            self.take(value.where(self._live, 0)[..., None])  # behind its end a row has codes that are none

    def end(self) -> None:
        """There are no more."""


class PocketSpeaker(Speaker):
    """Pocket TTS: latents of a codec like Mimi, by a flow head; the codec is a model of its own."""

    name = "PocketTTSForConditionalGeneration"
    frames = Latents

    def __init__(self, model: Any, codec: Any = None) -> None:
        if codec is None:
            raise SettingError(f"{self.name} brings no codec: pass codec=processor.audio_tokenizer")
        super().__init__(model, codec)

    def follow(self, stack: ExitStack, take: Take) -> dict[str, Any]:
        def sample(original: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
            latent = original(*args, **kwargs)
            take(self.model.denormalize_latents(latent)[..., None])
            return latent

        wrap_in_thread(stack, self.model, "sample_latent", sample)
        return {}

    def check(self, inputs: dict[str, Any]) -> None:
        ids = inputs.get("input_ids", inputs.get("inputs"))
        rows = (1 if ids is None else len(ids)) * (setting(self.model, inputs, "num_return_sequences") or 1)
        if rows > 1:
            raise SettingError(f"{rows} texts: {self.name} tells only afterwards where each ends; stream one at a time")


class PhononSpeaker(PocketSpeaker):
    """Gradium Phonon TTS: latents by the same loop, and for a codec of the same class."""

    name = "GradiumPhononTTSForConditionalGeneration"


class MoshiSpeaker(Speaker):
    """Moshi: codes of Mimi; all but the first of each frame are drawn a step later than it."""

    name = "MoshiForConditionalGeneration"

    def __init__(self, model: Any, codec: Any = None) -> None:
        super().__init__(model, model.audio_encoder if codec is None else codec)

    def follow(self, stack: ExitStack, take: Take) -> dict[str, Any]:
        columns = _Columns(take, self.model.config.audio_vocab_size)

        def prepare(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            inputs = original(*args, **kwargs)  # draws the codes of the step before
            columns.look(self.model.generated_audio_codes)
            return inputs

        def end(kind: type[BaseException] | None, *_: Any) -> None:
            if kind is None:
                columns.look(self.model.generated_audio_codes)  # the last are drawn behind all steps

        wrap_in_thread(stack, self.model, "prepare_inputs_for_generation", prepare)
        stack.push(end)
        return {"return_audio_waveforms": False, "return_audio_codes": True}

    def check(self, inputs: dict[str, Any]) -> None:
        for name in ("return_audio_waveforms", "return_audio_codes"):
            if name in inputs:
                raise SettingError(f"{name}={inputs[name]!r}: the sound comes block by block; leave it out")
        for name in ("num_beams", "num_return_sequences"):
            if (value := setting(self.model, inputs, name) or 1) != 1:
                raise SettingError(f"{name}={value!r}: one text sounds while it is drawn; leave it out")


class _Columns:
    """What Moshi drew up to now, `[B, Q, steps]`; a frame is the first code of one step, and the others of the next."""

    def __init__(self, take: Take, blank: int) -> None:
        self.take, self.blank = take, blank
        self._taken = 0

    def look(self, codes: torch.Tensor) -> None:
        """Take the frames that are complete; a step whose first code is the mark before all codes is none."""
        for step in range(self._taken, codes.shape[-1] - 1):
            self._taken = step + 1
            if (codes[:, 0, step] != self.blank).all():
                self.take(torch.cat([codes[:, :1, step], codes[:, 1:, step + 1]], 1)[..., None])


def speaker_of(model: Any, codec: Any = None) -> Speaker:
    """The generator that a model is."""
    names = {cls.__name__ for cls in type(model).__mro__}
    for kind in (CsmSpeaker, MoshiSpeaker, PocketSpeaker, PhononSpeaker):
        if kind.name in names:
            return kind(model, codec)
    raise UnsupportedTargetError(
        f"no streaming speech for {type(model).__name__}: give a CsmForConditionalGeneration, a"
        " MoshiForConditionalGeneration, a PocketTTSForConditionalGeneration or a"
        " GradiumPhononTTSForConditionalGeneration, such as"
        " CsmForConditionalGeneration.from_pretrained('sesame/csm-1b')"
    )
