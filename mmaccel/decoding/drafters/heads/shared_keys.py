"""Assistants that attend to the keys of the model they draft for, as those of Gemma 4 do."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from mmaccel import private
from mmaccel.errors import SettingError
from mmaccel.masks import additive

from ...generated_texts import GeneratedTexts
from ...passes.held_keys import HeldKeys, held_keys, held_places
from .draft_head import DraftHead
from .steps import HeadStep, HeadSteps

SLIDING = "sliding_attention"
PARTS = ("model", "lm_head", "pre_projection", "post_projection")  # of Gemma's


def reads_keys(assistant: Any) -> bool:
    """Whether an assistant is to be given the keys of the model."""
    return "shared_kv_states" in signature(assistant.forward).parameters


def require_shared_keys(assistant: Any, model: Any) -> None:
    """Refuse an assistant that was not made for the model, or is of an unknown kind."""
    name, config = f"assistant_model={type(assistant).__name__}", model.config.get_text_config(decoder=True)
    if not all(isinstance(getattr(assistant, part, None), nn.Module) for part in PARTS):
        raise SettingError(
            f"{name} reads the keys of the model in a way that is not known: say vlm.FusedDraft(), which leaves calls"
            " with an assistant to the loop of transformers"
        )
    size = assistant.config.backbone_hidden_size
    missing = set(assistant.model.config.layer_types) - set(shared_layers(config))
    if size != config.hidden_size or missing:
        raise SettingError(
            f"{name} is for a model with a hidden_size of {size} and layers of"
            f" {' and '.join(sorted(set(assistant.model.config.layer_types)))}, and {type(model).__name__} has"
            f" {config.hidden_size} and {' and '.join(sorted(shared_layers(config))) or 'no such layers'}: give the"
            " assistant of this model"
        )
    asked = private.attention_name(assistant.model.config)
    if asked not in ("sdpa", "eager"):
        raise SettingError(
            f"{name} attends by {asked!r}, which takes no mask of its own for each guess: load it with"
            ' attn_implementation="sdpa"'
        )


def shared_layers(config: Any) -> dict[str, int]:
    """The last layer of each kind that keeps its own keys, by kind, as configurations name it."""
    count = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", 0) or 0)
    return {kind: layer for layer, kind in enumerate((getattr(config, "layer_types", None) or ())[:count])}


class SharedKeysHead(DraftHead):
    """An assistant of Gemma 4 as a head: its layers have queries only, for the keys of the last layers of the model.

    It reads the embedding of a token and the model's state before it; for tokens that it guessed, its own state. All
    guesses have the position of the last token, and none sees another.

    Parameters
    ----------
    assistant, model
        Of Gemma 4.
    """

    def __init__(self, assistant: Any, model: Any) -> None:
        vocabulary = (each.config.get_text_config(decoder=True).vocab_size for each in (assistant, model))
        super().__init__(assistant.config, min(vocabulary))
        self.fc, self.assistant, self.drafted = assistant.pre_projection, assistant, range(len(self.draft_tokens))
        self.draft_tokens = self.draft_tokens.to(self.device)
        self.embeds, self.norm = model.get_input_embeddings(), model.get_decoder().norm
        self.layers = shared_layers(model.config.get_text_config(decoder=True))

    def join(self, states: Tensor) -> Tensor:
        """The model's states behind its last norm."""
        found: Tensor = self.norm(states.to(self.norm.weight.device))
        return found.to(self.fc.weight)

    def fed_back(self, hidden: Tensor) -> Tensor:
        """Its own states `[..., H]` in place of the model's, `[..., F]`."""
        found: Tensor = self.assistant.post_projection(hidden)
        return found

    def attend(self, tokens: Tensor, states: Tensor, places: Tensor, held: dict[str, HeldKeys]) -> Tensor:
        """Its states `[B, N, H]` for tokens `[B, N]` and the states before them `[B, N, F]`."""
        embedded = self.embeds(tokens.to(self.embeds.weight.device)).to(states)
        joined = self.fc(torch.cat([embedded, states], -1))
        found: Tensor = self.assistant.model(
            inputs_embeds=joined,
            attention_mask={kind: self._mask(kind, each.behind, joined) for kind, each in held.items()},
            position_ids=places.to(self.device),
            shared_kv_states={kind: (each.keys.to(joined), each.values.to(joined)) for kind, each in held.items()},
            use_cache=False,
            logits_to_keep=None,  # of all: it would leave out tokens, as of a model that shares keys
        ).last_hidden_state
        return found

    def _mask(self, kind: str, behind: Tensor, like: Tensor) -> Tensor:
        """What all queries `[B, N, H]` of a row see of its keys, `[B, 1, N, M]`."""
        config = self.assistant.model.config
        seen = (behind >= 0) & (behind <= config.sliding_window) if kind == SLIDING else behind >= 0
        seen = seen[:, None, None].expand(-1, -1, like.shape[1], -1).to(like.device)
        return seen if private.attention_name(config) == "sdpa" else additive(seen, like.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of the tokens that can be drafted; with an ordered embedding, -inf where it was not looked."""
        looks = self.assistant.masked_embedding
        if looks is None:
            found: Tensor = self.assistant.lm_head(hidden)
        else:
            found = looks(hidden[None], self.assistant.lm_head.weight)[0]
            found = found.masked_fill(found == found.amin(-1, keepdim=True), -torch.inf)
        return found[..., : len(self.draft_tokens)]


class SharedKeysSteps(HeadSteps):
    """Steps of such an assistant, which keeps no cache of its own.

    Parameters
    ----------
    texts
        Whose keys are read; the others are those of :class:`HeadSteps`.
    """

    head: SharedKeysHead

    def __init__(self, head: SharedKeysHead, texts: GeneratedTexts, *args: Any, **kwargs: Any) -> None:
        super().__init__(head, *args, **kwargs)
        self.texts = texts

    def _read(self, steps: Sequence[HeadStep]) -> None:
        """Of what texts went on with, it reads the last token."""
        tokens = self._padded([(step, torch.tensor(step.tokens[-1:])) for step in steps])
        states = self.head.join(self._padded([(step, step.states[-1:]) for step in steps]))
        hidden = self._attend(tokens, states)
        for step in steps:
            step.hidden = [hidden[step.row, 0]]

    def _guess(self, steps: Sequence[HeadStep]) -> None:
        tokens = self._padded([(step, torch.tensor(step.tokens)) for step in steps])
        states = self.head.fed_back(self._padded([(step, step.states) for step in steps]))
        hidden = self._attend(tokens, states)
        for step in steps:
            step.hidden, step.columns = list(hidden[step.row, : len(step.tokens)]), [0] * len(step.tokens)

    def _attend(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Its states `[B, N, H]` at the places of the texts' last tokens."""
        held = held_places(self.texts)
        keys = {kind: held_keys(self.texts, layer, held) for kind, layer in self.head.layers.items()}
        unread = torch.tensor([text.unread for text in self.texts.texts], device=self.texts.device)
        places = held.sum(1) + unread
        return self.head.attend(tokens, states, places[:, None].expand(tokens.shape), keys)
