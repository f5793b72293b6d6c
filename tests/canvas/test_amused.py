"""Masked pictures: what the rules commit, which rows and branches are computed, and what does not apply."""

import math

import pytest
import torch
from diffusers import AmusedImg2ImgPipeline, AmusedInpaintPipeline, AmusedPipeline, DDIMScheduler

import mmaccel
from mmaccel import canvas
from mmaccel.canvas.examples import bidirectional
from mmaccel.canvas.method import Block
from mmaccel.canvas.picture_examples import CODES, SIDE, pictures
from mmaccel.canvas.rules.halton_order import ranks_of
from mmaccel.errors import SettingError, UnsupportedTargetError

MASK = CODES


@pytest.fixture
def made():
    return pictures()


def drawn(target, arguments, seed=0, batch=1, **more):
    """Codes of a call, and the canvas after each step."""
    seen = []
    generator = torch.Generator().manual_seed(seed)
    call = {**arguments(batch, **more), "generator": generator}
    codes = target(**call, callback=lambda step, time, found: seen.append(found.clone())).images
    return codes, seen


def counts(seen):
    """Committed codes of the first picture after each step."""
    return [int((found[0] != MASK).sum()) for found in seen]


# ---------------------------------------------------------------- the order of Halton


@pytest.mark.parametrize("size", [(4, 4), (16, 16), (3, 5)])
def test_ranks_are_an_order_of_all_cells_that_is_spread_from_the_start(size):
    ranks = torch.tensor(ranks_of(*size))
    assert sorted(ranks.tolist()) == list(range(size[0] * size[1]))
    early = (ranks < 4).view(size)
    assert early.any(1).sum() >= 2 and early.any(0).sum() >= 2, "four cells that lie together"


def test_the_first_points_of_the_sequence():
    """1/2 and 1/3, 1/4 and 2/3, 3/4 and 1/9, in a grid of 4 x 9: rows 2, 1, 3 and columns 3, 6, 1."""
    ranks = torch.tensor(ranks_of(4, 9)).view(4, 9)
    assert [int(ranks[place]) for place in ((2, 3), (1, 6), (3, 1))] == [0, 1, 2]


def test_halton_order_fills_a_picture_in_its_own_steps(made):
    pipe, arguments = made
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=4)) as fast:
        codes, seen = drawn(fast, arguments, steps=12)
        report = fast.report
    assert report.forwards == 4 and report.plain_forwards == 12 and report.details["passes"] == 4
    total = SIDE * SIDE
    expected = [total - math.floor(total * math.cos(math.pi / 2 * step / 4) + 1e-6) for step in (1, 2, 3, 4)]
    assert counts(seen)[:4] == expected and len(seen) == 12
    ranks = torch.tensor(ranks_of(SIDE, SIDE)).view(SIDE, SIDE)
    assert ((seen[0][0] != MASK) == (ranks < expected[0])).all()
    assert not (codes == MASK).any()


def test_a_call_of_fewer_steps_ends_earlier(made):
    pipe, arguments = made
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=8)) as fast:
        codes, seen = drawn(fast, arguments, steps=3)
        assert fast.report.forwards == 3 and not (codes == MASK).any()
        assert "HaltonOrder takes all 3 steps of this call and spares no pass" in fast.report.warnings[0]
        drawn(fast, arguments, steps=9)
        assert not fast.report.warnings
    total = SIDE * SIDE
    shared_out = [total - math.floor(total * math.cos(math.pi / 2 * step / 3) + 1e-6) for step in (1, 2, 3)]
    assert counts(seen) == shared_out, "not nearly all of it in the last step"


