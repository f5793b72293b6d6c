"""What the scripts of the documentation's pictures see of a model."""

import types

import pytest
import torch

from mmaccel.demos.pages.figures import drawn, figure
from mmaccel.demos.pages.module_trace import ModuleTrace, transformer_parts, unet_parts
from mmaccel.demos.pages.recorded_calls import recorded


class Part(torch.nn.Module):
    def forward(self, hidden_states):
        return hidden_states


def test_a_trace_counts_what_goes_into_each_part_in_each_step():
    first, second = Part(), Part()
    inputs = {"latents": 1}
    with ModuleTrace({"first": first, "second": second}) as trace:
        first(torch.zeros(2, 3, 9))
        first(torch.zeros(1, 4, 9))
        assert trace.step(None, 0, 0, inputs) is inputs
        second(hidden_states=torch.zeros(2, 5, 9))
        trace.step(None, 1, 0, inputs)
    first(torch.zeros(7, 7, 7))
    trace.step(None, 2, 0, inputs)
    assert trace.table().tolist() == [[10, 0, 0], [0, 10, 0]]
    with pytest.raises(KeyError), ModuleTrace({"first": first}):
        raise KeyError
    assert not first._forward_pre_hooks and not second._forward_pre_hooks


def test_parts_have_the_names_of_their_places():
    names = ("attn1.to_q", "attn2.to_q", "ffn.net.0")
    blocks = [types.SimpleNamespace(get_submodule=lambda name, block=block: (block, name)) for block in range(2)]
    parts = transformer_parts(types.SimpleNamespace(blocks=blocks))
    labels = [f"{number} {label}" for number in (1, 2) for label in ("self", "cross", "feed-forward")]
    assert list(parts) == labels and list(parts.values()) == [(block, name) for block in (0, 1) for name in names]

    def stage(*convs):
        return types.SimpleNamespace(resnets=[types.SimpleNamespace(conv1=conv) for conv in convs])

    unet = types.SimpleNamespace(down_blocks=[stage(1, 2), stage(3)], mid_block=stage(4), up_blocks=[stage(5)])
    assert unet_parts(unet) == {"down 1.1": 1, "down 1.2": 2, "down 2.1": 3, "middle.1": 4, "up 1.1": 5}


def test_calls_are_recorded_and_made():
    owner = types.SimpleNamespace(add=lambda one, other=1: one + other)
    original = owner.add
    with recorded(owner, "add") as calls:
        assert owner.add(2, other=3) == 5 and owner.add(4) == 5
    assert calls == [((2, 3), 5), ((4,), 5)] and owner.add is original


def test_figures_are_pictures_of_their_size():
    made, (left, right) = figure(2, 4, 2)
    left.plot([0, 1])
    assert right is not left and drawn(made).size == (440, 220) and drawn(made).mode == "RGB"
