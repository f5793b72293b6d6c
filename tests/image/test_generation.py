"""From a prompt to pictures: what reaches the model, what is counted, and what is timed."""

import io
import os
import re
import shutil
import time
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from transformers import BatchFeature, JanusProcessor

import mmaccel
from mmaccel import zoo
from mmaccel.cli import main as cli
from mmaccel.errors import PromptError, SettingError, UnsupportedTargetError
from mmaccel.image import SpeculativeJacobi, examples, generation, pictures
from mmaccel.image import painter as painters
from mmaccel.image.generation import ImageSettings
from mmaccel.image.modality import Image as Modality

LENGTH = examples.ROWS * examples.COLUMNS


class TinyPainter(generation.JanusPainter):
    """The painter of Janus with a tiny model, whose prompts are tokens already."""

    def __init__(self):
        model, self.arguments = examples.janus()
        super().__init__("tiny", model, None)

    def inputs(self, prompts, settings):
        return {**self.arguments(len(prompts)), **settings.arguments()}


class Bar:
    """Stands for tqdm: remembers how far it came."""

    made = []

    def __init__(self, **settings):
        self.label, self.n, self.total, self.steps = settings["desc"], 0, None, []
        Bar.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def update(self, count):
        self.n += count
        self.steps.append(count)


def test_every_setting_reaches_generate():
    settings = ImageSettings(count=3, guidance=2.5, temperature=0.7, top_k=11, top_p=0.9)
    wanted = {"num_return_sequences": 3, "guidance_scale": 2.5, "temperature": 0.7, "top_k": 11, "top_p": 0.9}
    assert settings.arguments() == wanted
    assert ImageSettings().arguments() == {"num_return_sequences": 1}, "the model's own defaults stay"


@pytest.mark.parametrize("target", ("plain", "fast"))
def test_a_bar_counts_tokens_to_the_end(target, monkeypatch):
    """The plain model has no callback: its passes are counted, and nothing is left on it."""
    monkeypatch.setattr(painters, "tqdm", Bar)
    Bar.made.clear()
    painter = TinyPainter()
    inner = painter.target.model.language_model
    with mmaccel.accelerate(painter.target, SpeculativeJacobi(window=4)) as fast:
        chosen = painter.target if target == "plain" else fast
        if target == "plain":
            with fast.baseline():
                painter.generate(chosen, ["a"], ImageSettings(), target)
        else:
            painter.generate(chosen, ["a"], ImageSettings(), target)
    (bar,) = Bar.made
    assert (bar.label, bar.n, bar.total) == (target, LENGTH, LENGTH) and min(bar.steps) >= 1
    assert not inner._forward_hooks


def test_the_seed_decides_and_the_global_state_stays():
    painter = TinyPainter()
    with mmaccel.accelerate(painter.target, SpeculativeJacobi(window=4)) as fast:
        for target in (fast, painter.target):
            state = torch.get_rng_state()
            one, again, other = (painter.generate(target, ["a", "b"], ImageSettings(seed=seed)) for seed in (1, 1, 2))
            assert torch.equal(one, again) and not torch.equal(one, other)
            assert torch.equal(torch.get_rng_state(), state)


def test_tokens_are_timed_without_their_pictures(monkeypatch):
    painter = TinyPainter()
    monkeypatch.setattr(painter, "generate", lambda *_: torch.zeros(1, LENGTH, dtype=torch.long))
    monkeypatch.setattr(painters, "time", SimpleNamespace(perf_counter=iter((10.0, 13.0)).__next__))
    painted = painter.paint(painter.target, ["a"], ImageSettings())
    assert painted.token_seconds == 3.0
    assert len(painted.pictures) == 1 and painted.tokens.shape == (1, LENGTH)


