"""A pipeline for the tests, with tiny transformers of every family of the block table."""

import diffusers
import torch

from mmaccel.video import examples
from mmaccel.video.families.families import find_family

STEPS = 6


class Loop(diffusers.DiffusionPipeline):
    """The least that a pipeline does, with two guidance branches in two forward passes or in one.

    What goes into the transformer and comes out of it is overwritten right afterwards: a cache that keeps a reference
    would show.
    """

    def __init__(self, transformer, scheduler):
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    def __call__(self, start, call, steps=STEPS, batched=False, still=False, branches=None, first=0, return_dict=False):
        """`branches(i)` names the branches of step i, 1 for the prompt's; a step with one of them has no guidance."""
        self.do_classifier_free_guidance = batched
        self.return_dict = return_dict
        self.scheduler.set_timesteps(steps)
        self.scheduler.set_begin_index(first)
        state, sigma = [x.clone() for x in start], self.scheduler.sigmas
        for i, t in list(enumerate(self.scheduler.timesteps))[first:]:
            at = 500 + 0 * t if still else t
            outputs = self._batch(state, at, call) if batched else self._rows(state, at, call, branches and branches(i))
            moved = self.scheduler.step(outputs[0], t, state[0], return_dict=False)[0]
            if not still:
                rest = zip(state[1:], outputs[1:], strict=True)
                state = [moved, *(x + (sigma[i + 1] - sigma[i]) * velocity for x, velocity in rest)]
        return outputs[0] if still else state[0]

    def _batch(self, state, t, call):
        halves = [x.chunk(2) for x in self._pass([torch.cat([x, x]) for x in state], t, call(None))]
        return [other + 3 * (prompt - other) for other, prompt in halves]

    def _rows(self, state, t, call, branches):
        rows = [self._pass(state, t, call(branch)) for branch in branches or (1, 0)]
        return rows[0] if len(rows) == 1 else [b + 3 * (a - b) for a, b in zip(*rows, strict=True)]

    def _pass(self, state, t, call):
        """One list of latents and one list of predictions, whatever the family's conventions are."""
        family, given = find_family(self.transformer), [x.clone() for x in state]
        if family.hidden == "x":
            inputs = {"x": list(given[0]), "t": t.expand(1) / 1000}
        else:
            inputs = {
                **dict(zip(family.latents or ("hidden_states",), given, strict=True)),
                "timestep": t.expand(len(given[0])),
            }
        output = self.transformer(**inputs, **call, return_dict=self.return_dict)
        returned = [torch.stack(output[0])] if family.hidden == "x" else [output[i] for i in range(len(given))]
        kept = [x[tuple(slice(n) for n in y.shape)].clone() for x, y in zip(returned, given, strict=True)]
        for x in (*given, *returned, *(output[0] if family.hidden == "x" else ())):
            x.fill_(float("nan"))
        return kept


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def text(**more):
    """Arguments of one branch, or of both in one batch."""

    def call(branch):
        if branch is None:
            one, two = call(0), call(1)
            return {k: torch.cat([v, two[k]]) if isinstance(v, torch.Tensor) else v for k, v in one.items()}
        return {"encoder_hidden_states": noise(1, 5, 16, seed=1 + branch), **more}

    return call


def wan():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "ffn_dim": 16, "num_layers": 3, "freq_dim": 16}
    model = diffusers.WanTransformer3DModel(**sizes, in_channels=4, out_channels=4, text_dim=16, rope_max_seq_len=16)
    return model, [noise(1, 4, 2, 8, 8)], text()


def ltx():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "cross_attention_dim": 24, "num_layers": 3}
    model = diffusers.LTXVideoTransformer3DModel(**sizes, in_channels=4, out_channels=4, caption_channels=16)
    grid = {"num_frames": 2, "height": 4, "width": 4}
    return model, [noise(1, 32, 4)], text(encoder_attention_mask=torch.ones(1, 5), **grid)


def ltx2():
    video_sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "cross_attention_dim": 24}
    audio_sizes = {f"audio_{name}": size for name, size in video_sizes.items()}
    channels = {"in_channels": 4, "out_channels": 4, "audio_in_channels": 4, "audio_out_channels": 4}
    model = diffusers.LTX2VideoTransformer3DModel(
        **video_sizes, **audio_sizes, **channels, num_layers=3, caption_channels=16, use_prompt_adaln_single=False
    )
    grid = {"num_frames": 2, "height": 4, "width": 4, "audio_num_frames": 6}
    masks = {"encoder_attention_mask": torch.ones(1, 5), "audio_encoder_attention_mask": torch.ones(1, 5)}
    call = text(**grid, **masks, audio_encoder_hidden_states=noise(1, 5, 16, seed=5))
    return model, [noise(1, 32, 4), noise(1, 6, 4, seed=3)], call


