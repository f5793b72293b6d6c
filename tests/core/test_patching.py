"""What `mmaccel.patching` puts on an instance does its work, in order, and goes without a trace."""

import copy
import functools
import gc
import pickle
import threading
import weakref
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from diffusers import hooks
from transformers import LlamaConfig

from mmaccel import private
from mmaccel.adapter import Adapter
from mmaccel.errors import ActiveSessionError
from mmaccel.forwards import BELOW_HOOK
from mmaccel.method import Method
from mmaccel.patching import (
    Wrapped,
    attention_layers,
    hook,
    intercept_attention,
    override,
    wrap_forward,
    wrap_generate,
    wrap_method,
)
from mmaccel.plan import Plan
from mmaccel.session import Session
from mmaccel.testing.snapshot import snapshot
from mmaccel.video.blocks.sdpa import AttentionMode
from mmaccel.vlm import examples


class Owner:
    colour = "red"

    def method(self):
        return "class"

    @staticmethod
    def static(word):
        return f"static {word}"

    @classmethod
    def of_class(cls, word):
        return f"{cls.__name__} {word}"


def test_override_restores_attributes_of_the_instance():
    owner, stack = Owner(), ExitStack()
    owner.colour, own = "green", vars(owner)
    override(stack, owner, "colour", "blue")
    override(stack, owner, "colour", "black")
    override(stack, owner, "method", lambda: "instance")
    override(stack, owner, "fresh", 1)
    assert (owner.colour, owner.method(), owner.fresh) == ("black", "instance", 1)
    assert Owner.colour == "red" and Owner().method() == "class"
    stack.close()
    assert own == {"colour": "green"} and owner.method() == "class" and not hasattr(owner, "fresh")


def test_override_restores_modules():
    module, stack = torch.nn.Linear(2, 2), ExitStack()
    before = snapshot(module)
    override(stack, module, "forward", lambda x: x + 1)
    assert torch.equal(module(torch.zeros(2)), torch.ones(2))
    stack.close()
    assert snapshot(module) == before and module(torch.zeros(2)).shape == (2,)


# Methods


def test_a_wrapped_method_is_restored_and_not_copied():
    owner, stack = Owner(), ExitStack()
    wrap_method(stack, owner, "method", lambda original: f"inner {original()}")
    wrap_method(stack, owner, "method", lambda original: f"outer {original()}")
    assert owner.method() == "outer inner class" and copy.deepcopy(owner).method() == "class"
    assert owner.method.__name__ == "method" and copy.deepcopy({"kept": owner.method})["kept"] is owner.method
    assert pickle.loads(pickle.dumps(owner)).method() == "class"  # noqa: S301
    stack.close()
    assert owner.method() == "class" and not vars(owner)


def test_a_copy_has_static_and_class_methods_of_its_own():
    owner = Owner()
    with ExitStack() as stack:
        for name in ("static", "of_class"):
            wrap_method(stack, owner, name, lambda original, word: f"wrapped {original(word)}")
        copied = copy.deepcopy(owner)
        assert owner.static("a") == "wrapped static a" and copied.static("a") == "static a"
        assert owner.of_class("b") == "wrapped Owner b" and copied.of_class("b") == "Owner b"


def test_what_is_pickled_has_no_part_of_a_session():
    module, stack, seen = torch.nn.Linear(2, 2), ExitStack(), []
    hook(stack, module, lambda *_: seen.append("before"), lambda *_: seen.append("after"))
    wrap_method(stack, module, "forward", lambda original, x: original(x) + 1)
    again, x = pickle.loads(pickle.dumps(module)), torch.ones(2)  # noqa: S301
    assert torch.equal(again(x) + 1, module(x)) and seen == ["before", "after"]
    stack.close()
    assert torch.equal(again(x), module(x))


@pytest.mark.parametrize("at_the_end", (False, True))
@pytest.mark.parametrize("at_first", (False, True))
def test_a_wrapped_forward_outlives_hooks_of_accelerate(at_first, at_the_end):
    """An off-loaded pipeline takes them off and puts them on again after each of its calls."""
    module, stack, x = torch.nn.Linear(2, 2), ExitStack(), torch.ones(1, 2)
    plain = module(x)
    if at_first:
        add_hook_to_module(module, ModelHook())
    wrap_forward(stack, module, functools.partial(lambda held, original, x: original(x) + 1, threading.RLock()))
    for _ in range(2):
        assert torch.equal(module(x), plain + 1) and torch.equal(copy.deepcopy(module)(x), plain)
        remove_hook_from_module(module)
        assert torch.equal(module(x), plain + 1)
        add_hook_to_module(module, ModelHook())
    if not at_the_end:
        remove_hook_from_module(module)
    stack.close()
    assert torch.equal(module(x), plain) and hasattr(module, "_hf_hook") == at_the_end
    remove_hook_from_module(module)
    assert vars(module).get("forward", module.forward).__func__ is torch.nn.Linear.forward


