"""DocumentDraft: a page that a light pipeline has read is verified by the large reader instead of written."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any, ClassVar

from PIL import Image
from transformers import BatchFeature

from mmaccel.decoding.custom_generate import CustomGenerate
from mmaccel.decoding.drafters.grown_draft import GrownDrafter
from mmaccel.decoding.generation import Call, DraftedRun, decode
from mmaccel.decoding.setting import pass_device
from mmaccel.errors import SettingError, shown
from mmaccel.method import Advice
from mmaccel.registry import register
from mmaccel.report import Report

from ..input.processed import single_bos
from ..input.regions import Region, crop, pages_of, regions_of
from .text_draft import Prediction, TextDraft, known

BETWEEN = "\n\n"  # regions, as in Markdown
LONGER = 2  # times its draft that a region's text may be, and so many tokens more
MORE = 32
GIVEN = ("regions", "page", "processor", "prompt")  # with a call


@register("vlm")
@dataclass(frozen=True)
class DocumentDraft(TextDraft):
    """Verify what a light pipeline has read of a page (HSD, Hierarchical Speculative Decoding, 2026).

    ``generate(..., regions=[(box, text), ...], processor=processor)`` takes the regions of a page in reading order,
    each a box ``(left, top, right, bottom)`` in pixels and its text, for a batch a list for each page. Their texts,
    with an empty line between two, are the draft of the page: where the reader differs it realigns, as by
    :class:`TextDraft`, whose guesses stand beside it. `regions` may also be a pipeline that is called with each
    ``page=picture``. With ``regions=True`` the regions are verified first, all in one batch on their crops of
    ``page=``, and what the reader says of them is the draft of the page; ``prompt=`` is then the prompt of each crop,
    where the processor has none of its own. Exact in float32: the tokens of the reader itself, and with sampling those
    of the same random state, in a batch their distribution. With beams, an assistant or another kind of cache the
    model's own loop runs, and the report says so.

    Other settings are those of :class:`FusedDraft`.

    Parameters
    ----------
    regions
        Verify the regions on their crops before the page. Default False: measured on `tiny-reader`, the draft of the
        page alone is faster with up to three words in ten wrong, see `docs/benchmarks/pages.md`.
    block
        Most nodes of a draft; default 64, since most of a page is as drafted. 0 turns drafts off.

    Raises
    ------
    SettingError
        If a setting is out of range; from `generate`, if a region is not a box and a text, or if the page or the
        processor is missing.

    Examples
    --------
    >>> model, processor = zoo.load("tiny-reader")  # doctest: +SKIP
    >>> (page,) = zoo.pages("tiny-reader", 1)  # doctest: +SKIP
    >>> with mmaccel.accelerate(model, DocumentDraft()) as fast:  # doctest: +SKIP
    ...     tokens = fast.generate(**processor(images=page.picture), regions=page.regions, processor=processor)
    ...     print(fast.report)
    """

    regions: bool = False
    block: int = 64

    paper: ClassVar[str] = (
        "HSD: Training-Free Acceleration for Document Parsing Vision-Language Models with Hierarchical Speculative"
        " Decoding by Liao et al., 2026"
    )
    advice: ClassVar[Advice] = Advice(
        "Readers of pages, with a light pipeline beside them that reads most words right.",
        "Nothing in quality; the time of the pipeline, and up to 35 MB for what is learned.",
    )
    call_arguments: ClassVar[frozenset[str]] = TextDraft.call_arguments.union(GIVEN)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require(isinstance(self.regions, bool), "regions", "True or False; regions themselves go to generate()")

    def custom_generate(self) -> CustomGenerate:
        """Refused: a `custom_generate` is handed no regions, which `generate` takes for arguments of the model."""
        raise SettingError(
            f"{type(self).__name__} takes regions in a session only: use mmaccel.accelerate(model,"
            " vlm.DocumentDraft()), or vlm.TextDraft().custom_generate() with the tokens of their text as prediction="
        )

    def take(self, model: Any, kwargs: dict[str, Any]) -> Prediction | None:
        """Take the regions, the page and the processor out of a call; they count before a prediction."""
        given, page, processor, prompt = (kwargs.pop(name, None) for name in GIVEN)
        prediction = super().take(model, kwargs)
        if given is None:
            return prediction
        if not hasattr(processor, "tokenizer"):
            raise SettingError(
                f"regions= needs the processor of the model: give processor= too, not {shown(processor)}"
            )
        pages = None if page is None else pages_of(page)
        found = regions_of(given, pages)
        if pages is not None and len(pages) != len(found):
            raise SettingError(f"page= has {len(pages)} pictures, regions= is for {len(found)}: give as many")
        if self.regions and pages is None:
            raise SettingError("DocumentDraft(regions=True) reads crops of the page: give page=picture too")
        document = Document([], regions=found, pages=pages, processor=processor, prompt=prompt)
        document.join(model, [[region.text for region in regions] for regions in found])
        return document

    def drafters(self, call: Call) -> list[GrownDrafter]:
        """A drafter for each row, with its page; the regions are read first if they are to be."""
        if isinstance(call.given, Document) and self.regions:
            self._read(call, call.given)
        return super().drafters(call)

    def _read(self, call: Call, given: Document) -> None:
        """Verify the regions of all pages in one batch, and draft the pages from what the reader says of them."""
        crops = given.crops()
        if not crops:
            return
        model = call.session.target
        texts = [given.tokens(model, region.text) for _, region, _ in crops]
        inputs = given.inputs([picture for *_, picture in crops], model)
        given.run = DraftedRun(call.session, self, Prediction(texts))
        places = getattr(model.base_model, "rope_deltas", None)  # of the page, from which later turns go on
        found = model.generate(
            **inputs,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=False,
            max_new_tokens=LONGER * max(map(len, texts)) + MORE,
            custom_generate=functools.partial(decode, given.run),
        )
        if places is not None:
            model.base_model.rope_deltas = places
        said = given.processor.tokenizer.batch_decode(
            found[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        told = [[region.text for region in regions] for regions in given.regions]
        for ((page, number), _, _), text in zip(crops, said, strict=True):
            told[page][number] = text
        given.join(model, told)

    def tell(self, report: Report, given: Prediction | None, memory: dict[str, Any]) -> None:
        """Say how much of the pages was as drafted, and what their regions took."""
        super().tell(report, given, memory)
        if not isinstance(given, Document):
            return
        count = sum(map(len, given.regions))
        report.details["regions"] = count
        if given.outside:
            report.warnings.append(
                f"{given.outside} of {count} regions lie outside of the page: they are not read alone"
            )
        if given.run is not None:
            report.forwards += given.run.stats.forwards
            report.details["region_passes"] = given.run.stats.forwards
            report.warnings.extend(f"regions: {warning}" for warning in given.run.warnings)


@dataclass
class Document(Prediction):
    """What a call is expected to read: the regions of its pages, and what belongs to reading them."""

    argument: ClassVar[str] = "text of the regions"

    regions: list[list[Region]] = field(default_factory=list)
    pages: list[Image.Image] | None = None
    processor: Any = None
    prompt: str | None = None
    outside: int = 0  # regions that no page shows
    run: DraftedRun | None = None  # over the regions

    def tokens(self, model: Any, text: str) -> list[int]:
        """The tokens of a text."""
        return known(self.processor.tokenizer(text, add_special_tokens=False)["input_ids"], model)[0] if text else []

    def join(self, model: Any, texts: list[list[str]]) -> None:
        """Draft each page from the texts of its regions; those that say nothing are left out."""
        self.texts = [self.tokens(model, BETWEEN.join(text for text in page if text)) for page in texts]

    def crops(self) -> list[tuple[tuple[int, int], Region, Image.Image]]:
        """Page and number, region and picture of all that is to be seen."""
        assert self.pages is not None
        found = [
            ((at, number), region, crop(page, region))
            for at, (page, regions) in enumerate(zip(self.pages, self.regions, strict=True))
            for number, region in enumerate(regions)
        ]
        seen = [(place, region, picture) for place, region, picture in found if picture is not None]
        self.outside = len(found) - len(seen)
        return seen

    def inputs(self, pictures: list[Image.Image], model: Any) -> dict[str, Any]:
        """Arguments of `generate` for crops."""
        asked: dict[str, Any] = {}
        if self.prompt is not None:
            asked = {"text": [self.prompt] * len(pictures), **single_bos(self.processor, self.prompt)}
        try:
            found = self.processor(images=pictures, return_tensors="pt", padding=True, padding_side="left", **asked)
        except (TypeError, ValueError, AttributeError) as error:
            if asked:
                raise
            raise SettingError(
                f"the processor has no prompt of its own for crops ({error}): give prompt= with its placeholder"
            ) from error
        device = pass_device(model, found["input_ids"])
        moved = BatchFeature(found).to(device, model.dtype)  # not every tower casts pictures itself
        taken = inspect.signature(model.forward).parameters
        return {name: value for name, value in moved.items() if name in taken}