def test_each_step_draws_its_share_of_what_is_to_be_drawn(made):
    """Also where the cells that come first in the sequence are given, and of each picture of a batch."""
    pipe, arguments = made
    ranks = torch.tensor(ranks_of(SIDE, SIDE)).view(SIDE, SIDE)
    begun = torch.full((2, SIDE, SIDE), 7)
    for picture, masks in zip(begun, (8, 3), strict=True):
        picture[ranks >= SIDE * SIDE - masks] = MASK
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=4)) as fast:
        _, seen = drawn(fast, arguments, batch=2, steps=12, latents=begun.clone())
        assert fast.report.forwards == (4 + 3) / 2
    left = torch.stack([(found == MASK).flatten(1).sum(1) for found in seen[:4]], 1)
    assert left.tolist() == [[7, 5, 3, 0], [2, 1, 0, 0]]
    for found in seen:
        for picture, masks in zip(found, (found == MASK).flatten(1).sum(1).tolist(), strict=True):
            assert torch.equal(picture == MASK, ranks >= SIDE * SIDE - masks), "in the order of the sequence"


# ---------------------------------------------------------------- rules beside the pipeline's own schedule


@pytest.mark.parametrize(
    "rule", (canvas.EntropyBound(8.0), canvas.FactorCommit(2.0), canvas.CreditDecoding(0.05), canvas.Doubling(1.5))
)
def test_rules_add_to_the_schedule_and_keep_what_is_committed(made, rule):
    pipe, arguments = made
    _, plain = drawn(pipe, arguments, steps=12)
    with mmaccel.accelerate(pipe, rule) as fast:
        codes, seen = drawn(fast, arguments, steps=12)
        assert fast.report.engaged and fast.report.forwards < 12
    assert all(own >= other for own, other in zip(counts(seen), counts(plain), strict=True))
    for before, after in zip(seen, seen[1:], strict=False):
        assert torch.equal(after[before != MASK], before[before != MASK]), "a committed code was drawn again"
    assert not (codes == MASK).any()


def test_a_rule_that_only_raises_logits_has_changed_the_steps(made):
    pipe, arguments = made
    plain, _ = drawn(pipe, arguments)
    with mmaccel.accelerate(pipe, canvas.CreditDecoding(1.0, weight=5.0)) as fast:
        codes, _ = drawn(fast, arguments)
        assert not torch.equal(codes, plain)
        assert fast.report.forwards == 6 and fast.report.engaged and fast.report.warnings == []


def test_what_a_rule_remembers_is_counted(made):
    pipe, arguments = made
    with mmaccel.accelerate(pipe, canvas.CreditDecoding(0.05)) as fast:
        drawn(fast, arguments)
        assert fast.report.peak_extra_bytes == SIDE * SIDE * CODES * 4


def test_a_block_knows_its_grid(made, monkeypatch):
    pipe, arguments = made
    grids = []
    choose = canvas.Doubling.choose
    monkeypatch.setattr(
        canvas.Doubling, "choose", lambda self, block: (grids.append(block.grid), choose(self, block))[1]
    )
    with mmaccel.accelerate(pipe, canvas.Doubling()) as fast:
        drawn(fast, arguments, size=12)
    assert set(grids) == {(6, 6)} and Block.__dataclass_fields__["grid"].default is None


def test_rows_that_are_full_are_not_computed(made):
    """Of two pictures one is given but for a code: its row is computed once and the other six times."""
    pipe, arguments = made
    latents = torch.full((2, SIDE, SIDE), MASK)
    latents[1] = 7
    latents[1, 0, 0] = MASK
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=6)) as fast:
        codes, seen = drawn(fast, arguments, batch=2, latents=latents.clone())
        report = fast.report
    left = [bool((found[1] == MASK).any()) for found in (latents, *seen)]
    assert report.forwards == pytest.approx(6 - 0.5 * (6 - sum(left[:6])), abs=1e-3) and report.forwards < 6
    assert (codes[1].flatten()[1:] == 7).all() and codes[1, 0, 0] != MASK


def test_a_picture_that_is_given_whole_is_left_to_the_pipeline(made):
    pipe, arguments = made
    whole = torch.randint(CODES, (1, SIDE, SIDE), generator=torch.Generator().manual_seed(1))
    with mmaccel.accelerate(pipe, canvas.HaltonOrder()) as fast:
        assert torch.equal(drawn(fast, arguments, latents=whole.clone())[0], whole)


