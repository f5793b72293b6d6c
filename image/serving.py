"""Pictures over HTTP, as OpenAI's `images/generations` asks for them."""

from __future__ import annotations

import base64
import io
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from PIL import Image

from mmaccel.serve.endpoint import LARGEST_SEED, Endpoint, Fields, Left, Request

from .generation import ImageSettings, Painter, check_prompts

COUNT, PROMPT = 10, 4_000  # pictures of a request, and characters of its prompt, as OpenAI has them


@dataclass(kw_only=True)
class PictureRequest(Request):
    """A request for pictures; `seed` is None where any will do."""

    prompt: str
    settings: ImageSettings
    seed: int | None


class ImageEndpoint(Endpoint[PictureRequest]):
    """Draws pictures. A request with a seed is drawn alone, so that its pictures are always the same."""

    path = "/v1/images/generations"
    opened: Painter

    def parse(self, body: Mapping[str, Any]) -> PictureRequest:
        fields = Fields(body)
        prompt = fields.text("prompt", PROMPT)
        count = fields.whole("n", 1, COUNT, default=1)
        seed = fields.whole("seed", 0, LARGEST_SEED)
        settings = ImageSettings(
            count=count,
            guidance=fields.number("guidance", -100, 100),
            temperature=fields.number("temperature", 1e-3, 100),
            top_k=fields.whole("top_k", 0, 2**31),
            top_p=fields.number("top_p", 1e-6, 1),
        )
        fields.only("response_format", "b64_json")
        fields.only("output_format", "png")
        width, height = self.opened.size()
        fields.only("size", "auto", f"{width}x{height}")
        for name in ("quality", "background", "moderation"):
            fields.only(name, "auto")
        fields.only("stream", False)
        fields.only("partial_images", 0)
        fields.only("output_compression", 100)
        fields.take("user")
        fields.end()
        check_prompts(self.opened, [prompt])
        group = None if seed is not None else tuple(vars(settings).items())
        return PictureRequest(prompt=prompt, settings=settings, seed=seed, group=group, size=count)

    def answer(self, requests: list[PictureRequest]) -> list[dict[str, Any]]:
        """Draw the pictures of requests with equal settings."""
        first = requests[0]
        seed = secrets.randbelow(2**31) if first.seed is None else first.seed
        prompts = [request.prompt for request in requests]
        settings = replace(first.settings, seed=seed)

        def check(*_: Any) -> None:
            if all(request.left.is_set() for request in requests):
                raise Left

        pictures = self.opened.paint(self.target, prompts, settings, progress=check).pictures
        count = settings.count
        return [_answer(pictures[i * count : (i + 1) * count]) for i in range(len(requests))]


def _answer(pictures: list[Image.Image]) -> dict[str, Any]:
    width, height = pictures[0].size
    data = [{"b64_json": base64.b64encode(_png(picture)).decode()} for picture in pictures]
    return {"created": int(time.time()), "data": data, "output_format": "png", "size": f"{width}x{height}"}


def _png(picture: Image.Image) -> bytes:
    written = io.BytesIO()
    picture.save(written, "PNG")
    return written.getvalue()


ENDPOINT = ImageEndpoint
