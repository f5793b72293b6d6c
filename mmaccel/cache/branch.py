"""Keys and values of the branches of a diffusion transformer, kept from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mmaccel.errors import unknown_name

from .layers import tensor_bytes

States = tuple[torch.Tensor, torch.Tensor]


class BranchCache:
    """Whole keys and values per branch and layer, of which a step renews the active tokens.

    Guidance runs a model on several inputs, its branches. Each has states of its own, which never mix: a
    branch is entered by name, and only its states are written and read within.

    Parameters
    ----------
    layers
        Attention layers of the model.
    branches
        Names of the branches, default ``("cond", "uncond")``.
    dtype, device
        How and where states are kept, such as ``torch.float8_e4m3fn`` and ``"cpu"``; None (default) for as they come.
        They are returned as they come in any case.

    Raises
    ------
    ValueError
        If there is no layer or no branch, or a name is given twice.

    Examples
    --------
    >>> cache = BranchCache(layers=1)
    >>> whole, part = torch.zeros(1, 2, 8, 4), torch.ones(1, 2, 2, 4)
    >>> with cache.branch("cond"):
    ...     keys, values = cache.write(0, whole, whole)
    ...     keys, values = cache.write(0, part, part, torch.tensor([3, 5]))
    >>> keys[0, 0, :, 0].tolist()
    [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    """

    def __init__(
        self,
        layers: int,
        branches: Sequence[str] = ("cond", "uncond"),
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if layers < 1:
            raise ValueError(f"BranchCache(layers={layers}): layers must be at least 1")
        if not branches or len(set(branches)) != len(branches):
            raise ValueError(f"BranchCache(branches={tuple(branches)!r}): branches must be names, each once")
        self.branches = tuple(branches)
        self.dtype, self.device = dtype, device
        self._states: dict[str, list[States | None]] = {name: [None] * layers for name in branches}
        self._current: str | None = None

    @contextmanager
    def branch(self, name: str) -> Iterator[BranchCache]:
        """Write and read the states of one branch inside this block; blocks may be nested.

        Raises
        ------
        UnknownNameError
            If there is no such branch.
        """
        if name not in self._states:
            raise unknown_name("branch", name, self.branches)
        before, self._current = self._current, name
        try:
            yield self
        finally:
            self._current = before

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, idx: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write states, and return all of the layer.

        Parameters
        ----------
        key, value : `[B, H, M, D]`
            New states.
        idx : int `[M]` or `[B, M]`
            The tokens they belong to, unique within a row; None (default) for all tokens, which is how a
            layer begins.

        Returns
        -------
        The keys and values `[B, H, N, D]`, which later writes change in place.

        Raises
        ------
        RuntimeError
            Outside of a branch, or if tokens are written before the whole.
        ValueError
            If shapes, dtypes or devices are not those of the whole.
        """
        states = self._layers()[layer]
        if idx is not None and states is None:
            raise RuntimeError(f"branch {self._current!r}, layer {layer}: write all tokens before some of them")
        if self.dtype is not None or self.device is not None:
            return self._converted(layer, key, value, idx)
        if idx is None:
            states = self._layers()[layer] = self._whole(states, key, value)
        else:
            from mmaccel import kernels

            assert states is not None
            kernels.kv_scatter_(key, value, idx, *states)
        return states

    def _converted(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, idx: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write states that are kept in another dtype or place; the new ones are returned as they came."""
        kept = [x.to(self.device or x.device, self.dtype or x.dtype) for x in (key, value)]
        if idx is None:
            self._layers()[layer] = self._whole(self._layers()[layer], *kept)
            return key, value
        states = self._layers()[layer]
        assert states is not None
        whole = []
        for state, new, exact in zip(states, kept, (key, value), strict=True):
            table = state.to(exact.device, exact.dtype)
            whole.append(_put(table.clone() if table is state else table, idx, exact))
            # as bytes: few operations know 8-bit floats
            _put(state.view(torch.uint8), idx.to(state.device), new.contiguous().view(torch.uint8))
        return whole[0], whole[1]

    def _whole(self, states: States | None, key: torch.Tensor, value: torch.Tensor) -> States:
        if states is None or states[0].shape != key.shape or states[0].dtype != key.dtype:
            return key.clone(memory_format=torch.contiguous_format), value.clone(memory_format=torch.contiguous_format)
        states[0].copy_(key)
        states[1].copy_(value)
        return states

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a layer, `[B, H, N, D]`."""
        states = self._layers()[layer]
        if states is None:
            raise RuntimeError(f"branch {self._current!r}, layer {layer}: nothing was written yet")
        return states

    def _layers(self) -> list[States | None]:
        if self._current is None:
            raise RuntimeError(f"enter a branch first: with cache.branch({self.branches[0]!r}):")
        return self._states[self._current]

    def reset(self) -> None:
        """Forget the states of all branches."""
        for layers in self._states.values():
            layers[:] = [None] * len(layers)

    def nbytes(self) -> int:
        """Bytes allocated for keys and values, by count."""
        return tensor_bytes(x for layers in self._states.values() for pair in layers if pair is not None for x in pair)


def _put(table: torch.Tensor, idx: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """`table [B, H, N, D]` with `rows` written in place at `idx`, `[M]` or `[B, M]`."""
    places = idx.long().expand(len(table), -1)[:, None, :, None].expand(-1, table.shape[1], -1, table.shape[3])
    return table.scatter_(2, places, rows)
