"""Methods inside diffusers' block-diffusion pipeline, on untrained models of both kinds."""

import functools
import threading
from types import SimpleNamespace

import pytest
import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from transformers import LlamaConfig, LlamaForCausalLM

import mmaccel
from mmaccel import canvas
from mmaccel.adapter import find_adapter
from mmaccel.canvas import examples
from mmaccel.canvas.caches.kept_prefix import KeptPrefix
from mmaccel.canvas.caches.kept_window import KeptWindow
from mmaccel.canvas.comparing import CanvasTrial
from mmaccel.canvas.verifiers.drafted import Drafted
from mmaccel.errors import ActiveSessionError, ConflictError, MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.zoo.block_pipeline import ChatScheduler

BUILDS = (examples.bidirectional, examples.block_causal)


def run(pipe, arguments, batch=1, **more):
    return pipe(**arguments(batch, **more)).sequences


@functools.cache
def plain_tokens(build, batch, *call):
    """What a pipeline without methods gives."""
    return run(*build(), batch, **dict(call))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("drafts", (2, 8))
@pytest.mark.parametrize("call", ({}, {"threshold": 0.3}, {"num_inference_steps": 3}, {"gen_length": 13}))
@pytest.mark.parametrize("batch", (1, 3))
def test_free_dave_gives_equal_tokens(build, drafts, call, batch):
    pipe, arguments = build()
    plain = plain_tokens(build, batch, *call.items())
    with mmaccel.accelerate(pipe, canvas.FreeDave(drafts)) as fast:
        assert torch.equal(run(fast, arguments, batch, **call), plain)
        assert torch.equal(run(fast, arguments, batch, **call), plain), "a second run"
        assert fast.report.exact and fast.report.details["passes"] <= fast.report.plain_forwards + 6


@pytest.mark.parametrize("scheduler", (BlockRefinementScheduler, ChatScheduler))
@pytest.mark.parametrize("in_prompt", (False, True))
@pytest.mark.parametrize("seed", range(3))
def test_free_dave_ends_where_the_pipeline_ends(scheduler, in_prompt, seed):
    """Also with the token that ends a text in the prompt, after which diffusers' own scheduler never stops."""
    pipe, arguments = examples.block_causal(seed)
    pipe.scheduler = scheduler(block_length=examples.BLOCK)
    plain = run(pipe, arguments, 3, gen_length=40)
    end = int(plain[0, 20])  # a token that comes in the middle, at other places of other rows
    call = {"gen_length": 40, "eos_early_stop": True, "eos_token_id": end}
    given = arguments(3, **call)
    if in_prompt:
        given["input_ids"][:, 7] = end
    plain = pipe(**given).sequences
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        assert torch.equal(fast(**given).sequences, plain)
    with mmaccel.accelerate(pipe, canvas.FreeDave(), canvas.PrefixCache()) as fast:
        assert torch.equal(fast(**given).sequences, plain)


def test_a_chat_ends_though_its_prompt_holds_the_end():
    ids = torch.tensor([[2, 5, 2, 6, 7, 2, 9, 9]])
    told = {"finished": torch.zeros(1, dtype=torch.bool), "eos_token_id": 2, "mask_token_id": 9, "prompt_length": 3}
    step = {"sampled_tokens": ids[:, 3:], "final_transfer": torch.ones(1, 5, dtype=torch.bool)}
    assert not BlockRefinementScheduler.check_eos_finished(cur_x=ids, **step, **told).any()
    told["finished"] = torch.zeros(1, dtype=torch.bool)
    assert ChatScheduler.check_eos_finished(cur_x=ids, **step, **told).all()
    told["finished"] = torch.zeros(1, dtype=torch.bool)
    holes = ids.clone()
    holes[0, 4] = 9
    assert not ChatScheduler.check_eos_finished(cur_x=holes, **step, **told).any()


def test_free_dave_follows_edits_of_one_row_and_leaves_batches_that_edit():
    pipe, arguments = examples.bidirectional()
    call = {"threshold": 0.2, "editing_threshold": 0.2}
    plain, both = run(pipe, arguments, 1, **call), run(pipe, arguments, 2, **call)
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        assert torch.equal(run(fast, arguments, 1, **call), plain) and not fast.report.warnings
        assert torch.equal(run(fast, arguments, 2, **call), both)
        assert "editing_threshold=0.0" in fast.report.warnings[0] and not fast.report.engaged


def test_free_dave_leaves_sampling_alone_and_says_so():
    pipe, arguments = examples.bidirectional()
    call = {"temperature": 0.8, "sampling_method": "multinomial"}
    plain = run(pipe, arguments, generator=torch.Generator().manual_seed(3), **call)
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        assert torch.equal(run(fast, arguments, generator=torch.Generator().manual_seed(3), **call), plain)
        assert "temperature" in str(fast.report)


