"""EAGLE-3's heads as they are published: what a folder or a repository says of one, and its weights."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from mmaccel.errors import WeightsError

from .eagle_head import KINDS, EagleHead, layers_read
from .published import made, plain_rotary, require_fit, told_of, weights_of

REPLACED = (  # of the configuration of a layer, which is told otherwise, or is of its file
    "architectures", "auto_map", "eagle_config", "model_type", "torch_dtype", "dtype", "_attn_implementation",
    "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
)  # fmt: skip
UNSAID = ("norm_before_residual",)  # switches that are on where a head of speculators does not say, as in vLLM


def load_head(path: str, model: Any) -> EagleHead:
    """The head in a folder or a repository, for a model that is loaded, on its device and in its type.

    Raises
    ------
    WeightsError
        If it cannot be had, or is no EAGLE-3 head in safetensors.
    UnsupportedTargetError
        If it was trained for a model of other sizes.
    """
    config = configuration(path, model)
    weights = {_renamed(name): value for name, value in weights_of(path).items()}
    if "layers.0.hidden_norm.weight" not in weights:
        what = "is of an older head, EAGLE 1 or 2" if "fc.weight" in weights else "is no EAGLE head"
        raise WeightsError(f"{path}/model.safetensors {what}: give an EAGLE-3 head")
    return made(path, lambda: EagleHead(config), weights, model)


def configuration(path: str, model: Any) -> PretrainedConfig:
    """What a head says of itself, checked against the model."""
    told = told_of(path)
    layer = told.get("transformer_layer_config", told)
    kind, target = layer.get("model_type", "llama"), model.config.get_text_config(decoder=True)
    algorithm = told.get("speculators_model_type", "eagle3")
    if algorithm != "eagle3":
        raise WeightsError(f"{path}/config.json is of no EAGLE-3 head, but of {algorithm}: give an EAGLE-3 head")
    if kind not in KINDS:
        raise WeightsError(f"{path} has a layer of {kind}, and only those of {' and '.join(KINDS)} are known")
    size, reads = told.get("target_hidden_size") or layer["hidden_size"], _layers(told, len(model.get_decoder().layers))
    require_fit(path, model, size, reads)
    unsaid = () if layer is told else UNSAID
    given: dict[str, Any] = {
        **{name: value for name, value in layer.items() if name not in REPLACED},
        **{name: bool(told.get(name, name in unsaid)) for name in EagleHead.SWITCHES},
        **plain_rotary(layer),
        "attn_implementation": "sdpa",
        "target_hidden_size": size,
        "draft_vocab_size": told.get("draft_vocab_size") or layer.get("vocab_size", target.vocab_size),
        "layers_read": reads,
        "window": _window(path, layer),
    }
    return KINDS[kind][0](**given)


def _window(path: str, layer: dict[str, Any]) -> int | None:
    """Of tokens that its layers attend to; None for all."""
    kinds = set(layer.get("layer_types") or ())
    if len(kinds) > 1:
        raise WeightsError(f"{path} has layers with a window and without, which are not known: give another head")
    slides = kinds == {"sliding_attention"} if kinds else bool(layer.get("use_sliding_window"))
    window: int | None = layer.get("sliding_window")
    return window if slides else None


def _layers(told: dict[str, Any], count: int) -> tuple[int, ...]:
    """Numbers of the layers whose inputs are read: as vLLM counts them, or, inside `eagle_config`, as SGLang does."""
    name = "eagle_aux_hidden_state_layer_ids"
    if told.get(name):
        return tuple(told[name])
    after = (told.get("eagle_config") or {}).get(name)
    return tuple(number + 1 for number in after) if after else layers_read(count)


def _renamed(name: str) -> str:
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")
