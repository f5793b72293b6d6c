"""Chat with pictures and videos over HTTP, as OpenAI's `chat/completions` asks for it."""

from __future__ import annotations

import queue
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import TextStreamer

from mmaccel.cli.arguments import FRAMES, TOKENS
from mmaccel.decoding.drafters.placeholders import placeholders
from mmaccel.errors import PromptError, SettingError, shown
from mmaccel.machine import forked_rng
from mmaccel.serve.endpoint import LARGEST_SEED, Endpoint, Fields, Left, Request

from .chat_messages import conversation_of
from .input.processed import for_model, processed
from .input.read_video import VideoFrames

COLDEST = 1e-4  # temperature below which words are the likeliest ones, as far as numbers go
STREAM_OPTIONS = {"include_usage", "include_obfuscation"}  # the second adds noise to each event, which none has here
WHO = ("user", "safety_identifier", "prompt_cache_key")  # asks: the latter two are OpenAI's names for the first now
# Values of OpenAI's fields that ask for nothing: many clients send them with every request, and no others are taken.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "stop": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),  # of no tools
    "parallel_tool_calls": (True, False),
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
}
LOOKED_AT = 32  # frames of a video, as `mmaccel run vlm`
# By which checkpoints cut words off beside `top_p` and `top_k`: None counts more than what theirs is.
OTHER_CUTS = dict.fromkeys(("min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff"))
USUAL = 4_096  # tokens at most where none are asked for: models end before, or repeat themselves while others wait


@dataclass(kw_only=True)
class Chat(Request):
    """A request for an answer.

    Attributes
    ----------
    text
        The conversation as the model reads it, with placeholders.
    pictures, videos
        What stands there.
    sampling
        Arguments of `generate`.
    seed
        Of sampling.
    tells_usage
        Whether a stream ends with the number of tokens.
    has_begun
        Whether the role of the answer was streamed.
    reason, usage
        Why the answer ended, and how many tokens were read and written, once it has.
    """

    text: str
    pictures: list[Image.Image]
    videos: list[VideoFrames]
    sampling: dict[str, Any]
    seed: int
    tells_usage: bool = False
    has_begun: bool = False
    reason: str = "stop"
    usage: dict[str, int] = field(default_factory=dict)
    number: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))


