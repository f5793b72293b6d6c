"""How long until a speech generator is heard: generate and decode, against frames that sound as they come.

    python -m mmaccel.speech.bench.first_sound --output docs/benchmarks/long/speech_first_sound

No small CSM is trained, and its codes say nothing: the weights are random, sizes are between a toy's and CSM-1B's, and
the codec is Mimi at its full size. What is measured is time, and that codes and sound are equal.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from mmaccel.bench import pages
from mmaccel.comparison import results
from mmaccel.testing.untrained import untrained

from ..codec.first_byte_meter import FirstByteMeter
from ..codec.growing_blocks import growing_blocks
from ..codec.streaming_speech import StreamingSpeech

FRAMES = 25  # 80 ms each
LAYERS = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
SIZES: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 2048, "text_vocab_size": 1000, **LAYERS}
DEPTH: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 1024, "backbone_hidden_size": 512, **LAYERS}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "audio_token_id": 998, "audio_eos_token_id": 999}
CODES = 2048  # of Mimi; CSM has three marks beside them, which an untrained one would draw
CLOSE = 1e-5  # of the loudest sample
INTRO = """
Time to the first sound of a `CsmForConditionalGeneration` on one thread, by `python -m mmaccel.speech.bench.first_sound`:
{frames} frames of 80 ms, sampled from one random state. **The weights are random**, since no small CSM is trained: this
says nothing about how speech sounds, only when. {millions:.0f} million weights, of which Mimi has {codec:.0f}, with 32
codebooks as CSM-1B. *Processor seconds* are those of the run, wall times those of a machine that others used too. *Plain*
generates all, then decodes it. Codes are equal token for token{close}. The rows are in
[speech_first_sound.json](speech_first_sound.json).
"""


def model() -> Any:
    """A CSM of middle size with random weights."""
    from transformers import CsmConfig, CsmForConditionalGeneration, MimiConfig

    codec = MimiConfig(num_quantizers=32).to_dict()
    depth = {**DEPTH, "vocab_size": CODES, "num_codebooks": 32}
    config = CsmConfig(
        **SIZES, **MARKS, vocab_size=CODES, codebook_pad_token_id=1, codec_config=codec, depth_decoder_config=depth
    )
    built = untrained(lambda: CsmForConditionalGeneration(config), 0)
    for module in built.codec_model.modules():
        if hasattr(module, "embed_sum"):  # zeros: every code would sound the same
            module.embed_sum.normal_()
    built.codec_model.decode(torch.zeros(1, 32, 1, dtype=torch.long))
    return built


def rows(csm: Any, frames: int) -> Iterator[dict[str, Any]]:
    """Plain, then streams: of one frame at a time, and of growing blocks."""
    ids = torch.arange(2, 22)[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": frames, "do_sample": True}
    inputs["depth_decoder_do_sample"] = True
    voice = StreamingSpeech(csm)
    list(voice.stream(**{**inputs, "max_new_tokens": 2}))  # warm up
    meter = FirstByteMeter(voice.sample_rate)
    torch.manual_seed(0)
    began = time.process_time()
    codes = csm.generate(**inputs)
    whole = csm.codec_model.decode(codes.transpose(1, 2)).audio_values
    seconds = time.process_time() - began
    meter.add(whole)
    yield _row("plain", seconds, meter, 0.0)
    for name, blocks in (("stream, one frame at a time", [1] * frames), ("stream, growing blocks", growing_blocks())):
        torch.manual_seed(0)
        began = time.process_time()
        heard = torch.cat(list(voice.stream(blocks, **inputs)), -1)
        seconds = time.process_time() - began
        equal = torch.equal(voice.codes, codes) if voice.codes is not None else False
        error = float((heard - whole).abs().max() / whole.abs().max()) if equal else None
        yield _row(name, seconds, voice.meter, error)


def _row(name: str, seconds: float, meter: FirstByteMeter, error: float | None) -> dict[str, Any]:
    if error is None or error > CLOSE:
        return {"way": name, "refused": "codes differ" if error is None else f"sound differs by {error:.1e}"}
    told = {"first_sound": meter.first_byte, "wall_seconds": meter.blocks[-1].ready, "gap_seconds": meter.gap_seconds}
    return {"way": name, "refused": None, "cpu_seconds": seconds, "error": error, **told}


def page(result: dict[str, Any]) -> str:
    """The page of a result."""
    made = result["rows"]
    errors = [row["error"] for row in made if row["refused"] is None]
    close = f", sound to {max(errors):.0e} of the loudest sample"
    lines = [_line(row) for row in made]
    headings = ("way", "first sound, s", "all of it, s", "processor s", "gaps, s")
    intro = INTRO.format(frames=result["frames"], close=close, **result["millions"])
    return pages.page(result, "Time to the first sound", intro, {"": pages.markdown(headings, lines)})


def _line(row: dict[str, Any]) -> list[str]:
    if row["refused"] is not None:
        return [row["way"], row["refused"], "", "", ""]
    return [row["way"], *(f"{row[n]:.2f}" for n in ("first_sound", "wall_seconds", "cpu_seconds", "gap_seconds"))]


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the result and its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="path of the result without .json and .md")
    output: Path = parser.parse_args(argv).output
    torch.set_num_threads(1)
    csm = model()
    counts = {"millions": csm, "codec": csm.codec_model}
    result = results.result(tqdm(rows(csm, FRAMES), unit="row"))
    result["frames"] = FRAMES
    result["millions"] = {name: sum(p.numel() for p in one.parameters()) / 1e6 for name, one in counts.items()}
    output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    output.with_suffix(".md").write_text(page(result))
    tqdm.write(page(result))


if __name__ == "__main__":
    main()
