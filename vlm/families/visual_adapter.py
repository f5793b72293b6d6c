"""Vision-language models: where their visual tokens come from, and how a prompt continues with fewer of them."""

from __future__ import annotations

import inspect
import itertools
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from accelerate.utils import align_module_device

from mmaccel.adapter import Adapter
from mmaccel.cache.argument import cache_of
from mmaccel.decoding.setting import mask_of, prompt_ids
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.kernels.policies import Span
from mmaccel.report import Report
from mmaccel.session import Session

from ..decoder.adapter import DecoderAdapter
from ..decoder.call import GenerateRun
from ..decoder.generation import copies, plain_keys
from ..decoder.method import DecoderMethod
from ..input.arguments import FEATURES, bring, is_shorter, replace, unfit_beside, unfit_prompt
from ..input.prompt import Prompt, shortened
from ..input.spans import Grid, spans
from ..input.turns import recalled, remember
from ..input.visual import Visual
from ..pruning.compressor import Compressor
from ..pruning.frame_merging import merging
from ..pruning.inner import Cuts, install, why_uncut
from ..pruning.row import Cut
from .tower import Probe, blocks, layer_of, probed, require_readable, tower_attention

KINDS = ("image", "video")
PIXELS = {"image": "pixel_values", "video": "pixel_values_videos"}
MASK = "video_compression_mask"  # of the features of videos that have a placeholder: VideoLLaMA 3 leaves out others


