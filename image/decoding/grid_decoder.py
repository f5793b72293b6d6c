"""GridDecoder: forwards over any image positions, with guidance, masks and a rollback cache."""

from __future__ import annotations

from typing import Any

import torch

from mmaccel import private
from mmaccel.cache import RollbackCache
from mmaccel.decoding import Stats, one_hot, sample
from mmaccel.masks import additive

from .task import ImageTask, Progress


class GridDecoder:
    """State of one run: which positions are written, and the model behind them.

    Parameters
    ----------
    task
        The call to serve.
    generator
        Source of all randomness of the run.
    progress
        Called with tokens done and tokens in all (of one picture) after every pass.
    margin
        Spare positions, so that a window of that width may hang over the end of the picture.
    """

    def __init__(
        self,
        task: ImageTask,
        generator: torch.Generator | None,
        progress: Progress | None = None,
        margin: int = 1,
    ) -> None:
        self.task, self.generator, self.progress = task, generator, progress
        self.batch, self.device, self.length = task.batch, task.device, task.layout.length
        self.margin, self.codes = margin, task.codes
        self.tokens = torch.zeros(0, dtype=torch.long)  # the result, once a loop has run
        self.vocabulary = task.codes + task.specials
        self.cache = RollbackCache(task.model.config, task.prompt_length + self.length + margin)
        self.stats = Stats()
        self.extra_bytes = 0
        self.broken: torch.Tensor | bool = False  # whether something was to be drawn by NaN
        # Positions behind the picture are forced too, so that a window needs no special case at the end.
        forced = torch.nn.functional.pad(task.layout.forced_tokens, (0, margin + 1))
        self.forced = forced.to(self.device)
        self._has_forced = bool((task.layout.forced_tokens >= 0).any())
        self._mask_dtype = _mask_dtype(task.model)
        self._padded = not bool(task.prompt_mask.all())

    def prefill(self) -> torch.Tensor:
        """Run the prompt; the distribution of the first token, `[batch, V]`."""
        hidden = self.task.prefill(self.cache)
        self.stats.forwards += 1
        return self.distribution(hidden[:, None], torch.zeros(self.batch, 1, dtype=torch.long, device=self.device))[
            :, 0
        ]

    def forward(
        self, tokens: torch.Tensor, index: torch.Tensor, reach: int, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Distributions after tokens that stand at given positions.

        Parameters
        ----------
        tokens, index
            Local ids and positions, `[batch, W]`.
        reach
            One more than the largest position in `index`; positions from there on are not attended to.
        visible
            Bool `[batch, W, reach]`, the positions each query sees; by default all up to its own.

        Returns
        -------
        `[batch, W, V]`: what the model says of position `index + 1`.
        """
        branches, prompt = self.task.branches, self.task.prompt_length
        uniform = visible is None and self._place(index, prompt + reach)
        mask = None
        if not (uniform and index.shape[1] == 1 and not self._padded):
            mask = self._mask(index, reach, visible)
        embeddings = self.task.embed(tokens.repeat(branches, 1))
        if visible is not None:
            self.cache.place((prompt + index).repeat(branches, 1), prompt + reach)
        hidden = self.task.run(embeddings, mask, index.repeat(branches, 1), self.cache)
        self.cache.append()
        return self.distribution(hidden, index + 1, beyond=reach >= self.length)

    def distribution(self, hidden: torch.Tensor, target: torch.Tensor, beyond: bool = False) -> torch.Tensor:
        """Guided, tempered and truncated probabilities `[batch, W, V]` for positions `target [batch, W]`.

        `beyond` says that some positions may lie behind the picture.
        """
        logits = self.task.head(hidden).to(self.device).float()  # the last layers may be on another device
        if self.task.branches == 2:
            conditional, unconditional = logits.chunk(2)
            logits = unconditional + (conditional - unconditional) * self.task.guidance
        p = self.task.sampling.distribution(logits)
        seen = p[..., 0] if self.task.sampling.do_sample else logits.amax(-1)  # a row of `p` with one has nothing else
        self.broken = seen.isnan().any() | self.broken
        if self.task.specials:
            p = torch.nn.functional.pad(p, (0, self.task.specials))
        if self._has_forced or beyond:
            p = self._force(p, target)
        return p

    def _force(self, p: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        forced = self.forced[target]
        certain = one_hot(forced.clamp_min(0), self.vocabulary)  # behind the picture: token 0
        return torch.where(((forced >= 0) | (target >= self.length))[..., None], certain, p)

    def _place(self, index: torch.Tensor, extent: int) -> bool:
        """Point the cache at the positions; True where all rows write one common run of slots."""
        prompt, branches = self.task.prompt_length, self.task.branches
        start = extent - index.shape[1] - prompt
        if self.batch == 1 or bool((index[:, 0] == start).all()):
            self.cache.seek(prompt + start)
            return True
        self.cache.place((prompt + index).repeat(branches, 1), extent)
        return False

    def _mask(self, index: torch.Tensor, reach: int, visible: torch.Tensor | None) -> torch.Tensor:
        branches = self.task.branches
        if visible is None:
            visible = torch.arange(reach, device=self.device) <= index[..., None]
        visible = visible.repeat(branches, 1, 1)
        prompt = self.task.prompt_mask[:, None].expand(-1, index.shape[1], -1)
        mask = torch.cat([prompt, visible], -1)[:, None]
        return mask if self._mask_dtype is None else additive(mask, self._mask_dtype)

    def first(self, choose: Any = None) -> torch.Tensor:
        """A token buffer `[batch, length + margin]` whose first token is drawn from the prompt."""
        tokens = torch.zeros(self.batch, self.length + self.margin + 1, dtype=torch.long, device=self.device)
        p = self.prefill()
        tokens[:, 0] = choose(p) if choose is not None else sample(p, self.generator)
        return tokens

    def noise(self, generator: torch.Generator | None) -> torch.Tensor:
        """Gumbel noise `[batch, V]` of one position, the draws that the model's own sampling would make."""
        return self.task.noise(generator)

    def count(self, done: int) -> None:
        """Tell the caller's progress function."""
        if self.progress is not None:
            self.progress(done, self.length)


def _mask_dtype(model: Any) -> torch.dtype | None:
    """None where the attention takes bool masks, else the dtype of the additive mask that eager attention adds."""
    eager = private.attention_name(model.config.get_text_config()) == "eager"
    return model.dtype if eager else None
