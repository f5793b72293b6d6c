"""What the frames of a codec are: codes of codebooks, or latents."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mmaccel.errors import SettingError, UnsupportedTargetError


class Frames:
    """The codes of Mimi, `[B, Q, T]`.

    Parameters
    ----------
    model
        The codec.
    """

    name: ClassVar[str] = "MimiModel"

    def __init__(self, model: Any) -> None:
        self.model = model

    def states(self, frames: torch.Tensor) -> torch.Tensor:
        """What the decoder gets, `[B, T, D]`."""
        return self.model.quantizer.decode(frames).transpose(1, 2)

    def check(self, frames: torch.Tensor, batch: int) -> None:
        """Raise a `SettingError` for what are no frames of this codec."""
        _require_tensor(frames)
        config, shape = self.model.config, tuple(frames.shape)
        if len(shape) != 3 or shape[0] != batch or not 1 <= shape[1] <= config.num_quantizers:
            raise SettingError(
                f"codes of shape {shape}: push [batch={batch}, at most {config.num_quantizers} codebooks, frames]"
            )
        if frames.dtype not in (torch.int32, torch.int64):
            raise SettingError(f"codes of {frames.dtype}: push integers of 32 or 64 bits, such as codes.long()")
        if frames.numel() and not 0 <= int(frames.min()) <= int(frames.max()) < config.codebook_size:
            raise SettingError(
                f"codes from {int(frames.min())} to {int(frames.max())}: they must be from 0 to"
                f" {config.codebook_size - 1}; cut marks such as begin and end of speech off first"
            )


class Latents(Frames):
    """The latents of Pocket TTS, `[B, D, T]`."""

    name = "PocketTTSAudioTokenizerModel"

    def states(self, frames: torch.Tensor) -> torch.Tensor:
        return self.model.latent_proj(frames).transpose(1, 2)

    def check(self, frames: torch.Tensor, batch: int) -> None:
        _require_tensor(frames)
        size, shape = self.model.config.latent_dim, tuple(frames.shape)
        if len(shape) != 3 or shape[:2] != (batch, size) or not frames.is_floating_point():
            raise SettingError(
                f"{frames.dtype} of shape {shape}: push floats [batch={batch}, latent_dim={size}, frames]"
            )


def _require_tensor(frames: Any) -> None:
    if not isinstance(frames, torch.Tensor):
        raise SettingError(f"frames as {type(frames).__name__}: push a tensor, such as torch.as_tensor(frames)")


def frames_of(model: Any) -> Frames:
    """What the frames of a codec are; refuses those without a causal decoder of Mimi's kind."""
    names = {cls.__name__ for cls in type(model).__mro__}
    kind = next((kind for kind in (Frames, Latents) if kind.name in names), None)
    if kind is None:
        raise UnsupportedTargetError(
            f"no block-wise decoding for {type(model).__name__}: give a MimiModel, such as MimiModel.from_pretrained"
            "('kyutai/mimi') or the codec_model of a speech generator"
        )
    if model.decoder is None:
        raise UnsupportedTargetError(f"this {kind.name} has no decoder: load it without `decoder_config=None`")
    if any(weight.is_meta for weight in model.parameters()):
        raise UnsupportedTargetError(
            f"this {kind.name} is off-loaded, and block-wise decoding reads its weights: keep it on a device, by name"
            " in the device_map"
        )
    config = model.config
    if not config.use_causal_conv or config.trim_right_ratio != 1.0:
        raise UnsupportedTargetError(
            f"use_causal_conv={config.use_causal_conv}, trim_right_ratio={config.trim_right_ratio}: sound depends on"
            " frames that follow; only causal Mimi models with a trim_right_ratio of 1 decode block by block"
        )
    return kind(model)
