"""What a run of image decoding reports, and what a session remembers of it."""

import itertools
from types import SimpleNamespace

import pytest
import torch

import mmaccel
from mmaccel.decoding import FixedWidth, loop
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR, examples, speculative_jacobi
from mmaccel.image.decoding import row_decoding
from mmaccel.image.decoding.coupling import COUPLINGS
from mmaccel.image.decoding.grid_decoder import GridDecoder
from mmaccel.image.families.adapter import private_generator

LENGTH = examples.ROWS * examples.COLUMNS
METHODS = (SpeculativeJacobi(window=4), GroupedSpeculative(window=4), ZipAR(window=2), ZipAR(window=2, verify=True))


def seed(number=0):
    return torch.Generator().manual_seed(number)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_report_counts_what_was_done(method, monkeypatch):
    passes = []
    run = GridDecoder.forward
    monkeypatch.setattr(GridDecoder, "forward", lambda *args, **more: (passes.append(1), run(*args, **more))[1])
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, method) as fast:
        steps = []
        fast.generate(**arguments(3), generator=seed(), progress=lambda done, total: steps.append((done, total)))
        report = fast.report
    assert report.tokens == 3 * LENGTH and report.plain_forwards == LENGTH
    assert report.forwards == len(passes) + 1 < LENGTH, "and the prompt's"
    assert report.engaged and report.wall_seconds > 0
    assert steps[-1] == (LENGTH, LENGTH) and len(steps) >= len(passes)
    stats = report.details["stats"]
    assert report.forwards == stats["forwards"]
    if isinstance(method, ZipAR):
        assert stats["emitted"] == 3 * (LENGTH - 1) and stats["rows"] == 3 * stats["rounds"]
        assert stats["tokens_per_forward"] == pytest.approx((LENGTH - 1) / stats["forwards"])
    else:
        assert stats["rounds"] == len(passes)
        # the first token of each picture comes from the prompt; a window may hang over the end
        assert 3 * (LENGTH - 1) <= stats["emitted"] < 3 * (LENGTH + method.window)


def test_a_preset_says_where_rows_are_wider_than_measured():
    model, arguments = examples.emu3(rows=2, columns=23)  # and a token that closes each row
    for chosen, remarks in (({"preset": "balanced"}, 1), ({"preset": "exact"}, 0), ({}, 0)):
        methods = () if chosen else (ZipAR(window=4),)
        with mmaccel.accelerate(model, *methods, **chosen) as fast:
            fast.generate(**arguments(), generator=seed())
            told = [line for line in fast.report.warnings if "rows of 16 tokens, and a row has 24" in line]
            assert len(told) == remarks and all("image.ZipAR(window=6)" in line for line in told)
    model, arguments = examples.emu3(rows=2, columns=15)
    with mmaccel.accelerate(model, preset="fast") as fast:
        fast.generate(**arguments(), generator=seed())
        assert fast.report.engaged and not fast.report.warnings


def test_progress_follows_the_slowest_picture():
    """A share that is done of one picture of the batch alone is not done."""
    model, arguments = examples.janus()
    for method in METHODS:
        known, done = [], []
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**arguments(1), generator=seed(), progress=lambda n, _: known.append(n))  # noqa: B023
            fast.generate(**arguments(4), generator=seed(), progress=lambda n, _: done.append(n))  # noqa: B023
            assert done == sorted(done) and done[-2] < LENGTH, "it was at the end before the last pass"


def test_memory_counts_the_distributions_of_a_window():
    model, arguments = examples.janus()
    bytes_of = {}
    for window in (2, 8):
        decoder = None

        def watch(self, *args, made=GridDecoder.__init__, **more):
            nonlocal decoder
            made(self, *args, **more)
            decoder = self

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GridDecoder, "__init__", watch)
            with mmaccel.accelerate(model, SpeculativeJacobi(window=window)) as fast:
                fast.generate(**arguments(2), generator=seed())
                bytes_of[window] = fast.report.peak_extra_bytes - decoder.cache.nbytes()
    # three of [batch, window, codes] in float32: p, q and what is drawn from them
    assert bytes_of == {window: 3 * 2 * window * examples.CODES * 4 for window in (2, 8)}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_memory_counts_the_codebook_of_groups(dtype):
    """Of a model that writes codes with its text it is a copy of their embeddings, as they are."""
    model, arguments = examples.emu3()
    model.to(dtype)
    extra = []
    for distance in (0.5, None):
        with mmaccel.accelerate(model, GroupedSpeculative(window=4, distance=distance)) as fast:
            fast.generate(**arguments(), generator=seed())
            extra.append(fast.report.peak_extra_bytes)
    specials = 4  # which close lines and pictures
    assert extra[0] - extra[1] == (examples.CODES + specials) * examples.TEXT["hidden_size"] * dtype.itemsize


