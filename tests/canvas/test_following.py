"""What is followed in a session: the parts that the pipeline had when it began, and only while a run is going on."""

import copy
import threading

import pytest
import torch
from diffusers import BlockRefinementScheduler

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.canvas.picture_examples import CODES, SIDE, pictures
from mmaccel.canvas.uniform_examples import CANVAS, uniform
from mmaccel.errors import UnsupportedTargetError

TEXT = (canvas.FactorCommit(), canvas.FreeDave(), canvas.PrefixCache(), canvas.WindowDiffusion(), canvas.S2D2())
PICTURES = (canvas.HaltonOrder(steps=3), canvas.LateGuidance(1.0))


class StoppedError(Exception):
    """Of a callback."""


def stop(*_, **__):
    raise StoppedError


def in_session(fast, pipe, call, callback):
    fast(**call)


def of_the_pipeline(fast, pipe, call, callback):
    pipe(**call)


def cut_short(fast, pipe, call, callback):
    with pytest.raises(StoppedError):
        fast(**call, **{callback: stop})


def of_the_pipeline_cut_short(fast, pipe, call, callback):
    with pytest.raises(StoppedError):
        pipe(**call, **{callback: stop})


BEFORE = (lambda *_: None, in_session, of_the_pipeline, cut_short, of_the_pipeline_cut_short)


# ---------------------------------------------------------------- parts that are replaced


@pytest.mark.parametrize("method", TEXT, ids=str)
def test_another_model_is_refused_by_name(method):
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, method) as fast:
        fast.model = copy.deepcopy(pipe.model)
        with pytest.raises(UnsupportedTargetError, match=rf"another model than when .*{method.name}.*accelerate it"):
            fast(**arguments())


def test_another_model_is_refused_where_canvases_begin_as_random_tokens():
    pipe, arguments = uniform()
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        fast.model = uniform(1)[0].model
        with pytest.raises(UnsupportedTargetError, match=r"another model than when .*FreeDave.*accelerate it again"):
            fast(**arguments())


@pytest.mark.parametrize("method", PICTURES, ids=str)
def test_another_transformer_is_refused_by_name(method):
    pipe, arguments = pictures()
    own = pipe.transformer
    with mmaccel.accelerate(pipe, method) as fast:
        pipe.transformer = pictures(1)[0].transformer
        with pytest.raises(UnsupportedTargetError, match=rf"another transformer than when .*{method.name}.*accelerate"):
            fast(**arguments())
        fast.transformer = own
        fast(**arguments())
        assert fast.report.engaged, "with its own one again"


@pytest.mark.parametrize("first", (False, True))
@pytest.mark.parametrize("method", (*TEXT, canvas.Doubling()), ids=str)
def test_a_call_of_the_pipeline_itself_with_another_model_is_plain(method, first):
    """Its steps, too, although the scheduler is the one that is followed."""
    pipe, arguments = examples.block_causal()
    other = examples.block_causal(1)[0].model
    plain = examples.pipeline(other)(**arguments()).sequences
    with mmaccel.accelerate(pipe, method):
        if first:
            pipe(**arguments())
        pipe.model = other
        assert torch.equal(pipe(**arguments()).sequences, plain)


# ---------------------------------------------------------------- calls of the model itself


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("method", TEXT, ids=str)
@torch.no_grad()
def test_direct_calls_of_a_text_model_are_its_own(method, before):
    """Also a second one of the same length, and with other tokens than those of a run."""
    pipe, arguments = examples.block_causal()
    call = arguments()
    ids = torch.randint(4, 60, (2, 2 * examples.BLOCK), generator=torch.Generator().manual_seed(1))
    given = {"attention_mask": torch.ones_like(ids), "position_ids": torch.arange(ids.shape[1]).expand(2, -1)}
    plain = pipe.model(ids, **given)
    with mmaccel.accelerate(pipe, method) as fast:
        before(fast, pipe, call, "callback_on_step_end")
        for _ in range(2):
            found = pipe.model(ids, **given)
            assert type(found) is type(plain) and torch.equal(found.logits, plain.logits)


@torch.no_grad()
def test_direct_calls_have_hidden_states_and_loss():
    pipe, _ = examples.bidirectional()
    ids = torch.randint(4, 60, (1, 9), generator=torch.Generator().manual_seed(1))
    with mmaccel.accelerate(pipe, canvas.FactorCommit()):
        found = pipe.model(ids, labels=ids, output_hidden_states=True)
    assert found.loss > 0 and len(found.hidden_states) == 3


