"""The Python that does what a tab just did, made from the very settings that ran."""

from __future__ import annotations

from collections.abc import Sequence

from .choice import Choice
from .image_run import ImageRequest
from .question_run import QuestionRequest, conversation
from .speech_run import PUSH, SpeechRequest
from .video_run import VideoRequest

SPOKEN = "talk.wav"  # in place of what was spoken into a microphone


def image_code(request: ImageRequest) -> str:
    """Python that draws the same picture; another sample only where a method picks its window from times."""
    prompts = f"[{request.prompt!r}]"
    plain = ["    with fast.baseline() as plain:", f"        painter.generate(plain, {prompts}, settings)"]
    return _joined(
        *_imports(request.choice, "from mmaccel.image import generation"),
        "",
        f"painter = generation.load({request.choice.model!r})",
        f"settings = {_call('generation.Settings', request.settings)}",
        f"with mmaccel.accelerate(painter.target, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    painted = painter.paint(fast, {prompts}, settings)",
        "    print(fast.report)",
        'painted.pictures[0].save("picture.png")',
    )


def video_code(request: VideoRequest) -> str:
    """Python that films the same clip; another one only where a method picks its steps from times."""
    prompt = repr(request.prompt)
    plain = ["    with fast.baseline() as plain:", f"        generation.film(plain, {prompt}, settings)"]
    return _joined(
        "from pathlib import Path",
        "",
        *_imports(request.choice, "from mmaccel.video import clips, generation"),
        "",
        f"pipe = generation.load({request.choice.model!r})",
        f"settings = {_call('generation.Settings', request.settings)}",
        f"with mmaccel.accelerate(pipe, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    filmed = generation.film(fast, {prompt}, settings)",
        "    print(fast.report)",
        'clips.save(filmed.frames, Path("clip.mp4"))',
    )


def question_code(request: QuestionRequest) -> str:
    """Python that gives the same answer."""
    options = f"max_new_tokens={request.max_new_tokens}, do_sample=False"
    plain = ["    with fast.baseline() as plain:", f"        plain.generate(**inputs, {options})"]
    return _joined(
        *_imports(request.choice, "from mmaccel.vlm import answering", parts=["vlm"]),
        "",
        f"video = vlm.read_video({request.clip!r}, frames={request.frames}, max_side={request.max_side})",
        f"model, processor = answering.load({request.choice.model!r})",
        f"conversation = {conversation(request)!r}",
        "text = processor.apply_chat_template(conversation, add_generation_prompt=True)",
        'inputs = processor(videos=[video.images()], text=[text], return_tensors="pt", padding=True).to(model.device)',
        f"with mmaccel.accelerate(model, {request.choice.python()}) as fast:",
        *(plain if request.compare else []),
        f"    tokens = fast.generate(**inputs, {options})",
        "    print(fast.report)",
        'new = tokens[:, inputs["input_ids"].shape[1] :]',
        "print(processor.batch_decode(new, skip_special_tokens=True)[0].strip())",
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
        f"asr = speech.StreamingRecognizer(*{loaded}, policy={policy}, endpoint={endpoint})",
        f"with asr.stream(update_interval={request.update_interval:g}) as stream:",
        f"    for chunk in {chunks}:{remark}",
        "        for event in stream.push(chunk):",
        "            print(event)",
        "    print(stream.finish(), stream.stats)",
    )


def _imports(choice: Choice, *more: str, parts: Sequence[str] = ()) -> list[str]:
    """The first lines: mmaccel, the parts whose methods are named beside those given, and what else is needed."""
    named = sorted({*choice.parts(), *parts})
    return ["import mmaccel", *([f"from mmaccel import {', '.join(named)}"] if named else []), *more]


def _call(name: str, settings: object) -> str:
    """The call that makes a dataclass, without what is left at its default."""
    defaults = vars(type(settings)())
    given = {key: value for key, value in vars(settings).items() if value != defaults[key]}
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"


def _joined(*lines: str) -> str:
    return "\n".join(lines) + "\n"
