"""A vision-language model with three positions for each token, as a canvas."""

import pytest
import torch
from diffusers import BlockRefinementScheduler
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.testing.untrained import untrained
from mmaccel.zoo.block_pipeline import BlockDiffusionPipeline

IMAGE, VIDEO = 60, 61
ROTARY = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
TOWER = {
    "depth": 1,
    "hidden_size": 16,
    "out_hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "temporal_patch_size": 1,
    "window_size": 16,
    "fullatt_block_indexes": [0],
}


def model():
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 58, "vision_end_token_id": 59}
    config = Qwen2_5_VLConfig(text_config={**examples.SIZES, "rope_parameters": ROTARY}, vision_config=TOWER, **tokens)
    return untrained(lambda: Qwen2_5_VLForConditionalGeneration(config), scale=2.0)


@pytest.fixture
def shown():
    """Two prompts with pictures of other grids at other places."""
    ids = torch.tensor(
        [[58, IMAGE, IMAGE, IMAGE, IMAGE, 59, 5, 6, 7, 8, 9], [4, 5, 58, IMAGE, IMAGE, 59, 6, 7, 8, 9, 10]]
    )
    grids = torch.tensor([[1, 4, 4], [1, 2, 4]])
    pixels = torch.randn(24, 48, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "pixel_values": pixels, "image_grid_thw": grids}


def test_read_word_by_word_it_is_the_model_itself(shown):
    qwen = model()
    types = (shown["input_ids"] == IMAGE).int()
    true = qwen(**shown, mm_token_type_ids=types, attention_mask=torch.ones_like(types)).logits
    wrapped = canvas.BlockCausalModel(qwen, 1)
    visual = {name: value for name, value in shown.items() if name != "input_ids"}
    with torch.no_grad(), wrapped.seeing(shown["input_ids"], **visual):
        assert torch.allclose(wrapped(shown["input_ids"]).logits, true, atol=1e-4)


def test_seconds_between_frames_decide_positions():
    qwen, ids = model(), torch.tensor([[4, 58, *[VIDEO] * 8, 59, 5, 6, 7]])
    pixels = torch.randn(32, 48, generator=torch.Generator().manual_seed(0))
    given = {"video_grid_thw": torch.tensor([[2, 4, 4]]), "mm_token_type_ids": 2 * (ids == VIDEO).int()}
    given |= {"pixel_values_videos": pixels, "second_per_grid_ts": torch.tensor([0.5])}
    true = qwen(input_ids=ids, **given, attention_mask=torch.ones_like(ids)).logits
    wrapped = canvas.BlockCausalModel(qwen, 1)
    with torch.no_grad(), wrapped.seeing(ids, **given):
        assert torch.allclose(wrapped(ids).logits, true, atol=1e-4)


def test_rows_of_other_columns_see_their_own_pictures(shown):
    """As where a cache renews other tokens of each row."""
    wrapped, ids = canvas.BlockCausalModel(model(), 8), shown["input_ids"]
    visual = {name: value for name, value in shown.items() if name != "input_ids"}
    places = torch.tensor([[0, 6, 7, 8, 9, 10], [2, 3, 4, 5, 6, 7]])
    with torch.no_grad(), wrapped.seeing(ids, **visual):
        found = wrapped(ids.gather(1, places), position_ids=places).logits
        for row, own in enumerate(places.tolist()):
            same = torch.tensor([own, own])
            alone = wrapped(ids.gather(1, same), position_ids=same).logits
            assert torch.allclose(found[row], alone[row], atol=1e-5)


def test_methods_are_exact_on_it(shown):
    pipe = BlockDiffusionPipeline(canvas.BlockCausalModel(model(), 8), BlockRefinementScheduler(block_length=8))
    pipe.set_progress_bar_config(disable=True)
    call = {**shown, "mm_token_type_ids": (shown["input_ids"] == IMAGE).int(), "gen_length": 24}
    call |= {"num_inference_steps": 8, "threshold": 2.0, "mask_token_id": examples.MASK}
    plain = pipe(**call, output_type="seq").sequences
    other = {**call, "pixel_values": call["pixel_values"].flip(0)}
    assert not torch.equal(pipe(**other, output_type="seq").sequences, plain), "it does see"
    with mmaccel.accelerate(pipe, canvas.FreeDave(), canvas.PrefixCache()) as fast:
        assert torch.equal(fast(**call, output_type="seq").sequences, plain) and fast.report.exact


def test_a_prompt_that_fails_leaves_its_positions_to_no_other(shown):
    wrapped, text = canvas.BlockCausalModel(model(), 8), torch.arange(4, 15)[None]
    broken = {"pixel_values": shown["pixel_values"][:, 1:], "image_grid_thw": shown["image_grid_thw"]}
    with torch.no_grad():
        plain = wrapped(text).logits
        with pytest.raises(RuntimeError, match="size"), wrapped.seeing(shown["input_ids"], **broken):
            pass
        assert torch.equal(wrapped(text).logits, plain)
