"""What users put on a transformer beside mmaccel: torch.compile, LoRA by peft, offloading by accelerate."""

import copy
from functools import cache

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import CpuOffload, add_hook_to_module, remove_hook_from_module
from diffusers.hooks import HookRegistry, group_offloading
from peft import LoraConfig, get_peft_model

import mmaccel
from mmaccel import video
from mmaccel.adapter import find_adapter
from mmaccel.errors import SettingError, UnsupportedTargetError
from mmaccel.forwards import PASSING_HOOKS
from mmaccel.patching import Wrapped
from mmaccel.testing.contract import snapshot
from mmaccel.video import examples

CPU = torch.device("cpu")
STEPS_ONLY = (video.HeterogeneousSteps(0.5), video.EasyCache(1e6, warmup=3))
BLOCKS = (video.BlockCache(1e6, warmup=3), video.TeaCache(1e6, warmup=3))
TOKENS = (video.HeterogeneousSteps(0.6, interval=4, fraction=0.2), video.TokenCache(0.5))
SPARSE = video.SparseAttention(budget=0.5, min_length=1, always=True)


@pytest.fixture
def wan():
    pipe, arguments = examples.wan_pipeline()
    return pipe, arguments(1, steps=12)


@pytest.fixture(autouse=True)
def forget_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fast_run(pipe, call, method):
    with mmaccel.accelerate(pipe, method) as fast:
        return fast(**call)[0], fast.report


@cache
def untouched(method):
    """What a pipeline on which nothing was put gives: plain, and with a method with its report."""
    pipe, arguments = examples.wan_pipeline()
    call = arguments(1, steps=12)
    return pipe(**call)[0], *fast_run(pipe, call, method)


def wrapped(transformer):
    """Each block by itself, as it was done before modules had `compile`."""
    for number, block in enumerate(transformer.blocks):
        transformer.blocks[number] = torch.compile(block, backend="eager")


def whole(transformer):
    transformer.compile(backend="eager")


def blocks(transformer):
    for block in transformer.blocks:
        block.compile(backend="eager")


def alone(transformer):
    """As it was done before modules had `compile`."""
    transformer.forward = torch.compile(transformer.forward, backend="eager")


def frames_of_ours(monkeypatch):
    """Names of our own functions that the compiler was asked to trace."""
    seen = []
    trace = torch._dynamo.convert_frame.ConvertFrame.__call__

    def spy(self, frame, *args, **kwargs):
        if "mmaccel" in frame.f_globals.get("__name__", ""):
            seen.append(frame.f_code.co_name)
        return trace(self, frame, *args, **kwargs)

    monkeypatch.setattr(torch._dynamo.convert_frame.ConvertFrame, "__call__", spy)
    return seen


