"""What the scripts of the documentation's pictures see of a model."""

import inspect
import re
import types
from contextlib import nullcontext

import pytest
import torch
from PIL import Image

from mmaccel.comparison import results
from mmaccel.demos.app.looks import style
from mmaccel.demos.pages import attention, comparison, pictures, speech, video_comparison
from mmaccel.demos.pages.figures import drawn, figure
from mmaccel.demos.pages.module_trace import ModuleTrace, transformer_parts, unet_parts
from mmaccel.demos.pages.recorded_calls import recorded


class Part(torch.nn.Module):
    def forward(self, hidden_states):
        return hidden_states


def test_a_trace_counts_what_goes_into_each_part_in_each_step():
    first, second = Part(), Part()
    inputs = {"latents": 1}
    with ModuleTrace({"first": first, "second": second}) as trace:
        first(torch.zeros(2, 3, 9))
        first(torch.zeros(1, 4, 9))
        assert trace.step(None, 0, 0, inputs) is inputs
        second(hidden_states=torch.zeros(2, 5, 9))
        trace.step(None, 1, 0, inputs)
    first(torch.zeros(7, 7, 7))
    trace.step(None, 2, 0, inputs)
    assert trace.table().tolist() == [[10, 0, 0], [0, 10, 0]]
    with pytest.raises(KeyError), ModuleTrace({"first": first}):
        raise KeyError
    assert not first._forward_pre_hooks and not second._forward_pre_hooks


def test_parts_have_the_names_of_their_places():
    names = ("attn1.to_q", "attn2.to_q", "ffn.net.0")
    blocks = [types.SimpleNamespace(get_submodule=lambda name, block=block: (block, name)) for block in range(2)]
    parts = transformer_parts(types.SimpleNamespace(blocks=blocks))
    labels = [f"{number} {label}" for number in (1, 2) for label in ("self", "cross", "feed-forward")]
    assert list(parts) == labels and list(parts.values()) == [(block, name) for block in (0, 1) for name in names]

    def stage(*convs):
        return types.SimpleNamespace(resnets=[types.SimpleNamespace(conv1=conv) for conv in convs])

    unet = types.SimpleNamespace(down_blocks=[stage(1, 2), stage(3)], mid_block=stage(4), up_blocks=[stage(5)])
    assert unet_parts(unet) == {"down 1.1": 1, "down 1.2": 2, "down 2.1": 3, "middle.1": 4, "up 1.1": 5}


def test_calls_are_recorded_and_made():
    owner = types.SimpleNamespace(add=lambda one, other=1: one + other)
    original = owner.add
    with recorded(owner, "add") as calls:
        assert owner.add(2, other=3) == 5 and owner.add(4) == 5
    assert calls == [((2, 3), 5), ((4,), 5)] and owner.add is original


def test_figures_are_pictures_of_their_size():
    made, (left, right) = figure(2, 4, 2)
    left.plot([0, 1])
    assert right is not left and drawn(made).size == (440, 220) and drawn(made).mode == "RGB"


def test_the_middle_call_is_drawn_and_slots_of_the_first_head(monkeypatch):
    assert attention._middle_blocks([((0, 0, 0, place), None) for place in "abcd"]) == "c"
    shown = []
    made = types.SimpleNamespace(
        imshow=lambda table, **_: shown.append(table), set=lambda **labels: shown.append(labels)
    )
    monkeypatch.setattr(attention, "figure", lambda *_: (None, made))
    monkeypatch.setattr(attention, "drawn", lambda _: "drawn")
    rows = [torch.tensor([[[0, 2, -1], [1, 1, 1]], [[3, 3, 3], [3, 3, 3]]]), torch.tensor([[[3]]])]
    assert attention._tokens(rows, 4, "token", "step") == "drawn"
    assert shown[0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 1]] and shown[1] == {"xlabel": "token", "ylabel": "step"}


def test_the_last_pass_that_was_given_a_token_settled_it():
    given = [[0, 1, 2, -1], [1, 2, 4], [3]]
    calls = [((None, None, torch.tensor(index), None), None) for index in given]
    assert pictures._settled(calls, 4).tolist() == [[0, 1], [1, 2]]
    assert pictures._settled(calls[:1], 4).tolist() == [[0, 0], [0, 1]], "what was never given came out last"


def test_only_what_is_wanted_is_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    wide = {name: (Image.new("RGB", (2080, 100)), f"caption of {name}") for name in ("one", "two")}
    monkeypatch.setattr(pictures, "_jobs", lambda: [(name, lambda name=name: wide[name]) for name in wide])
    pictures.main(["two"])
    assert sorted(path.name for path in pictures.FOLDER.iterdir()) == ["two.png", "two.txt"]
    assert Image.open(pictures.FOLDER / "two.png").size == (1040, 50)
    assert (pictures.FOLDER / "two.txt").read_text() == "caption of two\n" and "two: " in capsys.readouterr().out
    pictures.main([])
    assert len(list(pictures.FOLDER.iterdir())) == 4