@pytest.fixture
def compared(monkeypatch, tmp_path, capsys):
    """What `run --compare` drew of a lossy method, plainly and accelerated, with what it printed and wrote."""
    painter, painted, labels = TinyPainter(), [], []
    paint, beside = painter.paint, pictures.side_by_side

    def decode(*_):
        time.sleep(0.2)
        return [Image.new("RGB", (64, 64), "red" if len(painted) == 1 else "blue")]

    monkeypatch.setattr(generation, "load", lambda *_: painter)
    monkeypatch.setattr(painters, "tqdm", Bar)
    monkeypatch.setattr(painter, "pictures", decode)
    monkeypatch.setattr(painter, "paint", lambda *given: painted.append(paint(*given)) or painted[-1])
    monkeypatch.setattr(pictures, "side_by_side", lambda found, texts: labels.extend(texts) or beside(found, texts))
    Bar.made.clear()
    words = ["run", "image", "a", "-o", str(tmp_path / "a.png"), "--compare", "--method", "ZipAR:window=2"]
    assert cli.main(words) == 0
    return SimpleNamespace(runs=painted, labels=labels, printed=capsys.readouterr().out, folder=tmp_path)


def test_the_speed_up_of_a_run_is_that_of_the_tokens(compared):
    """Decoding of pictures is in neither of the two times, and the labels are those of the runs."""
    _, plain, fast = (f"{run.token_seconds:.2f} s" for run in compared.runs)
    assert f"against {plain}, both measured" in compared.printed
    assert compared.labels == [f"plain: {plain}", f"image.ZipAR(window=2): {fast}"]
    assert [bar.label for bar in Bar.made] == ["warm up", "plain", "fast"]
    assert compared.printed.splitlines()[-1].startswith("wrote "), "a lossy method promises no equal pictures"


def test_the_accelerated_picture_is_written_and_both_beside_each_other(compared):
    red, blue = (255, 0, 0), (0, 0, 255)
    assert Image.open(compared.folder / "a.png").getpixel((99, 99)) == blue
    both = Image.open(compared.folder / "a.compare.png")
    bottom = both.height - 50
    assert [both.getpixel((x, bottom)) for x in (50, both.width - 50)] == [red, blue]


@pytest.fixture
def drawn(monkeypatch, tmp_path, capsys):
    """`type(*words)` types a command without `--compare`; what the painter was asked for is in `asked`."""
    painter, seen = TinyPainter(), SimpleNamespace(asked=[], folder=tmp_path)

    def paint(*given):
        seen.asked.append(given)
        return generation.Painted([Image.new("RGB", (64, 64), "red")], torch.zeros(1, LENGTH), 1.0)

    def type_in(prompt, name, *words):
        code = cli.main(["run", "image", prompt, "-o", str(tmp_path / name), *words])
        seen.printed = capsys.readouterr()
        return code

    monkeypatch.setattr(generation, "load", lambda *_: painter)
    monkeypatch.setattr(painter, "paint", paint)
    seen.type, seen.painter = type_in, painter
    return seen


def test_every_option_reaches_the_painter(drawn):
    words = ["--seed", "4", "--count", "2", "--guidance", "2.5", "--temperature", "0.7", "--top-k", "11"]
    assert drawn.type("fox", "a.png", *words, "--top-p", "0.9") == 0
    ((target, prompts, settings, label),) = drawn.asked
    assert settings == ImageSettings(4, 2, 2.5, 0.7, 11, 0.9) and (prompts, label) == (["fox"], "fast")
    assert isinstance(target, mmaccel.session.Session) and target.plan.exact, "the preset where nothing is named"


def test_one_run_says_nothing_of_another(drawn):
    assert drawn.type("fox", "a.JPG") == 0 and len(drawn.asked) == 1
    assert "both pictures" not in drawn.printed.out and "differ" not in drawn.printed.out
    assert drawn.printed.out.splitlines()[-1] == f"wrote {drawn.folder / 'a.JPG'}"
    assert Image.open(drawn.folder / "a.JPG").format == "JPEG"


@pytest.mark.parametrize("command", ("run", "compare"))
def test_a_prompt_that_cannot_be_drawn_is_refused_before_the_work(drawn, command, monkeypatch, capsys):
    def refuse(prompts, settings):
        raise PromptError(f"{prompts[0]} is no word")

    for prompt, hint in ((" ", "the prompt is empty"), ("fxo", "fxo is no word")):
        if prompt == "fxo":
            monkeypatch.setattr(drawn.painter, "inputs", refuse)
        if command == "run":
            assert drawn.type(prompt, "a.png") == 2
            error = drawn.printed.err
        else:
            assert cli.main(["compare", "image", prompt, "--method", "ZipAR"]) == 2
            error = capsys.readouterr().err
        assert hint in error and not drawn.asked and not list(drawn.folder.iterdir())


