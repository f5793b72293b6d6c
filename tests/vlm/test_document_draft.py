"""Drafts of pages: what a light pipeline read, whatever it is, and the reader's own tokens."""

import numpy as np
import pytest
import tiny_readers
import torch
from accelerate import cpu_offload
from PIL import Image
from transformers import BatchFeature

import mmaccel
from mmaccel import zoo
from mmaccel.errors import SettingError
from mmaccel.vlm import DocumentDraft, TextDraft, reading
from mmaccel.vlm.input.misread import WORD, misread
from mmaccel.vlm.input.regions import Region, crop, pages_of, regions_of

NEW = 24
PAGE = Image.new("RGB", (64, 48), "white")


class Numbers:
    """A tokenizer whose words are the numbers of tokens."""

    def __call__(self, text, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, row, skip_special_tokens):
        return " ".join(map(str, row.tolist()))

    def batch_decode(self, rows, skip_special_tokens):
        return [" ".join(map(str, row)) for row in rows.tolist()]


class Processor:
    """Makes the inputs of a tiny reader of any pictures, and remembers them."""

    def __init__(self, inputs):
        self.tokenizer, self.inputs, self.seen = Numbers(), inputs, []

    def __call__(self, images, return_tensors, padding, padding_side, text):
        assert (return_tensors, padding, padding_side) == ("pt", True, "left")
        self.seen.append(([image.size for image in images], text))
        return self.inputs(len(images))


def call(inputs, batch=1, **more):
    return {**inputs(batch), "max_new_tokens": NEW, "do_sample": False, **more}


