"""A pass over some of the tokens is right at those tokens; test_families has every family."""

from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import sampled_models
import torch
from diffusers import (
    CogVideoXTransformer3DModel,
    HunyuanVideoTransformer3DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from mmaccel.errors import UnsupportedTargetError
from mmaccel.stepping.layout import LatentLayout
from mmaccel.stepping.tensors import tensors
from mmaccel.testing.contract import snapshot
from mmaccel.video.blocks.token_subset import KeysValues, TokenSubset
from mmaccel.video.families.adapter import token_grid
from mmaccel.video.families.families import find_family, layout_of
from mmaccel.video.heterogeneous.partial import PartialForward


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sd3():
    sizes = {"sample_size": 16, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4}
    text = {"joint_attention_dim": 32, "caption_projection_dim": 32, "pooled_projection_dim": 16}
    model = SD3Transformer2DModel(patch_size=2, in_channels=4, out_channels=4, **sizes, **text)
    inputs = {"encoder_hidden_states": noise(2, 5, 32, seed=1), "pooled_projections": noise(2, 16, seed=2)}
    return model, {"hidden_states": noise(2, 4, 16, 16), "timestep": torch.full((2,), 500.0), **inputs}


def cogvideox():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "time_embed_dim": 8}
    clip = {"sample_width": 8, "sample_height": 8, "sample_frames": 9, "max_text_seq_length": 5}
    model = CogVideoXTransformer3DModel(**sizes, **clip, in_channels=4, out_channels=4, text_embed_dim=16)
    text = {"encoder_hidden_states": noise(2, 5, 16, seed=1)}
    return model, {"hidden_states": noise(2, 3, 4, 8, 8), "timestep": torch.full((2,), 500), **text}


def hunyuan():
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "num_single_layers": 1}
    text_sizes = {"text_embed_dim": 16, "pooled_projection_dim": 8, "num_refiner_layers": 1}
    model = HunyuanVideoTransformer3DModel(
        **sizes, **text_sizes, in_channels=4, out_channels=4, patch_size=2, patch_size_t=1, rope_axes_dim=(4, 6, 6)
    )
    text = {"encoder_hidden_states": noise(2, 5, 16, seed=1), "encoder_attention_mask": torch.ones(2, 5)}
    more = {"pooled_projections": noise(2, 8, seed=2), "guidance": torch.full((2,), 3000.0)}
    return model, {"hidden_states": noise(2, 4, 3, 8, 8), "timestep": torch.full((2,), 500), **text, **more}


def from_examples(build):
    def made():
        model, arguments = build()
        return model, {k: v for k, v in arguments(2).items() if k != "return_dict"}

    return made


FAMILIES = {
    "wan": from_examples(sampled_models.wan),
    "ltx": from_examples(sampled_models.ltx),
    "flux": from_examples(sampled_models.flux),
    "sd3": sd3,
    "cogvideox": cogvideox,
    "hunyuan": hunyuan,
}


@pytest.fixture(params=FAMILIES)
def model_and_call(request):
    torch.manual_seed(0)
    model, call = FAMILIES[request.param]()
    return model.eval().requires_grad_(False), call


def sample(model, output):
    output = next(tensors(output))
    return layout_of(model, output).tokens(output)


def test_chosen_tokens_are_as_in_a_full_pass(model_and_call):
    model, call = model_and_call
    plain = sample(model, model(**call))
    before = snapshot(model)
    tokens = torch.arange(1, plain.shape[1], 7)
    with ExitStack() as stack:
        part = PartialForward(model, stack)
        full = sample(model, part.keeping(0, model.forward, (), call))
        assert torch.equal(full, plain)
        some = sample(model, part.only(tokens, 0, model.forward, (), call))
        torch.testing.assert_close(some[:, tokens], plain[:, tokens], rtol=1e-4, atol=1e-5)
        others = torch.ones(plain.shape[1], dtype=torch.bool).index_fill(0, tokens, False)
        assert not torch.allclose(some[:, others], plain[:, others]), "all tokens were computed"
        kept = part.cache.nbytes()
        assert abs(part.estimate_bytes(model, (), call) - kept) <= 0.1 * kept
    assert snapshot(model) == before and part.cache.nbytes() == 0
    assert torch.equal(sample(model, model(**call)), plain)


def test_branches_keep_keys_and_values_of_their_own(model_and_call):
    model, call = model_and_call
    other = {**call, "encoder_hidden_states": call["encoder_hidden_states"].flip(1) + 1}
    tokens = torch.arange(0, 48, 9)
    with ExitStack() as stack:
        part = PartialForward(model, stack)
        first = sample(model, part.keeping(0, model.forward, (), call))
        second = sample(model, part.keeping(1, model.forward, (), other))
        assert not torch.allclose(first, second)
        for branch, whole, arguments in ((0, first, call), (1, second, other)):
            some = sample(model, part.only(tokens, branch, model.forward, (), arguments))
            torch.testing.assert_close(some[:, tokens], whole[:, tokens], rtol=1e-4, atol=1e-5)