@pytest.mark.parametrize("methods", ((), (canvas.FreeDave(),), (canvas.FactorCommit(4.0),)))
@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("refresh", (0, 3))
def test_a_cache_is_exact_where_the_text_does_not_see_the_block(methods, batch, refresh):
    """Rows padded on the left, blocks that begin inside the prompt, and canvases of one row in a batch."""
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, *(methods or (canvas.FreeDave(1),))) as fast:
        plain = run(fast, arguments, batch)
    with mmaccel.accelerate(pipe, *methods, canvas.PrefixCache(refresh)) as fast:
        assert torch.equal(run(fast, arguments, batch), plain)
        assert fast.report.work_ratio < 1 and fast.report.peak_extra_bytes > 0
        assert fast.report.exact == (not methods or methods[0].exact)


def test_a_cache_is_lossy_where_every_token_sees_every_other():
    pipe, arguments = examples.bidirectional()
    plain = run(pipe, arguments, 2)
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        assert not torch.equal(run(fast, arguments, 2), plain) and not fast.report.exact
        coarse = fast.report.forwards
    with mmaccel.accelerate(pipe, canvas.PrefixCache(2)) as fast:
        run(fast, arguments, 2)
        assert coarse < fast.report.forwards < fast.report.plain_forwards


def test_a_cache_forgets_the_prompt_before_also_in_calls_of_the_pipeline_itself():
    pipe, arguments = examples.block_causal()
    one, other = arguments(), arguments()
    other["input_ids"] = other["input_ids"].flip(1)
    plain = pipe(**other).sequences
    with mmaccel.accelerate(pipe, canvas.PrefixCache()):
        pipe(**one)
        assert torch.equal(pipe(**other).sequences, plain)


def test_rules_take_sampling_and_a_generator():
    pipe, arguments = examples.bidirectional()
    call = {"temperature": 1.0, "sampling_method": "multinomial"}
    with mmaccel.accelerate(pipe, canvas.FactorCommit(8.0)) as fast:
        found = [run(fast, arguments, 2, generator=torch.Generator().manual_seed(s), **call) for s in (1, 1, 2)]
        assert fast.report.engaged
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_rules_add_to_the_call_s_own_threshold_and_leave_no_mask():
    pipe, arguments = examples.bidirectional()
    with mmaccel.accelerate(pipe, canvas.FactorCommit(4.0)) as fast:
        found = run(fast, arguments, 2, threshold=0.1)
        assert not (found == examples.MASK).any() and not fast.report.plain_forwards
        few = fast.report.forwards
        run(fast, arguments, 2)
        assert few <= fast.report.forwards < fast.report.plain_forwards


def test_one_step_a_block_and_an_interrupted_run():
    pipe, arguments = examples.block_causal()
    plain = run(pipe, arguments, 2, num_inference_steps=1)

    def stop(*_):
        raise KeyboardInterrupt

    with mmaccel.accelerate(pipe, canvas.FreeDave(), canvas.PrefixCache()) as fast:
        assert torch.equal(run(fast, arguments, 2, num_inference_steps=1), plain)
        with pytest.raises(KeyboardInterrupt):
            run(fast, arguments, 2, callback_on_step_end=stop)
        assert torch.equal(run(fast, arguments, 2, num_inference_steps=1), plain)
    assert torch.equal(run(pipe, arguments, 2, num_inference_steps=1), plain)


def test_a_second_call_at_once_is_refused_and_the_first_goes_on():
    pipe, arguments = examples.block_causal()
    plain, told = run(pipe, arguments, 2), []

    def second():
        with pytest.raises(ActiveSessionError) as error:
            run(fast, arguments, 2)
        told.append(str(error.value))

    def meanwhile(pipe, step, timestep, kwargs):
        if not told:
            other = threading.Thread(target=second)
            other.start()
            other.join()
        return {}

    with mmaccel.accelerate(pipe, canvas.FreeDave(), canvas.PrefixCache()) as fast:
        assert torch.equal(run(fast, arguments, 2, callback_on_step_end=meanwhile), plain)
        assert "LLaDA2Pipeline is in the middle of another call" in told[0]
        assert torch.equal(run(fast, arguments, 2), plain)


def test_a_scheduler_that_two_pipelines_share_serves_one_at_a_time():
    (one, _), (other, _) = examples.block_causal(0), examples.block_causal(1)
    other.scheduler = one.scheduler
    told = "this BlockRefinementScheduler is already accelerated by Session"
    with mmaccel.accelerate(one, canvas.FreeDave()), pytest.raises(ActiveSessionError, match=told):
        mmaccel.accelerate(other, canvas.FreeDave())
    mmaccel.accelerate(other, canvas.FreeDave()).remove()