def test_plain_settings_call_the_models_own_generate():
    model, arguments = examples.janus()
    steps = []
    with mmaccel.accelerate(model, SpeculativeJacobi(window=1)) as fast, torch.random.fork_rng():
        torch.manual_seed(3)
        tokens = fast.generate(**arguments(2), progress=lambda *step: steps.append(step))
        assert not fast.report.engaged and fast.report.forwards == LENGTH
        assert steps == [(LENGTH, LENGTH)] and "model's own generate" in fast.report.warnings[0]
        fast.generate(**arguments(2), generator=seed())
        assert not fast.report.engaged and not fast.report.warnings, "our own loop, which takes a generator"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        assert torch.equal(model.generate(**arguments(2)), tokens)


@pytest.mark.parametrize("settings", ({"init": "repeat_left"}, {"coupling": "gumbel"}), ids=str)
def test_settings_reach_the_loop(settings, monkeypatch):
    """Also with an automatic window."""
    seen = []

    def decode(decoder, budget, coupling, init):
        seen.append((coupling, init, decoder.margin))
        return torch.zeros(decoder.batch, decoder.length, dtype=torch.long)

    monkeypatch.setattr(speculative_jacobi, "decode_window", decode)
    model, arguments = examples.janus()
    method = SpeculativeJacobi(**settings)
    with mmaccel.accelerate(model, method) as fast:
        fast.generate(**arguments())
    assert seen == [(method.coupling, method.init, max(speculative_jacobi.WINDOWS))]


def test_a_group_is_what_the_settings_say(monkeypatch):
    """Size, distance in probability and in the codebook of the acceptance rule, and no codebook without a distance."""
    from mmaccel.image import grouped_speculative

    seen = []

    def decode(decoder, width, acceptance):
        seen.append((width.width(), acceptance.keywords))
        return torch.zeros(decoder.batch, decoder.length, dtype=torch.long)

    monkeypatch.setattr(grouped_speculative, "decode_window", decode)
    model, arguments = examples.janus()
    codes = model.model.vqmodel.quantize.embedding.weight
    for distance in (0.25, None):
        method = GroupedSpeculative(window=5, group_size=7, delta=0.4, distance=distance)
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**arguments())
    (window, near), (_, any_distance) = seen
    assert (window, near["group_size"], near["delta"], near["distance"]) == (5, 7, 0.4, 0.25)
    assert torch.allclose(near["embeddings"], codes / codes.norm(dim=-1, keepdim=True))
    assert any_distance["distance"] == float("inf") and any_distance["embeddings"] is None


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_groups_of_a_vocabulary_are_among_its_image_codes(family, monkeypatch):
    """Tokens that only close lines and pictures are near to none."""
    from mmaccel.image import grouped_speculative

    seen = []

    def decode(decoder, width, acceptance):
        seen.append((decoder.task, decoder.margin, acceptance.keywords["embeddings"]))
        return torch.zeros(decoder.batch, decoder.length, dtype=torch.long)

    monkeypatch.setattr(grouped_speculative, "decode_window", decode)
    model, arguments = getattr(examples, family)()
    with mmaccel.accelerate(model, GroupedSpeculative(window=5)) as fast:
        fast.generate(**arguments())
    ((task, margin, embeddings),) = seen
    codes = model.get_input_embeddings().weight[task.ids[: task.codes]]
    assert margin == 5 and len(embeddings) == task.codes + task.specials > task.codes
    assert torch.equal(embeddings[: task.codes], codes) and not embeddings[task.codes :].any()


def test_a_session_learns_by_shape_and_begins_each_picture_anew(monkeypatch):
    begun = []
    begin = speculative_jacobi.Budget.begin
    monkeypatch.setattr(speculative_jacobi.Budget, "begin", lambda self: (begun.append(self), begin(self))[1])
    monkeypatch.setattr(speculative_jacobi, "decode_window", lambda d, *_: torch.zeros(d.batch, d.length).long())
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, SpeculativeJacobi()) as fast:
        for batch, guidance in ((1, 3.0), (2, 3.0), (1, 3.0), (1, 1.0)):
            fast.generate(**arguments(batch, guidance=guidance))
    one, two, again, unguided = begun[-4:]
    assert one is again and len({id(budget) for budget in (one, two, unguided)}) == 3
    assert max(one.candidates) == LENGTH, "no window is wider than the picture"


