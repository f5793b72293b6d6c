"""The shape of `tiny-far`: two transformers on the autoencoder and text encoder of `tiny-wan`."""

from __future__ import annotations

import torch
from diffusers import AnyFlowFARTransformer3DModel, FlowMapEulerDiscreteScheduler, WanTransformer3DModel

from mmaccel.zoo.worlds import moving_world as world

from ..wan.shape import HEADS, HIDDEN, LATENT_CHANNELS, SHIFT, TEXT_WIDTH, initialize

BLOCK = 4  # latent frames that are drawn at a time: their tokens fill whole tiles of the attention
BLOCKS = (1 + world.FAR.frames // 2) // BLOCK
# heads, layers: the model that is shipped as the transformer, and the one that drafts for it
SIZES = {"transformer": (HEADS, 6), "draft": (HEADS // 2, 3)}


def build_transformer(size: str) -> AnyFlowFARTransformer3DModel:
    """An untrained transformer of one of the sizes."""
    heads, layers = SIZES[size]
    width = heads * HIDDEN // HEADS
    model = AnyFlowFARTransformer3DModel(
        num_attention_heads=heads,
        attention_head_dim=HIDDEN // HEADS,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_WIDTH,
        freq_dim=HIDDEN,
        ffn_dim=3 * width,
        num_layers=layers,
        chunk_partition=(BLOCK,) * BLOCKS,
    )
    initialize(model)
    return model


@torch.no_grad()
def begin_with(model: AnyFlowFARTransformer3DModel, whole: WanTransformer3DModel) -> None:
    """Take over what `tiny-wan` knows, as AnyFlow's models begin with those of Wan."""
    missing, unknown = model.load_state_dict(whole.state_dict(), strict=False)
    assert not unknown and all(name.startswith(("far_patch", "condition_embedder.delta")) for name in missing)
    embedder = model.condition_embedder
    embedder.delta_embedder.load_state_dict(embedder.time_embedder.state_dict())
    # A patch of four times the pixels begins as the mean of those it covers.
    wider = model.patch_embedding.weight.repeat_interleave(2, 3).repeat_interleave(2, 4) / 4
    model.far_patch_embedding.weight.copy_(wider)
    model.far_patch_embedding.bias.copy_(model.patch_embedding.bias)


def build_scheduler() -> FlowMapEulerDiscreteScheduler:
    """Euler with the shift of `tiny-wan`."""
    return FlowMapEulerDiscreteScheduler(shift=SHIFT)
