"""`GlmImagePipeline` of diffusers, accelerated as a whole: tiny parts of the real classes, built from configs."""

import pytest
import torch
from accelerate.hooks import CpuOffload, add_hook_to_module, remove_hook_from_module
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    GlmImagePipeline,
    GlmImageTransformer2DModel,
)
from PIL import Image
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    ByT5Tokenizer,
    GlmImageProcessor,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)
from transformers.models.glm_image.image_processing_pil_glm_image import GlmImageImageProcessorPil

import mmaccel
from mmaccel import video
from mmaccel.adapter import find_adapter
from mmaccel.errors import ActiveSessionError, ConflictError, SettingError, UnsupportedTargetError
from mmaccel.image import SpeculativeJacobi, ZipAR, examples
from mmaccel.image.comparing import ImageTrial
from mmaccel.testing.contract import snapshot

CODES = examples.CODES
WORDS = [*"0123456789", "a", "red", "heart", "blue", "fox"]
SPECIAL = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
TEMPLATE = "{% for m in messages %}{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endfor %}"
# 64 x 64 pixels: a large grid of 2 x 2, after the 16 x 16 preview that the processor asks for at any size
SIZE, LARGE, PREVIEW = 64, 4, 256


def processor():
    """Words are ids from 30 on; the picture starts at the id that the tiny model knows."""
    vocabulary = {f"<unused{i}>": i for i in range(30)}
    vocabulary.update({word: 30 + i for i, word in enumerate(WORDS)})
    vocabulary.update({"<pad>": 60, "<|image|>": 61, "<sop>": 62, "<eop>": 63})
    del vocabulary[f"<unused{CODES}>"]
    vocabulary["<bos>"] = CODES
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"\d|[a-z]+| "), "isolated")
    names = {"bos_token": "<bos>", "pad_token": "<pad>", "unk_token": "<pad>", "padding_side": "left"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, extra_special_tokens=SPECIAL, **names)
    return GlmImageProcessor(GlmImageImageProcessorPil(), tokenizer, chat_template=TEMPLATE)


def tiny_pipeline():
    model, _ = examples.glm_image()
    # What the model's own generate needs to stay inside the grid; the accelerated one does so by itself.
    model.generation_config.suppress_tokens = list(range(CODES, CODES + 4))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    t5 = T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    pipe = GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=processor(),
        text_encoder=T5EncoderModel(t5).eval(),
        vision_language_encoder=model,
        vae=AutoencoderKL(
            block_out_channels=(4, 4, 4, 4),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            latent_channels=4,
            norm_num_groups=1,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        ),
        transformer=GlmImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            text_embed_dim=16,
            time_embed_dim=16,
            condition_dim=8,
            prior_vq_quantizer_codebook_size=CODES,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(),
    )
    torch.set_rng_state(state)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def pipe():
    return tiny_pipeline()