def hunyuan():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 2, "num_single_layers": 2}
    more = {"num_refiner_layers": 1, "text_embed_dim": 16, "pooled_projection_dim": 8, "rope_axes_dim": (4, 4, 4)}
    model = diffusers.HunyuanVideoTransformer3DModel(
        **sizes, **more, in_channels=4, out_channels=4, guidance_embeds=False
    )
    condition = {"encoder_attention_mask": torch.ones(1, 5), "pooled_projections": noise(1, 8, seed=4)}
    return model, [noise(1, 4, 2, 8, 8)], text(**condition)


def cogvideo():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 3, "time_embed_dim": 8}
    place = {"sample_width": 8, "sample_height": 8, "sample_frames": 5, "max_text_seq_length": 5}
    model = diffusers.CogVideoXTransformer3DModel(**sizes, **place, in_channels=4, out_channels=4, text_embed_dim=16)
    return model, [noise(1, 2, 4, 8, 8)], text()


def flux():
    sizes = {"num_layers": 2, "num_single_layers": 2, "attention_head_dim": 12, "num_attention_heads": 2}
    widths = {"joint_attention_dim": 16, "pooled_projection_dim": 8, "axes_dims_rope": (4, 4, 4)}
    model = diffusers.FluxTransformer2DModel(**sizes, **widths, in_channels=4, guidance_embeds=False)
    place = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij"), -1).reshape(-1, 2)
    ids = torch.nn.functional.pad(place, (1, 0)).float()
    call = text(pooled_projections=noise(1, 8, seed=4))
    shared = {"img_ids": ids, "txt_ids": torch.zeros(5, 3)}
    return model, [noise(1, 16, 4)], lambda branch: {**call(branch), **shared}


def sd3():
    sizes = {"num_layers": 3, "attention_head_dim": 12, "num_attention_heads": 2, "caption_projection_dim": 24}
    widths = {"joint_attention_dim": 16, "pooled_projection_dim": 8, "sample_size": 8, "pos_embed_max_size": 8}
    model = diffusers.SD3Transformer2DModel(**sizes, **widths, in_channels=4, out_channels=4)
    return model, [noise(1, 4, 8, 8)], text(pooled_projections=noise(1, 8, seed=4))


def pixart():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 12, "num_layers": 3, "cross_attention_dim": 24}
    more = {"caption_channels": 16, "sample_size": 8, "use_additional_conditions": False}
    return diffusers.PixArtTransformer2DModel(**sizes, **more), [noise(1, 4, 8, 8)], text()


def qwen():
    sizes = {"num_layers": 3, "attention_head_dim": 12, "num_attention_heads": 2, "joint_attention_dim": 16}
    model = diffusers.QwenImageTransformer2DModel(**sizes, in_channels=4, out_channels=1, axes_dims_rope=(4, 4, 4))
    mask = {"encoder_hidden_states_mask": torch.ones(1, 5).bool()}
    call = text(**mask)
    return (
        model,
        [noise(1, 16, 4)],
        lambda branch: {**call(branch), "img_shapes": [[(1, 4, 4)]] * (1 + (branch is None))},
    )


def z_image():
    sizes = {"in_channels": 4, "dim": 24, "n_layers": 3, "n_refiner_layers": 1, "n_heads": 2, "n_kv_heads": 2}
    more = {"cap_feat_dim": 16, "axes_dims": [4, 4, 4], "axes_lens": [64, 16, 16]}
    model = diffusers.ZImageTransformer2DModel(**sizes, **more)
    branches = (1, 2)

    def call(branch):
        chosen = branches if branch is None else (branches[branch],)
        return {"cap_feats": [noise(5, 16, seed=seed) for seed in chosen]}

    return model, [noise(1, 4, 1, 8, 8)], call


BUILD = {
    "WanTransformer3DModel": wan,
    "LTXVideoTransformer3DModel": ltx,
    "LTX2VideoTransformer3DModel": ltx2,
    "HunyuanVideoTransformer3DModel": hunyuan,
    "CogVideoXTransformer3DModel": cogvideo,
    "FluxTransformer2DModel": flux,
    "SD3Transformer2DModel": sd3,
    "PixArtTransformer2DModel": pixart,
    "QwenImageTransformer2DModel": qwen,
    "ZImageTransformer2DModel": z_image,
}


def pipeline(name):
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model, start, call = BUILD[name]()
    for value in model.parameters():  # untrained ones may start at 0, which nothing would come out of
        torch.nn.init.normal_(value, std=0.1)
    torch.set_rng_state(state)
    pipe = Loop(model.eval().requires_grad_(False), diffusers.FlowMatchEulerDiscreteScheduler(shift=3))
    return pipe, start, call


def two_experts(boundary_ratio=0.8):
    """Wan 2.2: one transformer for high noise, another for low noise; and the arguments of a call."""
    (pipe, arguments), (other, _) = examples.wan_pipeline(0), examples.wan_pipeline(1)
    pipe.register_modules(transformer_2=other.transformer)
    pipe.register_to_config(boundary_ratio=boundary_ratio)
    return pipe, arguments