def regions_like(tokens, wrong=5):
    """Two regions of a page that is read as these tokens, the second with a wrong one before it."""
    first, second = tokens[: NEW // 2], [wrong, *tokens[NEW // 2 :]]
    return [((0, 0, 64, 20), " ".join(map(str, first))), ((0, 20, 64, 48), " ".join(map(str, second)))]


def new_of(ids, given):
    return [row[given["input_ids"].shape[1] :].tolist() for row in ids]


@pytest.fixture(scope="module")
def lighton():
    return tiny_readers.READERS["LightOnOcr"]()


def drafting(**settings):
    return DocumentDraft(always=True, **settings)


# ---------------------------------------------------------------- every reader


@pytest.mark.parametrize("name", tiny_readers.READERS)
def test_every_reader_reads_as_it_does_alone(name):
    model, inputs = tiny_readers.READERS[name]()
    for batch, sampled in ((1, False), (3, False), (1, True)):
        given = call(inputs, batch, do_sample=sampled)
        torch.manual_seed(7)
        plain = model.generate(**given)
        regions = [regions_like(tokens) for tokens in new_of(plain, given)]
        with mmaccel.accelerate(model, drafting()) as fast:
            torch.manual_seed(7)
            found = fast.generate(**given, regions=regions, processor=Processor(inputs))
            report = fast.report
        assert torch.equal(found, plain) and report.exact and not report.warnings
        assert report.forwards <= 9 and report.details["predicted"] >= batch * (NEW - 6)
    assert torch.equal(model.generate(**call(inputs)), model.generate(**call(inputs)))


@pytest.mark.parametrize("name", ("LightOnOcr", "GotOcr2", "Idefics3", "GlmOcr"))
@pytest.mark.parametrize("batch", (1, 2))
def test_regions_are_read_from_their_crops_first(name, batch):
    model, inputs = tiny_readers.READERS[name]()
    given = call(inputs, batch)
    plain, processor, places = model.generate(**given), Processor(inputs), getattr(model.model, "rope_deltas", None)
    regions = [regions_like(tokens) for tokens in new_of(plain, given)]
    with mmaccel.accelerate(model, drafting(regions=True)) as fast:
        found = fast.generate(**given, regions=regions, page=[PAGE] * batch, processor=processor, prompt="read")
        report = fast.report
    assert torch.equal(found, plain) and report.details["regions"] == 2 * batch
    assert 1 < report.details["region_passes"] < report.forwards
    assert processor.seen == [([(64, 20), (64, 28)] * batch, ["read"] * 2 * batch)]
    assert places is None or torch.equal(model.model.rope_deltas, places), "a later turn goes on from the page"


class Bare:
    """A processor without a chat template, which writes the prompt of a page itself, as GOT-OCR 2's."""

    chat_template, image_token = None, "<page>"

    def __init__(self, inputs):
        self.tokenizer, self.inputs = Numbers(), inputs

    def __call__(self, images, return_tensors):
        return BatchFeature(self.inputs(1))


@pytest.mark.parametrize("name", ("GotOcr2", "DeepseekOcr2"))
def test_readers_in_bfloat16_are_given_pictures_in_it(name):
    """Whose towers cast nothing; the caller prepared the page, and we its crops."""
    model, inputs = tiny_readers.READERS[name]()
    model.to(torch.bfloat16)
    text, _ = reading.read(model, Bare(inputs), PAGE, max_new_tokens=NEW)
    assert len(text.split()) == NEW
    given = BatchFeature(call(inputs)).to("cpu", torch.bfloat16)
    regions = regions_like([int(word) for word in text.split()])
    with mmaccel.accelerate(model, drafting(regions=True)) as fast:
        fast.generate(**given, regions=regions, page=PAGE, processor=Processor(inputs), prompt="read")
        assert fast.report.details["region_passes"] > 1


def test_a_reader_may_be_off_loaded():
    """Between passes accelerate leaves its weights on "meta"."""
    model, inputs = tiny_readers.READERS["LightOnOcr"]()
    plain, _ = reading.read(model, Bare(inputs), PAGE, max_new_tokens=NEW)
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.device.type == "meta"
    assert reading.read(model, Bare(inputs), PAGE, max_new_tokens=NEW)[0] == plain
    regions = regions_like([int(word) for word in plain.split()])
    with mmaccel.accelerate(model, drafting(regions=True)) as fast:
        given = call(inputs)
        found = fast.generate(**given, regions=regions, page=PAGE, processor=Processor(inputs), prompt="read")
        assert fast.report.details["region_passes"] > 1
    assert " ".join(map(str, new_of(found, given)[0])) == plain


def test_a_processor_without_a_template_writes_its_prompt_itself():
    processor = Bare(None)
    assert reading.prompt_of(processor, None) is None
    assert reading.prompt_of(processor, "<page> as a table") == "<page> as a table"
    with pytest.raises(SettingError, match="no chat template puts the page into it: write <page> there"):
        reading.prompt_of(processor, "as a table")


# ---------------------------------------------------------------- drafts of all kinds


@pytest.mark.parametrize(
    ("regions", "said"),
    (
        ([], "the text of the regions is empty"),
        ([((0, 0, 9, 9), "")], "the text of the regions is empty"),
        ([((0, 0, 9, 9), "61 " * 30)], "the answer is not like the text of the regions: "),
    ),
)
@pytest.mark.parametrize("crops", (False, True))
def test_drafts_of_no_use_are_told(lighton, regions, said, crops):
    model, inputs = lighton
    given = call(inputs)
    plain, processor = model.generate(**given), Processor(inputs)
    with mmaccel.accelerate(model, drafting(regions=crops)) as fast:
        found = fast.generate(**given, regions=regions, page=PAGE, processor=processor, prompt="")
        assert torch.equal(found, plain)
        if not crops or not regions:
            assert any(warning.startswith(said) for warning in fast.report.warnings)


def test_boxes_that_overlap_or_leave_the_page(lighton):
    model, inputs = lighton
    given = call(inputs)
    plain, processor = model.generate(**given), Processor(inputs)
    boxes = [(0, 0, 40, 40), (10, 10, 50.5, 200), (-20, -20, 5, 5), (70, 0, 90, 9), (0, -9, 9, 0)]
    regions = [(box, str(5 + number)) for number, box in enumerate(boxes)]
    with mmaccel.accelerate(model, drafting(regions=True)) as fast:
        found = fast.generate(**given, regions=regions, page=PAGE, processor=processor, prompt="")
        assert torch.equal(found, plain)
        assert "2 of 5 regions lie outside of the page: they are not read alone" in fast.report.warnings
    assert processor.seen[0][0] == [(40, 40), (41, 38), (5, 5)]


def test_a_pipeline_is_called_with_each_page(lighton):
    model, inputs = lighton
    given = call(inputs, 2)
    plain, seen = model.generate(**given), []

    def pipeline(page):
        seen.append(page.size)
        return regions_like(new_of(plain, given)[len(seen) - 1])

    with mmaccel.accelerate(model, drafting()) as fast:
        found = fast.generate(
            **given, regions=pipeline, page=[PAGE, np.zeros((20, 30, 3), np.uint8)], processor=Processor(inputs)
        )
        assert torch.equal(found, plain) and seen == [(64, 48), (30, 20)]
        assert fast.report.details["predicted"] > NEW


def test_a_failing_pipeline_leaves_the_session_as_it_was(lighton):
    model, inputs = lighton
    given = call(inputs)
    plain = model.generate(**given)

    def pipeline(page):
        raise OSError("the light reader is away")

    with mmaccel.accelerate(model, drafting()) as fast:
        with pytest.raises(OSError, match="is away"):
            fast.generate(**given, regions=pipeline, page=PAGE, processor=Processor(inputs))
        assert torch.equal(fast.generate(**given), plain)
    assert torch.equal(model.generate(**given), plain) and "generate" not in vars(model)


def test_beams_are_left_to_the_model_and_no_crop_is_read(lighton):
    model, inputs = lighton
    given, processor = call(inputs, num_beams=2), Processor(inputs)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, drafting(regions=True)) as fast:
        found = fast.generate(**given, regions=[((0, 0, 9, 9), "7")], page=PAGE, processor=processor, prompt="")
        assert torch.equal(found, plain) and not processor.seen
        assert fast.report.warnings == ["the model's own loop ran: num_beams=2"]