def test_two_rules_do_not_go_together():
    pipe, _ = examples.bidirectional()
    with pytest.raises(ConflictError, match="FactorCommit"):
        mmaccel.accelerate(pipe, canvas.FactorCommit(), canvas.FreeDave())


class _Scheduler:
    """Knows no masks."""

    def step(self, model_output, timestep, sample):
        raise NotImplementedError


def _causal():
    sizes = {name: size for name, size in examples.SIZES.items() if name != "mask_token_id"}
    return LlamaForCausalLM(LlamaConfig(**sizes))


class _Foreign(torch.nn.Module):
    """Remote code with attention of its own."""

    def forward(self, ids, attention_mask=None, position_ids=None):
        raise NotImplementedError


class _Narrow(torch.nn.Module):
    """Remote code as LLaDA's, which counts positions itself."""

    def forward(self, input_ids, attention_mask=None):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("make", "method", "says"),
    [
        (
            lambda: LLaDA2Pipeline(_Narrow(), BlockRefinementScheduler()),
            canvas.FactorCommit(),
            "leaves position_ids out",
        ),
        (lambda: LLaDA2Pipeline(_causal(), BlockRefinementScheduler()), canvas.FreeDave(), "BlockCausalModel"),
        (lambda: LLaDA2Pipeline(_Foreign(), BlockRefinementScheduler()), canvas.PrefixCache(), "interface"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(make, method, says):
    with pytest.raises(UnsupportedTargetError, match=says) as error:
        mmaccel.accelerate(make(), method)
    assert "\n" not in str(error.value)


def test_a_scheduler_without_masks_is_refused():
    pipe, _ = examples.bidirectional()
    pipe.scheduler = _Scheduler()
    with pytest.raises(UnsupportedTargetError, match="_Scheduler takes no mask_token_id"):
        mmaccel.accelerate(pipe, canvas.FactorCommit())


def test_foreign_models_run_with_rules():
    pipe, arguments = examples.bidirectional()
    inner = pipe.model

    class Remote(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, ids, attention_mask=None, position_ids=None):
            return inner(ids, attention_mask=attention_mask, position_ids=position_ids)

    foreign = examples.pipeline(Remote())
    with mmaccel.accelerate(foreign, canvas.FactorCommit(4.0)) as fast:
        found = run(fast, arguments, 2)
    with mmaccel.accelerate(pipe, canvas.FactorCommit(4.0)) as fast:
        assert torch.equal(run(fast, arguments, 2), found)


@pytest.mark.parametrize("length", (examples.BLOCK // 2, examples.BLOCK * 2))
def test_a_cache_is_not_called_exact_with_other_blocks_than_the_model_s(length):
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        run(fast, arguments, block_length=length)
        assert not fast.report.exact and f"pass block_length={examples.BLOCK}" in fast.report.warnings[0]
        run(fast, arguments)
        assert fast.report.exact and not fast.report.warnings
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        plain = run(pipe, arguments, block_length=length)
        assert torch.equal(run(fast, arguments, block_length=length), plain) and fast.report.exact
        assert f"pass block_length={examples.BLOCK}" in fast.report.warnings[0]
    with mmaccel.accelerate(pipe, canvas.FactorCommit()) as fast:
        run(fast, arguments, block_length=length)
        assert (
            f"the model fills blocks of {examples.BLOCK}, and this call has blocks of {length}"
            in fast.report.warnings[0]
        )


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("call", ({}, {"threshold": 0.3}, {"threshold": 0.2, "editing_threshold": 0.2}))
@pytest.mark.parametrize("method", (canvas.FreeDave(4), canvas.PrefixCache()), ids=str)
def test_plain_passes_are_those_that_the_pipeline_makes(build, method, call):
    pipe, arguments = build()
    passes = []
    with pipe.model.register_forward_pre_hook(lambda *_: passes.append(None)):
        run(pipe, arguments, **call)
    with mmaccel.accelerate(pipe, method) as fast:
        run(fast, arguments, **call)
        assert fast.report.plain_forwards == len(passes)


def test_a_block_causal_model_reads_causally_and_fills_in_both_directions():
    pipe, arguments = examples.block_causal()
    ids = arguments()["input_ids"][:, :20]
    changed = ids.clone()
    changed[0, -1] = 5
    one, other = pipe.model(ids).logits, pipe.model(changed).logits
    before = ids.shape[1] - examples.BLOCK
    assert torch.equal(one[:, :before], other[:, :before])
    assert not torch.allclose(one[:, before], other[:, before])


def test_a_past_of_blocks_reads_each_block_in_both_directions():
    """As SDAR's own mask, also in the cached passes over a part of the canvas."""
    decoder, n = examples.block_causal()[0].model.model, examples.BLOCK
    wrapped, ids = canvas.BlockCausalModel(decoder, n, past="blocks"), examples.arguments(2, 3 * n)["input_ids"]
    blocks = torch.ones(3, 3).tril().repeat_interleave(n, 0).repeat_interleave(n, 1).bool()
    true = decoder(ids, attention_mask=blocks.expand(2, 1, -1, -1)).logits
    assert torch.allclose(wrapped(ids).logits, true, atol=1e-5)
    assert not torch.allclose(wrapped.model(ids).logits, true, atol=1e-2)


@pytest.mark.parametrize("methods", ((canvas.FreeDave(),), (canvas.FreeDave(), canvas.PrefixCache(3)), ()))
def test_methods_are_exact_with_a_past_of_blocks(methods):
    pipe, arguments = examples.block_causal()
    pipe.model = canvas.BlockCausalModel(pipe.model.model, examples.BLOCK, past="blocks")
    plain = run(pipe, arguments, 3)
    with mmaccel.accelerate(pipe, *(methods or (canvas.PrefixCache(),))) as fast:
        assert torch.equal(run(fast, arguments, 3), plain) and fast.report.exact and fast.report.engaged


def test_a_model_with_a_past_of_blocks_is_not_asked_word_by_word():
    """Its logits are of the token itself, not of the next one; a rule goes by its threshold."""
    pipe, arguments = examples.block_causal()
    pipe.model = canvas.BlockCausalModel(pipe.model.model, examples.BLOCK, past="blocks")
    with mmaccel.accelerate(pipe, canvas.S2D2(threshold=0.0, cost=0.0)) as fast:
        found = run(fast, arguments, 2)
    with mmaccel.accelerate(pipe, canvas.S2D2(threshold=0.0, cost=1e9)) as fast:
        assert torch.equal(run(fast, arguments, 2), found)


def test_block_causal_models_say_what_they_lack():
    with pytest.raises(SettingError, match="past='whole'.*'causal' or 'blocks'"):
        canvas.BlockCausalModel(_causal(), 8, past="whole")
    with pytest.raises(SettingError, match="block_length=32"):
        canvas.BlockCausalModel(_causal())
    multimodal = _causal()
    multimodal.config.rope_parameters = {**multimodal.config.rope_parameters, "mrope_section": [1, 1, 2]}
    with pytest.raises(UnsupportedTargetError, match="three positions for each token and no get_rope_index"):
        canvas.BlockCausalModel(multimodal, 8)
    assert issubclass(UnsupportedTargetError, MmaccelError)


def test_intervals_compute_the_prompt_more_rarely_than_the_text():
    pipe, arguments = examples.bidirectional()
    work = []
    for method in (canvas.IntervalCache(prompt=50, text=2), canvas.IntervalCache(prompt=2, text=2)):
        with mmaccel.accelerate(pipe, method) as fast:
            run(fast, arguments, 2)
            work.append(fast.report.work_ratio)
            assert not fast.report.exact
    assert work[0] < work[1] < 1
    pipe, arguments = examples.block_causal()
    plain = run(pipe, arguments, 3)
    with mmaccel.accelerate(pipe, canvas.IntervalCache(), canvas.FreeDave()) as fast:
        assert torch.equal(run(fast, arguments, 3), plain) and fast.report.exact


def test_a_prompt_shorter_than_a_block_leaves_no_interval_but_that_of_the_text():
    """The block that it shares with the text is text to a cache, and an interval of 1 computes that in each pass."""
    pipe, arguments = examples.bidirectional()
    call = {"length": 5, "gen_length": 27}
    with mmaccel.accelerate(pipe, canvas.IntervalCache(text=1)) as fast:
        found = run(fast, arguments, **call)
        assert fast.report.forwards == fast.report.details["passes"], "each over all tokens"
    assert torch.equal(found, run(pipe, arguments, **call))


@pytest.mark.parametrize("build", BUILDS)
def test_a_window_renewed_at_every_step_but_as_wide_as_the_block_is_the_plain_run(build):
    """On the block-causal model; where every token sees every other, what stands before the block is dated."""
    pipe, arguments = build()
    plain = run(pipe, arguments, 2)
    with mmaccel.accelerate(pipe, canvas.WindowDiffusion(window=64)) as fast:
        assert torch.equal(run(fast, arguments, 2), plain) == (build is examples.block_causal)
        assert fast.report.work_ratio < 1 and not fast.report.exact


def test_a_narrow_window_computes_less_and_fills_everything():
    pipe, arguments = examples.bidirectional()
    work = []
    for window in (2, 8):
        with mmaccel.accelerate(pipe, canvas.WindowDiffusion(window, 8)) as fast:
            assert not (run(fast, arguments, 2) == examples.MASK).any()
            work.append(fast.report.work_ratio)
    assert work[0] < work[1]


def test_the_end_waits_for_the_text():
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, canvas.EarlyEnd(1e-6), canvas.FreeDave()) as fast:
        both = run(fast, arguments)
    with mmaccel.accelerate(pipe, canvas.EarlyEnd(1e-6)) as fast:
        assert torch.equal(run(fast, arguments), both), "FreeDave verifies the steps as they are then"


@pytest.mark.parametrize(
    ("settings", "says"), (({"num_inference_steps": 0}, "num_inference_steps"), ({"gen_length": 0}, "gen_length"))
)
def test_no_steps_and_no_text_are_the_pipeline_s_own_errors(settings, says):
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        with pytest.raises(ValueError, match=says):
            run(fast, arguments, **settings)
        assert torch.equal(run(fast, arguments), run(pipe, arguments))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("seed", (0, 1, 2))
def test_free_dave_ends_where_masks_are_all_that_a_model_says(build, seed):
    pipe, arguments = build(seed)
    said = int(run(pipe, arguments)[0].mode().values)
    plain = run(pipe, arguments, mask_token_id=said)
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        assert torch.equal(run(fast, arguments, mask_token_id=said), plain)


EDITING = (
    {"threshold": 0.7, "editing_threshold": 0.5},
    {"editing_threshold": 0.05},
    {"threshold": 0.2, "editing_threshold": 0.05, "max_post_steps": 3},
)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("seed", (2, 4, 5, 6))
@pytest.mark.parametrize("call", EDITING, ids=str)
def test_free_dave_leaves_a_block_when_the_pipeline_would(build, seed, call):
    """Also where all of its steps are used up, so that it edits the full block no more."""
    pipe, arguments = build(seed)
    passes = []
    with_count = pipe.model.register_forward_pre_hook(lambda *_: passes.append(None))
    plain = run(pipe, arguments, **call)
    with_count.remove()
    caches = (canvas.PrefixCache(),) if build is examples.block_causal else ()
    for methods in {(canvas.FreeDave(),), (canvas.FreeDave(), *caches), caches}:
        if methods:
            with mmaccel.accelerate(pipe, *methods) as fast:
                assert torch.equal(run(fast, arguments, **call), plain) and fast.report.exact
                assert fast.report.plain_forwards == len(passes)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize("seed", (4, 6))
def test_a_scheduler_that_edits_by_its_own_settings_is_followed(build, batch, seed):
    pipe, arguments = build(seed)
    pipe.scheduler = BlockRefinementScheduler(block_length=8, editing_threshold=0.05)
    plain = run(pipe, arguments, batch)
    for method in (canvas.FreeDave(), *([canvas.PrefixCache()] if build is examples.block_causal else [])):
        with mmaccel.accelerate(pipe, method) as fast:
            assert torch.equal(run(fast, arguments, batch), plain)


def test_rows_that_have_ended_take_no_more_passes():
    """In a batch the shorter text's masks keep the pipeline for all its steps; what is computed does not wait."""
    pipe, arguments = examples.block_causal()
    sequences = run(pipe, arguments, 2, gen_length=40)
    end = next(
        int(token) for token in sequences[0, :8] if token not in sequences[1]
    )  # the first row ends, not the other
    call = {"gen_length": 40, "eos_early_stop": True, "eos_token_id": end, "num_inference_steps": 8}
    passes = []
    with_count = pipe.model.register_forward_pre_hook(lambda *_: passes.append(None))
    plain = run(pipe, arguments, 2, **call)
    with_count.remove()
    both, taken = arguments(2, **call), []
    rows = [{k: v[i : i + 1] if torch.is_tensor(v) else v for k, v in both.items()} for i in range(2)]
    for method in (canvas.FreeDave(), canvas.FactorCommit(factor=4)):
        with mmaccel.accelerate(pipe, method) as fast:
            needed = []
            for row in rows:
                fast(**row)
                needed.append(fast.report.details["passes"])
            found = fast(**both).sequences
            taken.append((fast.report.details["passes"], needed))
            assert not method.exact or (torch.equal(found, plain) and fast.report.plain_forwards == len(passes))
    for together, needed in taken:
        assert max(needed) <= together <= sum(needed) and needed[0] < needed[1]
    assert taken[1][0] == max(taken[1][1]), "no more than the longer text"


@pytest.mark.parametrize("new", (False, True))
def test_callbacks_that_put_masks_back_are_followed(new):
    """In the block that a text is filled in, while another has ended; also where they give a new one."""
    pipe, arguments = examples.block_causal()
    sequences = run(pipe, arguments, 2, gen_length=40)
    end = next(int(token) for token in sequences[0, :8] if token not in sequences[1])
    call = {"gen_length": 40, "eos_early_stop": True, "eos_token_id": end, "num_inference_steps": 8}

    def put_back():
        done = []

        def act(pipe, step, timestep, kwargs):
            block = kwargs["block_x"].clone() if new else kwargs["block_x"]
            if block.shape[1] not in done and not (block[1, -examples.BLOCK :] == examples.MASK).any():
                done.append(block.shape[1])
                block[1, -3] = examples.MASK
            return {"block_x": block}

        return act

    plain = run(pipe, arguments, 2, **call, callback_on_step_end=put_back())
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        assert torch.equal(run(fast, arguments, 2, **call, callback_on_step_end=put_back()), plain)


@pytest.mark.parametrize(
    "methods", ((canvas.PrefixCache(),), (canvas.IntervalCache(),), (canvas.PrefixCache(), canvas.FactorCommit(4.0)))
)
@pytest.mark.parametrize("place", (7, examples.LENGTH + 1))
def test_callbacks_that_edit_what_is_kept_are_followed(methods, place):
    """In the prompt and in the text, in the middle of a block behind it."""
    pipe, arguments = examples.block_causal()

    def edit(pipe, step, timestep, kwargs):
        if timestep == 1 and kwargs["block_x"].shape[1] - examples.BLOCK > place:
            kwargs["block_x"][:, place] = 5 + step
        return {"block_x": kwargs["block_x"]}

    plain = run(pipe, arguments, 3)
    with mmaccel.accelerate(pipe, *(methods[1:] or (canvas.FreeDave(1),))) as fast:
        edited = run(fast, arguments, 3, callback_on_step_end=edit)
    assert not torch.equal(edited, plain)
    with mmaccel.accelerate(pipe, *methods) as fast:
        assert torch.equal(run(fast, arguments, 3, callback_on_step_end=edit), edited)
        assert fast.report.work_ratio < 1


@pytest.mark.parametrize("place", (7, examples.LENGTH + 2))
def test_free_dave_goes_on_plainly_where_a_callback_edits_the_canvas(place):
    """In the prompt and in the block; one that looks on changes nothing."""
    pipe, arguments = examples.block_causal()
    plain, seen = run(pipe, arguments), []

    def edit(pipe, step, timestep, kwargs):
        seen.append(int((kwargs["block_x"] == examples.MASK).sum()))
        if step == 1:
            kwargs["block_x"][:, place] = 5
        return {"block_x": kwargs["block_x"]}

    with mmaccel.accelerate(pipe, canvas.FreeDave(8)) as fast:
        assert torch.equal(run(fast, arguments, callback_on_step_end=lambda *given: given[-1]), plain)
        assert fast.report.exact and not fast.report.warnings
        run(fast, arguments, callback_on_step_end=edit)
        assert "a callback had edited the canvas" in str(fast.report) and not fast.report.exact
        assert {before - after for before, after in zip(seen[1:], seen[2:], strict=False) if before > after} == {1}
        assert torch.equal(run(fast, arguments), plain) and fast.report.exact and not fast.report.warnings


@pytest.mark.parametrize(
    "methods",
    (
        (canvas.FreeDave(),),
        (canvas.FreeDave(), canvas.PrefixCache()),
        (canvas.WindowDiffusion(2, 4),),
        (canvas.CoherentContext(0.1), canvas.PrefixCache(3)),
        (canvas.CreditDecoding(0.1),),
        (canvas.S2D2(threshold=0.0),),
        (canvas.GuidedCommit(),),
    ),
    ids=str,
)
def test_what_a_pass_gave_is_not_read_after_the_next(methods, monkeypatch):
    """CUDA graphs write over it; nor is it by the scheduler."""
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, *methods) as fast:
        kept, report = run(fast, arguments, 3), fast.report.to_dict()
    own, last = pipe.model.forward, []

    def spoiling(*given, **more):
        for logits in last:
            logits.fill_(torch.nan)
        last[:] = [(out := own(*given, **more)).logits]
        return out

    def step(model_output, *given, **more):
        out = steps(model_output, *given, **more)
        asked.append(bool(model_output.isnan().any() or out.sampled_probs.isnan().any()))
        return out

    steps, asked = pipe.scheduler.step, []
    monkeypatch.setattr(pipe.model, "forward", spoiling)
    monkeypatch.setattr(pipe.scheduler, "step", functools.wraps(steps)(step))
    with mmaccel.accelerate(pipe, *methods) as fast:
        assert torch.equal(run(fast, arguments, 3), kept) and asked and not any(asked)
        assert fast.report.forwards == report["forwards"] and fast.report.engaged


def test_a_window_is_computed_anew_where_a_callback_edits_the_text():
    kept, ids = KeptWindow(2, 4, 8, lambda: examples.MASK), torch.full((1, 16), examples.MASK)
    ids[:, :8], modes = 5, []

    def model(ids, **_):
        modes.append(kept.mode)
        kept.kept = {0: (ids, ids)}
        return SimpleNamespace(logits=torch.zeros(*ids.shape, 4))

    for edited in (False, False, True, False):
        ids[:, 3] += edited
        kept.compute(model, ids, 1, 8, {})
    assert modes == ["keep", "renew", "keep", "renew"]


@pytest.mark.parametrize(
    ("call", "steps"),
    (
        ({}, 8),
        ({"num_inference_steps": 3}, 3),
        ({"num_inference_steps": 32}, 8),
        ({"num_inference_steps": 32, "block_length": 4}, 4),
        ({"num_inference_steps": 32, "gen_length": 5}, 5),
        ({"num_inference_steps": 32, "gen_length": 12, "minimal_topk": 2}, 6),
    ),
    ids=str,
)
def test_compare_counts_the_steps_that_a_block_has(call, steps):
    """Fewer of those that the call asks for may be as many."""
    pipe, arguments = examples.bidirectional()
    given, passes = arguments(length=2 * examples.BLOCK, **call), []

    def made(count):
        passes.append(0)
        return pipe(**{**given, "num_inference_steps": count}).sequences

    def count(*_):
        passes[-1] += 1

    assert CanvasTrial(find_adapter(pipe), given).count == steps
    with pipe.model.register_forward_pre_hook(count):
        assert torch.equal(made(steps), made(given["num_inference_steps"]))
        made(steps - 1)
    assert passes[2] < passes[0] <= passes[1]


def test_a_schedule_of_more_steps_than_a_block_has_tokens_ends_with_the_block():
    """The pipeline's own 32 steps are not made for a short block, whose last third comes all the same."""
    pipe, arguments = examples.bidirectional()
    taken = []
    with mmaccel.accelerate(pipe, canvas.Prophet(1e9, 1e9, 0.0)) as fast:
        for steps in (examples.BLOCK, 32):
            found = run(fast, arguments, num_inference_steps=steps)
            assert fast.report.forwards < fast.report.plain_forwards
            taken.append((found.tolist(), fast.report.forwards))
    assert taken[0] == taken[1]


def test_masks_that_are_added_are_those_that_are_true():
    """Models with code of their own may give such a mask to attention."""
    kept = KeptPrefix(refresh=0)
    kept.padding = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0]]).bool()[:, None, None]
    own = kept.padding[..., 4:].expand(-1, 1, 2, -1)
    added = torch.zeros(own.shape).masked_fill(~own, torch.finfo(torch.float32).min)
    seen, sum_ = kept._mask(own, 4), kept._mask(added, 4)
    assert seen.shape == sum_.shape == (2, 1, 2, 6) and torch.equal(sum_ == 0, seen)
    assert seen[1, 0].tolist() == [[False, True, True, True, True, False]] * 2


