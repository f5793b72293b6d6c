"""Several threads that call `generate` of one session: each waits for its turn; pipelines refuse the second call."""

import threading

import pytest
import torch
from draft_models import call, mistral

import mmaccel
from mmaccel.session import Session
from mmaccel.vlm import CompressKV, FusedDraft, PrefillDrop, SelectKV, SparsePrefill, TokenRecycling, examples
from mmaccel.vlm.decoder.attention import SessionAttention

THREADS = 4


def at_once(function):
    """What a function returns, or raises, in each of several threads."""
    found, ready = {}, threading.Barrier(THREADS)

    def run(number):
        ready.wait()
        try:
            found[number] = function(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(THREADS)]


def test_each_thread_gets_its_own_text():
    """Of a model with sliding windows, whose masks belong to a pass."""
    model = mistral()
    calls = [call(1, max_new_tokens=12 + number) for number in range(THREADS)]
    plain = [model.generate(**given) for given in calls]
    for method in (FusedDraft(always=True), TokenRecycling(always=True)):
        with mmaccel.accelerate(model, method) as fast:
            for _ in range(2):
                got = at_once(lambda number: fast.generate(**calls[number]))
                assert all(torch.equal(tokens, wanted) for tokens, wanted in zip(got, plain, strict=True)), got


def test_each_thread_gets_its_own_text_without_a_session():
    """By drafts that are handed to the model, or by some of its own in each thread."""
    model = mistral()
    calls = [call(1, max_new_tokens=12 + number) for number in range(THREADS)]
    plain = [model.generate(**given) for given in calls]
    shared = FusedDraft(always=True).custom_generate()
    for drafts in ([shared] * THREADS, [FusedDraft(always=True).custom_generate() for _ in calls]):
        for _ in range(2):
            got = at_once(lambda number, own=drafts: model.generate(**calls[number], custom_generate=own[number]))
            assert all(torch.equal(tokens, wanted) for tokens, wanted in zip(got, plain, strict=True)), got


def in_another_thread(function):
    """What a function returns, or raises, in a thread of its own."""
    found = []

    def run():
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def beside(generate, layer, function):
    """The tokens of a call, and what a function gave that another thread called in each of its passes."""
    found, thread = [], threading.get_ident()

    def meanwhile(*_):
        if threading.get_ident() == thread:
            found.append(in_another_thread(function))

    with layer.register_forward_pre_hook(meanwhile):
        return generate(), found


LOSSY = (SelectKV, CompressKV, SparsePrefill, PrefillDrop)


@pytest.mark.parametrize("method", (FusedDraft(always=True), *(kind(**kind.engaging) for kind in LOSSY)), ids=str)
def test_another_thread_may_call_the_model_itself_in_the_middle_of_a_text(method):
    """Masks, positions and caches of a pass are those of the thread that makes it."""
    exact = isinstance(method, FusedDraft)
    model = mistral() if exact else examples.llama()[0]
    given = call(1, max_new_tokens=12) if exact else examples.llama()[1](max_new_tokens=6)
    ids = given["input_ids"][:, 3:25]

    @torch.no_grad()  # of each thread
    def direct():
        return model(ids).logits

    with mmaccel.accelerate(model, method) as fast:
        plain, keys, other = fast.generate(**given), fast.report.keys, direct()
        tokens, heard = beside(lambda: fast.generate(**given), model.get_decoder().layers[1].mlp, direct)
        assert torch.equal(tokens, plain) and fast.report.engaged and fast.report.keys == keys
    assert len(heard) > 2 and all(isinstance(logits, torch.Tensor) for logits in heard), heard
    assert all(torch.equal(logits, other) for logits in heard)


@pytest.mark.parametrize("kind", (SelectKV, CompressKV))
def test_another_thread_does_not_get_the_keys_that_a_cache_has_just_returned(kind, monkeypatch):
    model, arguments = examples.llama()
    given, heard, note, thread = arguments(max_new_tokens=4), [], SessionAttention.updated, threading.get_ident()

    @torch.no_grad()
    def direct():
        return model(given["input_ids"]).logits

    def noted(attention, layer):
        note(attention, layer)
        if threading.get_ident() == thread:
            heard.append(in_another_thread(direct))

    with mmaccel.accelerate(model, kind(**kind.engaging)) as fast:
        plain, other = fast.generate(**given), direct()
        monkeypatch.setattr(SessionAttention, "updated", noted)
        assert torch.equal(fast.generate(**given), plain)
    assert heard and all(isinstance(each, torch.Tensor) and torch.equal(each, other) for each in heard), heard


def test_another_thread_may_generate_plainly_beside_drafts_without_a_session():
    model, given = mistral(), call(1, max_new_tokens=12)
    shorter = {**given, "input_ids": given["input_ids"][:, 5:], "attention_mask": given["attention_mask"][:, 5:]}
    plain, other = model.generate(**given), model.generate(**shorter)
    drafts = FusedDraft(always=True).custom_generate()
    layer = model.get_decoder().layers[1]
    tokens, heard = beside(
        lambda: model.generate(**given, custom_generate=drafts), layer, lambda: model.generate(**shorter)
    )
    assert torch.equal(tokens, plain) and drafts.report.engaged
    assert len(heard) > 2 and all(isinstance(each, torch.Tensor) and torch.equal(each, other) for each in heard), heard


class Wanted:
    """A lock that tells when somebody wants it."""

    def __init__(self, lock, event):
        self.lock, self.event = lock, event

    def __enter__(self):
        self.event.set()
        self.lock.acquire()

    def __exit__(self, *error):
        self.lock.release()

    def acquire(self, blocking):
        return self.lock.acquire(blocking)

    def release(self):
        self.lock.release()


def detach(fast):
    with fast.detached():
        pass


@pytest.mark.parametrize("take_off", (Session.remove, detach))
def test_methods_stay_until_the_run_of_another_thread_has_ended(take_off):
    model, order, wanted = mistral(), [], threading.Event()
    given = call(1, max_new_tokens=12)
    plain = model.generate(**given)

    def meanwhile():
        take_off(fast)
        order.append("off")
        wanted.set()

    other = threading.Thread(target=meanwhile)

    def note(*_):
        order.append("pass")
        if len(order) == 1:
            wanted.clear()
            other.start()
            wanted.wait()

    with mmaccel.accelerate(model, TokenRecycling(always=True)) as fast:
        fast.lock = Wanted(fast.lock, wanted)
        with model.register_forward_pre_hook(note):
            assert torch.equal(fast.generate(**given), plain)
        other.join()
    assert order.count("pass") > 1 and order[-1] == "off"
