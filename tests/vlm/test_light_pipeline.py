"""The pipeline of installed layout detectors and recognisers: what it makes of a page, and as a draft."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny_readers
import torch
import transformers
from PIL import Image

import mmaccel
from mmaccel.errors import SettingError
from mmaccel.testing.untrained import untrained
from mmaccel.vlm import DocumentDraft, LightPipeline
from mmaccel.vlm.input import light_pipeline
from mmaccel.vlm.input.light_pipeline import lines_of, reading_order

CHANNELS = [32, 32, 32, 32]
CHARACTERS = ["", *(str(number) + " " for number in range(4, 50))]


def detector():
    backbone = {"model_type": "hgnet_v2", "arch": "L", "return_idx": [0, 1, 2, 3], "hidden_sizes": CHANNELS}
    backbone |= {f"stage_{part}_channels": CHANNELS for part in ("in", "mid", "out")}
    backbone |= {"stem_channels": [3, 32, 32], "out_features": ["stage1", "stage2", "stage3", "stage4"]}
    config = transformers.PPDocLayoutV3Config(
        backbone_config=backbone, encoder_hidden_dim=32, encoder_in_channels=[20, 30, 40], encoder_ffn_dim=64,
        encoder_attention_heads=2, mask_feature_channels=[32, 32], x4_feat_dim=32, d_model=32, num_queries=12,
        decoder_in_channels=[32, 32, 32], decoder_ffn_dim=8, decoder_layers=2, decoder_attention_heads=2,
        num_denoising=0,
    )  # fmt: skip
    model = untrained(lambda: transformers.PPDocLayoutV3ForObjectDetection(config))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim > 1:  # so that boxes differ
            parameter.data.normal_(0, parameter[0].numel() ** -0.5, generator=generator)
    return model


def recognizer():
    blocks = [
        [[3, 16, 32, 1, False]],
        [[3, 32, 32, 1, False]],
        [[3, 32, 32, [2, 1], False]],
        [[3, 32, 32, [1, 2], False]],
        [[5, 32, 32, [2, 1], True], [5, 32, 32, [2, 1], False]],
    ]
    backbone = {"model_type": "pp_lcnet_v3", "scale": 0.95, "divisor": 16, "block_configs": blocks}
    backbone |= {"out_features": ["stage2", "stage3", "stage4", "stage5"], "out_indices": [2, 3, 4, 5]}
    config = transformers.PPOCRV5MobileRecConfig(
        backbone_config=backbone, hidden_size=10, num_attention_heads=2, head_out_channels=len(CHARACTERS)
    )
    model = untrained(lambda: transformers.PPOCRV5MobileRecForTextRecognition(config))
    model.head.head.bias.data[7] = 1  # so that it says something
    return model


@pytest.fixture(scope="module")
def models():
    return detector(), recognizer()


@pytest.fixture(scope="module")
def page():
    pixels = np.full((120, 90, 3), 255, np.uint8)
    for top in (10, 40, 70):
        pixels[top : top + 12, 10:80] = np.random.default_rng(top).integers(0, 255, (12, 70, 1))
    return Image.fromarray(pixels)


def test_boxes_are_those_of_the_detector_in_its_order(models, page, monkeypatch):
    """Each pair votes once for who comes first, as in transformers' own steps, which need torchvision and OpenCV."""
    monkeypatch.setattr(light_pipeline, "LAYOUT_SIDE", 64)
    found = LightPipeline(*models, CHARACTERS, threshold=0)._boxes(page)
    small = np.asarray(page.resize((64, 64), Image.Resampling.BICUBIC), np.float32) / 255
    with torch.no_grad():
        output = models[0](torch.from_numpy(small).permute(2, 0, 1)[None])
    votes = [0.0] * 12
    for one in range(12):
        for other in range(one + 1, 12):
            chance = float(output.order_logits[0, one, other].sigmoid())  # that `one` is read before `other`
            votes[other] += chance
            votes[one] += 1 - chance
    order = sorted(range(12), key=votes.__getitem__)
    expected = output.pred_boxes[0, order] * torch.tensor([90.0, 120, 90, 120])
    boxes = torch.tensor([box for box, _ in found])
    assert len(found) == 12 and torch.allclose((boxes[:, :2] + boxes[:, 2:]) / 2, expected[:, :2], atol=1e-3)
    assert torch.allclose(boxes[:, 2:] - boxes[:, :2], expected[:, 2:], atol=1e-3)
    assert LightPipeline(*models, CHARACTERS, threshold=1.0)._boxes(page) == []


def test_a_line_is_read_without_blanks_and_repeats(models, monkeypatch):
    pipeline, seen = LightPipeline(*models, CHARACTERS), []

    def chances(pixels):
        seen.append(pixels)
        best = torch.tensor([0, 5, 5, 0, 5, 7, 7, 0])
        return SimpleNamespace(last_hidden_state=torch.nn.functional.one_hot(best, len(CHARACTERS))[None].float())

    monkeypatch.setattr(models[1], "forward", chances)
    line = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 50, 3), dtype=np.uint8))
    assert pipeline._read(line) == "8 8 10"
    assert seen[0].shape == (1, 3, 48, 320) and seen[0][..., 100:].abs().max() == 0
    assert -1 <= seen[0].min() < -0.8 and 0.8 < seen[0].max() <= 1
    pipeline._read(line.resize((24 * 80, 24)))
    assert seen[1].shape[-1] == 3200, "the widest that it takes"


def test_lines_part_where_no_ink_is(page):
    assert [line.size for line in lines_of(page)] == [(90, 14)] * 3
    assert lines_of(Image.new("RGB", (9, 9), "white")) == []


def test_reading_order_follows_the_votes():
    order = torch.tensor([2, 0, 3, 1])
    rank = order.argsort()
    logits = torch.where(rank[:, None] < rank[None], 9.0, -9.0)
    assert torch.equal(reading_order(logits), order)


def test_it_drafts_a_page_for_a_reader(models, page):
    model, inputs = tiny_readers.READERS["LightOnOcr"]()
    given = {**inputs(1), "max_new_tokens": 12, "do_sample": False}
    plain = model.generate(**given)
    pipeline = LightPipeline(*models, CHARACTERS, threshold=0)

    class Processor:
        def tokenizer(self, text, add_special_tokens):
            return {"input_ids": [int(word) for word in text.split() if word.isdigit()]}

    with mmaccel.accelerate(model, DocumentDraft(always=True)) as fast:
        found = fast.generate(**given, regions=pipeline, page=page, processor=Processor())
        assert torch.equal(found, plain) and fast.report.details["regions"] == 12
    assert any(CHARACTERS[7].strip() in text.split() for _, text in pipeline(page))


def test_characters_must_fit(models):
    with pytest.raises(SettingError, match="characters=2 of them, but the recogniser has 47 outputs"):
        LightPipeline(*models, ["", "a"])