@pytest.mark.parametrize("own", (None, torch.ones(2, 1, 2, 2, dtype=torch.bool, device="meta")), ids=("none", "own"))
def test_padding_is_seen_where_a_layer_is(own):
    """Layers may lie on several devices. Tensors of the meta device hold nothing, and tell where they are."""
    kept, layer = KeptPrefix(refresh=0), torch.nn.Module()
    states = torch.zeros(2, 1, 2, 8, device="meta")
    kept.padding = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    kept._thread = threading.get_ident()
    kept.mode, kept.first, kept.kept = "reuse", 4, {id(layer): (torch.zeros(2, 1, 4, 8, device="meta"),) * 2}
    mask = kept.attend(lambda *given, **_: given[4], layer, states, states, states, own)
    assert mask.is_meta and mask.shape[-1] == 6


def test_a_window_is_renewed_where_a_layer_is():
    kept, layer = KeptWindow(2, 4, 8, lambda: 0), torch.nn.Module()
    states = torch.zeros(2, 1, 2, 8, device="meta")
    kept._thread = threading.get_ident()
    kept.mode, kept.kept = "renew", {id(layer): (torch.zeros(2, 1, 6, 8, device="meta"),) * 2}
    kept.places, kept.visible = torch.tensor([[4, 5]] * 2), torch.ones(2, 1, 1, 6, dtype=torch.bool)
    keys, mask = kept.attend(lambda *given, **_: given[2::2], layer, states, states, states, None)
    assert keys.is_meta and mask.is_meta and mask.shape == (2, 1, 2, 6)
    assert not kept.places.is_meta, "logits of the window come back to where the canvas is"


