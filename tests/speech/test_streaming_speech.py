"""Speech that sounds while it is generated is what generating all, then decoding it, gives."""

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload
from tiny_codec import TINY, same
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    GenerationConfig,
    GradiumPhononTTSForConditionalGeneration,
    LlamaForCausalLM,
    MimiConfig,
    MoshiConfig,
    MoshiForConditionalGeneration,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSForConditionalGeneration,
)

import mmaccel
from mmaccel import vlm
from mmaccel.cache.argument import cache_of
from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.speech.codec import spoken_stream
from mmaccel.speech.codec.streaming_speech import StreamingSpeech
from mmaccel.speech.examples import audible
from mmaccel.testing.contract import snapshot
from mmaccel.vlm import examples

CODES, CODEBOOKS, FRAMES = 64, 4, 6
CODED = ("codebook_size", "codebook_dim", "vector_quantization_hidden_dimension", "num_quantizers")


def build():
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    depth = {"num_codebooks": CODEBOOKS, "vocab_size": CODES, "hidden_size": 24, "backbone_hidden_size": 32, **heads}
    config = CsmConfig(
        num_codebooks=CODEBOOKS,
        vocab_size=CODES,
        text_vocab_size=50,
        hidden_size=32,
        **heads,
        depth_decoder_config=depth,
        codec_config=MimiConfig(**TINY).to_dict(),
        codebook_pad_token_id=CODES - 1,
        codebook_eos_token_id=0,
        pad_token_id=0,
        bos_token_id=1,
        audio_token_id=48,
        audio_eos_token_id=49,
    )
    torch.manual_seed(0)
    model = CsmForConditionalGeneration(config).eval().requires_grad_(False)
    return sharpened(model, model.codec_model)


def sharpened(model, codec):
    """A model whose codes differ, and their sound."""
    within = {id(parameter) for parameter in codec.parameters()}
    for parameter in model.parameters():
        if parameter.ndim >= 2 and id(parameter) not in within:
            parameter.data.normal_(0, 0.3)
    audible(codec).decode(torch.zeros(1, CODEBOOKS, 1, dtype=torch.long))  # keeps its codebooks from now on
    return model


@pytest.fixture(scope="module")
def csm():
    return build()


def arguments(batch=1, **more):
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 7, 6]])[:batch]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": FRAMES, **more}


SETTINGS = {
    "greedy": {"do_sample": False, "depth_decoder_do_sample": False},
    "sampled": {"do_sample": True, "depth_decoder_do_sample": True, "depth_decoder_temperature": 0.9, "top_k": 20},
}