def test_a_prediction_is_taken_as_by_text_draft(lighton):
    model, inputs = lighton
    given = call(inputs)
    plain = model.generate(**given)
    passes = []
    for method in (drafting(block=32), TextDraft(always=True)):
        with mmaccel.accelerate(model, method) as fast:
            found = fast.generate(**given, prediction=new_of(plain, given)[0])
            assert torch.equal(found, plain)
            passes.append(fast.report.forwards)
    assert passes[0] == passes[1]


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("settings", "more", "said"),
    (
        ({}, {"regions": [((0, 0, 9, 9), "7")]}, "give processor= too, not None"),
        ({}, {"regions": "7", "processor": ...}, "regions='7' must be a list of pairs"),
        ({}, {"regions": [((0, 0, 9, 9), "7"), 7], "processor": ...}, "a region is 7: it must be a box"),
        ({}, {"regions": [((0, 0, 9), "7")], "processor": ...}, r"has the box \(0, 0, 9\)"),
        ({}, {"regions": [((9, 0, 0, 9), "7")], "processor": ...}, "must be .left, top, right, bottom. in pixels"),
        ({}, {"regions": [((0, 0, float("nan"), 9), "7")], "processor": ...}, "has the box"),
        ({}, {"regions": [((0, 0, 9, 9), "100000")], "processor": ...}, "prediction has token 100000"),
        ({}, {"regions": [[((0, 0, 9, 9), "7")]] * 2, "processor": ...}, "2 texts for a batch of 1"),
        ({}, {"regions": lambda page: [], "processor": ...}, "give page=picture too"),
        ({"regions": True}, {"regions": [((0, 0, 9, 9), "7")], "processor": ...}, "reads crops of the page"),
        ({}, {"regions": [((0, 0, 9, 9), "7")], "processor": ..., "page": [PAGE] * 2}, "page= has 2 pictures"),
        ({}, {"regions": [((0, 0, 9, 9), "7")], "processor": ..., "page": "page.png"}, "page='page.png' must be a pic"),
        (
            {"regions": True},
            {"regions": [((0, 0, 9, 9), "7")], "processor": ..., "page": PAGE},
            "give prompt= with its",
        ),
    ),
)
def test_what_cannot_be_drafted_is_refused_by_name(lighton, settings, more, said):
    model, inputs = lighton
    more = {name: Processor(inputs) if value is ... else value for name, value in more.items()}
    plain = model.generate(**call(inputs))
    with mmaccel.accelerate(model, drafting(**settings)) as fast:
        with pytest.raises(SettingError, match=said) as error:
            fast.generate(**call(inputs), **more)
        assert "\n" not in str(error.value)
        assert torch.equal(fast.generate(**call(inputs)), plain)


def test_settings_are_checked():
    with pytest.raises(SettingError, match="regions themselves go to generate"):
        DocumentDraft(regions=[((0, 0, 9, 9), "7")])


# ---------------------------------------------------------------- parts