@pytest.mark.parametrize("before", BEFORE)
@torch.no_grad()
def test_direct_calls_of_a_model_of_random_tokens_are_its_own(before):
    pipe, arguments = uniform()
    ids, tokens = torch.arange(8, 15)[None], torch.arange(20, 20 + CANVAS)[None]
    plain = pipe.model(input_ids=ids, decoder_input_ids=tokens)
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        before(fast, pipe, arguments(), "callback_on_step_end")
        found = pipe.model(input_ids=ids, decoder_input_ids=tokens)
    assert type(found) is type(plain) and torch.equal(found.logits, plain.logits)


@pytest.mark.parametrize("given", ("by name", "by position", "half"))
@torch.no_grad()
def test_a_pass_with_a_prompt_that_is_made_by_hand_reads_it(given):
    """The pipeline's own passes give the prompt's keys; one between its steps gives what the user says."""
    pipe, _ = uniform()
    ids, tokens = torch.arange(8, 15)[None], torch.arange(20, 20 + CANVAS)[None]
    plain = pipe.model(ids, decoder_input_ids=tokens).logits
    ways = {
        "by name": lambda: pipe.model(input_ids=ids, decoder_input_ids=tokens, self_conditioning_logits=None),
        "by position": lambda: pipe.model(ids, None, None, None, tokens),
        "half": lambda: pipe.model(ids, decoder_input_ids=tokens, self_conditioning_logits=None),
    }
    with mmaccel.accelerate(pipe, canvas.FreeDave()):
        pipe.scheduler.set_timesteps(8)
        assert torch.equal(ways[given]().logits, plain)


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("method", PICTURES, ids=str)
@torch.no_grad()
def test_direct_calls_of_a_picture_model_are_its_own(method, before):
    """Also of pictures that are full, alone and beside one that is not."""
    pipe, arguments = pictures()
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(CODES, (2, SIDE, SIDE), generator=generator)
    partly = codes.clone()
    partly[0, 0, 0] = CODES
    seen = []
    with pipe.transformer.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True):
        pipe(**arguments(1, steps=1))
    plain = [pipe.transformer(each, **seen[0]) for each in (partly, codes, 1 + codes // 2)]
    with mmaccel.accelerate(pipe, method) as fast:
        before(fast, pipe, arguments(), "callback")
        found = [pipe.transformer(each, **seen[0]) for each in (partly, codes, 1 + codes // 2)]
    assert all(torch.equal(*pair) for pair in zip(plain, found, strict=True))


@pytest.mark.parametrize("of_the_session", (False, True))
def test_runs_are_followed_after_direct_calls(of_the_session):
    pipe, arguments = examples.block_causal()
    plain, passes = pipe(**arguments()).sequences, []
    with mmaccel.accelerate(pipe, canvas.FreeDave(), canvas.PrefixCache()) as fast:
        pipe.model(arguments()["input_ids"])
        with pipe.model.model.get_input_embeddings().register_forward_pre_hook(lambda *_: passes.append(None)):
            found = (fast if of_the_session else pipe)(**arguments()).sequences
    assert torch.equal(found, plain) and 0 < len(passes) < 24


@pytest.mark.parametrize("compiled", (False, True))
@pytest.mark.parametrize("model", ((), (torch.ones(1, 2 * examples.BLOCK),)), ids=("alone", "by_position"))
def test_steps_that_are_gone_through_by_hand_are_followed(model, compiled):
    pipe, arguments = examples.block_causal()
    if compiled:
        pipe.model.compile(backend="eager")
    pipe.scheduler = BlockRefinementScheduler(block_length=2 * examples.BLOCK)
    ids = torch.cat([arguments()["input_ids"][:, :8], torch.full((1, examples.BLOCK), examples.MASK)], 1)
    with mmaccel.accelerate(pipe, canvas.Doubling()) as fast:
        pipe.scheduler.set_timesteps(examples.BLOCK, None, examples.BLOCK)
        assert fast.adapter.decoder.length == examples.BLOCK
        for step in range(3):
            logits = pipe.model(ids, *model).logits[:, -examples.BLOCK :]
            given = {"mask_token_id": examples.MASK, "threshold": 2.0}
            ids[:, -examples.BLOCK :] = pipe.scheduler.step(
                logits, step, ids[:, -examples.BLOCK :], **given
            ).prev_sample
    assert (ids == examples.MASK).sum() < examples.BLOCK - 3, "more than the scheduler's one a step"


def filled_by_hand(pipe, rows=slice(examples.BLOCK, 2 * examples.BLOCK), full=True):
    """A canvas with text behind its block; what the scheduler makes of it, step by step."""
    ids = torch.randint(4, 60, (1, 3 * examples.BLOCK), generator=torch.Generator().manual_seed(1))
    ids[:, rows] = examples.MASK
    pipe.scheduler.set_timesteps(examples.BLOCK, None, examples.BLOCK)
    for step in range(examples.BLOCK):
        given = {"mask_token_id": examples.MASK, "threshold": 2.0, "return_dict": full}
        out = pipe.scheduler.step(pipe.model(ids).logits[:, rows], step, ids[:, rows], **given)
        ids[:, rows] = out.prev_sample if full else out[0]
    return ids


@pytest.mark.parametrize("full", (True, False))
@torch.no_grad()
def test_a_block_within_a_canvas_is_filled_by_hand(full):
    """Before text that is given; a rule that adds nothing leaves all steps as they are."""
    pipe, _ = examples.bidirectional()
    plain = filled_by_hand(pipe)
    assert not (plain == examples.MASK).any()
    with mmaccel.accelerate(pipe, canvas.FactorCommit(factor=1e-9)):
        assert torch.equal(filled_by_hand(pipe, full=full), plain)


@pytest.mark.parametrize("method", (canvas.FreeDave(), canvas.PrefixCache(), canvas.WindowDiffusion()), ids=str)
@torch.no_grad()
def test_methods_that_compute_the_end_of_a_canvas_refuse_a_block_within_it(method):
    pipe, _ = examples.bidirectional()
    end = slice(2 * examples.BLOCK, None)
    plain = filled_by_hand(pipe, end)
    with mmaccel.accelerate(pipe, method), pytest.raises(UnsupportedTargetError, match="behind its block"):
        filled_by_hand(pipe)
    with mmaccel.accelerate(pipe, canvas.FactorCommit(factor=1e-9)):
        assert torch.equal(filled_by_hand(pipe, end, full=False), plain)


def filled_in_order(pipe, guided=False, blocks=3):
    """A canvas filled block by block, as LLaDA's own loop does; guidance reads the text without its prompt, too."""
    length, prompt = examples.BLOCK, 2 * examples.BLOCK
    ids = torch.full((2, prompt + blocks * length), examples.MASK)
    ids[:, :prompt] = torch.randint(4, 60, (2, prompt), generator=torch.Generator().manual_seed(1))
    for begin in range(prompt, ids.shape[1], length):
        rows = slice(begin, begin + length)
        pipe.scheduler.set_timesteps(length, None, length)
        for step in range(length):
            read = torch.cat([ids, ids.index_fill(1, torch.arange(prompt), examples.MASK)]) if guided else ids
            logits = pipe.model(read).logits[:, slice(-length, None) if guided else rows]
            if guided:
                of_prompt, without = logits.chunk(2)
                logits = without + 1.5 * (of_prompt - without)
            given = {"mask_token_id": examples.MASK, "threshold": 2.0}
            ids[:, rows] = pipe.scheduler.step(logits, step, ids[:, rows], **given).prev_sample
    return ids


@torch.no_grad()
def test_a_block_before_blocks_as_empty_is_not_taken_for_the_last(monkeypatch):
    pipe, _ = examples.block_causal()
    plain, reads, choose = filled_in_order(pipe), [], canvas.S2D2.choose
    for method in (canvas.FreeDave(), canvas.PrefixCache(), canvas.WindowDiffusion()):
        with (
            mmaccel.accelerate(pipe, method),
            pytest.raises(UnsupportedTargetError, match="behind its block, or"),
        ):
            filled_in_order(pipe)

    def noted(self, block):
        if block.step == 0:
            reads.append(block.read is not None)
        return choose(self, block)

    monkeypatch.setattr(canvas.S2D2, "choose", noted)
    with mmaccel.accelerate(pipe, canvas.S2D2()):
        assert not (filled_in_order(pipe) == examples.MASK).any() and reads == [False, False, True]
    with mmaccel.accelerate(pipe, canvas.FactorCommit(factor=1e-9)):
        assert torch.equal(filled_in_order(pipe), plain)


@torch.no_grad()
def test_guidance_by_one_batch_is_followed_by_hand():
    """Its rows stand behind those of the texts, without their prompt; methods that read more passes do without."""
    pipe, _ = examples.block_causal()
    plain = filled_in_order(pipe, guided=True, blocks=1)
    with mmaccel.accelerate(pipe, canvas.PrefixCache()) as fast:
        assert torch.equal(filled_in_order(pipe, guided=True, blocks=1), plain)
        assert fast.adapter.decoder.prefix.reused == examples.BLOCK - 1
    with mmaccel.accelerate(pipe, canvas.S2D2()):
        assert not (filled_in_order(pipe, guided=True, blocks=1) == examples.MASK).any()
    with mmaccel.accelerate(pipe, canvas.FreeDave()), pytest.raises(UnsupportedTargetError, match="guidance by one b"):
        filled_in_order(pipe, guided=True, blocks=1)


@torch.no_grad()
def test_guidance_in_two_passes_is_told_of_one_batch():
    pipe, _ = examples.block_causal()
    ids = torch.full((1, 2 * examples.BLOCK), examples.MASK)
    ids[:, : examples.BLOCK] = 5
    with mmaccel.accelerate(pipe, canvas.PrefixCache()):
        pipe.scheduler.set_timesteps(examples.BLOCK, None, examples.BLOCK)
        pipe.model(ids)
        without = pipe.model(torch.full_like(ids, examples.MASK)).logits[:, -examples.BLOCK :]
        with pytest.raises(UnsupportedTargetError, match="end of the block; for guidance give both texts in one batch"):
            pipe.scheduler.step(without, 0, ids[:, -examples.BLOCK :], mask_token_id=examples.MASK, threshold=2.0)


@torch.no_grad()
def test_nothing_is_read_word_by_word_of_a_block_within_a_canvas(monkeypatch):
    pipe, _ = examples.block_causal()
    monkeypatch.setattr(pipe.model, "word_by_word", None)
    with mmaccel.accelerate(pipe, canvas.S2D2()):
        assert not (filled_by_hand(pipe) == examples.MASK).any()


class Loop:
    """Of a user, who goes through the steps of a pipeline's parts."""

    def __init__(self, pipe):
        self.pipe, self.scheduler = pipe, pipe.scheduler

    @torch.no_grad()
    def __call__(self, steps, **given):
        codes, committed = torch.full((1, SIDE, SIDE), CODES), []
        self.scheduler.set_timesteps(steps)
        for step in self.scheduler.timesteps:
            codes = self.scheduler.step(self.pipe.transformer(codes, **given), step, codes).prev_sample
            committed.append(int((codes != CODES).sum()))
        return committed


def test_a_loop_of_a_user_that_is_called_is_followed_as_one_by_hand():
    pipe, arguments = pictures()
    seen = []
    with pipe.transformer.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True):
        pipe(**arguments(steps=1, guidance_scale=1.0))
    assert Loop(pipe)(8, **seen[0])[3] < SIDE * SIDE
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(4)):
        assert Loop(pipe)(8, **seen[0])[3] == SIDE * SIDE


@pytest.mark.parametrize("method", (canvas.HaltonOrder(3), canvas.LateGuidance(0.5), canvas.EntropyBound(1.0)), ids=str)
@torch.no_grad()
def test_arguments_by_position_are_those_by_name(method):
    """The share that is masked, and the generator, too."""
    pipe, arguments = pictures()
    seen = []
    with pipe.transformer.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True):
        pipe(**arguments(steps=1, guidance_scale=1.0))
    names = ("encoder_hidden_states", "pooled_text_emb", "micro_conds")
    begun = torch.full((1, SIDE, SIDE), 7)
    begun[0, 1:] = CODES

    def drawn(by_position):
        generator, codes, canvases = torch.Generator().manual_seed(1), begun, []
        pipe.scheduler.set_timesteps(6)
        for step in pipe.scheduler.timesteps:
            if by_position:
                logits = pipe.transformer(codes, *(seen[0][name] for name in names))
                codes = pipe.scheduler.step(logits, step, codes, 0.75, generator).prev_sample
            else:
                logits = pipe.transformer(codes, **{name: seen[0][name] for name in names})
                given = {"starting_mask_ratio": 0.75, "generator": generator}
                codes = pipe.scheduler.step(model_output=logits, timestep=step, sample=codes, **given).prev_sample
            canvases.append(codes)
        return torch.stack(canvases)

    with mmaccel.accelerate(pipe, method):
        assert torch.equal(drawn(True), drawn(False))


# ---------------------------------------------------------------- other threads


@pytest.mark.parametrize("method", (canvas.PrefixCache(), canvas.IntervalCache(), canvas.WindowDiffusion()), ids=str)
def test_a_cache_leaves_what_another_thread_computes_with_the_model_alone(method):
    """In the middle of a pass of the session, when its attention reads and keeps keys and values."""
    pipe, arguments = examples.bidirectional()
    layer, ids = pipe.model.model.layers[1], torch.arange(1, 13)[None]
    plain, expected = pipe.model(ids).logits, pipe(**arguments()).sequences
    found: list[torch.Tensor] = []

    def compute(*_):
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: found.append(pipe.model(ids).logits))
            other.start()
            other.join()

    with mmaccel.accelerate(pipe, method) as fast:
        alone = fast(**arguments()).sequences
        hook = layer.register_forward_pre_hook(compute)
        assert torch.equal(fast(**arguments()).sequences, alone) and fast.report.engaged
        hook.remove()
    assert len(found) > 2 and all(torch.equal(each, plain) for each in found)
    assert pipe(**arguments()).sequences.equal(expected)