@pytest.mark.parametrize("batch", (1, 2))
@pytest.mark.parametrize("way", SETTINGS)
def test_codes_and_sound_are_those_of_generate(csm, way, batch):
    inputs, voice = arguments(batch, **SETTINGS[way]), StreamingSpeech(csm)
    csm.generate(**inputs)  # leaves the depth decoder's settings, as CSM does
    before = snapshot(csm)
    torch.manual_seed(3)
    codes, state = csm.generate(**inputs), torch.get_rng_state()
    whole = csm.codec_model.decode(codes.transpose(1, 2)).audio_values
    torch.manual_seed(3)
    blocks = list(voice.stream(**inputs))
    assert torch.equal(voice.generated, codes) and torch.equal(torch.get_rng_state(), state)
    assert len(codes.unique()) > 5 and [audio.shape[-1] // 1920 for audio in blocks] == [1, 2, 3]
    assert same(torch.cat(blocks, -1), whole)
    assert snapshot(csm) == before and voice.meter.first_byte < voice.meter.blocks[-1].ready


def test_a_row_that_ends_is_silent_and_the_other_goes_on(csm, monkeypatch):
    """The second row is made to end at its third frame."""
    voice, inputs = StreamingSpeech(csm), arguments(2, **SETTINGS["greedy"])
    frames = []
    for audio in voice.stream(blocks=[1] * 9, **inputs):
        frames.append(audio)
        if len(frames) == 2:
            break
    assert len(frames) == 2
    eos = csm.config.codebook_eos_token_id
    codes = csm.generate(**inputs)
    ended = codes.clone()
    ended[1, 2:] = eos
    monkeypatch.setattr(
        csm, "generate", lambda streamer, **_: [streamer.put(row) for row in told(inputs, ended)] and ended
    )
    heard = torch.cat(list(voice.stream(**inputs)), -1)
    assert same(heard[:1], csm.codec_model.decode(codes[:1].transpose(1, 2)).audio_values)
    assert same(heard[1:, :, : 2 * 1920], csm.codec_model.decode(codes[1:, :2].transpose(1, 2)).audio_values)


def test_autocast_of_who_asks_holds(csm):
    seen, voice = [], StreamingSpeech(csm)
    handle = csm.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        list(voice.stream(**arguments(**SETTINGS["greedy"])))
    list(voice.stream(**arguments(**SETTINGS["greedy"])))
    handle.remove()
    assert seen[:FRAMES] == [torch.bfloat16] * FRAMES and seen[FRAMES:] == [torch.float32] * FRAMES


def told(inputs, codes):
    return [inputs["input_ids"], *codes.unbind(1)]


def test_who_leaves_ends_the_work(csm):
    voice, before = StreamingSpeech(csm), snapshot(csm)
    stream = voice.stream(**arguments(max_new_tokens=200, **SETTINGS["greedy"]))
    next(stream)
    for one in (voice, StreamingSpeech(csm)):
        with pytest.raises(MmaccelError, match="speaks already"):
            next(one.stream(**arguments()))
    stream.close()
    assert snapshot(csm) == before
    assert not any(thread.name == "mmaccel speech out" for thread in threading.enumerate())
    assert len(list(voice.stream(**arguments(**SETTINGS["greedy"])))) == 3


def test_a_thread_that_cannot_start_leaves_the_next_its_turn(csm, monkeypatch):
    def refused(_):
        raise RuntimeError("can't start new thread")

    voice = StreamingSpeech(csm)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            next(voice.stream(**arguments()))
    assert len(list(voice.stream(**arguments(**SETTINGS["greedy"])))) == 3


def test_an_error_within_is_raised_and_leaves_nothing(csm):
    voice, before = StreamingSpeech(csm), snapshot(csm)
    with pytest.raises(ValueError, match="nonsense"):
        list(voice.stream(**arguments(nonsense=1)))
    assert snapshot(csm) == before


def test_a_stream_is_closed_from_another_thread(csm):
    stream = StreamingSpeech(csm).stream(**arguments(max_new_tokens=2000, **SETTINGS["greedy"]))
    next(stream)
    threading.Timer(0.2, stream.close).start()
    assert len(list(stream)) < 250 and list(stream) == []
    assert len(list(StreamingSpeech(csm).stream(**arguments(**SETTINGS["greedy"])))) == 3


def test_two_threads_may_ask_for_the_first_block(csm):
    stream = StreamingSpeech(csm).stream([1] * FRAMES, **arguments(**SETTINGS["greedy"]))
    with ThreadPoolExecutor(2) as threads:
        blocks = [one for found in threads.map(lambda _: list(stream), range(2)) for one in found]
    assert len(blocks) == FRAMES


def test_a_stream_that_the_generating_thread_collects_leaves_the_next_its_turn(csm, monkeypatch):
    voice = StreamingSpeech(csm)
    cycle = [voice.stream(**arguments(max_new_tokens=2000, **SETTINGS["greedy"]))]
    cycle.append(cycle)
    next(cycle[0])
    thread = next(thread for thread in threading.enumerate() if thread.name == "mmaccel speech out")
    monkeypatch.setattr(voice.meter, "add", lambda _: gc.collect())  # called in that thread
    gc.disable()
    try:
        del cycle
        thread.join(20)
    finally:
        gc.enable()
    assert not thread.is_alive()
    monkeypatch.undo()
    assert len(list(voice.stream(**arguments(**SETTINGS["greedy"])))) == 3


def test_python_ends_while_a_stream_is_open():
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from test_streaming_speech import *\n"
        "stream = StreamingSpeech(build()).stream(**arguments(max_new_tokens=5000, **SETTINGS['greedy']))\n"
        "next(stream)\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 7, done.stderr


def test_other_threads_call_the_model_itself_meanwhile(csm):
    inputs = arguments(**SETTINGS["greedy"])
    wanted = csm.generate(**inputs)
    with StreamingSpeech(csm).stream(**arguments(max_new_tokens=2000, **SETTINGS["sampled"])) as stream:
        next(stream)
        assert all(torch.equal(csm.generate(**inputs), wanted) for _ in range(3))


def test_only_a_whole_stream_has_a_result(csm):
    voice = StreamingSpeech(csm)
    list(voice.stream(**arguments(**SETTINGS["greedy"])))
    assert voice.generated is not None
    with voice.stream(**arguments(max_new_tokens=2000, **SETTINGS["greedy"])) as stream:
        next(stream)
    assert voice.generated is None


def test_padding_of_the_depth_decoder_is_masked_as_by_its_own_generate(csm):
    for pad in (0, 5, 62):
        inputs = arguments(depth_decoder_pad_token_id=pad, **SETTINGS["greedy"])
        wanted = csm.generate(**inputs)
        voice = StreamingSpeech(csm)
        list(voice.stream(**inputs))
        assert torch.equal(voice.generated, wanted)


def test_a_cache_that_is_asked_for_is_used_by_its_own_generate():
    model, caches = build(), []
    model.depth_decoder.generation_config.cache_implementation = "static"
    model.depth_decoder.generation_config.disable_compile = True
    model.depth_decoder.model.register_forward_pre_hook(
        lambda module, args, kwargs: caches.append(type(cache_of(kwargs)).__name__), with_kwargs=True
    )
    voice = StreamingSpeech(model)
    list(voice.stream(**arguments(**SETTINGS["greedy"])))
    assert set(caches) == {"StaticCache"}


def test_heads_of_codebooks_may_be_off_loaded_and_the_codec_may_not():
    model, inputs = build(), arguments(**SETTINGS["greedy"])
    wanted = torch.cat(list(StreamingSpeech(model).stream(**inputs)), -1)
    cpu_offload(model.depth_decoder, execution_device=torch.device("cpu"))
    assert torch.equal(torch.cat(list(StreamingSpeech(model).stream(**inputs)), -1), wanted)
    cpu_offload(model.codec_model, execution_device=torch.device("cpu"))
    with pytest.raises(UnsupportedTargetError, match="MimiModel is off-loaded"):
        StreamingSpeech(model)


def test_what_ends_the_generating_thread_reaches_who_listens(csm):
    def leave(*_):
        raise SystemExit(3)

    hook = csm.depth_decoder.register_forward_pre_hook(leave)
    try:
        with pytest.raises(SystemExit):
            list(StreamingSpeech(csm).stream(**arguments(**SETTINGS["greedy"])))
    finally:
        hook.remove()


@pytest.mark.parametrize("blocks", ([-1], [2.5], ["a"], [0]))
def test_blocks_are_whole_numbers_of_frames(csm, blocks):
    with pytest.raises(SettingError, match="such as .1, 2, 4."):
        list(StreamingSpeech(csm).stream(blocks, **arguments(**SETTINGS["greedy"])))


def test_methods_for_text_refuse_what_speaks(csm):
    for model in (csm, pocket()[0], moshi()):
        for method in (vlm.FusedDraft(), vlm.StoredContext()):
            with pytest.raises(UnsupportedTargetError, match=r"in a loop of its own; .* speech.StreamingSpeech is for"):
                mmaccel.accelerate(model, method)


def test_a_class_of_ones_own_with_another_loop_is_a_text_model():
    class Logged(LlamaForCausalLM):
        def _sample(self, *args, **kwargs):
            return super()._sample(*args, **kwargs)

    model, arguments = examples.llama()
    model.__class__ = Logged
    wanted = model.generate(**arguments())
    with mmaccel.accelerate(model, vlm.FusedDraft()) as fast:
        assert torch.equal(fast.generate(**arguments()), wanted)


def test_what_is_refused(csm):
    with pytest.raises(SettingError, match="blocks=4: give the frames of each block"):
        StreamingSpeech(csm).stream(4, **arguments())
    with pytest.raises(SettingError, match="codec=PocketTTSAudioTokenizerModel: CsmFor.* needs a MimiModel"):
        StreamingSpeech(csm, pocket()[1])
    with pytest.raises(UnsupportedTargetError, match="no streaming speech for Linear: give a Csm"):
        StreamingSpeech(torch.nn.Linear(1, 1))
    with pytest.raises(SettingError, match="output_audio=True: the sound"):
        StreamingSpeech(csm).stream(output_audio=True, **arguments())


def pocket(kind=PocketTTSForConditionalGeneration):
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    flow = {
        "hidden_size": 16,
        "condition_dim": 32,
        "latent_dim": 6,
        "num_hidden_layers": 1,
        "frequency_embedding_size": 8,
    }
    sizes = {name: value for name, value in TINY.items() if name not in CODED}
    torch.manual_seed(0)
    model = kind(kind.config_class(hidden_size=32, latent_dim=6, flow_head_config=flow, **heads))
    codec = PocketTTSAudioTokenizerModel(PocketTTSAudioTokenizerConfig(latent_dim=6, encoder_config=None, **sizes))
    for _, parameter in [*model.named_parameters(), *codec.named_parameters()]:
        if parameter.ndim >= 2:
            parameter.data.normal_(0, 0.2)
    return model.eval().requires_grad_(False), codec.eval().requires_grad_(False)


@pytest.mark.parametrize("kind", (PocketTTSForConditionalGeneration, GradiumPhononTTSForConditionalGeneration))
def test_latents_sound_as_they_come(kind):
    model, codec = pocket(kind)
    voice, before = StreamingSpeech(model, codec), snapshot(model)
    ids = torch.tensor([[8, 9, 7, model.config.audio_bos_token_id]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": FRAMES, "do_sample": True}
    inputs |= {"eos_threshold": 1e9, "frames_after_eos": 1}
    torch.manual_seed(3)
    (latents,) = model.generate(**inputs)
    torch.manual_seed(3)
    blocks = list(voice.stream(**inputs))
    assert torch.equal(voice.generated[0], latents) and len(latents) == FRAMES and latents.std() > 0.1
    assert [audio.shape[-1] // codec.config.frame_size for audio in blocks] == [1, 2, 3]
    assert same(torch.cat(blocks, -1), codec.decode(latents[None]).audio_values) and snapshot(model) == before
    with pytest.raises(SettingError, match=f"2 texts: {kind.__name__}"):
        voice.stream(input_ids=ids.repeat(2, 1))
    for setting in (
        {"num_return_sequences": 2},
        {"generation_config": GenerationConfig(do_sample=True, num_return_sequences=2)},
    ):
        with pytest.raises(SettingError, match=f"2 texts: {kind.__name__}"):
            voice.stream(input_ids=ids, **setting)
    torch.manual_seed(3)
    rounded = list(StreamingSpeech(model, codec.to(torch.bfloat16)).stream(**inputs))
    assert rounded[0].dtype == torch.bfloat16 and sum(audio.shape[-1] for audio in rounded) == FRAMES * 1920
    with pytest.raises(SettingError, match="processor.audio_tokenizer"):
        StreamingSpeech(model)
    with pytest.raises(SettingError, match=r"int64 of shape \(1, 6, 1\): push floats"):
        voice.decoder.stream().push(torch.zeros(1, 6, 1, dtype=torch.long))


def moshi():
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48}
    config = MoshiConfig(
        vocab_size=50,
        hidden_size=32,
        audio_vocab_size=CODES,
        num_codebooks=CODEBOOKS,
        audio_encoder_config=MimiConfig(**TINY).to_dict(),
        depth_decoder_config={"hidden_size": 24, **heads},
        **heads,
    )
    torch.manual_seed(0)
    model = MoshiForConditionalGeneration(config).eval().requires_grad_(False)
    return sharpened(model, model.audio_encoder)


def test_moshi_sounds_as_its_codes_come():
    model = moshi()
    voice, heard = StreamingSpeech(model), torch.arange(24).view(2, CODEBOOKS, 3)
    told = {
        "input_ids": torch.tensor([[5, 6, 7], [9, 5, 7]]),
        "user_audio_codes": heard,
        "moshi_audio_codes": 63 - heard,
    }
    for inputs in ({}, told):
        inputs = {"max_new_tokens": FRAMES, "do_sample": True, **inputs}
        torch.manual_seed(3)
        whole, state = model.generate(**inputs, return_audio_codes=True), torch.get_rng_state()
        before, frames = snapshot(model), whole.audio_codes.shape[-1]
        torch.manual_seed(3)
        blocks = list(voice.stream(blocks=[1] * 9, **inputs))
        assert torch.equal(voice.generated.audio_codes, whole.audio_codes) and torch.equal(torch.get_rng_state(), state)
        assert len(blocks) == frames == FRAMES - 1 + ("input_ids" in inputs) * 3
        assert len(whole.audio_codes.unique()) > 9
        assert same(torch.cat(blocks, -1), whole.audio_sequences) and snapshot(model) == before
    for setting in ({"return_audio_waveforms": True}, {"num_beams": 2}):
        with pytest.raises(SettingError, match=f"{next(iter(setting))}=.*leave it out"):
            voice.stream(max_new_tokens=FRAMES, **setting)


@pytest.mark.parametrize(("device", "calls"), (("meta", ["wait", "note"]), ("cpu", ["note"])))
def test_a_block_is_ready_once_its_device_has_made_it(csm, monkeypatch, device, calls):
    done, voice = [], StreamingSpeech(csm)
    monkeypatch.setattr(spoken_stream, "synchronize", lambda: done.append("wait"))
    monkeypatch.setattr(voice.meter, "add", lambda _: done.append("note"))
    stream = voice.stream(**arguments())
    for samples in (0, 1920):
        stream._run._give(torch.zeros(1, 1, samples, device=device))
    assert done == calls and stream._run.ready.qsize() == 1
