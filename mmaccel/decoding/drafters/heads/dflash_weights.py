"""DFlash's draft models as they are published: what a folder or a repository says of one, and its weights."""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from mmaccel.errors import UnsupportedTargetError, WeightsError

from .dflash_head import DFlashHead, Sees, layers_read
from .published import is_close, made, plain_rotary, require_fit, told_of, weights_of

KINDS: dict[str, type[PretrainedConfig]] = {  # for what a configuration leaves out; the layers are all Qwen3's
    "qwen3": Qwen3Config,
    "llama": LlamaConfig,
    "muse_glimmer_assistant": Qwen3Config,  # as transformers calls its own
}
FULL, SLIDING = "full_attention", "sliding_attention"
OWN_WINDOWS = ("muse_glimmer_assistant",)  # kinds that need not say that they have windows, and hide nothing in them
BLOCK = 16  # tokens, where a checkpoint does not say
OTHERS = (  # settings of what grew out of DFlash, as DFlash 2 and Domino, by which guesses are made otherwise
    "projector_type", "selector_rank", "conv_kernel_size", "markov_rank", "attention_sink_bias",
    "attention_value_scale", "attention_mode",
)  # fmt: skip
USUAL = ("none", "false", "0", "dflash", "gqa", "mha")  # what plain DFlash may say in their place
REPLACED = (  # of the configuration of the layers, which is told otherwise, or is of its file
    "architectures", "auto_map", "dflash_config", "model_type", "torch_dtype", "dtype", "_attn_implementation",
    "is_causal",
)  # fmt: skip
RENAMED = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}


def load_dflash(path: str, model: Any) -> DFlashHead:
    """The draft model in a folder or a repository, for a model that is loaded, on its device and in its type.

    Raises
    ------
    WeightsError
        If it cannot be had, or is no DFlash draft model in safetensors.
    UnsupportedTargetError
        If it was trained for a model of other sizes or another vocabulary.
    """
    config = configuration(path, model)
    weights = {_renamed(name): value for name, value in weights_of(path).items()}
    return made(path, lambda: DFlashHead(config), weights, model)


def configuration(path: str, model: Any) -> PretrainedConfig:
    """What a draft model says of itself, checked against the model."""
    told = told_of(path)
    layer, theirs = told.get("transformer_layer_config", told), model.config.get_text_config(decoder=True)
    told = {**told, **(told.get("dflash_config") or {})}
    kind = layer.get("model_type", "qwen3")
    _require_dflash(path, told, kind)
    size, vocabulary = (
        told.get("target_hidden_size") or layer["hidden_size"],
        layer.get("vocab_size", theirs.vocab_size),
    )
    reads = _layers(told, layer, len(model.get_decoder().layers))
    require_fit(path, model, size, reads)
    if not is_close(vocabulary, theirs.vocab_size):
        raise UnsupportedTargetError(
            f"{path} was trained for a model of {vocabulary} tokens, {type(model).__name__} has {theirs.vocab_size}:"
            " give the draft model that was trained for this model"
        )
    if not 0 <= told["mask_token_id"] < vocabulary:
        raise WeightsError(f"{path}/config.json says token {told['mask_token_id']} is the mask, of {vocabulary} tokens")
    given: dict[str, Any] = {
        "attention_bias": False,
        "use_sliding_window": kind in OWN_WINDOWS,
        **{name: value for name, value in layer.items() if name not in REPLACED},
        **plain_rotary(layer),
        "attn_implementation": "sdpa",
        "target_hidden_size": size,
        "draft_vocab_size": told.get("draft_vocab_size") or vocabulary,
        "layers_read": reads,
        "block": told.get("block_size") or BLOCK,
        "mask_token": told["mask_token_id"],
        "from_anchor": bool(told.get("sample_from_anchor") or told.get("shift_label")),
        "embedding_scale": _embedding_scale(told, model),
        "logit_scale": told.get("output_multiplier", getattr(theirs, "output_multiplier", 1.0)),
        "softcap": told.get("final_logit_softcapping", getattr(theirs, "final_logit_softcapping", None)) or None,
    }
    config: Any = KINDS[kind](**given)
    config.sees = _sees(path, told, kind, config)
    return config


def _require_dflash(path: str, told: dict[str, Any], kind: str) -> None:
    """Refuse what is no draft model of DFlash, or one of unknown layers."""
    algorithm, mask = told.get("speculators_model_type", "dflash"), told.get("mask_token_id")
    other = next((name for name in OTHERS if str(told.get(name)).lower() not in USUAL), None)
    if told.get("is_neox_style") is False:
        other = "is_neox_style false"
    if algorithm != "dflash" or other is not None or not isinstance(mask, int):
        what = f"of {algorithm}" if algorithm != "dflash" else f"with {other}" if other else "without a mask_token_id"
        raise WeightsError(f"{path}/config.json is of no DFlash draft model, but of one {what}: give one of DFlash")
    if kind not in KINDS:
        raise WeightsError(f"{path} has layers of {kind}, and only those of {', '.join(KINDS)} are known")


def _layers(told: dict[str, Any], layer: dict[str, Any], count: int) -> tuple[int, ...]:
    """Numbers of the layers whose inputs are read: z-lab counts those that put them out, speculators as it is here."""
    if told.get("aux_hidden_state_layer_ids"):
        return tuple(told["aux_hidden_state_layer_ids"])
    after = told.get("target_layer_ids")
    return tuple(number + 1 for number in after) if after else layers_read(count, layer["num_hidden_layers"])


def _sees(path: str, told: dict[str, Any], kind: str, config: Any) -> list[Sees]:
    """What each layer sees: the window of tokens, None for all, and whether later ones of a block are hidden."""
    count = config.num_hidden_layers
    kinds = list(getattr(config, "layer_types", None) or [FULL] * count)
    if told.get("use_swa") and SLIDING not in kinds:
        kinds = [SLIDING] * count
    if not {FULL, SLIDING}.issuperset(kinds) or len(kinds) != count:
        raise WeightsError(f"{path} has {count} layers of {', '.join(sorted(set(kinds)))}, which are not known")
    window = told.get("swa_window_size") or getattr(config, "sliding_window", None)
    if window and kind in OWN_WINDOWS:
        window += 1  # transformers counts the tokens on each side
    own = kind not in OWN_WINDOWS and not told.get("use_swa") and not told.get("sliding_window_non_causal")
    causal = told.get("causal", told.get("is_causal"))
    slides = [each == SLIDING for each in kinds]
    return [(window if each else None, (each and own) if causal is None else bool(causal)) for each in slides]


def _embedding_scale(told: dict[str, Any], model: Any) -> float:
    """What embeddings are multiplied with: as the model does it itself, but in speculators, which reads the matrix."""
    theirs = 1.0 if "transformer_layer_config" in told else getattr(model.get_input_embeddings(), "embed_scale", 1.0)
    return float(theirs) * float(told.get("input_embedding_scale", 1.0))


def _renamed(name: str) -> str:
    name = name.removeprefix("model.")
    return next((own + name.removeprefix(old) for old, own in RENAMED.items() if name.startswith(old)), name)
