"""How long until a speech generator is heard: generate and decode, against frames that sound as they come.

    python -m mmaccel.demos.speech.first_sound --output docs/benchmarks/long/speech_first_sound

No small CSM is trained, and its codes say nothing: the weights are random, sizes are between a toy's and CSM-1B's, and
the codec is Mimi at its full size. What is measured is time, and that codes and sound are equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.speech.codec.depth_decoding import DepthDecoding
from mmaccel.speech.codec.first_byte_meter import FirstByteMeter
from mmaccel.speech.codec.growing_blocks import growing_blocks
from mmaccel.speech.codec.streaming_speech import StreamingSpeech
from mmaccel.speech.examples import audible
from mmaccel.testing.untrained import untrained

FRAMES = 25  # 80 ms each
ROUNDS = 5
TIMES = ("cpu_seconds", "first_sound", "gap_seconds")
LAYERS = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
SIZES: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 2048, "text_vocab_size": 1000, **LAYERS}
DEPTH: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "backbone_hidden_size": 512, **LAYERS}
MARKS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "audio_token_id": 998, "audio_eos_token_id": 999}
CODES = 2048  # of Mimi; CSM has three marks beside them, which an untrained one would draw
CLOSE = 1e-5  # of the loudest sample
INTRO = """
Time to the first sound of a `CsmForConditionalGeneration`, in processor seconds, since others used the
machine too; by `python -m mmaccel.demos.speech.first_sound`. {frames} frames of 80 ms, {seconds:g} s of sound, sampled
from one random state, the median of {rounds} rounds of all ways. **The weights are random**, since no small CSM is
trained: this says nothing about how speech sounds, only when. {millions:.0f} million weights, of which Mimi has
{codec:.0f}, with 32 codebooks as CSM-1B. *Plain* generates all, then decodes it; *codes alone* are generated without a
sound. Codes are equal token for token{close}. The rows are in [speech_first_sound.json](speech_first_sound.json).
"""


def model() -> Any:
    """A CSM of middle size with random weights."""
    from transformers import CsmConfig, CsmForConditionalGeneration, MimiConfig

    depth, codec = {**DEPTH, "vocab_size": CODES, "num_codebooks": 32}, MimiConfig(num_quantizers=32).to_dict()
    config = CsmConfig(
        **SIZES, **MARKS, vocab_size=CODES, codebook_pad_token_id=1, codec_config=codec, depth_decoder_config=depth
    )
    built = untrained(lambda: CsmForConditionalGeneration(config).requires_grad_(False))
    audible(built.codec_model).decode(torch.zeros(1, 32, 1, dtype=torch.long))
    return built


def rows(csm: Any, frames: int, rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """The median row of each way, of several rounds of all of them."""
    measured = [list(_round(csm, frames)) for _ in tqdm(range(rounds), unit="round")]
    yield from map(_median, zip(*measured, strict=True))


def _median(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of several of one way; refused if one of them was."""
    refused = next((row for row in found if row.get("refused")), None)
    if refused is not None:
        return refused
    worst = {"error": max(row["error"] for row in found)} if "error" in found[0] else {}
    times = {name: results.median(row[name] for row in found) for name in TIMES if name in found[0]}
    return {**found[0], **times, **worst}


def _round(csm: Any, frames: int) -> Iterator[dict[str, Any]]:
    """Plain, then streams: of one frame at a time, and of growing blocks."""
    ids = torch.arange(2, 22)[None]
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": frames,
        "do_sample": True,
    }
    inputs["depth_decoder_do_sample"] = True
    voice = StreamingSpeech(csm)
    list(voice.stream(**{**inputs, "max_new_tokens": 2}))  # warm up
    voice.meter = FirstByteMeter(voice.sample_rate, time.process_time)
    codes, alone = _generated(csm, inputs)
    yield _row("codes alone, plain", alone)
    with ExitStack() as stack:
        DepthDecoding(csm.depth_decoder).attach(stack)
        other, seconds = _generated(csm, inputs)
    yield _row("codes alone, depth decoder prepared once", seconds, refused=_differs(codes, other))
    began = time.process_time()
    whole = csm.codec_model.decode(codes.transpose(1, 2)).audio_values
    plain = alone + time.process_time() - began
    yield _row("plain", plain, first_sound=plain, gap_seconds=0.0)
    for name, blocks in (("stream, one frame at a time", [1] * frames), ("stream, growing blocks", growing_blocks())):
        torch.manual_seed(0)
        heard = torch.cat(list(voice.stream(blocks, **inputs)), -1)
        error = float((heard - whole).abs().max() / whole.abs().max())
        told = {"first_sound": voice.meter.first_byte, "gap_seconds": voice.meter.gap_seconds, "error": error}
        refused = _differs(codes, voice.generated) or ("" if error <= CLOSE else f"sound differs by {error:.1e}")
        yield _row(name, voice.meter.blocks[-1].ready, refused=refused, **told)


def _generated(csm: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, float]:
    torch.manual_seed(0)
    began = time.process_time()
    codes = csm.generate(**inputs)
    return codes, time.process_time() - began


def _differs(codes: torch.Tensor, other: torch.Tensor) -> str:
    return "" if torch.equal(codes, other) else "codes differ"


def _row(way: str, seconds: float, refused: str = "", **more: Any) -> dict[str, Any]:
    return {"way": way, "refused": refused} if refused else {"way": way, "cpu_seconds": seconds, **more}


def page(result: dict[str, Any]) -> str:
    """The page of a result."""
    errors = [row["error"] for row in result["rows"] if "error" in row]
    close = f", sound to {max(errors):.0e} of the loudest sample" if errors else ""
    headings = ("way", "first sound, s", "all of it, s", "gaps, s")
    lines = [
        [
            row["way"],
            row.get("refused") or _cell(row, "first_sound"),
            _cell(row, "cpu_seconds"),
            _cell(row, "gap_seconds"),
        ]
        for row in result["rows"]
    ]
    about = {
        "frames": result["frames"],
        "rounds": result["rounds"],
        "seconds": 0.08 * result["frames"],
        **result["millions"],
    }
    intro = INTRO.format(close=close, **about)
    return pages.page(result, "Time to the first sound", intro, {"Until it is heard": pages.markdown(headings, lines)})


def _cell(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.2f}" if name in row else ""


def measure() -> dict[str, Any]:
    """Every way, and the sizes of the parts of the model."""
    csm = model()
    counts = {"millions": csm, "codec": csm.codec_model}
    result = results.result(rows(csm, FRAMES))
    result["frames"], result["rounds"] = FRAMES, ROUNDS
    result["millions"] = {name: sum(p.numel() for p in one.parameters()) / 1e6 for name, one in counts.items()}
    return result


if __name__ == "__main__":
    pages.run(__doc__, page, measure)