# ---------------------------------------------------------------- parts of a picture


def partly(made, kind, batch=2):
    """A pipeline that draws a picture anew in part, and the arguments of its call."""
    pipe, arguments = made
    own = kind(**pipe.components)
    own.set_progress_bar_config(disable=True)
    image = torch.rand(batch, 3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(3))
    given = {"image": image}
    if kind is AmusedInpaintPipeline:
        given["mask_image"] = torch.zeros(batch, 1, 2 * SIDE, 2 * SIDE)
        given["mask_image"][:, :, 2:, 4:] = 1

    def call(batch, strength, **more):
        found = {**arguments(batch, steps=12, **more), **given, "strength": strength}
        return {name: value for name, value in found.items() if name not in ("height", "width")}

    return own, call


@pytest.mark.parametrize("kind", (AmusedImg2ImgPipeline, AmusedInpaintPipeline))
def test_parts_of_pictures_are_drawn_in_the_steps_that_their_strength_leaves(made, kind):
    pipe, call = partly(made, kind)
    plain, _ = drawn(pipe, call, batch=2, strength=0.5)
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=3)) as fast:
        codes, seen = drawn(fast, call, batch=2, strength=0.5)
        assert (fast.report.forwards, fast.report.plain_forwards) == (3, 6) and len(seen) == 6
        assert not fast.report.warnings
        drawn(fast, call, batch=2, strength=0.1)
        assert (fast.report.forwards, fast.report.plain_forwards) == (1, 1)
        assert ["no step was changed" in told for told in fast.report.warnings] == [True]
    assert not (codes == MASK).any() and (seen[0] == MASK).any() and (seen[1] == MASK).any()
    if kind is AmusedInpaintPipeline:
        given = drawn(pipe, call, batch=2, strength=0.1)[0]
        left = torch.ones(SIDE, SIDE, dtype=torch.bool)
        left[1:, 2:] = False
        assert torch.equal(codes[:, left], given[:, left]), "what was not to be drawn stays"
    assert torch.equal(drawn(pipe, call, batch=2, strength=0.5)[0], plain)


@pytest.mark.parametrize("method", (canvas.HaltonOrder(steps=0), canvas.LateGuidance(0.0)), ids=str)
def test_a_picture_that_is_to_be_drawn_anew_altogether_is_plain_without_a_method(made, method):
    """At strength 1.0 diffusers masks nothing of it, and in each step but the last one code of a full picture."""
    pipe, call = partly(made, AmusedImg2ImgPipeline)
    plain, masks = drawn(pipe, call, batch=2, strength=1.0)
    with mmaccel.accelerate(pipe, method) as fast:
        codes, seen = drawn(fast, call, batch=2, strength=1.0)
    assert torch.equal(codes, plain) and all(map(torch.equal, seen, masks))
    assert counts(masks) == [SIDE * SIDE - 1] * 11 + [SIDE * SIDE]


@pytest.mark.parametrize(("strength", "forwards"), ((1.0, 9.0), (0.5, 4.5), (0.1, 1.0)))
def test_a_share_without_guidance_is_one_of_the_steps_that_are_made(made, strength, forwards):
    pipe, call = partly(made, AmusedInpaintPipeline)
    with mmaccel.accelerate(pipe, canvas.LateGuidance(0.5)) as fast:
        drawn(fast, call, batch=2, strength=strength)
        assert fast.report.forwards == forwards and fast.report.plain_forwards == int(12 * strength)