def priors(pipe, prompt, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return pipe.generate_prior_tokens(prompt, height=SIZE, width=SIZE, generator=generator)[0]


def trace(pipe):
    return [snapshot(part) for part in (pipe, pipe.vision_language_encoder)]


@pytest.mark.parametrize("prompt", ("a red heart", ["a red heart", "a fox"]), ids=("one", "two"))
@pytest.mark.parametrize("method", (SpeculativeJacobi(window=8), ZipAR(window=2)), ids=str)
def test_prior_tokens(pipe, method, prompt):
    """Same shapes, fewer passes, repeatable by the generator, and clean afterwards."""
    plain = priors(pipe, prompt)
    before = trace(pipe)
    fast = mmaccel.accelerate(pipe, method)
    first, again, other = priors(fast, prompt), priors(fast, prompt), priors(fast, prompt, seed=1)
    assert first.shape == plain.shape == (1 if isinstance(prompt, str) else 2, 4 * LARGE)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert bool((first < CODES).all())
    assert fast.report.plain_forwards == PREVIEW + LARGE + 1 and fast.report.engaged
    assert fast.report.forwards < fast.report.plain_forwards
    fast.remove()
    assert trace(pipe) == before and torch.equal(priors(pipe, prompt), plain)


def test_greedy_codes_are_those_of_the_model(pipe):
    """With a temperature near zero there is nothing to draw: accelerated and plain tokens agree."""
    model = pipe.vision_language_encoder
    model.generation_config.top_k = 1
    try:
        plain = priors(pipe, ["a red heart", "a fox"])
        with mmaccel.accelerate(pipe, SpeculativeJacobi(window=8)) as fast:
            assert torch.equal(priors(fast, ["a red heart", "a fox"]), plain)
    finally:
        model.generation_config.top_k = 50


def test_whole_pipeline(pipe):
    """The same call, down to the picture."""
    call = {"height": SIZE, "width": SIZE, "num_inference_steps": 1, "output_type": "pt", "guidance_scale": 1.5}
    plain = pipe("a red heart", generator=torch.Generator().manual_seed(0), **call).images
    keys = [set(part["target"]) for part in trace(pipe)]  # a call of its own leaves the guidance scale and the like
    with mmaccel.accelerate(pipe, preset="exact") as fast:
        picture = fast("a red heart", generator=torch.Generator().manual_seed(0), **call).images
        assert fast.plan.exact and fast.report.tokens == PREVIEW + LARGE + 1
    assert picture.shape == plain.shape == (1, 3, SIZE, SIZE) and bool(picture.isfinite().all())
    assert [set(part["target"]) for part in trace(pipe)] == keys
    again = pipe("a red heart", generator=torch.Generator().manual_seed(0), **call).images
    assert torch.equal(again, plain)


def test_a_run_of_the_pipeline_ends_with_its_picture(pipe):
    """Not with its tokens: a baseline is timed to the picture, too."""
    call = {"height": SIZE, "width": SIZE, "num_inference_steps": 1, "output_type": "latent"}
    with mmaccel.accelerate(pipe, ZipAR(window=2)) as fast:
        told = []
        hook = pipe.transformer.register_forward_hook(lambda *_: told.append(fast.report.wall_seconds))
        fast("a red heart", **call)
        hook.remove()
        assert told and not any(told), "the time is not told before the tokens have become a picture"
        assert fast.report.wall_seconds > 0 and fast.report.engaged
        fast.report.wall_seconds = 0.0
        priors(fast, "a red heart")
        assert fast.report.wall_seconds > 0, "tokens alone are a run, too"


def test_an_off_loaded_model_is_brought_for_its_tokens(pipe, monkeypatch):
    """`enable_model_cpu_offload` hooks the call of the whole model, and decoding calls its parts."""
    model, brought = pipe.vision_language_encoder, []
    hook = CpuOffload(execution_device=torch.device("cpu"))
    monkeypatch.setattr(hook, "pre_forward", lambda module, *args, **more: brought.append(module) or (args, more))
    with mmaccel.accelerate(pipe, ZipAR(window=2)) as fast:
        expected = priors(fast, "a fox")
        add_hook_to_module(model, hook)
        assert torch.equal(priors(fast, "a fox"), expected) and brought == [model]
        remove_hook_from_module(model)


def test_pipeline_and_its_model_cannot_both_be_accelerated(pipe):
    with mmaccel.accelerate(pipe, ZipAR(window=2)) as fast:
        assert fast.vision_language_encoder is pipe.vision_language_encoder  # reads are forwarded
        with pytest.raises(ActiveSessionError, match="ZipAR"):
            mmaccel.accelerate(pipe.vision_language_encoder, SpeculativeJacobi())
    with mmaccel.accelerate(pipe.vision_language_encoder, SpeculativeJacobi()):  # noqa: SIM117
        with pytest.raises(ActiveSessionError, match="SpeculativeJacobi"):
            mmaccel.accelerate(pipe, ZipAR(window=2))


def test_error_in_the_middle_of_a_pipeline_call(pipe):
    before = trace(pipe)
    with pytest.raises(SettingError, match="window"), mmaccel.accelerate(pipe, ZipAR(window=99)) as fast:
        priors(fast, "a fox")
    assert trace(pipe) == before


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_a_comparison_of_pipelines_draws_with_every_seed(pipe):
    """Whatever `do_sample` its language model has: the diffusion behind it begins with noise."""
    call = {"height": SIZE, "width": SIZE, "num_inference_steps": 1, "prompt": "a red heart", "output_type": "np"}
    trial = ImageTrial(find_adapter(pipe), call)
    assert trial.draws and not trial.seedless
    one, again, other = (trial.run(pipe, seed) for seed in (0, 0, 1))
    assert trial.equal(one, again) and not trial.equal(one, other)

    def made(*shades):
        return ([Image.new("RGB", (4, 2), (shade, 0, 0)) for shade in shades],)

    assert [[frame.size for frame in frames] for frames in trial.show(made(0, 1)).clips] == [[(4, 2)]] * 2
    assert trial.judge(made(0), made(0)) == {"same": 1.0}
    assert trial.judge(made(0), made(9)) == {"same": pytest.approx(2 / 3)}


def test_the_diffusion_behind_the_tokens_takes_the_methods_of_diffusion(pipe):
    """Alone in a session; the language model inside can have one of its own at the same time."""
    call = {"height": SIZE, "width": SIZE, "num_inference_steps": 10, "output_type": "latent"}

    def drawn(target):
        torch.manual_seed(0)
        return target("a red heart", generator=torch.Generator().manual_seed(0), **call).images

    plain = drawn(pipe)
    assert mmaccel.plan(pipe, video.HeterogeneousSteps(0.5)).family == "diffusion transformer"
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(1.0)) as fast:
        assert torch.equal(drawn(fast), plain)
    with mmaccel.accelerate(pipe, video.HeterogeneousSteps(0.5)) as fast:
        assert not torch.equal(drawn(fast), plain) and fast.report.engaged
        with mmaccel.accelerate(pipe.vision_language_encoder, ZipAR(window=2)):
            assert bool(drawn(fast).isfinite().all())


