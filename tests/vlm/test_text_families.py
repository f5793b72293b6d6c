"""Every causal language model: what `docs/text_families.json` says of it is so."""

import json

import pytest
from newer_classes import exists
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as MAPPING

from mmaccel.demos.families.text_models import UNTRIED, rows
from mmaccel.demos.families.text_table import DRAFTS, TARGET, count_drafted, tried

TABLE = json.loads(TARGET.read_text(encoding="utf-8"))
# Attention of its own, in its own way, with a state, and of transformers' table.
RUN = ("RoFormerForCausalLM", "BigBirdPegasusForCausalLM", "Lfm2ForCausalLM", "LlamaForCausalLM")


def test_the_table_names_every_causal_language_model_of_transformers():
    named = {name for names in MAPPING.values() for name in ((names,) if isinstance(names, str) else names)}
    assert set(TABLE) == set(rows()) and not set(TABLE) & set(UNTRIED)
    assert named - set(TABLE) - set(UNTRIED) == set()
    assert all(map(exists, (*TABLE, *UNTRIED)))


def test_nothing_that_runs_writes_another_text():
    assert count_drafted(TABLE) >= 140
    for name, row in TABLE.items():
        assert row["clean"] and all(row["equal"].values()), name
        assert "one" in row or len(row["equal"]) + len(row["refused"]) == 10, name
        drafted = [method.name.removeprefix("vlm.") in row["equal"] for method in DRAFTS]
        assert all(drafted) or not any(drafted), name


@pytest.mark.parametrize("name", RUN)
def test_what_the_table_says_is_so(name):
    assert tried(name) == TABLE[name]
