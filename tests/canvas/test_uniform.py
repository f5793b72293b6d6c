"""Methods inside diffusers' DiffusionGemmaPipeline, on a small untrained model."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from diffusers import BlockRefinementScheduler, DiscreteDDIMScheduler, EntropyBoundScheduler

import mmaccel
from mmaccel import canvas
from mmaccel.adapter import find_adapter
from mmaccel.canvas import private
from mmaccel.canvas.comparing import CanvasTrial
from mmaccel.canvas.examples import bidirectional
from mmaccel.canvas.picture_comparing import trial_for
from mmaccel.canvas.picture_examples import pictures
from mmaccel.canvas.uniform_examples import CANVAS, VOCABULARY, uniform
from mmaccel.canvas.verifiers.lookahead import Known, Lookahead
from mmaccel.errors import UnsupportedTargetError

SCHEDULERS = (BlockRefinementScheduler, EntropyBoundScheduler, DiscreteDDIMScheduler)


def run(target, arguments, batch=1, seed=3, **more):
    return target(**arguments(batch, **more), generator=torch.Generator().manual_seed(seed)).sequences


CALLS = {}, {"temperature": 1.0}, {"confidence_threshold": 10.0, "stability_threshold": 2}


# each batch with each scheduler and with each call
@pytest.mark.parametrize(
    ("scheduler", "call", "batch"),
    [(scheduler, call, 1 + (i + j) % 2) for i, scheduler in enumerate(SCHEDULERS) for j, call in enumerate(CALLS)],
)
def test_free_dave_gives_equal_tokens_with_noise_and_sampling(scheduler, call, batch):
    pipe, arguments = uniform(scheduler=scheduler())
    call = {"gen_length": 2 * CANVAS, **call}
    plain = run(pipe, arguments, batch, **call)
    with mmaccel.accelerate(pipe, canvas.FreeDave(16)) as fast:
        assert torch.equal(run(fast, arguments, batch, **call), plain)
        assert fast.report.exact and fast.report.forwards <= fast.report.plain_forwards
        assert not torch.equal(run(fast, arguments, batch, seed=4, **call), plain)


def test_free_dave_takes_half_the_passes():
    pipe, arguments = uniform(scheduler=EntropyBoundScheduler())
    plain = run(pipe, arguments)
    with mmaccel.accelerate(pipe, canvas.FreeDave(32)) as fast:
        assert torch.equal(run(fast, arguments), plain)
        assert fast.report.plain_forwards == CANVAS and fast.report.forwards <= CANVAS / 2
        torch.manual_seed(3)
        unseeded = fast(**arguments()).sequences
    torch.manual_seed(3)
    assert torch.equal(pipe(**arguments()).sequences, unseeded), "without a generator it draws from the global one"


def test_noise_of_any_device_is_known_ahead(monkeypatch):
    """Where a call has no generator, by the state of that device."""
    twin = SimpleNamespace(set_state=lambda state: state)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: f"state of {device}")
    monkeypatch.setattr(torch, "Generator", lambda device: twin)
    ahead = Lookahead(2, BlockRefinementScheduler())
    ahead.told = {}
    assert ahead._ahead(torch.device("mps")) == "state of mps"


@pytest.mark.parametrize(
    ("dtype", "apart", "same"),
    [
        (torch.float32, 1e-3, False),
        (torch.bfloat16, 0.005, True),
        (torch.bfloat16, 0.05, False),  # which is little beside 1, and much of chances that are small
        (torch.float16, 5e-4, True),
        (torch.float16, 0.005, False),
    ],
)
def test_chances_are_compared_to_the_rounding_of_the_weights(dtype, apart, same):
    """The model gives its logits in float32, whatever its weights are in."""
    pipe, _ = uniform()
    pipe.model.to(dtype)
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        lookahead = fast.adapter.decoder.lookahead
    ids, logits = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, VOCABULARY)
    other = logits.clone()
    other[..., 0] = apart  # chances of about 1/64, and one that is larger by such a share
    assert lookahead._same(Known(ids, logits, logits), ids, other) == same


def test_what_is_kept_for_later_steps_is_counted():
    pipe, arguments = uniform(scheduler=EntropyBoundScheduler())
    held = []
    for drafts in (2, 8):
        with mmaccel.accelerate(pipe, canvas.FreeDave(drafts)) as fast:
            run(fast, arguments)
            held.append(fast.report.peak_extra_bytes)
    assert 2 * CANVAS * VOCABULARY * 4 <= held[0] < held[1]


def test_free_dave_leaves_correctors_alone_and_says_so():
    pipe, arguments = uniform(scheduler=DiscreteDDIMScheduler(corrector_steps=1))
    plain = run(pipe, arguments)
    with mmaccel.accelerate(pipe, canvas.FreeDave(8)) as fast:
        assert torch.equal(run(fast, arguments), plain)
        assert "corrector_steps=0" in str(fast.report) and not fast.report.engaged


@pytest.mark.parametrize("cache", (None, "static"))
def test_free_dave_reads_beside_either_cache(cache):
    pipe, arguments = uniform(scheduler=EntropyBoundScheduler())
    plain = run(pipe, arguments, cache_implementation=cache)
    with mmaccel.accelerate(pipe, canvas.FreeDave(8)) as fast:
        assert torch.equal(run(fast, arguments, cache_implementation=cache), plain) and fast.report.engaged


def test_what_a_pass_gave_is_not_read_after_the_next(monkeypatch):
    """CUDA graphs write over it."""
    pipe, arguments = uniform(scheduler=DiscreteDDIMScheduler())
    with mmaccel.accelerate(pipe, canvas.FreeDave(8)) as fast:
        run(fast, arguments)
        passes = fast.report.forwards
    plain, own, last = run(pipe, arguments), pipe.model.forward, []

    def spoiling(*given, **more):
        for logits in last:
            logits.fill_(torch.nan)
        last[:] = [(out := own(*given, **more)).logits]
        return out

    monkeypatch.setattr(pipe.model, "forward", spoiling)
    with mmaccel.accelerate(pipe, canvas.FreeDave(8)) as fast:
        assert torch.equal(run(fast, arguments), plain) and fast.report.forwards == passes < CANVAS


def test_steps_by_hand_are_answered_as_they_are_asked():
    pipe, _ = uniform()
    logits, sample = torch.randn(1, CANVAS, VOCABULARY), torch.zeros(1, CANVAS, dtype=torch.long)
    with mmaccel.accelerate(pipe, canvas.FactorCommit()):
        pipe.scheduler.set_timesteps(8)
        given = [pipe.scheduler.step(logits, 0, sample, return_dict=full) for full in (True, False)]
    assert isinstance(given[1], tuple) and torch.equal(given[1][1], given[0].transfer_index)


def test_a_rule_adjusts_what_is_decided_by(monkeypatch):
    """One of a user; here to the token beside the one that the model means."""
    pipe, arguments = uniform()
    with mmaccel.accelerate(pipe, canvas.FactorCommit(1e6)) as fast:
        plain = run(fast, arguments, 2)
        monkeypatch.setattr(canvas.FactorCommit, "adjust", lambda self, logits, *_: logits.roll(1, -1))
        assert torch.equal(run(fast, arguments, 2), (plain + 1) % VOCABULARY)


@pytest.mark.parametrize("rule", (canvas.EntropyBound(1e6), canvas.FactorCommit(1e6)))
def test_a_rule_commits_for_good_and_the_rest_of_the_steps_is_spared(rule):
    pipe, arguments = uniform()
    with mmaccel.accelerate(pipe, rule) as fast:
        found = run(fast, arguments, 2)
        # the first pass, and one over the full canvas
        assert fast.report.forwards == 2 and fast.report.plain_forwards == CANVAS and not fast.report.exact
    first = pipe(**arguments(2, num_inference_steps=1), generator=torch.Generator().manual_seed(3)).sequences
    assert torch.equal(found, first), "all of it by the first pass"


@pytest.mark.parametrize("rule", (canvas.EntropyBound(1e6), canvas.FactorCommit(1e6)))
def test_the_pipeline_stops_by_what_the_model_says_of_the_full_canvas(monkeypatch, rule):
    """By its own confidence: this model is unsure of a canvas of random tokens, and sure of what it makes of them."""
    pipe, arguments = uniform()
    looks = []

    def said(canvas):
        sharpness = torch.where((canvas % 2 == 0).all(-1), 50.0, 2.0)
        return sharpness[:, None, None] * torch.nn.functional.one_hot(canvas // 2 * 2, VOCABULARY)

    def look(pipe, step, timestep, told):
        looks.append(told)
        return {}

    monkeypatch.setattr(pipe.model, "forward", lambda **call: SimpleNamespace(logits=said(call["decoder_input_ids"])))
    own = inspect.signature(pipe.__call__).parameters["confidence_threshold"].default
    watched = {"callback_on_step_end": look, "callback_on_step_end_tensor_inputs": ["canvas", "logits"]}
    with mmaccel.accelerate(pipe, rule) as fast:
        found = run(fast, arguments, 2, confidence_threshold=own, **watched)
        assert fast.report.forwards == len(looks) == 2
        assert not fast.report.plain_forwards, "without the rule it stops elsewhere, which nobody knows"
    assert torch.equal(found, looks[0]["canvas"]), "as it was committed"
    assert torch.equal(looks[1]["logits"], said(found))


def test_rules_for_masks_are_refused_by_name_and_told_what_to_do():
    pipe, _ = uniform()
    for method in (canvas.LocalLeap(), canvas.CreditDecoding(), canvas.PrefixCache()):
        with pytest.raises(UnsupportedTargetError, match=f"{method.name}.*random tokens.*FreeDave") as error:
            mmaccel.accelerate(pipe, method)
        assert "\n" not in str(error.value)
    pipe.scheduler = EntropyBoundScheduler()
    with pytest.raises(UnsupportedTargetError, match="EntropyBoundScheduler commits nothing for good"):
        mmaccel.accelerate(pipe, canvas.EntropyBound())
    with pytest.raises(UnsupportedTargetError, match=r"DiffusionGemmaPipeline\(model"):
        mmaccel.accelerate(pipe.model, canvas.FreeDave())


def test_another_scheduler_is_refused_by_name():
    pipe, arguments = uniform()
    with mmaccel.accelerate(pipe, canvas.FreeDave()) as fast:
        fast.scheduler = EntropyBoundScheduler()
        with pytest.raises(UnsupportedTargetError, match="another scheduler than when .*FreeDave.*accelerate it again"):
            run(fast, arguments)


def test_diffusers_notes_what_is_committed_where_we_look():
    assert private.COMMITTED in vars(BlockRefinementScheduler())


def test_compare_draws_for_each_seed_and_reads_what_is_written():
    pipe, arguments = uniform(scheduler=EntropyBoundScheduler())
    call = arguments(num_inference_steps=8)
    found = mmaccel.compare(pipe, canvas.FreeDave(8), **call, seeds=range(2), rounds=1, simple=False)
    assert found.rows[1]["equal"] and found.rows[1]["same_distribution"] and "seedless" not in found.result["header"]
    trial = CanvasTrial(find_adapter(pipe), call)
    first, again, other = (trial.run(pipe, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert all(word.startswith("w") for word in trial.texts(first)[0].split()), "words, and no numbers of tokens"


@pytest.mark.parametrize("build", (bidirectional, uniform))
def test_compare_knows_how_many_steps_a_call_makes_by_itself(build):
    pipe, _ = build()
    own = inspect.signature(pipe.__call__).parameters["num_inference_steps"].default
    if build is bidirectional:
        pipe.scheduler = BlockRefinementScheduler(block_length=own)  # a shorter block has no more steps than tokens
    assert CanvasTrial(find_adapter(pipe), {}).count == own


@pytest.mark.parametrize("build", (bidirectional, uniform, pictures))
def test_compare_runs_a_call_that_asks_for_a_tuple(build):
    pipe, arguments = build()
    given, as_tuple = (trial_for(find_adapter(pipe), arguments(**more)) for more in ({}, {"return_dict": False}))
    assert given.equal(given.run(pipe, 0), as_tuple.run(pipe, 0))


def test_layers_that_round_a_token_by_all_others_of_a_pass_are_not_called_exact():
    """As a batch of canvases rounds otherwise than one."""
    pipe, arguments = uniform(scheduler=EntropyBoundScheduler())
    torch.ao.quantization.quantize_dynamic(pipe.model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    for method, exact in ((canvas.FreeDave(32), False), (canvas.FreeDave(1), True)):
        with mmaccel.accelerate(pipe, method) as fast:
            for _ in range(2):
                run(fast, arguments)
                told = any("not exact here: " in text for text in fast.report.warnings)
                assert fast.report.exact is exact and told is not exact