@pytest.mark.parametrize("implementation", ("eager", "flash_attention_2"))
def test_caches_need_attention_that_takes_masks(implementation):
    decoder = LlamaForCausalLM(LlamaConfig(**examples.SIZES))
    pipe = examples.pipeline(examples.BlockCausalModel(decoder, examples.BLOCK))
    decoder.config._attn_implementation = implementation
    with pytest.raises(UnsupportedTargetError, match=f"'{implementation}': load the model with attn_implementation="):
        mmaccel.accelerate(pipe, canvas.PrefixCache())


@pytest.mark.parametrize("past", ("causal", "blocks"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_eager_attention_sees_what_sdpa_sees(past, dtype):
    """Also where a row is padded."""
    decoder = examples.block_causal()[0].model.model.to(dtype)
    wrapped, given = canvas.BlockCausalModel(decoder, examples.BLOCK, past), examples.arguments(2)
    told = {"input_ids": given["input_ids"], "attention_mask": given["attention_mask"]}
    with torch.no_grad():
        true = wrapped(**told).logits
        decoder.config._attn_implementation = "eager"
        assert torch.allclose(wrapped(**told).logits, true, atol=1e-4 if dtype is torch.float32 else 0.3)


def test_a_block_causal_model_needs_attention_that_takes_masks():
    wrapped = examples.block_causal()[0].model
    wrapped.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UnsupportedTargetError, match="'flash_attention_2': load the model with attn_implementation='s"):
        wrapped(examples.arguments()["input_ids"])


def test_what_is_kept_of_a_block_does_not_hold_the_logits_of_the_text_before():
    scheduler, block = BlockRefinementScheduler(), torch.full((1, examples.BLOCK), examples.MASK)
    scheduler.set_timesteps(examples.BLOCK, None, examples.BLOCK)
    logits = torch.randn(1, 5 * examples.BLOCK, examples.VOCABULARY)[:, -examples.BLOCK :]
    call = {"model_output": logits, "sample": block, "timestep": 0, "mask_token_id": examples.MASK}
    drafted = Drafted(scheduler.step, call, 0, lambda *_: False, 2)
    assert drafted.draft(call, 0, examples.BLOCK)
    assert [each.untyped_storage().nbytes() for each in drafted.known.values()] == [drafted.nbytes()]


def test_what_is_kept_of_logits_is_counted_and_bounded():
    pipe, arguments = examples.bidirectional()
    with mmaccel.accelerate(pipe, canvas.FreeDave(3)) as fast:
        run(fast, arguments, gen_length=40)
        kept = fast.report.peak_extra_bytes
    assert 0 < kept <= 2 * 3 * examples.BLOCK * examples.VOCABULARY * 4


def test_what_a_rule_remembers_is_counted():
    pipe, arguments = examples.bidirectional()
    with mmaccel.accelerate(pipe, canvas.CreditDecoding()) as fast:
        run(fast, arguments, 2)
        assert fast.report.peak_extra_bytes == 2 * examples.BLOCK * examples.VOCABULARY * 4


@pytest.mark.parametrize("stops", (False, True))
def test_calls_of_the_pipeline_itself_follow_their_own_arguments(stops):
    pipe, arguments = examples.block_causal(1)
    end = int(run(pipe, arguments, gen_length=40)[0, 20])
    call = {"gen_length": 40, "eos_early_stop": stops, "eos_token_id": end}
    plain = run(pipe, arguments, **call)
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        assert torch.equal(run(pipe, arguments, **call), plain)
        run(fast, arguments, gen_length=40)
        assert torch.equal(run(pipe, arguments, **call), plain), "nor does the session's last call count"


def test_calls_of_the_pipeline_itself_leave_the_report_as_it_is():
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        run(fast, arguments)
        told = fast.report.to_dict()
        run(pipe, arguments, block_length=2 * examples.BLOCK)
        assert fast.report.to_dict() == told


def test_another_scheduler_is_refused_by_name():
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        fast.scheduler = BlockRefinementScheduler.from_config(pipe.scheduler.config)
        with pytest.raises(
            UnsupportedTargetError, match="another scheduler than when .*PrefixCache.*accelerate it again"
        ):
            run(fast, arguments)


def test_compare_draws_on_the_device_of_the_pipeline():
    """A generator would be of one device, and the pipeline may run on another."""
    pipe, arguments = examples.bidirectional()
    trial, calls = CanvasTrial(find_adapter(pipe), arguments(temperature=1.0)), []
    one, again, other = (trial.run(lambda **call: calls.append(call) or pipe(**call), seed) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other) and not any("generator" in call for call in calls)


def test_a_cache_follows_a_model_that_is_compiled_within_its_session():
    (pipe, arguments), call = examples.block_causal(layers=1), {"num_inference_steps": 2, "gen_length": 8}
    plain = run(pipe, arguments, 2, **call)
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        pipe.model.compile(backend="eager")
        assert torch.equal(run(fast, arguments, 2, **call), plain) and fast.report.engaged