def test_settings_out_of_range_are_refused():
    bad = {"count": (0,), "temperature": (0.0, -1.0), "top_k": (-1,), "top_p": (0.0, 1.1)}
    for name, values in bad.items():
        for value in values:
            with pytest.raises(SettingError, match=f"^{name}={value}: it must be "):
                ImageSettings(**{name: value})
    assert ImageSettings(count=1, temperature=0.1, top_k=0, top_p=1.0).top_k == 0, "0 keeps all"


def test_prompts_of_several_lengths_are_padded_together():
    """And what the processor of Janus is told makes its result a call that writes pictures."""
    told = []

    def processor(**given):
        told.append(given)
        return BatchFeature({"input_ids": torch.ones(2, 3)})

    painter = generation.JanusPainter("janus", SimpleNamespace(device="cpu"), processor)
    inputs = painter.inputs(["a", "a b"], ImageSettings(top_k=3))
    assert (inputs["generation_mode"], inputs["do_sample"], inputs["top_k"]) == ("image", True, 3)
    assert told[0]["padding"] is True and told[0]["generation_mode"] == "image"
    assert told[0]["text"] == ["a", "a b"] and told[0]["return_token_type_ids"] is False


@pytest.mark.parametrize("template", (None, "User: {{ messages[0].content[0].text }} Assistant:"))
def test_prompts_of_janus_stand_in_the_template_of_its_chats(template):
    """As its own recipe draws; the tokens are those of the whole text, and the picture begins behind it."""
    own = zoo.load("tiny-janus")[1]
    processor = JanusProcessor(own.image_processor, own.tokenizer, num_image_tokens=64, chat_template=template)
    ids = generation.JanusPainter("janus", SimpleNamespace(device="cpu"), processor).inputs(
        ["red heart", "red heart"], ImageSettings()
    )["input_ids"]
    text = "User: red heart Assistant:" if template else "red heart"
    wanted = own.tokenizer(f"{text}{processor.image_start_token}").input_ids
    assert ids.tolist() == [wanted] * 2


class Moved:
    """A target that notes where it goes."""

    def __init__(self, **made):
        self.made = made

    def to(self, *place, **how):
        self.made.update(how, **({"device": place[0]} if place else {}))
        return self


@pytest.mark.parametrize("family", ("janus", "emu3"))
def test_a_model_is_opened_where_and_in_the_type_that_is_asked_for(family, monkeypatch):
    how = {"device": "cuda", "dtype": torch.float16}
    monkeypatch.setattr(generation.zoo, "load", lambda name: (Moved(), "words"))
    painter = generation.load("tiny-janus", "cuda", torch.float16)
    assert (painter.name, painter.target.made, painter.processor) == ("tiny-janus", how, "words")

    monkeypatch.setattr(generation.AutoConfig, "from_pretrained", lambda *_, **__: SimpleNamespace(model_type=family))
    monkeypatch.setattr(generation.AutoProcessor, "from_pretrained", lambda *_, **__: "own words")
    monkeypatch.setattr(generation, "load_pretrained", lambda cls, name, dtype: Moved(dtype=dtype))
    painter = generation.load("some/folder-of-it", "cuda", torch.float16)
    assert (painter.name, painter.target.made, painter.processor) == ("folder-of-it", how, "own words")
    assert type(painter) is generation.FAMILIES[family][1]


def test_the_modality_opens_a_painter_and_accelerates_its_model(monkeypatch):
    given, painter = [], TinyPainter()
    monkeypatch.setattr(generation, "load", lambda *asked: given.append(asked) or painter)
    opened = Modality().open("some/model", "cuda", torch.bfloat16)
    assert opened is painter and given == [("some/model", "cuda", torch.bfloat16)]
    assert Modality().target(opened) is painter.target


