"""What tells models apart whose caches must not be mixed up."""

import copy

import pytest
import torch

from mmaccel.cache.model_hash import model_hash
from mmaccel.vlm import examples


@pytest.fixture
def model() -> torch.nn.Module:
    found, _ = examples.llama()
    return found


class ByteLinear(torch.nn.Module):
    """A linear layer whose weights are buffers, as those of GPTQ and AWQ."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.register_buffer("qweight", (linear.weight.detach() * 100).round().to(torch.int8))


def test_a_copy_has_the_same_hash_and_keeps_it(model: torch.nn.Module) -> None:
    assert model_hash(model) == model_hash(model) == model_hash(copy.deepcopy(model))


def test_a_single_row_tells_models_apart(model: torch.nn.Module) -> None:
    before = model_hash(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[17, 3] += 1
    assert model_hash(model) != before


def test_a_merge_into_data_tells_models_apart(model: torch.nn.Module) -> None:
    before = model_hash(model)
    model.lm_head.weight.data.mul_(1.5)
    assert model_hash(model) != before


def test_weights_that_are_buffers_count(model: torch.nn.Module) -> None:
    layer = model.model.layers[0].self_attn
    layer.q_proj = ByteLinear(layer.q_proj)
    before = model_hash(model)
    layer.q_proj.qweight[5, 5] += 1
    assert model_hash(model) != before


def test_packed_weights_count(model: torch.nn.Module) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight.mul_(-1)
    packed = [torch.ao.quantization.quantize_dynamic(each, {torch.nn.Linear}) for each in (model, model, other)]
    first, again, different = (model_hash(each) for each in packed)
    assert first == again != different