def test_what_was_learned_of_one_kind_of_call_is_not_used_for_another():
    """A pass costs something else with other shapes, types and devices."""

    def budget(**changes):
        usual = {"batch": 1, "branches": 2, "length": 64, "device": "cpu", "dtype": torch.float32}
        call = SimpleNamespace(**{**usual, **changes})
        call.layout, call.model = SimpleNamespace(length=call.length), SimpleNamespace(dtype=call.dtype)
        return speculative_jacobi.learned_budget(call, session)

    session = SimpleNamespace(memory={})
    others = ({"batch": 2}, {"branches": 1}, {"length": 32}, {"device": "cuda"}, {"dtype": torch.float16})
    assert len({id(budget(**changes)) for changes in ({}, *others)}) == 6 and budget() is budget()
    assert max(budget(length=32).candidates) == 32


def test_time_is_told_by_what_it_was_spent_on():
    model, arguments = examples.janus()
    for method in METHODS:
        with mmaccel.accelerate(model, method) as fast:
            fast.generate(**arguments(), generator=seed())
            seconds = fast.report.details["stats"]["seconds"]
            assert 0 < seconds["verify"] <= sum(seconds.values()) <= fast.report.wall_seconds


def test_the_width_of_the_grid_with_drafts_is_not_plain_decoding():
    """Rows verify drafts of their own then."""
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, ZipAR(window=examples.COLUMNS, verify=True)) as fast:
        fast.generate(**arguments())
        assert fast.report.details["stats"]["drafted"] > 0 and not fast.report.warnings


def test_one_draw_from_the_global_state_seeds_a_call():
    """So that `torch.manual_seed` repeats a picture, and calls after it do not depend on what was accepted."""
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, SpeculativeJacobi(window=4)) as fast, torch.random.fork_rng():
        torch.manual_seed(3)
        one, after = fast.generate(**arguments()), torch.get_rng_state()
        other = fast.generate(**arguments())
        torch.manual_seed(3)
        assert torch.equal(fast.generate(**arguments()), one) and not torch.equal(other, one)
        torch.manual_seed(3)
        torch.randint(2**62, ())
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize(
    "method", (*METHODS, *(SpeculativeJacobi(window=4, coupling=name) for name in COUPLINGS)), ids=str
)
def test_all_that_is_drawn_comes_from_the_generator(method):
    """First guesses, their tests and what replaces them: one seed gives one picture in as many passes."""
    model, arguments = examples.janus()
    runs, state = [], torch.get_rng_state()
    with mmaccel.accelerate(model, method) as fast:
        for _ in range(3):
            tokens = fast.generate(**arguments(2), generator=seed(7))
            runs.append((tokens.tolist(), fast.report.forwards, fast.report.details["stats"]["accepted_by_depth"]))
    assert runs[0] == runs[1] == runs[2] and torch.equal(torch.get_rng_state(), state)


def test_groups_of_one_code_and_windows_of_one_token_are_exact():
    found = [GroupedSpeculative(window=w, group_size=g).exact for w, g in ((16, 15), (16, 1), (1, 15))]
    assert found == [False, True, True]


def test_an_automatic_window_reports_what_passes_cost():
    model, arguments = examples.janus(rows=6)
    with mmaccel.accelerate(model, SpeculativeJacobi()) as fast:
        fast.generate(**arguments(), generator=seed())
        cost = fast.report.details["verify_cost"]
    assert cost["buckets"][:2] == [1, 8] and all(0 < seconds < 10 for seconds in cost["times"])
    with mmaccel.accelerate(model, SpeculativeJacobi(window=4)) as fast:
        fast.generate(**arguments(), generator=seed())
        assert "verify_cost" not in fast.report.details


def test_passes_are_timed_whole(monkeypatch):
    """By the thread's own clock on a processor; what the caller's progress function takes is no cost of a pass."""
    now, seen = [0.0], []

    class Watch(FixedWidth):
        def observe(self, width, emitted, seconds):
            seen.append((width, seconds))

    forward = GridDecoder.forward

    def slow(self, tokens, *args, **more):
        now[0] += tokens.shape[1]
        return forward(self, tokens, *args, **more)

    monkeypatch.setattr(loop, "clock", lambda device: lambda: now[0])
    monkeypatch.setattr(GridDecoder, "forward", slow)
    monkeypatch.setattr(speculative_jacobi, "FixedWidth", Watch)
    model, arguments = examples.janus()

    def progress(*_):
        now[0] += 100.0

    with mmaccel.accelerate(model, SpeculativeJacobi(window=4)) as fast:
        fast.generate(**arguments(), generator=seed(), progress=progress)
    assert len(seen) > 3 and all(seconds == width for width, seconds in seen)


class Elsewhere(torch.Generator):
    """A generator of another device."""

    device = torch.device("meta")


