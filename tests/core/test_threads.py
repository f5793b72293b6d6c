"""Several threads that call `generate` of one session: each waits for its turn; pipelines refuse the second call."""

import threading

import pytest
import torch
from draft_models import call, mistral

import mmaccel
from mmaccel.session import Session
from mmaccel.vlm import FusedDraft, TokenRecycling

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