def test_a_zoo_model_saved_elsewhere_has_its_own_words(monkeypatch, tmp_path):
    """It is known by the file that its recipe writes; anything else is read as transformers reads it."""
    for name in ("config.json", "training.json"):
        shutil.copy(zoo.path("tiny-janus") / name, tmp_path)
    monkeypatch.setattr(generation.zoo, "load", lambda folder: (Moved(), f"words of {folder}"))
    painter = generation.load(str(tmp_path))
    assert (painter.name, painter.processor) == (tmp_path.name, f"words of {tmp_path}")
    (tmp_path / "training.json").write_text("{}")
    monkeypatch.setattr(generation.AutoProcessor, "from_pretrained", lambda *_, **__: "own words")
    monkeypatch.setattr(generation, "load_pretrained", lambda cls, name, dtype: Moved())
    assert generation.load(str(tmp_path)).processor == "own words"


def test_a_model_of_clips_draws_no_pictures():
    with pytest.raises(UnsupportedTargetError, match="tiny-wan draws no pictures: use `mmaccel run video`"):
        generation.load("tiny-wan")
    with pytest.raises(UnsupportedTargetError, match="`mmaccel run video PROMPT -o picture.png --model tiny-unet`"):
        generation.load("tiny-unet")
    with pytest.raises(UnsupportedTargetError, match="`mmaccel run video PROMPT -o picture.png --model /"):
        generation.load(str(zoo.path("tiny-wan")))


def test_weights_in_the_format_of_janus_s_own_code_are_told_where_others_are(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "multi_modality"}')
    with pytest.raises(UnsupportedTargetError, match="such as deepseek-community/Janus-Pro-7B") as error:
        generation.load(str(tmp_path))
    assert "\n" not in str(error.value)


def test_passes_of_emu3_are_counted_too(monkeypatch):
    """Its language model has another name, and its configuration tells no number of tokens."""
    monkeypatch.setattr(painters, "tqdm", Bar)
    Bar.made.clear()
    model, _ = examples.emu3()
    with painters.counted(model, "plain"):
        for _ in range(2):
            model.model.text_model(input_ids=torch.tensor([[1, 5]]))
    (bar,) = Bar.made
    assert (bar.n, bar.total) == (2, None) and not model.model.text_model._forward_hooks


def test_plain_pictures_of_emu3_keep_to_their_grid():
    """As with the recipe of transformers' documentation."""
    model, arguments = examples.emu3()
    recipe = arguments(2)
    inputs = {
        name: value for name, value in recipe.items() if name not in ("prefix_allowed_tokens_fn", "max_new_tokens")
    }
    painter = generation.Emu3Painter("emu3", model, None)
    painter.inputs = lambda prompts, settings: dict(inputs)
    tokens = painter.generate(model, ["a", "b"], ImageSettings(seed=3))
    torch.manual_seed(3)
    assert tokens.tolist() == model.generate(**recipe).tolist()
    assert tokens.shape[1] == recipe["input_ids"].shape[1] + recipe["max_new_tokens"]


@pytest.mark.parametrize("negatives", (1, 2))
def test_plain_pictures_of_emu3_are_several_of_a_prompt(negatives):
    """Each guided away from its prompt's own negative one, which transformers does not repeat; one serves for all."""
    model, arguments = examples.emu3()
    inputs = arguments(2, num_return_sequences=2)
    negative = torch.tensor([[1, 3, 14], [1, 7, 14]])[:negatives]
    inputs.update(negative_prompt_ids=negative, negative_prompt_attention_mask=torch.ones_like(negative))
    painter = generation.Emu3Painter("emu3", model, None)
    painter.inputs = lambda prompts, settings: dict(inputs)
    tokens = painter.generate(model, ["a", "b"], ImageSettings(seed=3, count=2))
    with mmaccel.accelerate(model, SpeculativeJacobi(window=8, coupling="gumbel_exact")) as fast:
        torch.manual_seed(3)
        assert fast.generate(**inputs).tolist() == tokens.tolist() and len(tokens) == 4


