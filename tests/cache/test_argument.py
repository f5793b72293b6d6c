"""The cache among arguments of a model, whose name changed with transformers 5.24."""

from __future__ import annotations

import inspect

import pytest
import torch
from draft_models import mistral
from transformers import DynamicCache, LlamaModel

from mmaccel.cache.argument import CACHE_NAMES, cache_name, cache_of, cached


def test_the_name_is_that_of_models_and_of_generate():
    assert cache_name() in inspect.signature(LlamaModel.forward).parameters
    assert cached(1) == {cache_name(): 1} and cached(1, "encoder_") == {f"encoder_{cache_name()}": 1}


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_a_cache_is_found_by_its_name_of_today_and_of_before(name):
    cache = DynamicCache()  # empty, and as such false
    assert cache_of({"use_cache": True, name: cache}) is cache
    assert cache_of({name: None}) is None


def test_it_is_found_in_the_output_of_a_model():
    model, cache = mistral(), DynamicCache()
    with torch.no_grad():
        output = model(torch.tensor([[1, 2, 3]]), **cached(cache), use_cache=True)
    assert cache_of(output) is cache and cache.get_seq_length() == 3
