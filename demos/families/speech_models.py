"""Small models of transformers' speech recognisers, with their processors.

`speech_models.json` has a line for each class: the sizes of its configuration, and its feature extractor.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from mmaccel.testing.untrained import untrained

SOURCE = Path(__file__).with_name("speech_models.json")
LETTERS = "etaoinshrdlucmfwypvbgkq"  # with blank and word boundary the vocabulary of CTC
BLANK, BETWEEN = 0, 1
WORDS = 60


@functools.cache
def rows() -> dict[str, Any]:
    """The line of every class, by name."""
    found: dict[str, Any] = json.loads(SOURCE.read_text(encoding="utf-8"))
    return found


def build(name: str, seed: int = 0) -> tuple[Any, Any]:
    """A small untrained model of a class, and what prepares its audio and reads its tokens."""
    row = rows()[name]
    model = untrained(functools.partial(_made, name, row["config"]), seed)
    with torch.no_grad():
        _KINDS[row["kind"]](model, row)
    return model, processor(row)


def _made(name: str, sizes: dict[str, Any]) -> Any:
    cls = getattr(transformers, name)
    return cls(cls.config_class(**sizes))


def processor(row: dict[str, Any]) -> Any:
    """A feature extractor and a tokenizer, as far as adapters use a processor."""
    extractor = getattr(transformers, row["extractor"])(**row.get("features", {}))
    return Processor(extractor, letters() if row["kind"] == "ctc" else words())


class Processor:
    """What adapters use of a processor."""

    def __init__(self, feature_extractor: Any, tokenizer: Any) -> None:
        self.feature_extractor, self.tokenizer = feature_extractor, tokenizer


def letters() -> Any:
    """The tokenizer of Wav2Vec2 for letters, blank first."""
    import tempfile

    names = {token: number for number, token in enumerate(["<pad>", "|", *LETTERS])}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vocab.json"
        file.write_text(json.dumps(names))
        return transformers.Wav2Vec2CTCTokenizer(str(file), unk_token="|", bos_token=None, eos_token=None)


def words() -> PreTrainedTokenizerFast:
    """Tokens that are words of their own, `w3`, but for every fourth, which goes on with the word before."""
    from tokenizers import Tokenizer, decoders, models

    names = [f"w{number}" if number % 4 == 0 else f"▁w{number}" for number in range(WORDS)]
    inner = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="w0"))
    inner.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def _speak(head: torch.nn.Module, blank: int, favour: float) -> None:
    """Weights that say something else at every other sound, and a bias for silence."""
    head.weight.normal_(0.0, 8.0 * head.weight[0].numel() ** -0.5)
    head.bias.zero_()
    head.bias[blank] = favour


def _ctc(model: Any, row: dict[str, Any]) -> None:
    head = model.ctc_head if hasattr(model, "ctc_head") else model.lm_head
    if hasattr(model, "ctc_head"):
        _loud(model.encoder)
    _speak(head, model.config.pad_token_id, row.get("favour", 4.0))


def _loud(module: torch.nn.Module, scale: float = 1.5) -> None:
    """Weights outside of the layers so large that sounds differ behind them."""
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1 and "layers." not in name:
            parameter.normal_(0.0, scale * parameter[0].numel() ** -0.5)


def _transducer(model: Any, row: dict[str, Any]) -> None:
    for part in (model.encoder, model.encoder_projector):
        _loud(part)
    for part in (model.decoder, model.joint):
        _loud(part, 3.0)
    model.decoder.embedding.weight.normal_(0.0, 3.0)
    model.joint.head.bias[model.config.blank_token_id] += row.get("favour", 9.0)
    model.generation_config.decoder_start_token_id = model.config.blank_token_id


_KINDS: dict[str, Callable[[Any, dict[str, Any]], None]] = {"ctc": _ctc, "transducer": _transducer}
