"""Keys and values of the branches of a diffusion transformer, kept from step to step."""

from __future__ import annotations

import torch

from mmaccel.stepping.tensors import count_bytes

States = tuple[torch.Tensor, torch.Tensor]


class BranchCache:
    """Whole keys and values per branch and layer, of which a step renews the active tokens.

    Guidance runs a model on several inputs, its branches. Each has states of its own, which never mix.

    Parameters
    ----------
    layers
        Attention layers of the model.
    dtype, device
        How and where states are kept, such as ``torch.float8_e4m3fn`` and ``"cpu"``; None (default) for as they come.
        They are returned as they come in any case.

    Raises
    ------
    ValueError
        If there is no layer.

    Examples
    --------
    >>> cache = BranchCache(layers=1)
    >>> whole, part = torch.zeros(1, 2, 8, 4), torch.ones(1, 2, 2, 4)
    >>> keys, values = cache.write(0, whole, whole, branch=0)
    >>> keys, values = cache.write(0, part, part, branch=0, idx=torch.tensor([3, 5]))
    >>> keys[0, 0, :, 0].tolist()
    [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    """

    def __init__(self, layers: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        if layers < 1:
            raise ValueError(f"BranchCache(layers={layers}): layers must be at least 1")
        self.layers, self.dtype, self.device = layers, dtype, device
        self._states: dict[tuple[int, int], States] = {}  # by branch and layer

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, branch: int = 0, idx: torch.Tensor | None = None
    ) -> States:
        """Write states of one branch, and return all of the layer.

        Parameters
        ----------
        key, value : `[B, H, M, D]`
            New states.
        branch
            Whose they are, by number; default 0.
        idx : int64 `[M]`
            The tokens they belong to, each once; None (default) for all tokens, which is how a layer begins.

        Returns
        -------
        The keys and values `[B, H, N, D]`, which later writes change in place.

        Raises
        ------
        IndexError
            If there is no such layer, or not one token for each of `idx`.
        RuntimeError
            If tokens are written before the whole, or their heads, width or dtype are not those of the whole.
        """
        if not 0 <= layer < self.layers:
            raise IndexError(f"layer {layer}: the cache has {self.layers}")
        place = branch, layer
        if idx is None:
            return self._begin(place, key, value)
        if place not in self._states:
            raise RuntimeError(f"branch {branch}, layer {layer}: write all tokens before some of them")
        if self.dtype is not None or self.device is not None:
            return self._write_converted(self._states[place], key, value, idx)
        for state, new in zip(self._states[place], (key, value), strict=True):
            state.index_copy_(2, idx, new)
        return self._states[place]

    def _begin(self, place: tuple[int, int], key: torch.Tensor, value: torch.Tensor) -> States:
        """Keep a whole layer, in place of the one before if that had the same shape."""
        kept = [_converted(x, self.device or x.device, self.dtype or x.dtype) for x in (key, value)]
        states = self._states.get(place)
        if states is None or states[0].shape != kept[0].shape or states[0].dtype != kept[0].dtype:
            copies = [x.clone(memory_format=torch.contiguous_format) for x in kept]
            states = self._states[place] = (copies[0], copies[1])
        else:
            states[0].copy_(kept[0])
            states[1].copy_(kept[1])
        return states if self.dtype is None and self.device is None else (key, value)

    def _write_converted(self, states: States, key: torch.Tensor, value: torch.Tensor, idx: torch.Tensor) -> States:
        """Write tokens into states of another dtype or device; the new tokens come back unchanged."""
        whole = []
        for state, exact in zip(states, (key, value), strict=True):
            new, table = _converted(exact, state.device, state.dtype), state.to(exact.device, exact.dtype)
            whole.append((table.clone() if table is state else table).index_copy_(2, idx, exact))
            # as bytes: few operations know 8-bit floats
            state.view(torch.uint8).index_copy_(2, idx.to(state.device), new.contiguous().view(torch.uint8))
        return whole[0], whole[1]

    def reset(self) -> None:
        """Forget the states of all branches."""
        self._states.clear()

    def nbytes(self) -> int:
        """Bytes allocated for keys and values, by count."""
        return count_bytes(self._states)


def _converted(x: torch.Tensor, device: torch.device | str, dtype: torch.dtype) -> torch.Tensor:
    """States in another place and dtype; what is too large for 8 bits becomes the largest, before torch 2.13 too."""
    if dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        x = x.clamp(-most, most)
    return x.to(device, dtype)
