"""A video that goes on: push frames as they come, ask at any time, with bounded memory."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from contextlib import nullcontext
from typing import Any, Self

import torch
from transformers import DynamicCache

from mmaccel.decoding.setting import give_cache, pass_device
from mmaccel.errors import PromptError, unknown_name
from mmaccel.locks import lock_of, pass_lock

from ..answering import prepare
from ..decoder.generation import copies
from ..input.processed import single_bos
from .checks import check_answer, check_question, check_settings, frames_of, size_of, streaming_adapter
from .response_gate import ResponseGate, perplexity
from .stats import VideoStreamStats
from .stream_cache import HEAD, StreamCache
from .streaming_compression import History, StreamingCompression
from .token_memory import POLICIES, FrameTokens, TokenMemory
from .tower_cache import TowerCache

REREAD = 0.125  # share of the memory
LONGEST = 32  # tokens of an answer
AT_ONCE = 256  # tokens of new frames that the language model reads together


class VideoStream:
    """Take in frames one by one or in chunks, and answer questions about what was seen so far; lossy.

    Each frame is pruned against the past as it comes (STC, 2025), in a vision tower that reuses what it computed of
    similar frames. Memory and the length of a prompt are bounded, however long the stream. One thread may push while
    another asks: an answer is about the frames that were there when it was asked. Of an off-loaded model they take
    turns, so that frames wait for an answer. By another adapter of peft it reads anew what it remembers.

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
    prefill
        Whether the language model reads the whole memory anew at the first question after a frame. By default it reads
        each frame as it comes, and forgets it with the frame (LiveStar, 2025): a question then takes only its own time.
    reread
        Share of the memory that may be forgotten until the rest, which still knows of it, is read anew, while frames
        come and not at a question: from 0, as good as `prefill` and the most work for each frame; default an eighth;
        None for never.

    Raises
    ------
    UnsupportedTargetError
        If the model is of another family, or needs `prefill`.
    SettingError
        If a setting is out of range.

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
        prefill: bool = False,
        reread: float | None = REREAD,
    ) -> None:
        adapter = streaming_adapter(model)
        check_settings(method, memory, gate, prefill, reread)
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
        self.prefill, self.reread = prefill, reread
        self._cache = self._new_cache()
        self._waiting: list[FrameTokens] = []  # frames that the cache does not have yet
        self._lock = threading.RLock()  # of memory, cache and what waits between them

    def _new_cache(self) -> StreamCache:
        return StreamCache(self.model.get_decoder(), self.adapter.text_config, evicts=not self.prefill)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Forget all frames and answers; the counts of frames and seconds go on."""
        with self._lock:
            self.memory = TokenMemory(self.memory.limit, self.memory.policy)
            self.history, self._cache, self._waiting = History(), self._new_cache(), []
            self._watched = "", ""
            self.gate.reset()
            self.stats.remembered = self.stats.tokens = self.stats.memory_bytes = 0
        if self._tower is not None:
            with lock_of(self.model):
                self._tower.reset()

    def push(self, frames: Any) -> None:
        """Take in a frame or a chunk of consecutive frames.

        Parameters
        ----------
        frames
            A picture, a uint8 array `[H, W, 3]`, or several of them, also of different sizes, or
            :class:`~mmaccel.vlm.VideoFrames`.

        Raises
        ------
        PromptError
            If something else is among them; nothing of the push is taken then.
        """
        chunk = frames_of(frames)
        if chunk:
            began = time.perf_counter()
            self.push_features(self.features(self.pixels(chunk)))
            self.stats.seconds += time.perf_counter() - began

    def pixels(self, chunk: list[Any]) -> torch.Tensor:
        """Pictures as the tower takes them, `[1, F, 3, H, W]`: what :meth:`push` does first, in any thread."""
        alike = [[*run] for _, run in itertools.groupby(chunk, size_of)]  # processors stack them before they resize
        return torch.cat([prepare(self.processor, run, ["?"])["pixel_values_videos"] for run in alike], 1)

    @torch.no_grad()
    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """What the tower makes of them, `[F, N, D]`: what :meth:`push` does next, chunk by chunk, in any thread."""
        pixels = pixels.to(pass_device(self.model, pixels), self.model.dtype)
        plain = nullcontext(list(range(pixels.shape[1])))
        with lock_of(self.model), self._tower.chunk(pixels.shape[1]) if self._tower else plain as order:
            (visual,) = self.adapter.encode("video", self.method, {"pixel_values_videos": pixels[:, order]})
        return visual.frames[torch.tensor(order).argsort()]

    def push_features(self, frames: torch.Tensor) -> None:
        """Take in what :meth:`features` made of them, and let the language model read it."""
        with pass_lock(self.model), self._lock:
            for features in frames:
                self._remember(features)
                if not self.prefill and sum(len(frame.tokens) for frame in self._waiting) >= AT_ONCE:
                    self._read()
            if self.prefill:
                self._cache, self._waiting = self._new_cache(), list(self.memory.frames)
            else:
                self._read()
            self._count(frames.shape[0] * frames.shape[1])

    def _remember(self, features: torch.Tensor) -> None:
        kept, novelty = self.history.take(features, min(self.method.count(len(features)), self.memory.limit))
        frame = FrameTokens(self.stats.frames, features[kept], float(novelty.mean()))
        self.memory.add(frame)
        self._waiting.append(frame)
        self.stats.frames += 1

    @torch.no_grad()
    def _read(self) -> None:
        """Let the language model read the frames that wait, and forget those that are forgotten."""
        remembered = {frame.number for frame in self.memory.frames}
        lost = 0.0 if self.reread is None else self._cache.lost(remembered) - self.reread * self.memory.limit
        if lost > 0 or self._cache.is_outdated:
            self._cache, self._waiting = self._new_cache(), list(self.memory.frames)
        frames = [frame for frame in self._waiting if frame.number in remembered]
        if frames:
            numbers = [frame.number for frame in frames for _ in frame.tokens]
            embeds = torch.cat([frame.tokens for frame in frames])[None].to(self.model.dtype)
            if not len(self._cache):
                head = self._words("?")[0]
                numbers = [HEAD] * head.shape[1] + numbers
                embeds = torch.cat([self.model.get_input_embeddings()(head), embeds], 1)
            self._cache.append(embeds, numbers)
        self._cache.keep(remembered)
        self._waiting = []

    def _count(self, plain: int) -> None:
        stats = self.stats
        stats.plain_tokens += plain
        stats.remembered, stats.tokens = len(self.memory.frames), self.memory.count
        if self._tower is not None and self._tower.plain:  # not yet, where features are another stream's
            stats.tower_share = self._tower.computed / self._tower.plain
        stats.memory_bytes = self.memory.nbytes() + self._cache.nbytes()

    def ask(self, question: str, max_new_tokens: int | None = None, **more: Any) -> str:
        """The answer to a question about what was seen so far; further arguments are those of `generate`.

        Greedy, unless a `generation_config` is given, and of at most 32 tokens, unless it or `max_new_tokens` says
        otherwise.

        Raises
        ------
        PromptError
            If the stream has no frames yet, or the question is empty.
        SettingError
            If more is asked for than the text of one answer, or guesses for which `generate` reads token ids.
        """
        check_answer(self.model, more)
        config = more.get("generation_config")
        bounded = config is not None and (config.max_new_tokens or config.max_length)
        longest = LONGEST if max_new_tokens is None and not bounded else max_new_tokens
        length = {} if longest is None else {"max_new_tokens": longest}
        more = {**({} if config else {"do_sample": False}), **length, **more}
        with pass_lock(self.model):
            ids, embeds, cache = self._prompt(question)
            seen = copy.deepcopy(cache) if question == self._watched[0] else None  # of what the answer is about
            cache.batch_repeat_interleave(copies(self.model, more))
            prompt = {"input_ids": ids, "inputs_embeds": embeds, "attention_mask": torch.ones_like(ids)}
            give_cache(self.model, more, cache)
            tokens = self.model.generate(**prompt, **more)
            answer = str(self.processor.batch_decode(tokens[:, ids.shape[1] :], skip_special_tokens=True)[0]).strip()
            if answer and seen is not None and question == self._watched[0]:
                self._watched = question, answer
                self.gate.answered(self._perplexity((ids, embeds, seen), answer))
        return answer

    def has_news(self, question: str, answer: str) -> bool:
        """Whether it is time to answer a question again: the last answer no longer fits what is seen (LiveStar, 2025).

        True once for each answer that has become less likely than when it was given (the first to a question: than when
        this was first called, which is False). One forward pass, no decoding, and one more at each answer that follows.

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

    def perplexity(self, question: str, answer: str) -> float:
        """How little the model expects an answer, now: ``exp`` of the mean loss of its tokens."""
        with pass_lock(self.model):
            return self._perplexity(self._prompt(question), answer)

    def _perplexity(self, prompt: tuple[torch.Tensor, torch.Tensor, DynamicCache], answer: str) -> float:
        words = self.processor.tokenizer(answer, add_special_tokens=False, return_tensors="pt").input_ids
        if not words.shape[1]:
            raise PromptError("the answer is empty: give what stream.ask returned")
        return perplexity(self.model, *prompt, words)

    def _words(self, question: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids `[1, L]` of the conversation before and after the video."""
        content = [{"type": "video"}, {"type": "text", "text": question}]
        text = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        single = single_bos(self.processor, text)
        ids = self.processor.tokenizer(text, return_tensors="pt", **single).input_ids
        ids = ids.to(pass_device(self.model, ids))
        places = (ids[0] == self.adapter.token_id("video")).nonzero().squeeze(1)
        if len(places) != 1:
            raise PromptError(f"the chat template makes {len(places)} video placeholders of one video: it must be one")
        at = int(places[0])
        return ids[:, :at], ids[:, at + 1 :]

    def _prompt(self, question: str) -> tuple[torch.Tensor, torch.Tensor, DynamicCache]:
        """Token ids `[1, L]` of the conversation, its embeddings, and a cache of what was read of it; of one moment."""
        with self._lock:
            if not self.memory.frames:
                raise PromptError("the stream has no frames yet: push one before you ask")
            check_question(question)
            self._read()
            tokens, cache = self.memory.tokens(), self._cache.read()
            self.stats.memory_bytes = self.memory.nbytes() + self._cache.nbytes()
        head, tail = self._words(question)
        embed = self.model.get_input_embeddings()
        if self.adapter.line_ends:
            tokens = torch.cat([tokens, self.adapter.newline[None].to(tokens)])
        embeds = torch.cat([embed(head), tokens[None].to(self.model.dtype), embed(tail)], 1)
        ids = torch.cat([head, head.new_full((1, len(tokens)), self.adapter.token_id("video")), tail], 1)
        return ids, embeds, cache