class ChatEndpoint(Endpoint[Chat]):
    """Answers conversations, by default with the likeliest words (temperature 0)."""

    path = "/v1/chat/completions"

    @property
    def processor(self) -> Any:
        return self.opened[1]

    def parse(self, body: Mapping[str, Any]) -> Chat:
        fields = Fields(body)
        messages = fields.take("messages")
        frames = fields.whole("frames", 1, FRAMES, default=LOOKED_AT)
        sampling = {"max_new_tokens": _tokens_asked(fields), **_sampling_asked(fields)}
        seed = fields.whole("seed", 0, LARGEST_SEED)
        streams = fields.flag("stream")
        usage = _usage_asked(fields.take("stream_options"), streams)
        for name in WHO:
            fields.take(name)
        for name, taken in NEUTRAL.items():
            fields.only(name, *taken)
        fields.end()
        conversation = conversation_of(messages, frames)
        made = Chat(
            text=self._written(conversation.messages),
            pictures=conversation.pictures,
            videos=conversation.videos,
            sampling=sampling,
            seed=secrets.randbelow(2**31) if seed is None else seed,
            pieces=queue.SimpleQueue() if streams else None,
            tells_usage=usage,
        )
        if not (sampling["do_sample"] or streams or made.pictures or len(made.videos) > 1):
            made.group = (sampling["max_new_tokens"], *(video.frames.shape for video in made.videos))
        return made

    def _written(self, conversation: list[dict[str, Any]]) -> str:
        try:
            return str(self.processor.apply_chat_template(conversation, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's authors, and raises what it likes
            raise PromptError(f"the model's chat template does not take these messages: {error}") from error

    def answer(self, requests: list[Chat]) -> list[dict[str, Any]]:
        """Answer conversations of one shape."""
        pictures = [picture for request in requests for picture in request.pictures]
        videos = [video for request in requests for video in request.videos]
        texts = [request.text for request in requests]
        try:
            inputs = processed(self.processor, texts, videos, pictures)
        except (ValueError, StopIteration) as error:
            why = str(error) or "its text holds a placeholder too many"
            raise PromptError(f"the model's processor does not take this request: {why}") from error
        inputs = for_model(inputs, self.target)
        first = requests[0]
        most = first.sampling["max_new_tokens"]
        length = min(most, self._room(inputs))
        more: dict[str, Any] = {"stopping_criteria": StoppingCriteriaList([_Left(requests)]), "max_new_tokens": length}
        if first.pieces is not None:
            more["streamer"] = _Streamer(self.processor.tokenizer, first.pieces)
        with forked_rng():
            torch.manual_seed(first.seed)
            tokens = self.target.generate(**inputs, **{**first.sampling, **more})
        if all(request.left.is_set() for request in requests):
            raise Left
        written, prompts = tokens[:, inputs["input_ids"].shape[1] :], inputs["attention_mask"].sum(1).tolist()
        if len(requests) > 1 and length < most and any(self._ends(row) is None for row in written):
            raise PromptError("some of these messages leave less room than others: each is answered alone")
        return [self._answer(*row) for row in zip(requests, written, prompts, strict=True)]

    def _room(self, inputs: Any) -> int:
        """Tokens that fit behind the longest text, without pictures, of which methods drop most; raises if none do."""
        config = self.target.config
        most = getattr(config.get_text_config(), "max_position_embeddings", None)
        text = ~torch.isin(inputs["input_ids"], inputs["input_ids"].new_tensor([*placeholders(config)]))
        longest = int((text & inputs["attention_mask"].bool()).sum(1).max())
        if most is not None and longest >= most:
            raise PromptError(f"the messages are {longest} tokens long, and the model takes {most}: send fewer")
        return TOKENS if most is None else most - longest

    def _answer(self, request: Chat, tokens: torch.Tensor, prompt: int) -> dict[str, Any]:
        text = self.processor.batch_decode(tokens[None], skip_special_tokens=True)[0].strip()
        ended = self._ends(tokens)
        count = len(tokens) if ended is None else ended + 1
        message = {"role": "assistant", "content": text}
        request.reason = reason = "length" if ended is None else "stop"
        request.usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        return {
            **self._heading(request, "chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
            "usage": request.usage,
        }

    def _ends(self, tokens: torch.Tensor) -> int | None:
        """Where the text ends; None if it was cut off."""
        ends = self.target.generation_config.eos_token_id
        at = torch.isin(tokens.cpu(), torch.tensor(ends if ends is not None else [-1])).nonzero()
        return int(at[0]) if len(at) else None

    def ending(self, request: Chat) -> list[dict[str, Any]]:
        """The end, and if it was asked for a piece without text that tells how many tokens were read and written."""
        usage = {**self._heading(request, "chat.completion.chunk"), "choices": [], "usage": request.usage}
        return [*super().ending(request), *([usage] if request.tells_usage else [])]

    def piece(self, request: Chat, text: str | None) -> dict[str, Any]:
        delta = {} if request.has_begun else {"role": "assistant"}  # once: clients join what comes
        request.has_begun = True
        if text is not None:
            delta["content"] = text
        choice = {"index": 0, "delta": delta, "finish_reason": request.reason if text is None else None}
        return {**self._heading(request, "chat.completion.chunk"), "choices": [choice]}

    def _heading(self, request: Chat, kind: str) -> dict[str, Any]:
        return {"id": request.number, "object": kind, "created": request.created, "model": self.name}


def _tokens_asked(fields: Fields) -> int:
    """The most tokens of an answer, which has an older name too."""
    asked = {fields.whole(name, 1, TOKENS) for name in ("max_completion_tokens", "max_tokens")} - {None}
    if len(asked) > 1:
        raise SettingError("max_completion_tokens and max_tokens say the same: give one of them")
    return int(asked.pop()) if asked else USUAL


def _sampling_asked(fields: Fields) -> dict[str, Any]:
    """Arguments of `generate`; where words are cut off without a temperature, the others are drawn, as OpenAI does it.

    What cuts words off is the request's alone: that of a checkpoint may leave nothing but the likeliest one.
    """
    temperature = fields.number("temperature", 0, 100)
    top_p, top_k = fields.number("top_p", 1e-6, 1) or 1.0, fields.whole("top_k", 0, 2**31, default=0)
    if temperature is None:
        temperature = 0.0 if top_p == 1 and not top_k else 1.0
    if temperature < COLDEST:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": top_k, **OTHER_CUTS}


def _usage_asked(options: Any, streams: bool) -> bool:
    """Whether `stream_options` ask for the number of tokens."""
    if options is None:
        return False
    if not streams:
        raise SettingError("stream_options are those of a stream: leave them out, or send stream=true too")
    is_known = isinstance(options, dict) and options.keys() <= STREAM_OPTIONS and not options.get("include_obfuscation")
    asked = options.get("include_usage", False) if is_known else None
    if not isinstance(asked, bool):
        raise SettingError(f'stream_options={shown(options)}: send {{"include_usage": true}}, or leave it out')
    return asked


class _Left(StoppingCriteria):
    """Ends a text that nobody waits for."""

    rowwise = True  # reads no text: rows of a batch may be shown one by one

    def __init__(self, requests: list[Chat]) -> None:
        self.requests = requests

    def __deepcopy__(self, memo: dict[int, Any]) -> _Left:
        return self  # a row's own would not be told that nobody waits any more

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        gone = all(request.left.is_set() for request in self.requests)
        return torch.full((len(input_ids),), gone, dtype=torch.bool, device=input_ids.device)


class _Streamer(TextStreamer):
    """Hands on whole words as they are written."""

    def __init__(self, tokenizer: Any, pieces: queue.SimpleQueue[str]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.pieces = pieces

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self.pieces.put(text)


ENDPOINT = ChatEndpoint