@pytest.mark.parametrize("kind", (AmusedImg2ImgPipeline, AmusedInpaintPipeline))
@torch.no_grad()
def test_another_pipeline_of_the_same_parts_is_followed_as_if_it_were_the_session_s(made, kind):
    """And only as long as its call goes on."""
    pipe, call = partly(made, kind)
    methods, seen = (canvas.HaltonOrder(steps=3), canvas.LateGuidance(0.5)), []
    full = torch.randint(CODES, (4, SIDE, SIDE), generator=torch.Generator().manual_seed(1))
    with pipe.transformer.register_forward_pre_hook(lambda _, args, given: seen.append(given), with_kwargs=True):
        drawn(pipe, call, batch=2, strength=1.0)
    plain = pipe.transformer(full, **seen[0])
    with mmaccel.accelerate(pipe, *methods) as fast:
        own = drawn(fast, call, batch=2, strength=0.5)
    with mmaccel.accelerate(made[0], *methods):
        other = drawn(pipe, call, batch=2, strength=0.5)
        assert torch.equal(pipe.transformer(full, **seen[0]), plain)
    assert torch.equal(own[0], other[0]) and all(map(torch.equal, own[1], other[1]))


def test_another_pipeline_with_a_transformer_of_its_own_is_plain(made):
    pipe, arguments = made
    other = AmusedPipeline(**{**pipe.components, "transformer": pictures(1)[0].transformer})
    other.set_progress_bar_config(disable=True)
    plain, _ = drawn(other, arguments)
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=3)):
        assert torch.equal(drawn(other, arguments)[0], plain)


# ---------------------------------------------------------------- guidance


def test_without_guidance_to_the_end_the_picture_is_that_of_the_prompt_alone(made):
    pipe, arguments = made
    alone, _ = drawn(pipe, arguments, guidance_scale=1.0)
    guided, _ = drawn(pipe, arguments)
    with mmaccel.accelerate(pipe, canvas.LateGuidance(1.0)) as fast:
        codes, _ = drawn(fast, arguments)
        assert fast.report.work_ratio == 0.5
    assert torch.equal(codes, alone) and not torch.equal(codes, guided)


def test_late_guidance_counts_its_steps_and_leaves_calls_without_guidance(made):
    pipe, arguments = made
    alone, _ = drawn(pipe, arguments, guidance_scale=1.0)
    with mmaccel.accelerate(pipe, canvas.LateGuidance(0.5)) as fast:
        drawn(fast, arguments, batch=3)
        assert fast.report.forwards == 6 - 0.5 * 3
        assert torch.equal(drawn(fast, arguments, guidance_scale=1.0)[0], alone)
        assert not fast.report.engaged and "no step was changed" in fast.report.warnings[0]


def test_calls_of_the_pipeline_itself_are_guided_as_they_say(made):
    pipe, arguments = made
    alone, _ = drawn(pipe, arguments, batch=2, guidance_scale=1.0)
    with mmaccel.accelerate(pipe, canvas.LateGuidance(0.5)) as fast:
        assert torch.equal(drawn(pipe, arguments, batch=2, guidance_scale=1.0)[0], alone)
        drawn(fast, arguments, batch=2)
        assert torch.equal(drawn(pipe, arguments, batch=2, guidance_scale=1.0)[0], alone)


def test_guidance_by_position_counts_too(made):
    pipe, arguments = made
    call = arguments()
    size, steps = call.pop("height"), call.pop("num_inference_steps")
    call.pop("width"), call.pop("guidance_scale")
    with mmaccel.accelerate(pipe, canvas.LateGuidance(1.0)) as fast:
        fast(None, size, size, steps, 1.0, **call)
        assert fast.report.work_ratio == 1
        fast(None, size, size, steps, 2.0, **call)
        assert fast.report.work_ratio == 0.5


class Passing(AmusedPipeline):
    """Of a user, with a call that gives on what it is given."""

    def __call__(self, *args, **options):
        return super().__call__(*args, **options)


