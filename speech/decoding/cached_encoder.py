"""A streaming encoder that computes each frame once: keys and values of a window per layer are kept."""

from __future__ import annotations

import copy
from typing import Any

import torch
from accelerate.utils import align_module_device
from torch.nn.functional import conv1d

from ..families.private import sliding_window
from .projections import split_heads

LONGEST_PIECE = 160_000  # samples encoded at once, so that a whole file in one push needs no more memory than 10 s


class CausalConvolution:
    """A strided causal convolution of the encoder on a stream; carries its left context."""

    def __init__(self, convolution: Any, channels: int, like: torch.Tensor) -> None:
        self.convolution = convolution
        self.context = like.new_zeros(1, channels, convolution.left_pad)

    def __call__(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Outputs `[1, C, t]` that new inputs `[1, C, n]` complete."""
        conv = self.convolution
        inputs = torch.cat([self.context, hidden_states], -1)
        stride, span = conv.stride[0], conv.left_pad + 1
        count = max(0, (inputs.shape[-1] - span) // stride + 1)
        self.context = inputs[..., count * stride :].clone()
        if not count:
            return inputs.new_zeros(1, conv.out_channels, 0)
        with align_module_device(conv):  # off-loaded, its weights are away between passes
            return conv1d(inputs, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)


class WindowedLayer:
    """A transformer layer of the encoder on a stream; carries keys and values of its window.

    Parameters
    ----------
    layer
        The encoder layer.
    window
        `(left, right)` as in the configuration: a frame attends to `left` frames up to itself, and to those less
        than `right` ahead.
    """

    def __init__(self, layer: Any, window: tuple[int, int], like: torch.Tensor) -> None:
        self.layer, self.window = layer, window
        self.left, self.ahead = max(window[0], 1), max(window[1] - 1, 0)  # the right window is strict
        attention = layer.self_attn
        heads = attention.k_proj.out_features // attention.head_dim
        self.key = self.value = like.new_zeros(1, heads, 0, attention.head_dim)
        self.waiting = like.new_zeros(1, 0, attention.q_proj.in_features)  # for the frames ahead

    def __call__(self, hidden_states: torch.Tensor, last: bool) -> torch.Tensor:
        """Outputs `[1, t, D]` that new inputs `[1, n, D]` complete; all that are left if these are the last."""
        self._append(hidden_states)
        waiting = torch.cat([self.waiting, hidden_states], 1)
        count = max(0, waiting.shape[1] - (0 if last else self.ahead))
        states = waiting[:, :count]
        if count:
            states = states + self._attend(states, waiting.shape[1])
            states = states + self.layer.mlp(self.layer.post_attention_layernorm(states))
        self.waiting = waiting[:, count:].clone()
        self._forget(self.waiting.shape[1] + self.left - 1)
        return states

    def _append(self, hidden_states: torch.Tensor) -> None:
        attention, normed = self.layer.self_attn, self.layer.input_layernorm(hidden_states)
        self.key = torch.cat([self.key, split_heads(attention.k_proj(normed), attention.head_dim)], 2)
        self.value = torch.cat([self.value, split_heads(attention.v_proj(normed), attention.head_dim)], 2)

    def _forget(self, keep: int) -> None:
        """Keep the newest keys and values, as copies, so that the whole is not held by a view."""
        first = max(0, self.key.shape[2] - keep)
        self.key, self.value = self.key[:, :, first:].clone(), self.value[:, :, first:].clone()

    def _attend(self, states: torch.Tensor, waiting: int) -> torch.Tensor:
        """Attention of the `states` `[1, t, D]`, the first of `waiting` newest frames."""
        attention = self.layer.self_attn
        query = split_heads(attention.q_proj(self.layer.input_layernorm(states)), attention.head_dim)
        frames = torch.arange(self.key.shape[2], device=states.device)
        first = self.key.shape[2] - waiting
        mask = sliding_window(self.window, frames[first : first + states.shape[1], None], frames)
        output = torch.nn.functional.scaled_dot_product_attention(
            query, self.key, self.value, mask, scale=attention.scaling, enable_gqa=True
        )
        return attention.o_proj(output.transpose(1, 2).flatten(2))


class EncoderStream:
    """Encode audio as it comes, each frame once; exact (Moonshine v2's encoder, 2026).

    What comes out is what the whole encoder makes of the whole audio, up to rounding. A frame comes out once the
    frames of its lookahead are there. Memory does not grow with the audio.

    Parameters
    ----------
    encoder
        A `MoonshineStreamingEncoder`. It is only read: many streams can share it.

    Attributes
    ----------
    lookahead
        Frames behind a frame that must be there before it comes out, by the windows of the configuration.
    samples
        Samples taken in.

    Examples
    --------
    >>> stream = adapter.begin()  # doctest: +SKIP
    >>> for chunk in microphone:  # doctest: +SKIP
    ...     stable = stream.push(chunk)
    >>> rest = stream.peek()  # doctest: +SKIP
    """

    def __init__(self, encoder: Any) -> None:
        self.encoder = encoder
        config, embedder = encoder.config, encoder.embedder
        with align_module_device(embedder.conv1):
            like: torch.Tensor = embedder.conv1.weight[:0].detach()  # a quantized linear layer keeps bytes
        # as the model, which may be given more windows than it has layers
        windows = [(int(left), int(right)) for left, right in config.sliding_windows[: len(encoder.layers)]]
        self.lookahead = sum(max(right - 1, 0) for _, right in windows)
        self.samples = 0
        self._rest = like.new_zeros(0)  # samples of a frame that is not complete
        self._convolutions = [
            CausalConvolution(embedder.conv1, embedder.conv1.in_channels, like),
            CausalConvolution(embedder.conv2, embedder.conv2.in_channels, like),
        ]
        self._layers = [
            WindowedLayer(layer, window, like) for layer, window in zip(encoder.layers, windows, strict=True)
        ]

    @torch.no_grad()
    def push(self, samples: torch.Tensor) -> torch.Tensor:
        """Take in `samples` `[n]`, float32 at the model's rate; returns new frames `[1, t, D]` that are final."""
        pieces = [self._push(piece) for piece in samples.split(LONGEST_PIECE)]
        return torch.cat(pieces, 1)

    @torch.no_grad()
    def peek(self) -> torch.Tensor:
        """The frames `[1, t, D]` that would follow if the audio ended now; the stream goes on as before."""
        ahead = copy.copy(self)
        ahead._convolutions = [copy.copy(part) for part in self._convolutions]  # no tensor is changed in place
        ahead._layers = [copy.copy(part) for part in self._layers]
        return ahead._flush()

    def _push(self, samples: torch.Tensor) -> torch.Tensor:
        self.samples += len(samples)
        known = torch.cat([self._rest, samples.to(self._rest)])
        length = self.encoder.embedder.frame_len
        whole = len(known) // length * length
        self._rest = known[whole:].clone()
        return self._encode(self._embed(known[:whole].view(1, -1, length)), False)

    def _flush(self) -> torch.Tensor:
        """Of a begun frame the model sees a zero, as its processor pads and masks it; of less than one, nothing."""
        embedder = self.encoder.embedder
        begun = len(self._rest) > 0 and self.samples >= embedder.frame_len
        return self._encode(self._rest.new_zeros(1, int(begun), embedder.linear.out_features), True)

    def _embed(self, frames: torch.Tensor) -> torch.Tensor:
        embedder = self.encoder.embedder
        return torch.nn.functional.silu(embedder.linear(embedder.comp(embedder.cmvn(frames))))

    def _encode(self, embeds: torch.Tensor, last: bool) -> torch.Tensor:
        first, second = self._convolutions
        states = second(torch.nn.functional.silu(first(embeds.transpose(1, 2)))).transpose(1, 2)
        for layer in self._layers:
            states = layer(states, last)
        return self.encoder.final_norm(states)
