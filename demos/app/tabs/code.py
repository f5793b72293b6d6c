"""The Python that does what a tab just did, made from the very settings that ran, on the device of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmaccel import zoo
from mmaccel.video.families.rates import USUAL

from ..models import Models
from .canvas_run import CanvasRequest
from .choice import Choice
from .image_run import ImageRequest
from .question_run import QuestionRequest, conversation
from .speech_run import PUSH, SpeechRequest
from .video_run import VideoRequest

SPOKEN = "talk.wav"  # in place of what was spoken into a microphone


def image_code(request: ImageRequest, models: Models) -> str:
    """Python that draws the same picture; another sample only where a method picks its window from times."""
    if request.choice.model not in zoo.names():
        return _painter_code(request, models)
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
        *_moved("model", models),
        f'inputs = processor(text={request.prompt!r}, generation_mode="image", return_tensors="pt"){_sent(models)}',
        f"with mmaccel.accelerate(model, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    tokens = fast.{call}, generator=torch.Generator({_device(models)}).manual_seed({seed}))",
        "    print(fast.report)",
        f"pixels = model.decode_image_tokens(tokens){'.cpu()' if _device(models) else ''}",
        'picture = processor.postprocess(list(pixels.float()), return_tensors="PIL.Image.Image")["pixel_values"][0]',
        'picture.save("picture.png")',
    )


def _painter_code(request: ImageRequest, models: Models) -> str:
    """The same for models outside the zoo, whose families take their arguments in different ways."""
    prompts = f"[{request.prompt!r}]"
    plain = ["    with fast.baseline() as plain:", f"        painter.generate(plain, {prompts}, settings)"]
    return _joined(
        *_imports(request.choice, *_torch(models), "from mmaccel.image import generation"),
        "",
        f"painter = generation.load({_loaded(request.choice.model, models)})",
        f"settings = {_call('generation.ImageSettings', request.settings)}",
        f"with mmaccel.accelerate(painter.target, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    painted = painter.paint(fast, {prompts}, settings)",
        "    print(fast.report)",
        'painted.pictures[0].save("picture.png")',
    )


def video_code(request: VideoRequest, models: Models, rate: float = USUAL, field: str = "frames") -> str:
    """Python that films the same clip; another one only where a method picks its steps from times."""
    clip = f'frames[0].save("clip.webp", save_all=True, append_images=frames[1:], duration={1000 / rate:g}, loop=0)'
    name, save = ("picture", 'picture.save("picture.png")') if field == "images" else ("frames", clip)
    made = field if field == "video" else f"{field}[0]"
    model = request.choice.model
    own = model in zoo.names()
    load = f"zoo.load({model!r})" if own else f"generation.load({_loaded(model, models)})"
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
        *(_moved("pipe", models) if own else []),
        f"with mmaccel.accelerate(pipe, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f'    {name} = fast({call}, {generator}, output_type="pil").{made}',
        "    print(fast.report)",
        save,
    )


def question_code(request: QuestionRequest, models: Models, text_options: Mapping[str, bool] | None = None) -> str:
    """Python that gives the same answer; `text_options` is what the processor was told of the text."""
    model = request.choice.model
    own = zoo.like(model) is not None
    options = f"max_new_tokens={request.max_new_tokens}, do_sample=False"
    plain = [
        "    with fast.baseline() as plain:  # measures the plain model",
        f"        plain.generate(**inputs, {options})",
    ]
    dtype = f", dtype={models.dtype}" if models.dtype else ""
    hub = [
        f"model = AutoModelForImageTextToText.from_pretrained({model!r}{dtype}){_sent(models)}",
        f"processor = AutoProcessor.from_pretrained({model!r})",
    ]
    return _joined(
        *_imports(request.choice, *_torch(models), parts=["vlm", *(["zoo"] if own else [])]),
        *([] if own else ["from transformers import AutoModelForImageTextToText, AutoProcessor"]),
        "",
        *([f"model, processor = zoo.load({model!r})", *_moved("model", models)] if own else hub),
        f"video = vlm.read_video({request.clip!r}, frames={request.frames}, max_side={request.max_side})",
        *_asking(request, own, models, text_options or {}),
        f"with mmaccel.accelerate(model, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    tokens = fast.generate(**inputs, {options})",
        "    print(fast.report)",
        'print(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True).strip())',
    )


def _asking(request: QuestionRequest, own: bool, models: Models, text_options: Mapping[str, bool]) -> list[str]:
    """Lines that make the inputs: a shipped model's processor knows how a question is asked."""
    if own and not request.earlier:
        asked = f"videos=[video.frames], text={request.question!r}"
        return [f'inputs = processor({asked}, return_tensors="pt"){_sent(models)}']
    clip = "" if own else "**told, "  # a processor of transformers is told of the clip
    options = "".join(f"{key}={value}, " for key, value in text_options.items())
    return [
        f"conversation = {conversation(request)!r}",
        "text = processor.apply_chat_template(conversation, add_generation_prompt=True)",
        *([] if own else ['told = {"video_metadata": [video.metadata], "do_sample_frames": False}']),
        f'inputs = processor(videos=[video.frames], text=[text], {clip}{options}return_tensors="pt").to(model.device)',
    ]


