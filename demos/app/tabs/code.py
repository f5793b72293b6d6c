"""The Python that does what a tab just did, made from the very settings that ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmaccel import zoo
from mmaccel.video.families.rates import USUAL

from .canvas_run import CanvasRequest
from .choice import Choice
from .image_run import ImageRequest
from .question_run import QuestionRequest, conversation
from .speech_run import PUSH, SpeechRequest
from .video_run import VideoRequest

SPOKEN = "talk.wav"  # in place of what was spoken into a microphone


def image_code(request: ImageRequest) -> str:
    """Python that draws the same picture; another sample only where a method picks its window from times."""
    if request.choice.model not in zoo.names():
        return _painter_code(request)
    seed = request.settings.seed
    given = {key: value for key, value in request.settings.arguments().items() if key != "num_return_sequences"}
    call = f'generate(**inputs, generation_mode="image"{_more(given)}'
    plain = [
        "    with fast.baseline() as plain:  # measures the plain model",
        f"        torch.manual_seed({seed})",
        f"        plain.{call})",
    ]
    return _joined(
        *_imports(request.choice, "import torch", parts=["zoo"]),
        "",
        f"model, processor = zoo.load({request.choice.model!r})",
        f'inputs = processor(text={request.prompt!r}, generation_mode="image", return_tensors="pt")',
        f"with mmaccel.accelerate(model, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    tokens = fast.{call}, generator=torch.Generator().manual_seed({seed}))",
        "    print(fast.report)",
        "pixels = model.decode_image_tokens(tokens)",
        'picture = processor.postprocess(list(pixels.float()), return_tensors="PIL.Image.Image")["pixel_values"][0]',
        'picture.save("picture.png")',
    )


def _painter_code(request: ImageRequest) -> str:
    """The same for models outside the zoo, whose families take their arguments in different ways."""
    prompts = f"[{request.prompt!r}]"
    plain = ["    with fast.baseline() as plain:", f"        painter.generate(plain, {prompts}, settings)"]
    return _joined(
        *_imports(request.choice, "from mmaccel.image import generation"),
        "",
        f"painter = generation.load({request.choice.model!r})",
        f"settings = {_call('generation.ImageSettings', request.settings)}",
        f"with mmaccel.accelerate(painter.target, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    painted = painter.paint(fast, {prompts}, settings)",
        "    print(fast.report)",
        'painted.pictures[0].save("picture.png")',
    )


def video_code(request: VideoRequest, rate: float = USUAL) -> str:
    """Python that films the same clip; another one only where a method picks its steps from times."""
    model = request.choice.model
    own = model in zoo.names()
    load = f"zoo.load({model!r})" if own else f"generation.load({model!r})"
    call = f"prompt={request.prompt!r}{_more(request.settings.arguments())}"
    generator = f"generator=torch.Generator().manual_seed({request.settings.seed})"
    plain = [
        "    with fast.baseline() as plain:  # measures the plain pipeline",
        f"        plain({call}, {generator})",
    ]
    return _joined(
        *_imports(request.choice, "import torch", parts=["zoo"] if own else []),
        *([] if own else ["from mmaccel.video import generation"]),
        "",
        f"pipe = {load}",
        f"with mmaccel.accelerate(pipe, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f'    frames = fast({call}, {generator}, output_type="pil").frames[0]',
        "    print(fast.report)",
        f'frames[0].save("clip.webp", save_all=True, append_images=frames[1:], duration={1000 / rate:g}, loop=0)',
    )


def question_code(request: QuestionRequest) -> str:
    """Python that gives the same answer."""
    model = request.choice.model
    own = model in zoo.names()
    options = f"max_new_tokens={request.max_new_tokens}, do_sample=False"
    plain = [
        "    with fast.baseline() as plain:  # measures the plain model",
        f"        plain.generate(**inputs, {options})",
    ]
    hub = [
        f"model = AutoModelForImageTextToText.from_pretrained({model!r})",
        f"processor = AutoProcessor.from_pretrained({model!r})",
    ]
    return _joined(
        *_imports(request.choice, parts=["vlm", *(["zoo"] if own else [])]),
        *([] if own else ["from transformers import AutoModelForImageTextToText, AutoProcessor"]),
        "",
        *([f"model, processor = zoo.load({model!r})"] if own else hub),
        f"video = vlm.read_video({request.clip!r}, frames={request.frames}, max_side={request.max_side})",
        *_asking(request, own),
        f"with mmaccel.accelerate(model, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    tokens = fast.generate(**inputs, {options})",
        "    print(fast.report)",
        'print(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip())',
    )


def _asking(request: QuestionRequest, own: bool) -> list[str]:
    """Lines that make the inputs: a shipped model's processor knows how a question is asked."""
    if own and not request.earlier:
        return [f'inputs = processor(videos=[video.frames], text={request.question!r}, return_tensors="pt")']
    told = "" if own else "**told, "  # of transformers
    return [
        f"conversation = {conversation(request)!r}",
        "text = processor.apply_chat_template(conversation, add_generation_prompt=True)",
        *([] if own else ['told = {"video_metadata": [video.metadata], "do_sample_frames": False}']),
        f'inputs = processor(videos=[video.frames], text=[text], {told}return_tensors="pt").to(model.device)',
    ]


def canvas_code(request: CanvasRequest) -> str:
    """Python that fills the same canvas."""
    call = f"**inputs, gen_length={request.gen_length}, threshold={request.threshold:g}"
    plain = ["    with fast.baseline() as plain:  # measures the plain pipeline", f"        plain({call})"]
    return _joined(
        *_imports(request.choice, "import numpy as np", "from PIL import Image", parts=["zoo"]),
        "",
        f"pipe, processor = zoo.load({request.choice.model!r})",
        f"picture = np.asarray(Image.open({request.file!r}).convert('RGB'))",
        f"inputs = processor(videos=[picture[None]], text={request.question!r})",
        f"with mmaccel.accelerate(pipe, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    print(fast({call}).texts[0])",
        "    print(fast.report)",
    )


def speech_code(request: SpeechRequest) -> str:
    """Python that hears the same recording; in place of what was spoken stands one that the reader has."""
    loaded = f"speech.load({request.model!r})"
    policy, endpoint = (_call(f"speech.{type(one).__name__}", one) for one in (request.policy, request.endpoint))
    chunks = f"speech.read_audio({request.file or SPOKEN!r}).split({PUSH})"
    remark = "" if request.file else "  # or what a microphone gives"
    return _joined(
        "from mmaccel import speech",
        "",
        f"asr = speech.StreamingRecognizer(*{loaded}, policy={policy}, endpoint={endpoint}{_more(request.told())})",
        f"with asr.stream(update_interval={request.update_interval:g}) as stream:",
        f"    for chunk in {chunks}:{remark}",
        "        for event in stream.push(chunk):",
        "            print(event)",
        "    print(stream.finish(), stream.stats)",
    )


def _imports(choice: Choice, *more: str, parts: Sequence[str] = ()) -> list[str]:
    """The first lines: mmaccel, the parts whose methods are named beside those given, and what else is needed."""
    named = sorted({*choice.parts(), *parts})
    return ["import mmaccel", *more, *([f"from mmaccel import {', '.join(named)}"] if named else [])]


def _more(given: Mapping[str, object]) -> str:
    return "".join(f", {key}={value!r}" for key, value in given.items())


def _call(name: str, settings: object) -> str:
    """The call that makes a dataclass, without what is left at its default."""
    defaults = vars(type(settings)())
    given = {key: value for key, value in vars(settings).items() if value != defaults[key]}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _joined(*lines: str) -> str:
    return "\n".join(lines) + "\n"