@pytest.mark.parametrize("methods", ((ZipAR(window=2), video.EasyCache()), (video.EasyCache(), ZipAR(window=2))))
def test_methods_of_both_parts_are_two_sessions(pipe, methods):
    with pytest.raises(ConflictError, match="two parts of a GlmImagePipeline.*one session on the pipeline") as error:
        mmaccel.plan(pipe, *methods)
    assert "\n" not in str(error.value)
    with pytest.raises(UnsupportedTargetError, match="does not work on glm_image models"):
        mmaccel.plan(pipe.vision_language_encoder, video.EasyCache())


def test_a_comparison_measures_the_part_that_its_methods_accelerate(pipe):
    call = {"height": SIZE, "width": SIZE, "num_inference_steps": 4, "prompt": "a red heart", "output_type": "np"}
    found = mmaccel.compare(pipe, video.HeterogeneousSteps(0.5), rounds=1, simple=False, **call)
    assert "psnr" in found.rows[1]["metrics"]


def test_the_command_line_draws_with_the_pipeline_where_the_command_of_images_says_so(pipe, monkeypatch, tmp_path):
    from mmaccel.image import generation as images
    from mmaccel.video import generation

    (tmp_path / "model_index.json").write_text('{"_class_name": "GlmImagePipeline"}')
    with pytest.raises(UnsupportedTargetError, match="`mmaccel run video PROMPT -o picture.png --model "):
        images.load(str(tmp_path))
    monkeypatch.setattr(generation, "load_pipeline", lambda *_: pipe)
    assert generation.load(str(tmp_path)) is pipe
    settings = generation.VideoSettings(height=SIZE, width=SIZE, steps=1)
    with mmaccel.accelerate(pipe, ZipAR(window=2)) as fast:
        (picture,) = generation.film(fast, "a red heart", settings).frames
        assert picture.size == (SIZE, SIZE) and fast.report.engaged