@pytest.mark.parametrize(
    ("method", "compiled"),
    [
        *((method, part) for method in STEPS_ONLY for part in (whole, alone)),
        *((method, part) for method in (*STEPS_ONLY, BLOCKS[0]) for part in (blocks, wrapped)),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_compiled_code_stays_compiled_and_ours_is_not_traced(wan, method, compiled, monkeypatch):
    pipe, call = wan
    plain, expected, report = untouched(method)
    pipe(**call)
    compiled(pipe.transformer)
    before, traced = snapshot(pipe), frames_of_ours(monkeypatch)
    output, again = fast_run(pipe, call, method)
    assert torch.equal(output, expected) and again.forwards == pytest.approx(report.forwards, abs=1)
    assert traced == [] and snapshot(pipe) == before
    assert torch.equal(pipe(**call)[0], plain)


@pytest.mark.parametrize("compiled", (whole, alone), ids=lambda compiled: compiled.__name__)
@pytest.mark.parametrize("method", (*BLOCKS, *TOKENS, video.SparseAttention(), video.FirstBlockCache()), ids=str)
def test_methods_inside_of_a_compiled_transformer_are_refused(wan, method, compiled):
    pipe, _ = wan
    compiled(pipe.transformer)
    before = snapshot(pipe)
    with pytest.raises(UnsupportedTargetError, match="is compiled: load it again without compile"):
        mmaccel.accelerate(pipe, method)
    assert snapshot(pipe) == before


@pytest.mark.parametrize("method", STEPS_ONLY, ids=str)
def test_compiling_within_a_session_is_refused_in_the_next_run(wan, method):
    """It would compile our part of the forward pass as well."""
    pipe, call = wan
    before = snapshot(pipe.transformer)
    with mmaccel.accelerate(pipe, method) as fast:
        whole(pipe.transformer)
        with pytest.raises(UnsupportedTargetError, match=r"compiled after accelerate\(\): remove\(\) the session"):
            fast(**call)
    del pipe.transformer._compiled_call_impl
    assert snapshot(pipe.transformer) == before
    whole(pipe.transformer)
    assert fast_run(pipe, call, method)[1].engaged


def test_compiling_the_forward_alone_within_a_session_is_refused_in_the_next_run(wan):
    pipe, call = wan
    with mmaccel.accelerate(pipe, STEPS_ONLY[0]) as fast:
        alone(pipe.transformer)
        with pytest.raises(UnsupportedTargetError, match=r"compiled after accelerate\(\): remove\(\) the session"):
            fast(**call)
    assert fast_run(pipe, call, STEPS_ONLY[0])[1].engaged


@pytest.mark.parametrize("method", STEPS_ONLY, ids=str)
def test_a_compiled_wrapper_within_a_session_is_refused_in_the_next_run(wan, method):
    pipe, call = wan
    plain, output = pipe.transformer, pipe(**call)[0]
    with mmaccel.accelerate(pipe, method) as fast:
        pipe.transformer = torch.compile(plain, backend="eager")
        with pytest.raises(UnsupportedTargetError, match=r"WanTransformer3DModel was compiled after accelerate\(\)"):
            fast(**call)
        pipe.transformer = plain
        assert fast(**call)[0].isfinite().all() and fast.report.engaged
    assert "forward" not in vars(plain) and torch.equal(pipe(**call)[0], output)


def test_a_compiled_wrapper_is_refused(wan):
    pipe, _ = wan
    pipe.transformer = torch.compile(pipe.transformer, backend="eager")
    with pytest.raises(UnsupportedTargetError, match=r"write pipe\.transformer\.compile"):
        mmaccel.accelerate(pipe, video.EasyCache())


@pytest.mark.parametrize("method", STEPS_ONLY, ids=str)
def test_a_forward_that_was_compiled_with_a_hook_of_accelerate_is_not_changed_inside(wan, method, monkeypatch):
    pipe, call = wan
    plain, expected, report = untouched(method)
    cpu_offload(pipe.transformer, execution_device=CPU)
    alone(pipe.transformer)
    pipe(**call)
    before, traced = dict(vars(pipe.transformer)), frames_of_ours(monkeypatch)
    with mmaccel.accelerate(pipe, method) as fast:
        for _ in range(2):
            assert torch.equal(fast(**call)[0], expected) and not fast.report.warnings
            assert fast.report.forwards == pytest.approx(report.forwards, abs=1)
    assert traced == [] and vars(pipe.transformer) == before
    assert torch.equal(pipe(**call)[0], plain)


def test_a_forward_that_was_compiled_with_hooks_that_go_after_each_call_is_refused(wan):
    """The pipeline takes off what is compiled together with them: only one call would be fast."""
    pipe, call = wan
    pipe.enable_model_cpu_offload(device="cpu")
    alone(pipe.transformer)
    before = snapshot(pipe)
    with pytest.raises(UnsupportedTargetError, match=r"off again after one call: write pipe\.transformer\.compile"):
        mmaccel.accelerate(pipe, STEPS_ONLY[0])
    assert snapshot(pipe) == before


LORA = LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False)


def add_lora(pipe):
    torch.manual_seed(0)
    pipe.transformer.add_adapter(LORA, "style")


@pytest.mark.parametrize("method", (STEPS_ONLY[1], BLOCKS[0], *TOKENS), ids=str)
def test_lora_before_or_after(wan, method):
    pipe, call = wan
    plain, without, _ = untouched(method)
    with mmaccel.accelerate(pipe, method) as fast:
        add_lora(pipe)
        after = fast(**call)[0]
    before, _ = fast_run(pipe, call, method)
    assert torch.equal(before, after) and not torch.equal(before, without)
    with mmaccel.accelerate(pipe, method) as fast:
        pipe.transformer.delete_adapters("style")
        assert torch.equal(fast(**call)[0], without)
    assert torch.equal(pipe(**call)[0], plain)


@pytest.mark.parametrize("method", (*STEPS_ONLY, *BLOCKS, *TOKENS, SPARSE, video.TaylorSeer()), ids=str)
def test_a_transformer_within_a_model_of_pefts_is_followed(wan, method):
    """As in diffusers' guide to merged LoRAs."""
    pipe, call = wan
    add_lora(pipe)
    plain, (expected, report) = pipe(**call)[0], fast_run(pipe, call, method)
    torch.manual_seed(0)
    pipe.transformer = get_peft_model(examples.wan_pipeline()[0].transformer, LORA)
    assert torch.equal(pipe(**call)[0], plain)
    with mmaccel.accelerate(pipe, method) as fast:
        assert torch.equal(fast(**call)[0], expected) and fast.report.engaged
        assert fast.report.forwards == report.forwards and fast.report.warnings == report.warnings
    assert torch.equal(pipe(**call)[0], plain)
    pipe.transformer.compile(backend="eager")  # with what lies around it
    assert find_adapter(pipe).denoisers() == [pipe.transformer]


@pytest.mark.parametrize("late", (False, True))
@pytest.mark.parametrize("method", (*STEPS_ONLY, *BLOCKS, *TOKENS, SPARSE), ids=str)
def test_every_call_of_an_off_loaded_pipeline_is_fast(wan, method, late):
    """After each the pipeline takes its hooks off, and puts them on again."""
    pipe, call = wan
    plain, expected, report = untouched(method)
    if not late:
        pipe.enable_model_cpu_offload(device="cpu")
    with mmaccel.accelerate(pipe, method) as fast:
        if late:
            pipe.enable_model_cpu_offload(device="cpu")
        for _ in range(2):
            assert torch.equal(fast(**call)[0], expected) and fast.report.engaged
            assert fast.report.forwards == report.forwards and fast.report.warnings == report.warnings
    assert torch.equal(pipe(**call)[0], plain)
    assert torch.equal(fast_run(pipe, call, method)[0], expected), "and so is another session"


@pytest.mark.parametrize("method", (STEPS_ONLY[1], BLOCKS[0], *TOKENS), ids=str)
def test_offloading_before_or_after(wan, method):
    pipe, call = wan
    plain, expected, _ = untouched(method)
    hook = CpuOffload(execution_device=torch.device("cpu"))
    add_hook_to_module(pipe.transformer, hook)
    assert torch.equal(fast_run(pipe, call, method)[0], expected)
    assert pipe.transformer._hf_hook is hook and torch.equal(pipe(**call)[0], plain)
    remove_hook_from_module(pipe.transformer)
    with mmaccel.accelerate(pipe, method) as fast:
        add_hook_to_module(pipe.transformer, CpuOffload(execution_device=torch.device("cpu")))
        assert torch.equal(fast(**call)[0], expected)
    assert torch.equal(pipe(**call)[0], plain)


def offload_in_groups(transformer, level):
    """As with `use_stream=True`, which needs a GPU: hooks note the order of the first pass, and take themselves off."""
    transformer.enable_group_offload(CPU, CPU, level, num_blocks_per_group=1)
    prefetch, tracker = PASSING_HOOKS
    assert tracker == group_offloading._LAYER_EXECUTION_TRACKER, "which the other puts on groups"
    hook = group_offloading.LazyPrefetchGroupOffloadingHook()
    HookRegistry.check_if_exists_or_initialize(transformer).register_hook(hook, prefetch)


@pytest.mark.parametrize("level", ("block_level", "leaf_level"))
@pytest.mark.parametrize("method", (*STEPS_ONLY, *BLOCKS, *TOKENS, SPARSE), ids=str)
def test_every_call_is_fast_where_groups_are_prefetched(wan, method, level):
    pipe, call = wan
    plain, expected, report = untouched(method)
    offload_in_groups(pipe.transformer, level)
    mmaccel.accelerate(pipe, method).remove()
    with mmaccel.accelerate(pipe, method) as fast:
        for _ in range(2):
            assert torch.equal(fast(**call)[0], expected) and fast.report.engaged
            assert fast.report.forwards == report.forwards and fast.report.warnings == report.warnings
    assert torch.equal(pipe(**call)[0], plain)
    assert not any(isinstance(vars(module).get("forward"), Wrapped) for module in pipe.transformer.modules())


def test_a_transformer_that_changes_below_sparse_attention_is_said(wan):
    pipe, call = wan
    offload_in_groups(pipe.transformer, "block_level")
    plain = pipe(**call)[0]
    with mmaccel.accelerate(pipe, SPARSE) as fast:
        pipe.transformer._diffusers_hook.remove_hook("group_offloading")  # as loading a LoRA does
        assert torch.equal(fast(**call)[0], plain)
        assert [warning for warning in fast.report.warnings if "its transformer was changed" in warning]
        assert not any("set_attention_backend" in warning for warning in fast.report.warnings)


def grouped(count, **more):
    """A pipeline of four blocks that are off-loaded so many at a time."""
    pipe, arguments = examples.wan_pipeline()
    pipe.transformer.blocks.extend(copy.deepcopy(pipe.transformer.blocks))
    if count:
        in_groups(pipe, count, **more)
    return pipe, arguments(1, steps=12)


def in_groups(pipe, count, **more):
    pipe.transformer.enable_group_offload(CPU, CPU, "block_level", num_blocks_per_group=count, **more)


SKIPPING = (video.BlockCache(1e6, last=1), video.TokenCache(0.5, fractions=(1.0, 0.0, 0.0, 1.0)))


@pytest.mark.parametrize("method", SKIPPING, ids=str)
def test_a_block_that_brings_the_weights_of_others_is_not_left_out(method, tmp_path):
    """The first of each group does; off-loaded to a file, weights that it does not bring are not there."""
    pipe, call = grouped(2)
    with pytest.raises(SettingError, match="num_blocks_per_group=1"):
        mmaccel.accelerate(pipe, method)
    pipe, call = grouped(None)
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**call)
        in_groups(pipe, 2)
        with pytest.raises(SettingError, match="num_blocks_per_group=1"):
            fast(**call)
    pipe, call = grouped(1)
    expected = fast_run(pipe, call, method)[0]
    pipe, call = grouped(4, offload_to_disk_path=str(tmp_path))
    output, report = fast_run(pipe, call, method)
    assert torch.equal(output, expected) and report.engaged
