"""Speech that sounds while it is generated is what generating all, then decoding it, gives."""

import threading

import pytest
import torch
from tiny_codec import TINY, same
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    MimiConfig,
    MoshiConfig,
    MoshiForConditionalGeneration,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSForConditionalGeneration,
)

from mmaccel.errors import MmaccelError, SettingError, UnsupportedTargetError
from mmaccel.speech.codec.streaming_speech import StreamingSpeech
from mmaccel.testing.contract import snapshot

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
    for module in codec.modules():
        if hasattr(module, "embed_sum"):
            module.embed_sum.normal_()
    codec.decode(torch.zeros(1, CODEBOOKS, 1, dtype=torch.long))  # keeps its codebooks from now on
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


def test_what_is_refused(csm):
    with pytest.raises(UnsupportedTargetError, match="no streaming speech for Linear: give a Csm"):
        StreamingSpeech(torch.nn.Linear(1, 1))
    with pytest.raises(SettingError, match="output_audio=True: the sound"):
        StreamingSpeech(csm).stream(output_audio=True, **arguments())


def pocket():
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
    model = PocketTTSForConditionalGeneration(
        PocketTTSConfig(hidden_size=32, latent_dim=6, flow_head_config=flow, **heads)
    )
    codec = PocketTTSAudioTokenizerModel(PocketTTSAudioTokenizerConfig(latent_dim=6, encoder_config=None, **sizes))
    for _, parameter in [*model.named_parameters(), *codec.named_parameters()]:
        if parameter.ndim >= 2:
            parameter.data.normal_(0, 0.2)
    return model.eval().requires_grad_(False), codec.eval().requires_grad_(False)


def test_latents_sound_as_they_come():
    model, codec = pocket()
    voice, before = StreamingSpeech(model, codec), snapshot(model)
    ids = torch.tensor([[5, 6, 7, model.config.audio_bos_token_id]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": FRAMES, "do_sample": True}
    inputs |= {"eos_threshold": 1e9, "frames_after_eos": 1}
    torch.manual_seed(3)
    (latents,) = model.generate(**inputs)
    torch.manual_seed(3)
    blocks = list(voice.stream(**inputs))
    assert torch.equal(voice.generated[0], latents) and len(latents) == FRAMES and latents.std() > 0.1
    assert [audio.shape[-1] // codec.config.frame_size for audio in blocks] == [1, 2, 3]
    assert same(torch.cat(blocks, -1), codec.decode(latents[None]).audio_values) and snapshot(model) == before
    with pytest.raises(SettingError, match="2 texts: Pocket TTS"):
        voice.stream(input_ids=ids.repeat(2, 1))
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
