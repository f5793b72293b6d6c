"""The transformers of the example pipelines, each with arguments for a call, which returns the sample itself."""

import torch

from mmaccel.video.examples import FRAMES, HEIGHT, WIDTH, flux_pipeline, ltx_pipeline, wan_pipeline


def wan(seed=0):
    """A `WanTransformer3DModel`, and `arguments(batch, frames, height, width, **more)`."""

    def arguments(batch=1, frames=FRAMES, height=HEIGHT, width=WIDTH, **more):
        common = {"timestep": torch.full((batch,), 500), "encoder_hidden_states": _noise(batch, 5, 16, seed=1)}
        latents = _noise(batch, 4, frames, 2 * height, 2 * width)
        return {"hidden_states": latents, **common, "return_dict": False, **more}

    return _sampled(wan_pipeline, seed), arguments


def ltx(seed=0):
    """An `LTXVideoTransformer3DModel`, whose tokens come packed."""

    def arguments(batch=1, frames=FRAMES, height=HEIGHT, width=WIDTH, **more):
        grid = {"num_frames": frames, "height": height, "width": width}
        text = {"encoder_hidden_states": _noise(batch, 5, 16, seed=1), "encoder_attention_mask": torch.ones(batch, 5)}
        common = {"timestep": torch.full((batch,), 500), "return_dict": False}
        return {"hidden_states": _noise(batch, frames * height * width, 4), **common, **text, **grid, **more}

    return _sampled(ltx_pipeline, seed), arguments


def flux(seed=0):
    """A `FluxTransformer2DModel`: an image model with joint attention over text and picture."""

    def arguments(batch=1, height=2 * HEIGHT, width=2 * WIDTH, **more):
        place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), -1)
        ids = torch.nn.functional.pad(place.reshape(-1, 2), (1, 0)).float()
        text = {"encoder_hidden_states": _noise(batch, 5, 16, seed=1), "txt_ids": torch.zeros(5, 3)}
        common = {
            "timestep": torch.full((batch,), 0.5),
            "guidance": torch.full((batch,), 3.5),
            "pooled_projections": _noise(batch, 16, seed=2),
            "img_ids": ids,
        }
        return {"hidden_states": _noise(batch, height * width, 4), **text, **common, "return_dict": False, **more}

    return _sampled(flux_pipeline, seed), arguments


def _sampled(pipeline, seed):
    model = pipeline(seed)[0].transformer
    model.register_forward_hook(lambda module, args, output: output[0] if isinstance(output, tuple) else output)
    return model


def _noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