@pytest.mark.parametrize(("call", "ratio"), (({"guidance_scale": 1.0}, 1), ({"guidance_scale": 2.0}, 0.5), ({}, 0.5)))
def test_guidance_counts_in_a_call_that_names_no_arguments(made, call, ratio):
    pipe, arguments = Passing(**made[0].components), {**made[1](), **call}
    pipe.set_progress_bar_config(disable=True)
    if not call:
        del arguments["guidance_scale"]
    with mmaccel.accelerate(pipe, canvas.LateGuidance(1.0)) as fast:
        fast(**arguments)
        assert fast.report.work_ratio == ratio


def test_both_together(made):
    pipe, arguments = made
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=4), canvas.LateGuidance(0.5)) as fast:
        drawn(fast, arguments, steps=8)
        assert fast.report.forwards == 2 * 0.5 + 2 and fast.report.plain_forwards == 8


# ---------------------------------------------------------------- what the pipeline gives, and what does not apply


def test_pictures_and_tuples_come_as_the_pipeline_gives_them(made):
    pipe, arguments = made
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=2)) as fast:
        found = fast(**{**arguments(2), "output_type": "pil"}, generator=torch.Generator().manual_seed(0))
        assert [picture.size for picture in found.images] == [(8, 8), (8, 8)]
        as_tuple = fast(**arguments(2), return_dict=False, generator=torch.Generator().manual_seed(0))
        assert as_tuple[0].shape == (2, SIDE, SIDE)


def test_the_step_answers_as_it_is_asked(made):
    pipe, _ = made
    logits = torch.zeros(1, CODES, SIDE, SIDE)
    sample = torch.full((1, SIDE, SIDE), MASK)
    with mmaccel.accelerate(pipe, canvas.HaltonOrder(steps=2)):
        pipe.scheduler.set_timesteps(2)
        prev, guess = pipe.scheduler.step(logits, 1, sample, return_dict=False)
    assert prev.shape == guess.shape == sample.shape and (prev == MASK).any()


@pytest.mark.parametrize("method", (canvas.PrefixCache(), canvas.FreeDave(), canvas.LocalLeap(), canvas.Prophet()))
def test_methods_for_texts_are_refused_by_name_with_the_reason(made, method):
    with pytest.raises(UnsupportedTargetError, match=rf"{method.name} works on .*drawn at random"):
        mmaccel.accelerate(made[0], method)


@pytest.mark.parametrize("method", (canvas.HaltonOrder(), canvas.LateGuidance()))
def test_methods_for_pictures_are_refused_on_texts(method):
    with pytest.raises(UnsupportedTargetError, match="works on masked pictures models"):
        mmaccel.accelerate(bidirectional()[0], method)


def test_a_scheduler_without_masks_is_refused(made):
    pipe, _ = made
    pipe.scheduler = DDIMScheduler()
    with pytest.raises(UnsupportedTargetError, match="DDIMScheduler has no mask_token_id"):
        mmaccel.accelerate(pipe, canvas.HaltonOrder())


def test_another_scheduler_is_refused_by_name(made):
    pipe, arguments = made
    with mmaccel.accelerate(pipe, canvas.HaltonOrder()) as fast:
        fast.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
        with pytest.raises(UnsupportedTargetError, match="another scheduler than when .*HaltonOrder.*accelerate"):
            drawn(fast, arguments)


@pytest.mark.parametrize(
    "make", (lambda: canvas.HaltonOrder(-1), lambda: canvas.HaltonOrder(2.5), lambda: canvas.LateGuidance(1.2))
)
def test_settings_out_of_range(make):
    with pytest.raises(SettingError):
        make()


def test_compare_has_fewer_steps_beside_it(work_clock, made):
    pipe, arguments = made
    found = mmaccel.compare(pipe, canvas.HaltonOrder(steps=3), **arguments(), rounds=1, seeds=range(2))
    assert [row["kind"] for row in found.rows][:2] == ["plain", "method"]
    assert any(row["method"] == "fewer steps" for row in found.rows)
    with pytest.raises(SettingError, match="leave out callback"):
        mmaccel.compare(pipe, canvas.HaltonOrder(), **arguments(), callback=print)