class VisualAdapter(DecoderAdapter):
    """A vision-language model whose visual tokens stand at placeholders of the prompt.

    Subclasses split the features of one call into visuals, in :meth:`visuals`.

    Attributes
    ----------
    first_cut
        The first layer of the decoder before which visual tokens may be dropped.
    counted
        Whether a count comes before the axes of its positions.
    cuts
        Tokens dropped inside the decoder in the current call.
    last
        The prompt of the last call, and the tokens cut from it inside the decoder.
    """

    first_cut: int = 1
    counted: bool = True

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.cuts: Cuts | None = None
        self._asked_on: torch.device | None = None  # where the prompt of the current call was
        self.last: tuple[Prompt, Cuts | None] | None = None

    @property
    def model(self) -> Any:
        """The module with tower, projector and decoder."""
        return self.target.base_model

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.model.vision_tower

    @property
    def pixel_arguments(self) -> set[str]:
        """Arguments of `generate` that describe pictures and videos, and are removed once these are encoded."""
        calls = [getattr(self.model, f"get_{end}", None) for end in ("image_features", "video_features", "rope_index")]
        names = {name for call in calls if call is not None for name in inspect.signature(call).parameters}
        return (names | {MASK, FEATURES}) - {"kwargs", "input_ids", "attention_mask"}

    def token_id(self, kind: str) -> int:
        """The placeholder of an `"image"` or `"video"`, -1 where the family has none."""
        return int(getattr(self.target.config, f"{kind}_token_id", -1))

    @abstractmethod
    def visuals(
        self, kind: str, output: Any, kwargs: dict[str, Any], probe: Probe | None, seen: int = 0
    ) -> list[Visual]:
        """The visuals of one kind in the order of the prompt, from what the tower and the projector returned."""

    def grids(self, kind: str, kwargs: dict[str, Any]) -> list[Grid] | None:
        """Frames, rows and columns of a call's visuals; None if unknown before they are encoded."""
        return None

    def spans(self, kwargs: dict[str, Any]) -> list[list[Span]] | None:
        """Positions of the frames of a call in its prompt; None if unknown."""
        ids = prompt_ids(kwargs)
        kinds = [kind for kind in KINDS if kwargs.get(PIXELS[kind]) is not None]
        found = {kind: self.grids(kind, kwargs) for kind in kinds}
        grids = {kind: grid for kind, grid in found.items() if grid is not None}
        if ids is None or not kinds or len(grids) < len(found):
            return None
        return spans(ids, {kind: self.token_id(kind) for kind in kinds}, grids)

    def positions(self, kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Positions of the whole prompt `[..., B, L]`; None if they simply count up."""
        return None

    def attach(self, method: Any, session: Session, stack: ExitStack) -> None:
        first = self.attention is None
        super().attach(method, session, stack)
        if first and any(self._cuts(m) for m in session.plan.methods):
            attention = self.attention
            assert attention is not None
            install(self.layers, lambda: None if attention.run is None else self.cuts, stack)

    def _cuts(self, method: Any) -> dict[int, Cut]:
        """The tokens that a method drops inside the decoder, by layer."""
        return method.cuts(self.depth) if isinstance(method, Compressor) and not method.is_neutral else {}

    @property
    def depth(self) -> int:
        """Layers of the decoder."""
        return int(self.text_config.num_hidden_layers)

    def unfit(self, method: Any) -> str:
        return Adapter.unfit(self, method)

    def leaves_attention(self, method: Any) -> bool:
        """A method that shortens the prompt leaves the language model as it is, whatever it does inside beside that."""
        return isinstance(method, Compressor) and type(method).shorten is not Compressor.shorten

    def check(self, method: Any) -> None:
        super().check(method)
        reads = isinstance(method, Compressor) and not method.is_neutral
        if reads and (method.needs_attention or method.needs_key):
            require_readable(self.tower, method.name)
        for layer in self._cuts(method):
            if not self.first_cut <= layer < self.depth:
                raise SettingError(
                    f"{method} drops tokens before layer {layer}: this {self.family} model needs a layer"
                    f" from {self.first_cut} to {self.depth - 1}"
                )

    def begin(self, methods: Sequence[DecoderMethod], run: GenerateRun, kwargs: dict[str, Any]) -> Prompt | None:
        self.cuts = self.last = None
        method = next((m for m in methods if isinstance(m, Compressor) and not m.is_neutral), None)
        if method is None:
            run.visual = self.spans(kwargs)
            return None
        self._asked_on = bring(self.target, brought := dict(kwargs))  # a plain run gets them as they are
        cache = cache_of(brought)
        turn = None if cache is None else recalled(cache, self)
        if why := unfit_prompt(self.target, brought, method.reads_tower):
            if turn is not None:
                raise PromptError(f"{method.name} cannot go on from the prompt that it has shortened: {why}")
            run.warn(f"{method} ran plainly: {why}")
            return None
        if turn is None and cache is not None and cache.get_seq_length():
            run.warn(f"{method} ran plainly: past_key_values holds a prompt that this session has not shortened")
            return None
        before = None if turn is None else turn.cuts
        prompt = self.shorten(method, brought, None if turn is None else turn.prompt)
        if prompt is None:
            return None
        given = self.inputs(prompt)
        if why := unfit_beside(self.target, brought, given):
            if turn is not None:
                raise PromptError(f"{why} was given with a picture behind a shortened prompt: leave it out")
            run.warn(f"{method} ran plainly: {why} was given")
            return None
        self._warn(method, prompt, run)
        replace(kwargs, brought, prompt, self.target, self.pixel_arguments, given)
        if cache is not None and turn is None:
            remember(cache, self, None)  # until the call has ended well
        self.cuts = cuts = before or self._new_cuts(method, prompt, run, kwargs)
        run.watch = None if cuts is None else cuts.watch
        if before is not None:
            before.begin_call()
        if before is not None and prompt.total:
            run.warn("nothing new was dropped inside the language model: that happens in the first turn only")
        if is_shorter(prompt) or (before is not None and before.columns):
            run.engaged.add(method.name)
        return prompt

    @staticmethod
    def _warn(method: Compressor, prompt: Prompt, run: GenerateRun) -> None:
        for visual in itertools.chain(*prompt.visuals.values()):
            unframed = visual.unframed if method.compares_frames else None
            for reason in filter(None, (method.lacks(visual.grid[0], visual.cells), unframed)):
                run.warn(f"{method}: {reason}")

    def _new_cuts(self, method: Compressor, prompt: Prompt, run: GenerateRun, kwargs: dict[str, Any]) -> Cuts | None:
        """The tokens that a method drops inside the decoder, if the cache may differ in length between layers."""
        chosen = self._cuts(method)
        if not chosen:
            return None
        if reason := why_uncut(self.target, self.text_config, kwargs):
            run.warn(f"nothing was dropped inside the language model: {reason}")
            return None
        attends = self.attending()
        return Cuts(method.name, chosen, prompt, run, [layer in attends for layer in range(self.depth)])

    def attending(self) -> list[int]:
        """The layers of the decoder that attend; others, of hybrids, have a state instead."""
        return [getattr(module, "layer_idx", 0) for module in self.attention_modules()]

    def end(self, prompt: Prompt, report: Report, result: Any, kwargs: dict[str, Any]) -> Any:
        cuts, cache = self.cuts, cache_of(kwargs)
        now = cuts if cuts is not None and cuts.prompt is prompt else None  # dropped in this call
        self.last = prompt, now
        kept = prompt.kept if now is None else now.mean_kept(self.depth)
        report.visual_tokens, report.plain_visual_tokens = round(kept), prompt.total
        report.plain_keys = plain_keys(self, prompt, result, copies(self.target, kwargs))
        is_tensor = isinstance(result, torch.Tensor)
        sequences = result if is_tensor else result.sequences
        content = prompt.continued(sequences) if len(sequences) == len(prompt.input_ids) else None
        for held in (cache, None if is_tensor else cache_of(result)):
            if held is not None:
                remember(held, self, content, cuts)
        restored = prompt.restored(sequences).to(self._asked_on)
        if is_tensor:
            return restored
        result.sequences = restored
        return result

    def shorten(self, method: Compressor, kwargs: dict[str, Any], before: Prompt | None = None) -> Prompt | None:
        """The prompt of a call of `generate` with the visual tokens that a method keeps; None without visual tokens.

        `before` is the prompt and the answer that the given cache already holds.
        """
        if kwargs.get("pixel_values_images") is not None:  # as Video-LLaVA calls them
            kwargs = {**kwargs, "pixel_values": kwargs["pixel_values_images"]}
        known = kwargs.get(FEATURES) or {}
        kinds = [kind for kind in KINDS if kwargs.get(PIXELS[kind]) is not None or known.get(kind) is not None]
        if not kinds and before is None:
            return None
        seen = 0 if before is None else before.full_ids.shape[1]
        device = kwargs["input_ids"].device  # a tower may have one of its own
        found = {kind: [visual.to(device) for visual in self.encode(kind, method, kwargs, seen)] for kind in kinds}
        names = {kind: self.token_id(kind) for kind in KINDS}
        kwargs = {**kwargs, "attention_mask": mask_of(self.target, kwargs)}
        pad = getattr(self.target.generation_config, "pad_token_id", None) or 0
        return shortened(method, found, names, kwargs, self.positions, pad, before, self.counted)

    @torch.no_grad()
    def encode(self, kind: str, method: Compressor, kwargs: dict[str, Any], seen: int = 0) -> list[Visual]:
        """Run the vision tower on the pictures or the videos of a call; an earlier one has `seen` so many columns."""
        if (known := (kwargs.get(FEATURES) or {}).get(kind)) is not None:
            return self.visuals(kind, known, kwargs, None, seen)
        encoder = getattr(self.model, f"get_{kind}_features")
        names = inspect.signature(encoder).parameters
        arguments = {name: kwargs[name] for name in names if kwargs.get(name) is not None and name != "kwargs"}
        scoring = self.scoring_layer(kwargs) if method.needs_attention or method.needs_key else None
        layers = blocks(self.tower)
        last = next((number for number, layer in enumerate(layers) if scoring in {*layer.modules()}), len(layers))
        clips = self.clips(kind, kwargs, seen)
        with (
            align_module_device(self.model),  # off-loaded, its own parameters are away between passes
            nullcontext() if scoring is None else probed(scoring, method.needs_key) as probe,
            merging(method, layers, clips, last) as merged,
        ):
            output = encoder(**arguments, return_dict=True)
        if merged is not None and probe is not None:
            probe.received, probe.keys = merged.restore(probe.received), merged.restore(probe.keys)
        found = self.visuals(kind, output, kwargs, probe, seen)
        if merged is not None:
            merged.mark(found)
        return found

    def clips(self, kind: str, kwargs: dict[str, Any], seen: int = 0) -> list[tuple[int, int]]:
        """Frames of each clip as the tower has them, and how many rows of its hidden states each frame takes."""
        return []

    def scoring_layer(self, kwargs: dict[str, Any]) -> torch.nn.Module:
        """The attention layer of the tower that scores tokens: the last one that is used."""
        layers = tower_attention(self.tower)
        if not layers:
            raise UnsupportedTargetError(f"the vision tower of {type(self.target).__name__} has no attention to read")
        chosen = kwargs.get("vision_feature_layer")
        default = getattr(self.target.config, "vision_feature_layer", -1)
        return layer_of(layers, default if chosen is None else chosen)

    @torch.no_grad()
    def inputs(self, prompt: Prompt) -> dict[str, Any]:
        """Arguments of `generate` that stand for a shortened prompt."""
        if not prompt.visuals:
            return {"input_ids": prompt.input_ids}
        embeds = self.target.get_input_embeddings()(prompt.input_ids)
        for kind, visuals in prompt.visuals.items():
            features = torch.cat([visual.features for visual in visuals]).to(embeds)
            places = prompt.input_ids == self.token_id(kind)
            places[:, : prompt.cached] = False
            embeds = embeds.masked_scatter(places[..., None].to(embeds.device), features)
        return {"input_ids": prompt.input_ids, "inputs_embeds": embeds}
