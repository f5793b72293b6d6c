"""Compressed caches beside those of kvpress, whose presses are stood for by two of the same shape."""

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from mmaccel.cache.argument import cache_of
from mmaccel.comparison import results
from mmaccel.demos.vlm import compressed_caches, kvpress_rival
from mmaccel.errors import SettingError
from mmaccel.vlm.bench import language_tasks
from mmaccel.vlm.bench.language_tasks import Needle

LENGTH, NEW = 24, 5


class Last:
    """Keeps the last tokens of a cache, as a press does."""

    def __init__(self, kept):
        self.kept = kept

    def post_init_from_model(self, model):
        self.model = model

    def forward_hook(self, layer, given, named, output):
        assert layer.rotary_emb is self.model.model.rotary_emb and named["hidden_states"].shape[1] == LENGTH
        of_layer = cache_of(named).layers[layer.layer_idx]
        of_layer.keys, of_layer.values = of_layer.keys[:, :, -self.kept :], of_layer.values[:, :, -self.kept :]
        return output


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, **sizes)).eval()


def tokens(count):
    return [(7 * place + 3) % 50 for place in range(count)]


def test_a_press_works_on_a_copy_of_what_was_computed_once(model):
    prompt, following = tokens(LENGTH), tokens(LENGTH + NEW)[LENGTH:]
    tasks = {"texts": [[prompt, following]], "needles": [prompt], "answer": NEW}
    found = [*kvpress_rival.found(model, {"all": Last(LENGTH), "few": Last(3), "again": Last(LENGTH)}, tasks)]
    assert [(row["way"], "loss" in row) for row in found] == [
        (way, is_text) for is_text in (True, False) for way in ("all", "few", "again")
    ]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + following])).logits[0, LENGTH - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(following))
    assert found[0]["loss"] == found[2]["loss"] == pytest.approx(float(expected), abs=1e-5)
    assert found[1]["loss"] != pytest.approx(float(expected), abs=1e-5)
    answer = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
    assert found[3]["tokens"] == answer[0, LENGTH:].tolist() == found[5]["tokens"]


def test_it_imports_nothing_of_ours():
    """The Python that runs it has no mmaccel."""
    nodes = [*ast.walk(ast.parse(Path(kvpress_rival.__file__).read_text(encoding="utf-8")))]
    imported = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    imported |= {"." * node.level + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)}
    assert "torch" in imported and not [name for name in imported if name.startswith((".", "mmaccel"))]


def test_all_presses_drop_the_same_share():
    made = kvpress_rival.presses(PRESSES, 0.9)
    assert made.pop("plain").compression_ratio == 0.0 and len(made) == 11
    ada = [made.pop(name) for name in [*made] if name.startswith("AdaKVPress")]
    assert {press.compression_ratio for press in made.values()} == {press.press.compression_ratio for press in ada}


class Presses:
    """Any press, by name."""

    def AdaKVPress(self, press):  # noqa: N802  (a name of kvpress)
        return SimpleNamespace(press=press)

    def __getattr__(self, name):
        return lambda compression_ratio: SimpleNamespace(name=name, compression_ratio=compression_ratio)


PRESSES = Presses()


def needle(number="123"):
    return Needle(torch.tensor([tokens(LENGTH)]), number, "prose", 0.5)


def texts():
    return [(torch.tensor([tokens(LENGTH)]), torch.tensor(tokens(NEW)))]


def test_ours_and_theirs_are_on_one_page(model, tmp_path, monkeypatch):
    rival = tmp_path / "rival.py"
    rival.write_text(
        "import json, sys\n"
        "tasks = json.load(sys.stdin)\n"
        f"assert len(tasks['texts'][0][0]) == len(tasks['needles'][0]) == {LENGTH} and tasks['keep'] == 0.1\n"
        "for way, loss, said in (('plain', 1.0, [1]), ('KnormPress', 1.5, [2])):\n"
        "    print(json.dumps({'way': way, 'text': 0, 'loss': loss}))\n"
        "    print(json.dumps({'way': way, 'needle': 0, 'tokens': said}))\n"
    )
    monkeypatch.setattr(kvpress_rival, "__file__", str(rival))
    monkeypatch.setattr(language_tasks, "weights", lambda: {"folder": "here", "file": "that"})
    tokenizer = SimpleNamespace(decode=lambda said: " 123." if list(said) == [1] else " 45")
    rows = [*compressed_caches.ours(model, tokenizer, texts(), [needle()])]
    assert [row["way"] for row in rows] == [way for way in compressed_caches.WAYS for _ in range(2)]
    rival = compressed_caches.start(sys.executable, texts(), [needle()])
    rows += compressed_caches.theirs(rival, tokenizer, [needle()])
    more = {"model": "tiny", "length": LENGTH, "needle_length": LENGTH, "keep": 0.1, "new": NEW}
    page = compressed_caches.page(json.loads(json.dumps({**results.result(rows), **more})))
    assert "| kvpress | plain | 1.000 | +0.000 | +0.000 (prose) | 1 of 1 |" in page
    assert "| kvpress | KnormPress | 1.500 | +0.500 | +0.500 (prose) | 0 of 1 |" in page
    assert "| mmaccel | vlm.CompressKV(budget=0.1) |" in page


def test_an_environment_without_it_says_so(monkeypatch, tmp_path):
    (tmp_path / "rival.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(kvpress_rival, "__file__", str(tmp_path / "rival.py"))
    monkeypatch.setattr(language_tasks, "weights", dict)
    with pytest.raises(SettingError, match="MMACCEL_KVPRESS names ended with 3: it needs kvpress and gguf"):
        [*compressed_caches.theirs(compressed_caches.start(sys.executable, texts(), []), None, [])]
