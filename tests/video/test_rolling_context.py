"""Long videos in blocks: what a block sees, that it sees nothing else, and that memory stays."""

import pytest
import torch

import mmaccel
from mmaccel import video
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.video.examples import block_pipeline, wan_pipeline

SMALL = {"height": 4, "width": 4, "steps": 2}


@pytest.fixture(scope="module")
def made():
    pipe, arguments = block_pipeline()

    def call(blocks, **more):
        drawn = arguments(**{**SMALL, "frames": 2 * blocks, **more})
        return {name: value for name, value in drawn.items() if name not in ("draft", "score")}

    return pipe, call


def seen(pipe):
    """For each pass, whether it fills the cache, its keys, and the compressed ones that the cache has room for."""
    passes = []

    def look(module, args):
        tokens, cache, flag = args[0].shape[1], args[5], args[6]
        cached = 0 if flag["is_cache_step"] else flag["num_cached_full_tokens"] + flag["num_cached_compressed_tokens"]
        passes.append((flag["is_cache_step"], tokens + cached, cache["compressed_cache"].shape[3]))

    return passes, pipe.transformer.blocks[0].register_forward_pre_hook(look)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_a_video_of_one_block_more_than_it_keeps_is_the_plain_one(made, blocks):
    pipe, call = made
    drawn = call(blocks + 1, batch=2)
    plain = pipe(**drawn)[0]
    with mmaccel.accelerate(pipe, video.RollingContext(blocks=blocks, first=0)) as fast:
        assert torch.equal(fast(**drawn)[0], plain)
        assert not fast.report.engaged and "context" not in fast.report.details


@pytest.mark.parametrize("guided", [False, True])
def test_a_block_is_what_the_pipeline_draws_behind_the_kept_ones_alone(made, guided):
    """The last of five blocks, and the pipeline's own continuation of a clip of the first and the two before it."""
    pipe, call = made
    more = {"guidance_scale": 3.0, "negative_prompt_embeds": -call(1)["prompt_embeds"]} if guided else {}
    drawn = {**call(5), **more}
    with mmaccel.accelerate(pipe, video.RollingContext(blocks=3, first=1)) as fast:
        long = fast(**drawn)[0]
        assert fast.report.engaged and fast.report.details["context"] == {"blocks": 3, "left out": 1}
    kept = [0, 1, 4, 5, 6, 7]
    noise = drawn["latents"][:, :, kept + [8, 9]]
    behind = {**call(4), **more, "latents": noise, "video_latents": long[:, :, kept].transpose(1, 2)}
    assert torch.allclose(pipe(**behind)[0][:, :, -2:], long[:, :, -2:], atol=1e-6)
    assert not torch.allclose(pipe(**drawn)[0][:, :, -2:], long[:, :, -2:], atol=1e-3)


def test_passes_and_memory_stay_as_they_are_however_long_the_video(made):
    pipe, call = made
    with mmaccel.accelerate(pipe, video.RollingContext(blocks=4)) as fast:
        passes, handle = seen(pipe)
        try:
            fast(**call(12))
        finally:
            handle.remove()
    full, compressed = 2 * 16, 2 * 4  # tokens of a block of two frames of 4 x 4, and of 2 x 2
    assert pipe.transformer.config.full_chunk_limit == 2
    assert {keys for filling, keys, _ in passes[-9:] if filling} == {full + 3 * compressed}
    assert {keys for filling, keys, _ in passes[-9:] if not filling} == {2 * full + 3 * compressed}
    assert {room for _, _, room in passes[-9:]} == {3 * compressed} == {max(room for _, _, room in passes)}


@pytest.mark.parametrize("kind", (list, tuple))  # a tuple as that of the transformer's configuration
def test_a_last_block_of_other_length(made, kind):
    pipe, call = made
    drawn = call(1, frames=9)
    assert drawn["chunk_partition"] == [2, 2, 2, 2, 1]
    drawn["chunk_partition"] = kind(drawn["chunk_partition"])
    with mmaccel.accelerate(pipe, video.RollingContext(blocks=2)) as fast:
        assert fast(**drawn)[0].shape == drawn["latents"].shape
        assert fast.report.details["context"]["left out"] == 2


def small_model():
    given = block_pipeline()[1]()
    return {name: given[name] for name in ("draft", "score")}


def test_together_with_drafts_of_a_small_model(made):
    pipe, call = made
    drafts = small_model()
    methods = (video.RollingContext(blocks=2), video.BlockRouter(tau=-1e9, latents=True))
    drawn = []
    for order in (methods, methods[::-1]):
        with mmaccel.accelerate(pipe, *order) as fast:
            drawn.append(fast(**call(6), **drafts)[0])
            assert fast.report.details["kept"] == 5 and torch.isfinite(drawn[-1]).all()
    assert torch.equal(*drawn)  # the small model has the same context as the large one


def test_memory_is_flat_over_200_blocks_that_a_small_model_drafts(made):
    """What the small model remembers, and what each pass of the large one holds, are those of 20 blocks."""
    pipe, call = made
    drafts, found = small_model(), []
    for blocks in (20, 200):
        methods = (video.RollingContext(blocks=4), video.BlockRouter(tau=-1e9, steps=1, latents=True))
        with mmaccel.accelerate(pipe, *methods) as fast:
            passes, handle = seen(pipe)
            try:
                drawn = fast(**call(blocks, steps=1), **drafts)[0]
            finally:
                handle.remove()
            assert fast.report.details["kept"] == blocks - 1 and drawn.isfinite().all()
            found.append((fast.report.peak_extra_bytes, sorted(passes[-9:])))
    assert found[0] == found[1] and found[0][0] > 0


def test_masks_are_built_of_the_blocks_that_are_seen(made):
    """That of all would grow with the square of their number."""
    pipe, call = made
    build, built = pipe.transformer.build_attention_mask, []

    def noted(**given):
        built.append(len(given["chunk_partition"]))
        return build(**given)

    pipe.transformer.build_attention_mask = noted
    try:
        with mmaccel.accelerate(pipe, video.RollingContext(blocks=2)) as fast:
            fast(**call(6))
    finally:
        del pipe.transformer.build_attention_mask
    assert max(built) == 2


def test_settings_and_pipelines_that_do_not_fit(made):
    with pytest.raises(SettingError, match="blocks"):
        video.RollingContext(blocks=0)
    with pytest.raises(SettingError, match="first"):
        video.RollingContext(blocks=2, first=2)
    with pytest.raises(UnsupportedTargetError):
        mmaccel.accelerate(wan_pipeline()[0], video.RollingContext())


def test_after_an_exception_the_pipeline_is_as_it_was(made):
    pipe, call = made
    drawn = call(6)
    plain = pipe(**drawn)[0]

    def stop(pipeline, step, time, given):
        if len(stopped) == 7:
            raise RuntimeError("stopped")
        stopped.append(step)
        return given

    stopped = []
    with mmaccel.accelerate(pipe, video.RollingContext(blocks=1, first=0)) as fast:
        with pytest.raises(RuntimeError, match="stopped"):
            fast(**drawn, callback_on_step_end=stop)
        assert not torch.equal(fast(**drawn)[0], plain)
    assert torch.equal(pipe(**drawn)[0], plain)
