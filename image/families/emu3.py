"""Emu3: image tokens inside the text vocabulary, an end-of-line token after every row."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel.adapter import register_adapter
from mmaccel.decoding.setting import setting
from mmaccel.errors import UnsupportedTargetError

from ..decoding.layout import Layout
from ..decoding.sampling import Sampling
from ..decoding.task import ImageTask
from .adapter import ImageAdapter, prompt_tokens
from .vocabulary import VocabularyTask, check_room, missing_limit, read_prompts

END_OF_LINE, END_OF_FRAME, END_OF_IMAGE = "<|extra_200|>", "<|extra_201|>", "<|image end|>"
IMAGE_START = "<|image token|>"


@register_adapter
class Emu3Adapter(ImageAdapter):
    """`Emu3ForConditionalGeneration`, with the inputs of `processor(..., return_for_image_generation=True)`.

    `image_sizes` stays among the inputs: it gives the grid. `prefix_allowed_tokens_fn` is not needed,
    since the grid says the same; one that does not allow every code at the first place of each picture is refused.
    """

    family = "emu3"
    classes = ("Emu3ForConditionalGeneration",)

    def makes_images(self, kwargs: dict[str, Any]) -> bool:
        if kwargs.get("pixel_values") is not None:
            return False
        if kwargs.get("image_sizes") is not None:
            return True
        ids = kwargs.get("input_ids", kwargs.get("inputs"))
        start = self.model.vocabulary_mapping.vocab_map.get(IMAGE_START)
        if kwargs.get("prefix_allowed_tokens_fn") is not None and ids is not None and int(ids[0, -1]) == start:
            raise UnsupportedTargetError(
                "the grid is not known: leave image_sizes among the inputs,"
                " generate(**processor(..., return_for_image_generation=True))"
            )
        return False

    def begin(self, kwargs: dict[str, Any]) -> ImageTask:
        allowed = kwargs.pop("prefix_allowed_tokens_fn", None)
        layout, ids_table = self._grid(kwargs.pop("image_sizes"))
        prompts = read_prompts(self.model, kwargs)
        check_room(prompts, layout)
        self._check_ends(prompts.own)
        codes = {*ids_table[:-4].tolist()}
        if allowed and not all(codes <= {*map(int, allowed(row, ids))} for row, ids in enumerate(prompts.own)):
            raise UnsupportedTargetError(
                "prefix_allowed_tokens_fn allows fewer tokens than a picture is made of: leave it out, or call the"
                " model's own generate"
            )
        return VocabularyTask(
            model=self.model,
            layout=layout,
            sampling=Sampling.from_config(prompts.config, set(self.model.vocabulary_mapping.image_tokens)),
            codes=len(self.model.vocabulary_mapping.image_tokens),
            specials=4,
            ids=ids_table.to(prompts.ids.device),
            **prompts.of_task(),
        )

    def _check_ends(self, ids: torch.Tensor) -> None:
        """Refuse prompts `[B, P]` behind which no picture begins."""
        start = self.model.vocabulary_mapping.vocab_map.get(IMAGE_START)
        if start is not None and bool((ids[:, -1] != start).any()):
            raise UnsupportedTargetError(
                f"a prompt ends in other tokens than {IMAGE_START}, behind which a picture begins: pad prompts on the"
                " left, processor(..., padding_side='left'); from a part of a picture the model's own generate goes on"
            )

    def keeps_grid(self, kwargs: dict[str, Any]) -> bool:
        return not self._grammar(kwargs)

    def plain_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        ids = prompt_tokens(dict(kwargs))
        return {**self._grammar(kwargs), **self._repeated_negatives(kwargs, len(ids))}

    def _grammar(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What a call lacks of the tokens that may stand at each place, and their number.

        By itself Emu3 writes any of its vocabulary.
        """
        layout, ids = self._grid(kwargs["image_sizes"])
        if kwargs.get("prefix_allowed_tokens_fn") is not None:
            return missing_limit(self.model, kwargs, layout)
        prompt = prompt_tokens(dict(kwargs)).shape[1]
        codes = ids[:-4]
        forced = {place: ids[token, None] for place, token in layout.forced.items()}
        return {
            "prefix_allowed_tokens_fn": lambda _, written: forced.get(len(written) - prompt, codes),
            "max_new_tokens": layout.length,
        }

    def _repeated_negatives(self, kwargs: dict[str, Any], prompts: int) -> dict[str, torch.Tensor]:
        """Negative prompts, one for each picture; transformers repeats the prompts alone."""
        pictures = prompts * (setting(self.model, kwargs, "num_return_sequences") or 1)
        names = ("negative_prompt_ids", "negative_prompt_attention_mask")
        given = {name: kwargs[name] for name in names if kwargs.get(name) is not None}
        return {name: value.repeat_interleave(pictures // len(value), 0) for name, value in given.items()}

    def _grid(self, image_sizes: Any) -> tuple[Layout, torch.Tensor]:
        """The layout, and the model's ids of codes and specials."""
        sizes = {(int(height), int(width)) for height, width in image_sizes}
        if len(sizes) != 1:
            raise UnsupportedTargetError(f"image_sizes differ, {sorted(sizes)}: generate one size at a time")
        vocabulary = self.model.vocabulary_mapping.vocab_map
        codes = self.model.vocabulary_mapping.image_tokens
        eos = self.model.generation_config.eos_token_id
        eos = self.model.config.text_config.eos_token_id if eos is None else eos
        eos = eos[0] if isinstance(eos, list | tuple) else eos
        specials = [vocabulary[END_OF_LINE], vocabulary[END_OF_FRAME], vocabulary[END_OF_IMAGE], eos]
        line, frame, image, end = (len(codes) + i for i in range(4))
        layout = Layout.grids([sizes.pop()], end_of_line=line, tail=(frame, image, end))
        return layout, torch.tensor([*codes, *specials])