def test_a_hook_of_diffusers_that_answers_itself_gets_the_original_back():
    """As those of its caches and its guiders, put on while a session was active."""
    module, stack, x = torch.nn.Linear(2, 2), ExitStack(), torch.ones(1, 2)
    plain, doubling = module(x), hooks.ModelHook()
    doubling.new_forward = lambda module, x: 2 * doubling.fn_ref.original_forward(x)
    wrap_forward(stack, module, lambda original, x: original(x) + 1)
    hooks.HookRegistry.check_if_exists_or_initialize(module).register_hook(doubling, "doubles")
    assert torch.equal(module(x), 2 * plain + 2)
    stack.close()
    assert torch.equal(module(x), 2 * plain) and not isinstance(doubling.fn_ref.original_forward, Wrapped)
    module._diffusers_hook.remove_hook("doubles")
    assert torch.equal(module(x), plain) and not isinstance(module.forward, Wrapped)


def test_a_copy_made_while_attention_is_routed_is_plain():
    model, arguments = examples.llama()
    ids, stack = arguments()["input_ids"], ExitStack()
    plain = model(ids).logits

    def nothing(original, *given, **more):
        return original(*given, **more)[0] * 0, None

    intercept_attention(stack, attention_layers(model), nothing)
    intercept_attention(stack, attention_layers(model), lambda original, *given, **more: original(*given, **more))
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))  # noqa: S301
    assert not torch.equal(model(ids).logits, plain)
    routed = attention_layers(model)[0].config
    assert '"hidden_size"' in repr(routed) and type(copy.copy(routed)) is type(routed)
    assert private.attention_name(copy.copy(routed)) == private.attention_name(routed) != "sdpa"
    stack.close()
    for copied in (*copies, model):
        assert torch.equal(copied(ids).logits, plain)
        assert len({id(part.config) for part in copied.modules() if hasattr(part, "config")}) == 1


def test_the_table_of_attention_functions_keeps_nothing_alive():
    model, arguments = examples.llama()
    ids, stack, kept = arguments()["input_ids"], ExitStack(), torch.zeros(1)
    plain, gone = model(ids).logits, weakref.ref(kept)

    def doubling(original, *given, kept=kept, **more):
        return original(*given, **more)[0] * 2 + kept, None

    intercept_attention(stack, attention_layers(model), doubling)
    assert not torch.equal(model(ids).logits, plain)
    del doubling, kept, stack
    gc.collect()
    assert gone() is None and torch.equal(model(ids).logits, plain), "what outlives its session runs plainly"


def test_what_is_removed_from_below_leaves_nothing():
    owner, first, second = Owner(), ExitStack(), ExitStack()
    wrap_method(first, owner, "method", lambda original: f"inner {original()}")
    wrap_method(second, owner, "method", lambda original: f"outer {original()}")
    first.close()
    assert owner.method() == "outer class"
    second.close()
    assert owner.method() == "class" and not vars(owner)


def test_what_another_library_put_on_top_stays():
    owner, stack = Owner(), ExitStack()
    wrap_method(stack, owner, "method", lambda original: "ours")
    ours = owner.method
    owner.method = lambda: f"theirs on {ours()}"
    assert owner.method() == "theirs on ours"
    stack.close()
    assert owner.method() == "theirs on class"


# Generate


class Writer:
    def generate(self, inputs=None, **kwargs):
        return [inputs, sorted(kwargs)]


class WriterAdapter(Adapter):
    """A family of its own, which is not registered."""


@pytest.fixture
def session():
    with Session(Plan((), family="writer"), WriterAdapter(Writer())) as session:
        yield session