def test_tokens_that_were_chosen_on_one_device_are_computed_on_another():
    """As `device_map="balanced"` has it, where the sampler steps on one and the transformer is on another."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 32, "num_layers": 2, "rope_max_seq_len": 32}
    with FakeTensorMode(), ExitStack() as stack:
        model = WanTransformer3DModel(**sizes, in_channels=4, out_channels=4, text_dim=16, freq_dim=16)
        text = {"encoder_hidden_states": torch.zeros(1, 5, 16), "timestep": torch.zeros(1)}
        call = {"hidden_states": torch.zeros(1, 4, 3, 8, 8), **text, "return_dict": False}
        part = PartialForward(model, stack)
        part.keeping(0, model.forward, (), call)
        (some,) = part.only(torch.arange(9, device="cuda:0"), 0, model.forward, (), call)
        assert some.shape == (1, 4, 3, 8, 8) and some.device == model.device


def test_an_exception_leaves_no_pass_open(model_and_call):
    model, call = model_and_call
    with ExitStack() as stack:
        part = PartialForward(model, stack)
        with pytest.raises(TypeError):
            part.keeping(0, model.forward, (), {**call, "unknown": 1})
        assert part.branch is None and part.tokens is None
        assert torch.equal(sample(model, model(**call)), sample(model, part.keeping(0, model.forward, (), call)))


def test_compiled_and_unknown_transformers_are_refused():
    model, _ = sampled_models.wan()
    model.blocks[0].compile()
    with ExitStack() as stack, pytest.raises(UnsupportedTargetError, match="compiled"):
        PartialForward(model, stack)
    with ExitStack() as stack, pytest.raises(UnsupportedTargetError, match="Linear.*Wan.*fraction=0"):
        PartialForward(torch.nn.Linear(2, 2), stack)


def test_a_second_self_attention_is_refused():
    """Stable Diffusion 3.5 medium: its keys and values would be those of the chosen tokens alone."""
    state = torch.get_rng_state()
    sizes = {"sample_size": 8, "num_layers": 1, "attention_head_dim": 8, "num_attention_heads": 1}
    model = SD3Transformer2DModel(**sizes, caption_projection_dim=8, dual_attention_layers=(0,))
    torch.set_rng_state(state)
    told = "SD3.*apart, since some of its blocks attend a second time, over the picture alone: .*fraction=0"
    with ExitStack() as stack, pytest.raises(UnsupportedTargetError, match=told):
        PartialForward(model, stack)


@pytest.mark.parametrize(("shape", "patch"), [((2, 4, 3, 8, 6), (1, 2, 2)), ((2, 4, 8, 6), (2, 2)), ((2, 9, 4), ())])
def test_layouts_come_back(shape, patch):
    latents = noise(*shape)
    for frames_first in (False, True) if len(shape) == 5 else (False,):
        given = latents.transpose(1, 2) if frames_first else latents
        layout = LatentLayout(patch, frames_first)
        tokens = layout.tokens(given)
        assert tokens.ndim == 3 and torch.equal(layout.latents(tokens, given), given)
    unknown = LatentLayout()
    assert torch.equal(unknown.latents(unknown.tokens(latents), latents), latents)


def test_grids_are_those_of_the_call():
    model, call = hunyuan()
    assert token_grid(model, (), call) == (3, 4, 4), "one number for both sides of a patch"
    for build in (sampled_models.wan, sampled_models.ltx):
        model, arguments = build()
        call = arguments(1, frames=3, height=4, width=5)
        assert token_grid(model, (), call) == (3, 4, 5)
    del call["width"]
    assert token_grid(model, (), call) is None
    wan, arguments = sampled_models.wan()
    assert token_grid(wan, (arguments(frames=2)["hidden_states"],), {}) == (2, 8, 8)
    wan.__class__ = type("Own", (WanTransformer3DModel,), {})
    assert token_grid(wan, (arguments(frames=2)["hidden_states"],), {}) == (2, 8, 8)
    assert token_grid(*sampled_models.flux()[:1], (), {}) is None


def test_tokens_lie_as_the_transformer_has_them():
    """Token (f, h, w) of Wan holds its patch of the latents."""
    latents = torch.arange(3 * 8 * 6).float().view(1, 1, 3, 8, 6)
    tokens = LatentLayout((1, 2, 2)).tokens(latents)
    assert tokens[0, 1 * 12 + 2 * 3 + 1].tolist() == latents[0, 0, 1, 4:6, 2:4].flatten().tolist()


@pytest.mark.parametrize(
    ("text", "order", "places"), ((2, "first", [0, 1, 3, 5]), (2, "last", [1, 3, 4, 5]), (0, None, [1, 3])), ids=str
)
def test_a_subset_cuts_what_has_an_entry_per_token(text, order, places):
    subset = TokenSubset(torch.tensor([1, 3]), 4, text, order)
    assert subset.places.tolist() == places
    rotary, whole = torch.arange(8).view(4, 2), torch.arange(2 * (4 + text)).view(1, 4 + text, 2)
    assert subset.of(rotary).tolist() == [[2, 3], [6, 7]]
    assert subset.of(rotary[None]).tolist() == [[[2, 3], [6, 7]]], "behind the batch"
    assert subset.of(whole)[0, :, 0].tolist() == [2 * place for place in places]
    for value in ((rotary, whole), [rotary, whole]):
        cut = subset.of(value)
        assert type(cut) is type(value) and [len(part) for part in (cut[0], cut[1][0])] == [2, len(places)]
    for other in (torch.zeros(3, 2), torch.zeros(4), None, 4, torch.zeros(2, 9, 4)):
        assert subset.of(other) is other
    given = {"temb": rotary, "image_rotary_emb": (rotary, None), "hidden_states": rotary, "scale": rotary}
    subset.choose(given)
    assert given["hidden_states"] is rotary is given["scale"] and list(given) == [
        "temb",
        "image_rotary_emb",
        "hidden_states",
        "scale",
    ]
    assert len(given["temb"]) == 2 == len(given["image_rotary_emb"][0]) and given["image_rotary_emb"][1] is None


def test_some_tokens_attend_with_the_mask_over_all_keys():
    """Each branch with its own, whatever a block builds for the tokens it sees; and after a reset with none."""
    attend, keys = torch.nn.functional.scaled_dot_product_attention, KeysValues(2)
    tokens, new = torch.tensor([1, 3]), noise(1, 2, 2, 4, seed=9)
    wholes = {branch: noise(1, 2, 4, 4, seed=branch) for branch in (0, 1)}
    masks = {branch: (torch.arange(4) != branch).view(1, 1, 1, 4) for branch in (0, 1)}
    for branch, x in wholes.items():
        full = keys.attend(1, branch, None, attend, (x, x, x), {"attn_mask": masks[branch]})
        assert torch.equal(full, attend(x, x, x, attn_mask=masks[branch]))
    for branch, x in wholes.items():
        renewed = x.clone()
        renewed[:, :, tokens] = new
        mask = {"attn_mask": torch.ones(1, 1, 1, 2, dtype=torch.bool)}
        found = keys.attend(1, branch, TokenSubset(tokens, 4), attend, (new, new, new), mask)
        torch.testing.assert_close(found, attend(new, renewed, renewed, attn_mask=masks[branch]))
        bare = keys.attend(1, branch, TokenSubset(tokens, 4), attend, (new, new, new), {"scale": 0.5})
        torch.testing.assert_close(bare, attend(new, renewed, renewed, scale=0.5))
    assert keys.cache.nbytes() == 2 * 2 * 2 * 4 * 4 * 4
    keys.reset()
    assert keys.cache.nbytes() == 0 and not keys.masks


def test_layers_that_are_spread_over_devices_have_the_mask_on_their_own():
    attend, keys = torch.nn.functional.scaled_dot_product_attention, KeysValues(2)
    with FakeTensorMode():
        for subset, length in ((None, 4), (TokenSubset(torch.tensor([1, 3]), 4), 2)):
            for layer, device in enumerate(("cuda:0", "cpu")):
                x, mask = torch.zeros(1, 2, length, 4, device=device), torch.zeros(1, 1, 1, length, device=device)
                assert keys.attend(layer, 0, subset, attend, (x, x, x), {"attn_mask": mask}).device == x.device


@pytest.mark.parametrize(("kv", "bytes_each"), (("native", 4), ("fp8", 1), ("cpu", 4)))
def test_keys_and_values_are_kept_as_asked_for(kv, bytes_each):
    keys, x = KeysValues(1, kv), noise(1, 2, 4, 4)
    keys.attend(0, 0, None, torch.nn.functional.scaled_dot_product_attention, (x, x, x), {})
    assert keys.cache.nbytes() == 2 * x.numel() * bytes_each
    assert (keys.cache.dtype, keys.cache.device) == (
        torch.float8_e4m3fn if kv == "fp8" else None,
        "cpu" if kv == "cpu" else None,
    )


class Block(torch.nn.Module):
    def forward(self, hidden_states, encoder_hidden_states):
        return hidden_states, encoder_hidden_states


def stub(**config):
    """The least of a subclass of a transformer with a row, which goes by names."""
    base = type("HunyuanVideoTransformer3DModel", (torch.nn.Module,), {})
    model = type("Own", (base,), {})()
    model.transformer_blocks = torch.nn.ModuleList([Block()])
    model.config = SimpleNamespace(**config)
    return model


def test_a_family_is_that_of_a_class_that_it_is_made_of():
    assert find_family(stub()).name == "HunyuanVideo"
    assert find_family(torch.nn.Linear(2, 2)) is None


def test_patches_along_frames_and_sides():
    clip, picture = torch.zeros(1, 4, 6, 8, 8), torch.zeros(1, 4, 8, 8)
    for config, latents, patch in (
        ({"patch_size": 2, "patch_size_t": 3}, clip, (3, 2, 2)),
        ({"patch_size": 2, "patch_size_t": None}, clip, (1, 2, 2)),
        ({"patch_size": 2}, clip, (1, 2, 2)),
        ({"patch_size": 2}, picture, (2, 2)),
        ({"patch_size": [3, 2, 2]}, clip, (3, 2, 2)),
    ):
        assert layout_of(stub(**config), latents).patch == patch, config
