"""A video that goes on: push frames as they come, ask at any time, with bounded memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import torch
from transformers import DynamicCache

from mmaccel.adapter import find_adapter
from mmaccel.cache.layers import layer_bytes
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError, unknown_name

from ..answering import prepare
from ..families.llava_onevision import LlavaOnevisionAdapter
from .response_gate import ResponseGate
from .streaming_compression import History, StreamingCompression
from .token_memory import POLICIES, FrameTokens, TokenMemory
from .tower_cache import TowerCache


@dataclass
class VideoStreamStats:
    """What a stream has seen and done.

    Attributes
    ----------
    frames
        Frames pushed.
    remembered
        Of how many frames there are tokens.
    tokens, plain_tokens
        Visual tokens in memory, and those of all frames.
    tower_share
        Tokens times layers that the vision tower computed, of all; 1 without reuse.
    seconds
        In which frames were taken in.
    memory_bytes
        Held between calls: tokens, and keys and values of the prompt.
    """

    frames: int = 0
    remembered: int = 0
    tokens: int = 0
    plain_tokens: int = 0
    tower_share: float = 1.0
    seconds: float = 0.0
    memory_bytes: int = 0


class VideoStream:
    """Take in frames one by one or in chunks, and answer questions about what was seen so far; lossy.

    Each frame is pruned against the past as it comes (STC, 2025), in a vision tower that reuses what it computed of
    similar frames. Memory and the length of a prompt are bounded, however long the stream.

    Parameters
    ----------
    model, processor
        A LLaVA-OneVision or LLaVA-NeXT-Video model that no session holds, and its processor. The model is not
        changed between calls.
    method
        What is kept of a frame and of the tower's work; default :class:`~mmaccel.vlm.StreamingCompression`.
    memory
        Most visual tokens of a prompt, default 2048.
    policy
        Which frames are forgotten: ``"peak_end"`` (default), ``"budget"`` or ``"window"``, see
        :class:`~mmaccel.vlm.stream.token_memory.TokenMemory`.
    gate
        When :meth:`has_news`; default :class:`~mmaccel.vlm.ResponseGate`.

    Raises
    ------
    UnsupportedTargetError
        If the model is of another family.
    SettingError
        If `memory` is less than 1.

    Examples
    --------
    >>> with vlm.VideoStream(model, processor) as stream:  # doctest: +SKIP
    ...     for frame in camera:
    ...         stream.push(frame)
    ...     print(stream.ask("what moves up?"), stream.stats)
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        method: StreamingCompression | None = None,
        memory: int = 2048,
        policy: str = "peak_end",
        gate: ResponseGate | None = None,
    ) -> None:
        adapter = find_adapter(model)
        if not isinstance(adapter, LlavaOnevisionAdapter):
            raise UnsupportedTargetError(
                f"no streams for {type(model).__name__}: LlavaOnevisionForConditionalGeneration and"
                " LlavaNextVideoForConditionalGeneration have them"
            )
        if memory < 1:
            raise SettingError(f"memory={memory}: it must be at least 1 token")
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)
        self.adapter, self.model, self.processor = adapter, model, processor
        self.method = method or StreamingCompression()
        self.memory, self.history = TokenMemory(memory, policy), History()
        self.gate, self._watched = gate or ResponseGate(), ("", "")
        self.stats = VideoStreamStats()
        self._tower: TowerCache | None = None
        if self.method.refresh < 1:
            self._tower = TowerCache(adapter.tower.encoder.layers, self.method.refresh, self.method.interval)
        self._cache: tuple[DynamicCache, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Forget all frames and answers; the counts of frames and seconds go on."""
        self.memory = TokenMemory(self.memory.limit, self.memory.policy)
        self.history, self._cache = History(), None
        self._watched = "", ""
        self.gate.reset()
        self.stats.remembered = self.stats.tokens = self.stats.memory_bytes = 0
        if self._tower is not None:
            self._tower.reset()

    @torch.no_grad()
    def push(self, frames: Any) -> None:
        """Take in a frame or a chunk of consecutive frames.

        Parameters
        ----------
        frames
            A picture, a uint8 array `[H, W, 3]`, or several of them.
        """
        chunk = list(frames) if _is_several(frames) else [frames]
        if not chunk:
            return
        began = time.perf_counter()
        inputs = prepare(self.processor, chunk, ["?"])
        pixels = inputs["pixel_values_videos"].to(self.model.device, self.model.dtype)
        with self._tower.chunk() if self._tower else nullcontext():
            (visual,) = self.adapter.encode("video", self.method, {"pixel_values_videos": pixels})
        for features in visual.frames:
            self._remember(features)
        self._cache = None
        self._count(began, visual.cells * len(chunk))

    def _remember(self, features: torch.Tensor) -> None:
        kept, novelty = self.history.take(features, self.method.count(len(features)))
        self.memory.add(FrameTokens(self.stats.frames, features[kept], float(novelty.mean())))
        self.stats.frames += 1

    def _count(self, began: float, plain: int) -> None:
        stats = self.stats
        stats.seconds += time.perf_counter() - began
        stats.plain_tokens += plain
        stats.remembered, stats.tokens = len(self.memory.frames), self.memory.count
        if self._tower is not None:
            stats.tower_share = self._tower.computed / self._tower.plain
        stats.memory_bytes = self.memory.nbytes() + self._cache_bytes()

    def ask(self, question: str, max_new_tokens: int = 32, **more: Any) -> str:
        """The answer to a question about what was seen so far; further arguments are those of `generate`.

        Raises
        ------
        PromptError
            If the stream has no frames yet, or the question is empty.
        """
        ids, embeds, end = self._prompt(question)
        cache, length = self._prefix(embeds[:, :end])
        more = {"do_sample": False, "max_new_tokens": max_new_tokens, **more}
        self._cache = None  # until it is whole again
        mask = torch.ones_like(ids)
        tokens = self.model.generate(
            input_ids=ids, inputs_embeds=embeds, attention_mask=mask, past_key_values=cache, **more
        )
        cache.crop(length - cache.get_seq_length())  # a negative number: so many go
        self._cache = cache, length
        self.stats.memory_bytes = self.memory.nbytes() + self._cache_bytes()
        return str(self.processor.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)[0]).strip()

    def has_news(self, question: str, answer: str) -> bool:
        """Whether it is time to answer a question again: the last answer no longer fits what is seen (LiveStar, 2025).

        True once for each answer that has become less likely than when it was given, see
        :class:`~mmaccel.vlm.ResponseGate`. One forward pass, no decoding.

        Examples
        --------
        >>> if stream.has_news("what moves up?", last):  # doctest: +SKIP
        ...     last = stream.ask("what moves up?")
        """
        now = self.perplexity(question, answer)
        if (question, answer) != self._watched:
            self._watched = question, answer
            self.gate.answered(now)
            return False
        return self.gate.update(now)

    @torch.no_grad()
    def perplexity(self, question: str, answer: str) -> float:
        """How little the model expects an answer, now: ``exp`` of the mean loss of its tokens."""
        ids, embeds, _ = self._prompt(question)
        words = self.processor.tokenizer(answer, add_special_tokens=False, return_tensors="pt").input_ids.to(ids)
        if not words.shape[1]:
            raise PromptError("the answer is empty: give what stream.ask returned")
        both = torch.cat([embeds, self.model.get_input_embeddings()(words)], 1)
        logits = self.model(inputs_embeds=both).logits[0, ids.shape[1] - 1 : -1]
        return float(torch.nn.functional.cross_entropy(logits.float(), words[0]).exp())

    def _prompt(self, question: str) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Token ids `[1, L]` of the conversation, their embeddings with the memory as video, and where that ends."""
        if not self.memory.frames:
            raise PromptError("the stream has no frames yet: push one before you ask")
        if not question.strip():
            raise PromptError("the question is empty: ask something about the video, such as 'what moves up?'")
        content = [{"type": "video"}, {"type": "text", "text": question}]
        text = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        ids = self.processor.tokenizer(text, return_tensors="pt").input_ids.to(self.model.device)
        video = self.adapter.token_id("video")
        places = (ids[0] == video).nonzero().squeeze(1)
        if len(places) != 1:
            raise PromptError(f"the chat template makes {len(places)} video placeholders of one video: it must be one")
        at = int(places[0])
        embed = self.model.get_input_embeddings()
        tokens = self.memory.tokens()
        if self.adapter.line_ends:
            tokens = torch.cat([tokens, self.model.model.image_newline[None].to(tokens)])
        embeds = torch.cat([embed(ids[:, :at]), tokens[None].to(self.model.dtype), embed(ids[:, at + 1 :])], 1)
        ids = torch.cat([ids[:, :at], ids.new_full((1, len(tokens)), video), ids[:, at + 1 :]], 1)
        return ids, embeds, at + len(tokens)

    @torch.no_grad()
    def _prefix(self, embeds: torch.Tensor) -> tuple[DynamicCache, int]:
        """Keys and values of a prompt `[1, L, D]` up to the end of the video, computed once until a frame comes."""
        if self._cache is None:
            cache = DynamicCache(config=self.adapter.text_config)
            self.model.get_decoder()(inputs_embeds=embeds, past_key_values=cache, use_cache=True)
            self._cache = cache, embeds.shape[1]
        return self._cache

    def _cache_bytes(self) -> int:
        return 0 if self._cache is None else layer_bytes(self._cache[0].layers)


def _is_several(frames: Any) -> bool:
    """Whether this is more than one picture."""
    if isinstance(frames, Sequence):
        return True
    return getattr(frames, "ndim", 3) == 4