def test_methods_on_one_model_are_one_run_and_nest(session):
    starts, within, stack = [], [], ExitStack()
    start = session.report.start
    session.report.start = lambda: (starts.append(1), start())

    @contextmanager
    def around():
        within.append("entered")
        yield
        within.append("left")

    def inner(original, kwargs):
        session.report.warnings.append("inner")
        return [*original(**kwargs), "inner"]

    def outer(original, kwargs):
        result = [*original(**kwargs), "outer"]
        session.report.warnings.append("outer")
        return result

    session.around.append(around)
    wrap_generate(stack, session, inner)
    wrap_generate(stack, session, outer)
    assert session.target.generate(1, more=2) == [1, ["more"], "inner", "outer"]
    assert session.report.warnings == ["inner", "outer"] and session.report.wall_seconds > 0
    assert len(starts) == 1 and within == ["entered", "left"]
    stack.close()
    assert not vars(session.target) and session.target.generate(1) == [1, []]


def test_a_call_that_is_no_run_and_one_from_within_are_plain(session):
    stack = ExitStack()
    wrap_generate(
        stack,
        session,
        lambda original, kwargs: ["ours", *session.target.generate(**kwargs)],
        applies=lambda kwargs: kwargs["inputs"] != "plain",
    )
    assert session.target.generate("plain") == ["plain", []] and not session.report.wall_seconds
    assert session.target.generate("x") == ["ours", "x", []]


def test_a_run_that_fails_can_be_followed_by_another(session):
    calls = iter((ValueError("once"), None))

    def fails_once(original, kwargs):
        if error := next(calls):
            raise error
        return original(**kwargs)

    wrap_generate(ExitStack(), session, fails_once)
    with pytest.raises(ValueError, match="once"):
        session.target.generate()
    assert not session.report.wall_seconds
    assert session.target.generate() == [None, []] and session.report.wall_seconds > 0


def test_a_call_that_waited_while_the_method_was_removed_is_plain(session):
    stack, lock = ExitStack(), session.lock

    class Late:
        """Lets a call in after the removal."""

        def __enter__(self):
            stack.close()
            lock.acquire()

        def __exit__(self, *error):
            lock.release()

    wrap_generate(stack, session, lambda original, kwargs: ["ours"])
    session.lock = Late()
    assert session.target.generate(1) == [1, []]


def test_another_model_than_the_target_can_be_the_one_that_writes(session):
    other, stack = Writer(), ExitStack()
    wrap_generate(stack, session, lambda original, kwargs: [*original(**kwargs), "ours"], model=other)
    assert other.generate(2) == [2, [], "ours"] and session.report.wall_seconds > 0
    assert not vars(session.target) and session.target.generate(2) == [2, []]
    stack.close()
    assert not vars(other)


# Sessions


class Noted(Method):
    """Notes what is asked of it."""

    def __init__(self, name, notes, fails=False):
        vars(self).update(label=name, notes=notes, fails=fails)

    def __str__(self):
        return self.label

    def attach(self, session, stack):
        if self.fails:
            raise ValueError("cannot attach")
        self.notes.append(f"attach {self.label}")
        stack.callback(self.notes.append, f"remove {self.label}")

    def prepare(self, session, args, kwargs):
        self.notes.append(("prepare", self.label, args, kwargs, session.report.forwards))


class Pipe:
    """Its call is the run; several pipelines can share a part."""

    def __init__(self, notes=None, part=None):
        self.notes, self.part = notes, part

    def __call__(self, *args, **kwargs):
        self.notes.append(("call", args, kwargs))
        if "fails" in kwargs:
            raise ValueError("in the call")
        return "picture"


class PipeAdapter(WriterAdapter):
    call_is_run = True

    def parts(self):
        return [self.target, self.target.part]


def accelerated(target, *methods, adapter=PipeAdapter):
    return Session(Plan(methods, family="pipe"), adapter(target))


def test_methods_are_attached_in_order_and_removed_in_reverse():
    notes = []
    both = [Noted(name, notes) for name in ("one", "two")]
    with accelerated(Pipe(part=Writer()), *both) as session:
        assert notes == ["attach one", "attach two"]
        with session.baseline():
            assert notes[2:] == ["remove two", "remove one"]
        assert notes[4:] == ["attach one", "attach two"]
    assert notes[6:] == ["remove two", "remove one"]


def test_a_method_that_cannot_attach_takes_the_others_with_it():
    notes, pipe = [], Pipe(part=Writer())
    with pytest.raises(ValueError, match="cannot attach") as error:
        accelerated(pipe, Noted("one", notes), Noted("two", notes, fails=True))
    assert notes == ["attach one", "remove one"] and error.value.__traceback__, "which keeps the session alive"
    with accelerated(Pipe(part=pipe.part)) as other:
        assert other.active, "its parts are free again"


