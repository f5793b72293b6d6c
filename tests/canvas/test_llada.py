"""LLaDA's own code, which counts positions by itself and attends by itself, in the wrapper of the quick start."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from diffusers import LLaDA2Pipeline
from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import mmaccel
from mmaccel import canvas
from mmaccel.canvas import examples
from mmaccel.errors import UnsupportedTargetError
from mmaccel.testing.untrained import untrained

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart" / "canvas.md").read_text(encoding="utf-8")
WIDTH = 32


class Llada(nn.Module):
    """A layer of attention in both directions, without transformers' interface and `position_ids`."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(hidden_size=WIDTH)
        self.embed, self.mixed = nn.Embedding(examples.VOCABULARY, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, examples.VOCABULARY)

    @property
    def device(self):
        return self.head.weight.device

    def forward(self, input_ids, attention_mask=None):
        places = torch.arange(input_ids.shape[1])[:, None] / torch.arange(1, WIDTH + 1)
        hidden = self.embed(input_ids) + places.sin()
        query, key, value = self.mixed(hidden).chunk(3, -1)
        mask = None if attention_mask is None else attention_mask.bool()[:, None]
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return SimpleNamespace(logits=self.head(hidden + mixed))


@pytest.fixture
def pipe():
    blocks = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    (code,) = [block.partition("\n\n\nown =")[0] for block in blocks if "class Placeless" in block]
    names = {"torch": torch, "__name__": __name__}
    exec(code, names)
    return examples.pipeline(names["Placeless"](untrained(Llada, 0, examples.SCALE)))


@pytest.mark.parametrize("method", (canvas.FactorCommit(10.0), canvas.FreeDave(), canvas.LocalLeap(0.1, 0.05)), ids=str)
def test_rules_and_verifiers_work_in_the_wrapper(pipe, method):
    assert isinstance(pipe, LLaDA2Pipeline)
    plain = pipe(**examples.arguments(2)).sequences
    with mmaccel.accelerate(pipe, method) as fast:
        found = fast(**examples.arguments(2)).sequences
        assert fast.report.engaged and found.shape == plain.shape
    assert not method.exact or torch.equal(found, plain)
    assert torch.equal(pipe(**examples.arguments(2)).sequences, plain)


@pytest.mark.parametrize("method", (canvas.PrefixCache(), canvas.IntervalCache(), canvas.WindowDiffusion()), ids=str)
def test_caches_are_refused_as_the_page_says(pipe, method):
    with pytest.raises(UnsupportedTargetError, match="does not use transformers' attention interface"):
        mmaccel.accelerate(pipe, method)
    assert f"`{type(method).__name__}`" in PAGE.partition("Rules and verifiers work;")[2][:90]


class Layer(nn.Module):
    layer_idx, config = 0, PreTrainedConfig()

    def attend(self):
        """Never called."""
        return ALL_ATTENTION_FUNCTIONS


class Sdar(nn.Module):
    """A layer of attention by itself, which names transformers' table of attention functions and does not ask it."""

    def __init__(self):
        super().__init__()
        self.inner, self.layer, self.device = Llada(), Layer(), torch.device("cpu")

    def forward(self, input_ids, attention_mask=None, position_ids=None):
        return self.inner(input_ids, attention_mask)


@pytest.mark.parametrize("method", (canvas.PrefixCache(), canvas.IntervalCache(), canvas.WindowDiffusion()), ids=str)
def test_a_cache_that_nothing_reaches_says_so_in_its_first_pass(method):
    pipe = examples.pipeline(untrained(Sdar, 0, examples.SCALE))
    plain = pipe(**examples.arguments(2)).sequences
    with (
        mmaccel.accelerate(pipe, method) as fast,
        pytest.raises(UnsupportedTargetError, match="does not use transformers' attention interface"),
    ):
        fast(**examples.arguments(2))
    assert torch.equal(pipe(**examples.arguments(2)).sequences, plain)


@pytest.mark.parametrize("method", (canvas.PrefixCache(), canvas.WindowDiffusion()), ids=str)
def test_a_first_block_with_nothing_before_it_is_no_such_case(method):
    pipe, arguments = examples.block_causal()
    with mmaccel.accelerate(pipe, method) as fast:
        fast(**arguments(length=examples.BLOCK - 3))
        assert fast.report.engaged


def test_the_model_itself_is_refused_with_what_the_wrapper_does():
    with pytest.raises(UnsupportedTargetError, match="takes no position_ids.*leaves position_ids out"):
        mmaccel.accelerate(examples.pipeline(untrained(Llada, 0)), canvas.FactorCommit())


def test_one_block_over_prompt_and_answer_shows_all_masks(pipe):
    seen = []
    pipe.model.register_forward_pre_hook(lambda module, given: seen.append(given[0].clone()))
    pipe(**examples.arguments(1, gen_length=11), block_length=examples.LENGTH + 11)
    assert seen[0].shape[1] == examples.LENGTH + 11 and (seen[0] == examples.MASK).sum() == 11
    seen.clear()
    pipe(**examples.arguments(1, gen_length=11))
    assert (seen[0] == examples.MASK).sum() < 11