def test_a_generator_of_another_device_seeds_one_by_a_single_draw_there(monkeypatch):
    state = torch.get_rng_state()
    task = SimpleNamespace(device=torch.device("cpu"), sampling=SimpleNamespace(do_sample=True))
    given = seed(5)
    assert private_generator(given, task, False) is given
    other = Elsewhere()
    other.manual_seed(5)
    draw = torch.randint
    drawn = int(draw(2**62, (), generator=seed(5)))

    def randint(*given, generator, device):
        assert device == generator.device
        return draw(*given, generator=generator)

    monkeypatch.setattr(torch, "randint", randint)
    for keeps in (False, True):
        other.manual_seed(5)
        made = private_generator(other, task, keeps)
        assert made.initial_seed() == drawn and made.device == task.device
    assert torch.equal(torch.get_rng_state(), state)
    assert private_generator(None, task, True) is None, "which is the global one"
    task.sampling.do_sample = False
    assert private_generator(None, task, True).initial_seed() == 0
    assert torch.equal(torch.get_rng_state(), state), "greedy decoding draws nothing"


@pytest.mark.parametrize("name", ("cuda", "mps", "xpu"))
def test_kept_noise_is_drawn_from_the_global_generator_of_any_device(name):
    """Which torch finds by itself: a generator of the CPU would be refused there."""
    task = SimpleNamespace(device=torch.device(name), sampling=SimpleNamespace(do_sample=True))
    assert private_generator(None, task, True) is None


@pytest.mark.parametrize("verify", (False, True))
def test_rows_are_timed_and_counted_in_every_pass(verify, monkeypatch):
    """Of a batch, whose rows have more or fewer drafts."""
    ticks = itertools.count()
    monkeypatch.setattr(row_decoding, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, ZipAR(window=2, verify=verify, draft_window=3)) as fast:
        fast.generate(**arguments(3, temperature=0.05), generator=seed())
        stats = fast.report.details["stats"]
    assert stats["seconds"]["verify"] == stats["forwards"] - 1 > 1, "one tick for each pass but the prompt's"
    assert 0 <= stats["accepted"] <= stats["drafted"] and (stats["drafted"] > 0) is verify
    assert len(stats["accepted_by_depth"]) <= (2 if verify else 0)


def test_padding_is_not_seen_by_single_tokens_either():
    """A pass over one token of each row needs no mask, unless prompts are padded."""
    model, arguments = examples.emu3(seed=2)
    call = arguments(1, guidance=3.0, do_sample=False, top_k=None)
    padded = {"input_ids": torch.nn.functional.pad(call["input_ids"], (2, 0), value=7)}
    padded["attention_mask"] = torch.nn.functional.pad(call["attention_mask"], (2, 0))
    with mmaccel.accelerate(model, SpeculativeJacobi(window=1)) as fast:
        tokens = fast.generate(**call, generator=seed())
        assert torch.equal(fast.generate(**{**call, **padded}, generator=seed())[:, 2:], tokens)
        padded["attention_mask"] = torch.ones_like(padded["attention_mask"])
        assert not torch.equal(fast.generate(**{**call, **padded}, generator=seed())[:, 2:], tokens), "seen"


def test_drafts_behind_the_end_of_a_row_are_no_tokens():
    """Rows of a batch with fewer drafts than others: what fills them up is not counted."""
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, ZipAR(window=examples.COLUMNS, verify=True, draft_window=3)) as fast:
        for number in range(4):
            fast.generate(**arguments(4, temperature=0.3), generator=seed(number))
            stats = fast.report.details["stats"]
            assert stats["accepted"] > 0 and stats["emitted"] == 4 * (LENGTH - 1), "one line at a time: all is final"


@pytest.mark.parametrize("guidance", (1.0, 0.5))
def test_plain_settings_of_janus_draw_what_its_own_generate_cannot(guidance):
    """It has no pictures without guidance."""
    model, arguments = examples.janus()
    with mmaccel.accelerate(model, SpeculativeJacobi(window=1)) as fast:
        tokens = fast.generate(**arguments(2, guidance))
    assert tokens.shape == (2, model.config.vision_config.num_image_tokens)


def test_layers_that_round_a_token_by_all_others_of_a_pass_are_not_called_exact():
    """As a window rounds otherwise than a single token."""
    model, arguments = examples.janus()
    torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    for window, exact in ((4, False), (1, True)):
        with mmaccel.accelerate(model, SpeculativeJacobi(window=window)) as fast:
            for _ in range(2):
                fast.generate(**arguments(1))
                told = any("not exact here: Janus" in text for text in fast.report.warnings)
                assert fast.report.exact is exact and told is not exact