def test_every_method_is_told_of_a_call_before_the_run_begins():
    notes = []
    pipe = Pipe(notes, Writer())
    with accelerated(pipe, Noted("one", notes), Noted("two", notes)) as session:
        del notes[:]
        session.report.forwards = 7
        assert session("x", steps=2) == "picture" and session.report.forwards == 0 < session.report.wall_seconds
        told = [("prepare", name, ("x",), {"steps": 2}, 7) for name in ("one", "two")]
        assert notes == [*told, ("call", ("x",), {"steps": 2})]


def test_the_accelerator_is_waited_for_before_each_look_at_the_clock(monkeypatch):
    order = []
    clock = SimpleNamespace(perf_counter=lambda: order.append("look") or 0.0)
    monkeypatch.setattr("mmaccel.session.time", clock)
    monkeypatch.setattr("mmaccel.session.synchronize", lambda: order.append("wait"))
    with accelerated(Pipe(order, Writer())) as session:
        session()
        with session.baseline() as plain:
            plain()
    assert order == ["wait", "look", ("call", (), {}), "wait", "look"] * 2


def test_a_call_has_its_turn_from_before_methods_prepare_it():
    found = []

    def asked():
        try:
            found.append(session())
        except ActiveSessionError as error:
            found.append(str(error))

    def in_another_thread(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    class Measures(Noted):
        def prepare(self, session, args, kwargs):
            if args:
                in_another_thread(asked)
            if args == ("bad",):
                raise ValueError("in prepare")

    with accelerated(Pipe([], Writer()), Measures("one", [])) as session:
        assert session("good") == "picture"
        with pytest.raises(ValueError, match="in prepare"):
            session("bad")
        in_another_thread(asked)
    assert ["in the middle of another call" in said for said in found] == [True, True, False]


def test_a_call_that_is_no_run_leaves_the_report_alone():
    notes = []
    pipe = Pipe(notes, Writer())
    with accelerated(pipe, Noted("one", notes), adapter=WriterAdapter) as session:
        session.report.forwards = 7
        assert session("x") == "picture" and session.report.forwards == 7 and not session.report.wall_seconds
        assert notes == ["attach one", ("call", ("x",), {})]


def test_what_is_around_runs_is_entered_for_each_and_left_after_a_failure_too():
    notes = []
    pipe = Pipe(notes, Writer())

    @contextmanager
    def around():
        notes.append("entered")
        try:
            yield
        finally:
            notes.append(f"left after {session.report.wall_seconds > 0}")

    with accelerated(pipe) as session:
        session.around.append(around)
        with pytest.raises(ValueError, match="in the call"):
            session(fails=True)
        session()
    assert [note for note in notes if isinstance(note, str)] == [
        "entered",
        "left after False",
        "entered",
        "left after True",
    ]


def test_pipelines_that_share_a_part_are_not_accelerated_at_once():
    part = Writer()
    one, other = Pipe(part=part), Pipe(part=part)
    first = accelerated(one, Noted("one", []))
    with pytest.raises(ActiveSessionError, match="this Writer is already accelerated by .*one"):
        accelerated(other)
    one.part = Writer()  # exchanged by its user: the session of `one` no longer knows the old part
    first.remove()
    with accelerated(other) as second:
        assert second.active
        with pytest.raises(ActiveSessionError, match="Writer"):
            accelerated(Pipe(part=part))


# Hooks and attention


def test_hooks_change_a_call_and_go():
    module, stack = torch.nn.Identity(), ExitStack()
    before = snapshot(module)
    hook(
        stack,
        module,
        before=lambda module, args, kwargs: ((args[0] + 1,), kwargs),
        after=lambda module, args, kwargs, output: output * 10,
    )
    assert module(torch.tensor(2)) == 30
    stack.close()
    assert snapshot(module) == before and module(torch.tensor(2)) == 2


@pytest.mark.parametrize("always", (False, True))
def test_a_hook_can_ask_to_run_after_an_error_too(always):
    module, seen, stack = Attends(), [], ExitStack()
    hook(stack, module, after=lambda module, args, kwargs, output: seen.append(output), always=always)
    with pytest.raises(ValueError, match="in the forward"):
        module(torch.zeros(1, 1, 1, 1), fails=ValueError)
    assert seen == [None] * always
    stack.close()


class Attends(torch.nn.Module):
    def forward(self, x, fails=None):
        result = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        if fails:
            raise fails("in the forward")
        return result


@pytest.mark.parametrize("error", (ValueError, KeyboardInterrupt))
def test_attention_is_intercepted_within_a_block_also_after_an_error(error):
    one, x, told = Attends(), torch.randn(1, 2, 3, 4), []
    plain = one(x)

    def attend(original, *args, **kwargs):
        told.append(kwargs)
        return original(*args, **kwargs) + 1

    with AttentionMode(attend):
        assert torch.equal(one(x), plain + 1) and told == [{"is_causal": True}]
    with pytest.raises(error, match="in the forward"), AttentionMode(attend):
        one(x, fails=error)
    assert torch.equal(one(x), plain)


# What mmaccel calls of others' own


def test_accelerate_keeps_a_forward_where_it_is_looked_for():
    module, stack = torch.nn.Linear(2, 2), ExitStack()
    add_hook_to_module(module, ModelHook())
    below = vars(module)[BELOW_HOOK]
    wrap_forward(stack, module, lambda original, x: original(x))
    assert vars(module)[BELOW_HOOK].original is below
    stack.close()
    assert vars(module)[BELOW_HOOK] is below and vars(module)["forward"] is not below


def test_an_attention_function_has_a_mask_and_goes_from_both_tables():
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    tables = AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping
    before = [dict(table) for table in tables]
    private.register_attention("one_of_ours", print)
    assert [table["one_of_ours"] for table in tables] == [print, sdpa_mask]
    private.unregister_attention("one_of_ours")
    private.unregister_attention("one_of_ours")
    assert [dict(table) for table in tables] == before
    assert private.attention_function(None) is private.attention_function("sdpa") is before[0]["sdpa"]


def test_which_attention_makes_its_keys_after_the_cache():
    def module(name="Attention", **attributes):
        return type(name, (), attributes)()

    assert private.makes_keys_after_cache(module(expand_kv=1))
    assert private.makes_keys_after_cache(module("JetMoeAttention"))
    assert private.makes_keys_after_cache(module(k_layer_norm=1, qk_layer_norms=True))
    for other in (module(), module(k_layer_norm=1), module(k_layer_norm=1, qk_layer_norms=False)):
        assert not private.makes_keys_after_cache(other)
    assert not private.makes_keys_after_cache(module(qk_layer_norms=True))


def test_arguments_of_later_tokens_are_those_of_the_model_itself():
    class Model:
        config = type("", (), {"is_encoder_decoder": True})

        def _update_model_kwargs_for_generation(self, outputs, kwargs, **more):
            return {**kwargs, "outputs": outputs, **more}

    given = {"attention_mask": 1}
    grown = private.kwargs_after(Model(), given, 3)
    assert grown == {"attention_mask": 1, "outputs": {}, "is_encoder_decoder": True, "num_new_tokens": 3}
    same = private.kwargs_after(Model(), given, 0)
    assert same == given == {"attention_mask": 1} and same is not given


def test_arguments_of_generate_are_split_and_checked_as_by_the_model():
    from transformers import GenerationConfig

    asked = []

    class Model:
        def _prepare_generation_config(self, config, **kwargs):
            asked.append((config, kwargs))
            return GenerationConfig(max_new_tokens=kwargs["max_new_tokens"]), {"input_ids": kwargs["input_ids"]}

        def _validate_model_kwargs(self, kwargs):
            asked.append(kwargs.pop("input_ids"))

    given = {"generation_config": "own", "max_new_tokens": 5, "input_ids": 7}
    config, rest = private.generation_settings(Model(), given)
    assert config.max_new_tokens == 5 and rest == {"input_ids": 7} and len(given) == 3
    assert asked == [("own", {"max_new_tokens": 5, "input_ids": 7}), 7]
    with pytest.raises(ValueError, match="max_new_tokens"):
        private.generation_settings(Model(), {"max_new_tokens": -1, "input_ids": 7})


def test_the_models_own_loop_gets_what_generate_prepared():
    class Model:
        def _sample(self, ids, **given):
            return ids, given

    names = ("logits_processor", "stopping_criteria", "generation_config", "use_cache")
    found = private.own_loop(Model(), "ids", "processors", "criteria", "config", {"use_cache": True})
    assert found == ("ids", dict(zip(names, ("processors", "criteria", "config", True), strict=True)))


def test_what_surrounds_the_steps_of_a_loop_is_in_the_installed_version():
    with private.for_steps(examples.llama()[0]):
        pass


def test_a_changed_configuration_is_a_copy():
    config = LlamaConfig(attn_implementation="sdpa")
    changed = private.with_attention(config, "ours")
    assert changed is not config and changed._attn_implementation_internal == "ours"
    assert config._attn_implementation_internal == private.attention_name(config) == "sdpa"