def emu3_painter():
    """Words are as long as they are; the target notes what it is to decode."""
    seen = {}

    def processor(text, **told):
        padded = {"padding": True, "padding_side": "left"}  # whichever side the tokenizer has by itself
        assert told == {**padded, "return_tensors": "pt", "return_for_image_generation": True}
        ids = torch.tensor([[len(words)] * 2 for words in text])
        return BatchFeature(
            {"input_ids": ids, "attention_mask": torch.ones_like(ids), "image_sizes": [[2, 3]] * len(text)}
        )

    def decode(image_tokens, height, width):
        seen.update(tokens=image_tokens, size=(height, width))
        return torch.zeros(len(image_tokens), 3, 8 * height, 8 * width)

    target = SimpleNamespace(device="cpu", decode_image_tokens=decode)
    return generation.Emu3Painter("emu3", target, processor), seen


def test_emu3_is_guided_away_from_what_is_bad():
    painter, _ = emu3_painter()
    inputs = painter.inputs(["fox", "a red heart"], ImageSettings(temperature=0.5))
    assert inputs["input_ids"][:, 0].tolist() == [3, 11]
    assert inputs["negative_prompt_ids"].tolist() == [[len(painter.NEGATIVE)] * 2] * 2
    assert inputs["negative_prompt_attention_mask"].tolist() == [[1, 1]] * 2
    assert (inputs["guidance_scale"], inputs["temperature"], inputs["do_sample"]) == (painter.GUIDANCE, 0.5, True)
    assert painter.inputs(["fox"], ImageSettings(guidance=7.0))["guidance_scale"] == 7.0


def test_pictures_of_emu3_begin_behind_the_prompt():
    painter, seen = emu3_painter()
    (picture,) = painter.pictures(torch.arange(10)[None], painter.inputs(["fox"], ImageSettings()))
    assert seen["tokens"].tolist() == [list(range(2, 10))] and seen["size"] == (2, 3)
    assert picture.size == (24, 16), "width first"


@torch.no_grad()
def test_a_painter_tells_the_size_of_its_pictures():
    janus = TinyPainter()
    assert janus.size() == janus.pictures(torch.zeros(1, LENGTH, dtype=torch.long), {})[0].size
    model, arguments = examples.emu3()
    emu3 = generation.Emu3Painter("emu3", model, None)
    inputs = {**arguments(1), "image_sizes": torch.tensor([[2, 3]])}
    emu3.inputs = lambda prompts, settings: inputs
    tokens = torch.cat(
        [inputs["input_ids"], torch.full((1, 2 * (3 + 1) + 3), 8)], 1
    )  # ends of rows, and of the picture
    assert emu3.size() == emu3.pictures(tokens, inputs)[0].size
    amused = Modality().open("tiny-amused")
    assert amused.size() == amused.pictures(torch.zeros(1, 16, 16, dtype=torch.long), {})[0].size


def test_pixels_are_clipped_and_cut_off():
    """As transformers' own processors do, so that the same codes are the same picture."""
    pixels = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 3.0])
    (picture,) = generation.to_pictures(pixels.view(1, 1, 6, 1).expand(1, 1, 6, 3))
    assert [picture.getpixel((x, 0))[0] for x in range(6)] == [0, 0, 127, 191, 255, 255]


def test_a_type_of_numbers_is_kept():
    assert generation.load("tiny-janus", dtype=torch.bfloat16).target.dtype == torch.bfloat16


def test_prompts_are_tried_before_any_work(monkeypatch):
    painter = TinyPainter()
    for prompts in ([], ["fox", " "]):
        with pytest.raises(PromptError, match="empty"):
            generation.check_prompts(painter, prompts)

    def refuse(prompts, settings):
        raise PromptError(f"{prompts[0]} is no word")

    monkeypatch.setattr(painter, "inputs", refuse)
    with pytest.raises(PromptError, match="fxo is no word"):
        generation.check_prompts(painter, ["fxo"])


@pytest.mark.parametrize("columns", (60, 120))
def test_a_bar_is_as_wide_as_its_terminal(monkeypatch, columns):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

        def fileno(self):
            return 2

    monkeypatch.setattr("sys.stderr", shown := Terminal())
    monkeypatch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    with painters.progress_bar("plain") as update:
        update(144, 576)
    widths = [len(line) for line in re.split(r"[\r\n]", shown.getvalue())]
    assert columns - 10 < max(widths) <= columns
