"""BlockDiffusionPipeline: diffusers' LLaDA2Pipeline for models that see and chat."""

from __future__ import annotations

from typing import Any, cast

import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline

from ..errors import SettingError
from .block_causal import BlockCausalModel


class ChatScheduler(BlockRefinementScheduler):
    """`BlockRefinementScheduler` for chats whose turns end with the token that ends a text.

    Diffusers' own takes the first such token of prompt and text together: with one in the prompt no text ever ends.
    """

    @staticmethod
    def check_eos_finished(cur_x: torch.Tensor, *args: Any, prompt_length: int, **kwargs: Any) -> torch.Tensor:
        """Which rows `[B]` of texts have ended, looking behind the prompt."""
        own = cur_x[:, prompt_length:]
        return BlockRefinementScheduler.check_eos_finished(own, *args, prompt_length=0, **kwargs)


class BlockDiffusionPipeline(LLaDA2Pipeline):
    """`LLaDA2Pipeline` whose call takes what a processor makes of pictures and videos, too.

    Its loop is that of diffusers. Defaults fit small block-causal models: a canvas of 128 tokens, no editing of
    committed tokens.

    Attributes
    ----------
    model : BlockCausalModel
    scheduler : ChatScheduler
        Or another `BlockRefinementScheduler`.
    tokenizer
        With a mask and an end of the text.

    Examples
    --------
    >>> pipe, processor = zoo.load("tiny-canvas")  # doctest: +SKIP
    >>> pipe(**processor(videos=[picture[None]], text="list all things")).texts  # doctest: +SKIP
    """

    model: BlockCausalModel

    @torch.no_grad()
    def __call__(
        self,
        prompt: Any = None,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        gen_length: int = 128,
        editing_threshold: float | None = None,
        pixel_values: torch.Tensor | None = None,
        pixel_values_videos: torch.Tensor | None = None,
        image_sizes: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        video_grid_thw: torch.Tensor | None = None,
        batch_num_images: torch.Tensor | None = None,
        mm_token_type_ids: torch.Tensor | None = None,
        second_per_grid_ts: torch.Tensor | None = None,
        **more: Any,
    ) -> Any:
        """Fill a canvas behind each prompt.

        Parameters
        ----------
        prompt, input_ids, attention_mask, gen_length, editing_threshold, more
            As `LLaDA2Pipeline` takes them.
        pixel_values, pixel_values_videos, image_sizes, image_grid_thw, video_grid_thw, batch_num_images,
        mm_token_type_ids, second_per_grid_ts
            As the processor returns them.

        Raises
        ------
        SettingError
            If there are pictures or videos without `input_ids`.
        """
        given = {
            "pixel_values": pixel_values,
            "pixel_values_videos": pixel_values_videos,
            "image_sizes": image_sizes,
            "image_grid_thw": image_grid_thw,
            "video_grid_thw": video_grid_thw,
            "batch_num_images": batch_num_images,
            "mm_token_type_ids": mm_token_type_ids,
            "second_per_grid_ts": second_per_grid_ts,
        }
        device, fill = self.model.device, cast(Any, super()).__call__
        visual = {name: value.to(device) for name, value in given.items() if value is not None}
        if visual and input_ids is None:
            raise SettingError(
                f"{next(iter(visual))} without input_ids: give all that the processor returns, as in"
                " pipe(**processor(images=pictures, text=prompt))"
            )
        call = {**more, "gen_length": gen_length, "editing_threshold": editing_threshold}
        if input_ids is None:
            return fill(prompt, **call)
        with self.model.seeing(input_ids.to(device), **visual):
            return fill(input_ids=input_ids, attention_mask=attention_mask, **call)
