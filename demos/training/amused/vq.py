"""The VQ model of `tiny-janus` as diffusers' `VQModel`, which `AmusedPipeline` takes: the same codes and pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import VQModel
from tqdm import tqdm

from ..checkpoint import write_model
from ..janus.data import draw
from ..janus.shape import CODES
from ..optimizer import trapezoid
from ..recipe import to_pixels

# transformers' names of layers, and diffusers'
NAMES = (
    (".mid.block_1.", ".mid_block.resnets.0."),
    (".mid.block_2.", ".mid_block.resnets.1."),
    (".mid.attn_1.", ".mid_block.attentions.0."),
    (".down.", ".down_blocks."),
    (".up.", ".up_blocks."),
    (".block.", ".resnets."),
    (".attn.", ".attentions."),
    (".nin_shortcut.", ".conv_shortcut."),
    (".downsample.", ".downsamplers.0."),
    (".upsample.", ".upsamplers.0."),
    (".norm_out.", ".conv_norm_out."),
)
ATTENTION_NAMES = (
    (".norm.", ".group_norm."),
    (".q.", ".to_q."),
    (".k.", ".to_k."),
    (".v.", ".to_v."),
    (".proj_out.", ".to_out.0."),
)


@torch.no_grad()
def converted(own: torch.nn.Module) -> VQModel:
    """A `VQModel` that decodes codes to the very pictures of `own`, in [0, 1].

    diffusers has no place for two things. A bias between codes and decoder, which stops at the border: here each code
    ends with a 1 that carries it. And a first block of the encoder that widens: its weights are left to :func:`fit`.
    """
    width = own.quantize.embedding.weight.shape[1] + 1
    vq = VQModel(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(64, 64, 96),
        latent_channels=width,
        num_vq_embeddings=CODES,
        lookup_from_codebook=True,
    )
    state = vq.state_dict()
    for name, value in own.state_dict().items():
        new = renamed(name)
        if name.startswith(("encoder.", "decoder.")) and new in state and state[new].numel() == value.numel():
            state[new] = value.reshape(state[new].shape)
    state["quantize.embedding.weight"] = F.pad(F.normalize(own.quantize.embedding.weight, dim=1), (0, 1), value=1.0)
    for name in ("quant_conv", "post_quant_conv"):
        state[f"{name}.weight"] = torch.eye(width)[..., None, None]
        state[f"{name}.bias"] = torch.zeros(width)
    _join(state, own)
    vq.load_state_dict(state)
    return vq.eval()


def _join(state: dict[str, torch.Tensor], own: torch.nn.Module) -> None:
    """The layers at both ends of the code take in their neighbours of one pixel; pictures become [0, 1]."""
    after = torch.cat([own.post_quant_conv.weight[..., 0, 0], own.post_quant_conv.bias[:, None]], 1)
    state["decoder.conv_in.weight"] = torch.einsum("omhw,mi->oihw", own.decoder.conv_in.weight, after)
    before, last = own.quant_conv.weight[..., 0, 0], own.encoder.conv_out
    state["encoder.conv_out.weight"] = F.pad(torch.einsum("om,mihw->oihw", before, last.weight), (0,) * 7 + (1,))
    state["encoder.conv_out.bias"] = F.pad(before @ last.bias + own.quant_conv.bias, (0, 1), value=1.0)
    state["decoder.conv_out.weight"] = own.decoder.conv_out.weight / 2
    state["decoder.conv_out.bias"] = own.decoder.conv_out.bias / 2 + 0.5


def renamed(name: str) -> str:
    """diffusers' name of a tensor of transformers' VQ model.

    Examples
    --------
    >>> renamed("decoder.mid.attn_1.q.weight")
    'decoder.mid_block.attentions.0.to_q.weight'
    >>> renamed("decoder.up.1.block.0.nin_shortcut.bias")
    'decoder.up_blocks.1.resnets.0.conv_shortcut.bias'
    """
    for old, new in NAMES:
        name = name.replace(old, new)
    if ".attentions." in name:
        for old, new in ATTENTION_NAMES:
            name = name.replace(old, new)
    return name


def fit(vq: VQModel, own: torch.nn.Module, args: argparse.Namespace) -> None:
    """Teach the encoder to give what that of `own` gives, behind its first block and at its end."""
    first = vq.encoder.down_blocks[0].resnets[0]
    optimizer = torch.optim.Adam(vq.encoder.parameters(), lr=2e-3)
    seen: list[torch.Tensor] = []
    handle = first.register_forward_hook(lambda module, given, output: seen.append(output))
    for step in tqdm(range(args.vq_steps), desc="vq", mininterval=5, ncols=100):
        pixels = to_pixels(draw(args.seed, step, args.vq_batch)[0])
        with torch.no_grad():
            block = own.encoder.down[0].block[0](own.encoder.conv_in(pixels))
            code = F.normalize(own.quant_conv(own.encoder(pixels)), dim=1)
        trapezoid(optimizer, step, args.vq_steps, warmup=20, decay=0.7)
        latent = F.normalize(vq.encode(pixels / 2 + 0.5).latents[:, :-1], dim=1)
        apart = 1 - (latent * code).sum(1).mean()
        loss = F.mse_loss(seen.pop(), block) / block.var() + apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            tqdm.write(f"vq {step + 1} loss {loss.item():.4f} apart {apart.item():.4f}")
    handle.remove()


def fitted(own: torch.nn.Module, folder: Path, args: argparse.Namespace) -> VQModel:
    """The model as it is shipped, rounded to float16; fitted and written if the folder is not there yet."""
    if not folder.is_dir():
        torch.manual_seed(args.seed)
        vq = converted(own)
        fit(vq, own, args)
        write_model(vq.half(), folder)
    return VQModel.from_pretrained(folder, torch_dtype=torch.float32)


@torch.no_grad()
def agreement(vq: VQModel, own: torch.nn.Module, seed: int, count: int = 50) -> float:
    """Share of the codes of held-out pictures that are the same."""
    pixels = to_pixels(draw(seed, 0, count, held_out=True)[0])
    ids = vq.quantize(vq.encode(pixels / 2 + 0.5).latents)[2][2]
    return float((ids == own.encode(pixels).image_tokens.flatten()).float().mean())
