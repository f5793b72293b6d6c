"""Parts of a model on several devices: what is computed on one is brought to where it is needed, and no more.

Tensors of the meta device hold nothing, and tell where they are.
"""

from types import SimpleNamespace

import pytest
import torch
from tensor_calls import TensorCalls
from torch.utils._python_dispatch import TorchDispatchMode

from mmaccel.adapter import find_adapter
from mmaccel.cache import RollbackCache
from mmaccel.image import examples
from mmaccel.image.decoding import task as tasks
from mmaccel.image.decoding.grid_decoder import GridDecoder
from mmaccel.image.decoding.task import language_model

META = torch.device("meta")


class Indices(TorchDispatchMode):
    """Notes where the indices are by which tensors are read and written."""

    def __init__(self):
        super().__init__()
        self.devices = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "index" in function.__name__ and isinstance(args[1], (list, tuple)):
            self.devices |= {index.device for index in args[1] if index is not None}
        return function(*args, **(kwargs or {}))


class Elsewhere(torch.nn.Module):
    """A head on another device than the prompt."""

    def forward(self, hidden):
        return torch.zeros(*hidden.shape[:-1], 20 + examples.CODES, device=META)


def task_of(family):
    model, arguments = getattr(examples, family)()
    return find_adapter(model).begin(arguments(2))


@pytest.mark.parametrize("family", ("janus", "emu3"))
def test_distributions_are_where_the_prompt_is(family):
    """Whose tokens and drafts they are compared with."""
    task = task_of(family)
    decoder = GridDecoder(task, None)
    decoder.device, decoder.forced = META, decoder.forced.to(META)
    hidden = torch.zeros(task.branches * task.batch, 1, examples.TEXT["hidden_size"])
    assert decoder.distribution(hidden, torch.zeros(2, 1, dtype=torch.long, device=META)).is_meta


@pytest.mark.parametrize("family", ("janus", "emu3", "glm_image"))
def test_prompts_on_the_cpu_are_read_where_the_model_is(family, monkeypatch):
    """Codes are drawn on the CPU then, as by the model's own generate."""
    task, seen = task_of(family), []
    inner, text = task.model.model, language_model(task.model)
    monkeypatch.setattr(tasks, "pass_device", lambda model, ids: META)
    task.model.to(META)

    def read(**given):
        seen.append({name: value.device for name, value in given.items() if isinstance(value, torch.Tensor)})
        inner._cached_decode_position_ids = torch.zeros(2, 3, 9, dtype=torch.long, device=META)
        rows = given["inputs_embeds" if "inputs_embeds" in given else "input_ids"]
        return SimpleNamespace(last_hidden_state=torch.zeros(*rows.shape[:2], 32, device=META))

    monkeypatch.setattr(inner if family == "glm_image" else text, "forward", read)
    assert task.prefill(RollbackCache(task.model.config, 8)).is_meta
    monkeypatch.setattr(text, "forward", read)
    index = torch.zeros(task.branches * task.batch, 2, dtype=torch.long)
    task.run(task.embed(index), torch.ones(len(index), 1, 2, 8, dtype=torch.bool), index, None)
    assert len(seen) == 2 and all(len(each) >= 3 and {*each.values()} == {META} for each in seen)
    assert task.device == torch.device("cpu")


def test_codes_are_read_where_the_head_is():
    task = task_of("emu3")
    task.model.lm_head = Elsewhere()
    with Indices() as seen:
        logits = task.head(torch.zeros(2, 1, 8, device=META))
    assert logits.is_meta and logits.shape == (2, 1, examples.CODES) and seen.devices == {META}


def test_a_layer_writes_to_slots_on_its_own_device():
    model, _ = examples.janus()
    cache, states = RollbackCache(model.config, 8), torch.zeros(2, 2, 3, 8, device=META)
    cache.place(torch.tensor([[0, 1, 2], [3, 4, 5]]), 6)
    with Indices() as seen:
        keys, _ = cache.layers[1].update(states, states)
    assert keys.is_meta and keys.shape == (2, 2, 6, 8) and seen.devices == {META}


def test_which_ids_are_codes_is_read_once():
    """Not in each pass, in which a GPU would be waited for."""
    task, hidden = task_of("emu3"), torch.zeros(2, 1, examples.TEXT["hidden_size"])
    with TensorCalls() as calls:
        task.head(hidden)
        first = calls.reads
        task.head(hidden)
    assert calls.reads == first