def test_the_clip_of_fewer_steps_has_its_measured_gain(monkeypatch):
    rows = [{"label": "20 steps", "speedup": 2}, {"speedup": 3}, {"label": "10 steps", "speedup": 4}]
    monkeypatch.setattr(results, "load", lambda path: {"rows": rows})
    assert video_comparison.speedups()["fewer"] == "4.0x"


def test_clips_of_one_prompt_start_from_one_noise(monkeypatch):
    scene, asked = types.SimpleNamespace(prompt="a rocket", seed=7), []

    def film(prompt, num_inference_steps, output_type, generator):
        asked.append((prompt, num_inference_steps, output_type, generator.initial_seed()))
        return types.SimpleNamespace(frames=[f"clip {len(asked)}"])

    monkeypatch.setattr(video_comparison, "presets_of", lambda *_: ["fast"])
    monkeypatch.setattr(video_comparison.mmaccel, "accelerate", lambda pipe, preset: nullcontext(pipe))
    monkeypatch.setattr(video_comparison.quality, "psnr", lambda plain, clip: {"clip 2": 30, "clip 3": 20}[clip])
    monkeypatch.setattr(video_comparison, "speedups", lambda: {"fast": "2.0x", "fewer": "4.0x"})
    steps = video_comparison.STEPS
    assert video_comparison.filmed(film, scene) == [
        ("clip 1", f"plain, {steps} steps: a rocket"),
        ("clip 2", f'preset="fast", {steps} steps   2.0x   30 dB to the plain clip'),
        ("clip 3", "plain, 10 steps   4.0x   20 dB to the plain clip"),
    ]
    assert asked == [("a rocket", count, "pil", 7) for count in (steps, steps, 10)]


@pytest.mark.parametrize("exact", (True, False))
def test_the_picture_of_the_readme_shows_what_is_said_of_it(tmp_path, monkeypatch, exact):
    """Each prompt by itself, with the settings of the page; a preset that is exact must draw the same."""
    asked, sheets = [], []

    def paint(target, prompts, settings):
        asked.append((target, prompts, settings))
        return types.SimpleNamespace(pictures=[Image.new("RGB", (4, 4), "red" if target == "plain" else "blue")])

    class Fast:
        def __init__(self, target, preset):
            self.preset = preset

        def __enter__(self):
            return self.preset

        def __exit__(self, *_):
            pass

    preset = types.SimpleNamespace(row={"exact": exact, "speedup": 2.04})
    monkeypatch.setattr(comparison.generation, "load", lambda _: types.SimpleNamespace(target="plain", paint=paint))
    monkeypatch.setattr(comparison.mmaccel, "accelerate", Fast)
    monkeypatch.setattr(comparison, "presets_of", lambda *_: dict.fromkeys(comparison.PRESETS, preset))
    monkeypatch.setattr(comparison.pictures, "headed", lambda picture, label: label)
    blank = Image.new("RGB", (8, 8))
    monkeypatch.setattr(comparison.pictures, "sheet", lambda cells, wide: sheets.append((cells, wide)) or blank)
    if exact:
        with pytest.raises(SystemExit, match="preset='exact' is exact and draws another picture"):
            comparison.main(tmp_path / "page.png")
        return
    comparison.main(tmp_path / "page.png")
    ((cells, wide),) = sheets
    labels = ['preset="exact"   2.0x, equal to the bit', 'preset="balanced"   2.0x, lossy']
    assert cells == [text for text in ("plain generate", *labels) for _ in range(4)] and wide == 4
    expected = [(of, [prompt]) for of in ("plain", "exact", "balanced") for prompt in comparison.PROMPTS]
    assert [(of, prompts) for of, prompts, _ in asked] == expected and (tmp_path / "page.png").exists()
    assert all(settings.seed == 1 for *_, settings in asked)


def test_the_app_looks_as_it_is_told_to():
    found = style.theme()
    assert found.body_text_color_subdued == found.block_info_text_color == "*neutral_600"
    assert found.body_text_color_subdued_dark == found.block_info_text_color_dark == "*neutral_300"
    assert "system-ui" in found.font and "ui-monospace" in found.font_mono and found.primary_500 == "#3b82f6"


@pytest.mark.parametrize("module", [attention, pictures, speech])
def test_what_a_script_watches_is_there(module):
    watched = re.findall(r'recorded\(([\w.]+), "(\w+)"\)', inspect.getsource(module))
    assert watched
    for owner, name in watched:
        assert callable(getattr(eval(owner, vars(module)), name)), f"{owner} has no {name}"