def test_forms_of_regions():
    one = [((0, 0, 10, 10), "a"), ([1, 2, 3.5, 4], "b")]
    assert regions_of(one, None) == [[Region((0, 0, 10, 10), "a"), Region((1, 2, 3.5, 4), "b")]]
    assert regions_of([one, []], None) == [regions_of(one, None)[0], []]
    assert regions_of([], None) == [[]] and regions_of([[]], None) == [[]]
    assert regions_of([list(each) for each in one], None) == regions_of(one, None)


def test_forms_of_pages():
    picture = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    for page in (picture, torch.from_numpy(picture), Image.fromarray(picture)):
        assert np.array_equal(np.asarray(pages_of(page)[0]), picture)
    assert [page.size for page in pages_of(np.stack([picture] * 2))] == [(5, 4)] * 2
    assert pages_of([Image.new("L", (3, 2))])[0].mode == "RGB"
    assert pages_of(Image.new("RGBA", (3, 2)))[0].getcolors() == [(6, (255, 255, 255))], "as processors show it"


def test_a_crop_ends_with_the_page():
    page = Image.new("RGB", (40, 30))
    assert crop(page, Region((-5, 10.5, 20.2, 99), "")).size == (21, 20)
    assert crop(page, Region((40, 0, 50, 9), "")) is None


def test_a_light_pipeline_errs_on_so_many_words():
    regions = [((0, 0, 9, 9), "# Winter market\n\n| fish | 12 |\n| --- | --- |\n![bars](figure)")] * 200
    assert misread(regions, 0) == regions and misread(regions, 0.1, 1) != misread(regions, 0.1, 2)
    assert misread(regions, 0.1, 1) == misread(regions, 0.1, 1)
    for wrong in (0.1, 0.5, 1):
        pairs = [
            pair
            for (_, one), (_, other) in zip(regions, misread(regions, wrong), strict=True)
            for pair in zip(one.split(), other.split(), strict=False)
            if WORD.fullmatch(pair[0])
        ]
        assert abs(sum(one != other for one, other in pairs) / len(pairs) - wrong) < 0.06
    assert all(text.startswith("# ") and "| --- | --- |\n" in text for _, text in misread(regions, 1))


# ---------------------------------------------------------------- a reader that reads


@pytest.mark.skipif("tiny-reader" not in zoo.names(), reason="not trained yet")
@pytest.mark.parametrize(("crops", "fewer"), ((False, 6), (True, 4)))
def test_pages_of_the_shipped_reader(crops, fewer):
    model, processor = zoo.load("tiny-reader")
    pages = zoo.pages("tiny-reader", 2, seed=4)
    pictures = [page.picture for page in pages]
    inputs = processor(images=pictures)
    plain = model.generate(**inputs, do_sample=False)
    regions = [misread(page.regions, 0.05, number) for number, page in enumerate(pages)]
    with mmaccel.accelerate(model, DocumentDraft(regions=crops, always=True)) as fast:
        found = fast.generate(**inputs, do_sample=False, regions=regions, page=pictures, processor=processor)
        report = fast.report
    assert torch.equal(found, plain)
    assert report.forwards < plain.shape[1] / fewer and not report.warnings


def test_without_a_session_there_are_no_regions():
    said = r"takes regions in a session only: use mmaccel.accelerate\(.*, or vlm.TextDraft\(\).custom_generate\(\) with"
    with pytest.raises(SettingError, match=said):
        DocumentDraft().custom_generate()


def test_regions_are_for_no_other_run_of_a_comparison(lighton):
    model, inputs = lighton
    given = call(inputs)
    regions = regions_like(*new_of(model.generate(**given), given))
    processor = Processor(inputs)
    processor.batch_decode = processor.tokenizer.batch_decode
    more = {"regions": regions, "processor": processor, "simple": False, "rounds": 1}
    plain, drafted = mmaccel.compare(model, drafting(), **more, **given).rows
    assert plain["label"] == "plain" and drafted["equal"] and drafted["work_ratio"] < 0.5
    text, methods = new_of(model.generate(**given), given), (TextDraft(always=True), drafting())
    for row in mmaccel.compare(model, *methods, prediction=text, **more, **given).rows[1:]:
        assert row["equal"] and row["work_ratio"] < 0.5, "each has its own"
    more = {"processor": processor, "simple": False, "rounds": 1}
    assert mmaccel.compare(model, drafting(), prediction=text, **more, **given).rows[1]["work_ratio"] < 0.5