def canvas_code(request: CanvasRequest, models: Models) -> str:
    """Python that fills the same canvas."""
    call = f"**inputs, gen_length={request.gen_length}, threshold={request.threshold:g}"
    plain = ["    with fast.baseline() as plain:  # measures the plain pipeline", f"        plain({call})"]
    return _joined(
        *_imports(request.choice, *_torch(models), "from PIL import Image, ImageOps", parts=["zoo"]),
        "",
        f"pipe, processor = zoo.load({request.choice.model!r})",
        *_moved("pipe.model", models),
        f"picture = ImageOps.exif_transpose(Image.open({request.file!r}))",
        f"inputs = processor(videos=[[picture]], text={request.question!r})",
        f"with mmaccel.accelerate(pipe, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    print(fast({call}).texts[0])",
        "    print(fast.report)",
    )


def speech_code(request: SpeechRequest, models: Models) -> str:
    """Python that hears the same recording; in place of what was spoken stands one that the reader has."""
    loaded = f"speech.load({_loaded(request.model, models)})"
    policy, endpoint = (_call(f"speech.{type(one).__name__}", one) for one in (request.policy, request.endpoint))
    chunks = f"speech.read_audio({request.file or SPOKEN!r}).split({PUSH})"
    remark = "" if request.file else "  # or what a microphone gives"
    return _joined(
        *_torch(models),
        "from mmaccel import speech",
        "",
        f"asr = speech.StreamingRecognizer(*{loaded}, policy={policy}, endpoint={endpoint}{_more(request.told())})",
        f"with asr.stream(update_interval={request.update_interval:g}) as stream:",
        f"    for chunk in {chunks}:{remark}",
        "        for event in stream.push(chunk):",
        "            print(event)",
        "    print(stream.finish(), stream.stats)",
    )


def _loaded(model: str, models: Models) -> str:
    """The arguments that load a model there."""
    return repr(model) + (f", {place}" if (place := _place(models)) else "")


def _moved(target: str, models: Models) -> list[str]:
    """The line that moves there what is loaded on the CPU, in float32."""
    return [f"{target}.to({place})"] if (place := _place(models)) else []


def _sent(models: Models) -> str:
    """What moves inputs there."""
    return f".to({device})" if (device := _device(models)) else ""


def _place(models: Models) -> str:
    """Where the demo's models are, and in which dtype; empty on the CPU, in their own."""
    dtype = f", {models.dtype}" if models.dtype else ""
    return f"{models.device!r}{dtype}" if dtype or _device(models) else ""


def _device(models: Models) -> str:
    return "" if models.device == "cpu" else repr(models.device)


def _torch(models: Models) -> list[str]:
    return ["import torch"] if models.dtype else []


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
