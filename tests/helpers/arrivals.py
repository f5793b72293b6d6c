"""What the options of the command line become: stand-ins note what reaches them, by its place, and nothing runs."""

import contextlib
import dataclasses
import functools
import importlib
import pkgutil
import socket
import sys
from types import SimpleNamespace

import torch
from batch_cases import note_batch
from PIL import Image

import mmaccel
from mmaccel.bench.benchmark import in_one
from mmaccel.comparison import results
from mmaccel.files import clips
from mmaccel.report import Report
from mmaccel.speech.stream.transcribe import Transcript

PICTURE = Image.new("RGB", (64, 64))


class Arrivals(dict):
    """What arrived, by place; places of a stand-in that was never reached are missing."""

    def note(self, **places):
        self.update({name: told(value) for name, value in places.items()})

    def put(self, monkeypatch, module, **stand_ins):
        """Take the place of what a module has, which commands import when they run."""
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(importlib.import_module(module), name, stand_in)


def told(value):
    """A value that can be compared, and read in a message; a plan is its methods."""
    if isinstance(value, range | list | tuple):
        return [told(part) for one in value for part in getattr(one, "methods", [one])]
    return value if isinstance(value, bool | int | float | str | dict | None) else str(value)


@functools.cache
def import_all():
    """Import whatever a command may import: a module that is first imported beside a stand-in would keep it."""
    for module in pkgutil.walk_packages(mmaccel.__path__, "mmaccel."):
        if not module.name.startswith(("mmaccel.demos", "mmaccel.kernels.gpu", "mmaccel.__main__")):
            importlib.import_module(module.name)


class Result:
    """What comparing and tuning hand back."""

    plan, notes = object(), ["none"]

    def save(self, path):
        path.write_text("x")

    def __str__(self):
        return "a result"


class Target(str):
    """What runs without methods; where it is called itself, a list comes back."""

    def __call__(self, **_):
        return SimpleNamespace(texts=["a list"])


class Plain:
    """A session of nothing."""

    def __init__(self, methods=()):
        self.report = Report(methods=["fast"], exact=False)
        self.plan = SimpleNamespace(methods=[part for one in methods for part in getattr(one, "methods", [one])])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def baseline(self):
        return contextlib.nullcontext(Target("plain"))


def stand_in(monkeypatch):
    """Every border that a command crosses gets a stand-in; what arrives there is in what is returned."""
    import_all()
    seen = Arrivals()

    def accelerate(target, *methods, preset=None):
        seen.note(methods=methods, preset=preset)
        return Plain(methods)

    def compare(target, *methods, preset=None, **inputs):
        seen.note(methods=methods, preset=preset, **inputs)
        return Result()

    def tune(target, method, **inputs):
        seen.note(methods=[method], **inputs)
        return Result()

    def plan(target, *methods, preset=None):
        seen.note(methods=methods, preset=preset)
        return Result()

    found = SimpleNamespace(modality="image", family="janus")
    seen.put(monkeypatch, "mmaccel.session", accelerate=accelerate)
    seen.put(monkeypatch, "mmaccel.comparison.compare", compare=compare)
    seen.put(monkeypatch, "mmaccel.tuning.tune", tune=tune)
    seen.put(monkeypatch, "mmaccel.plan", plan=plan)
    seen.put(monkeypatch, "mmaccel.adapter", find_adapter=lambda target: found)
    seen.put(monkeypatch, "mmaccel.files.kept_choices", forget=lambda: seen.note(forgotten=True))
    for part in (_image, _video, _vlm, _document, _speech, _canvas, note_batch, _bench, _demo, _serve):
        part(seen, monkeypatch)
    return seen


def _load(seen, *made):
    def load(model, device="cpu", dtype=None):
        seen.note(model=model, device=device, dtype=dtype)
        return made[0] if len(made) == 1 else made

    return load


def _image(seen, monkeypatch):
    def inputs(prompts, settings):
        return {"prompts": prompts, **settings.arguments()}

    def paint(target, prompts, settings, label=None):
        seen.note(prompts=prompts, **dataclasses.asdict(settings))
        return SimpleNamespace(pictures=[PICTURE], tokens=torch.zeros(1, 4), token_seconds=1.0)

    painter = SimpleNamespace(target="janus", inputs=inputs, paint=paint)
    seen.put(monkeypatch, "mmaccel.image.generation", load=_load(seen, painter))


def _video(seen, monkeypatch):
    def film(target, prompt, settings, **more):
        seen.note(prompt=prompt, **dataclasses.asdict(settings), **more)
        return SimpleNamespace(frames=[PICTURE] * 2, seconds=1.0, kind="clip")

    save = clips.save

    def saved(clip, path, rate):
        seen.note(rate=rate)
        save(clip, path, rate)

    pipe = SimpleNamespace(set_progress_bar_config=lambda **_: None)
    seen.put(monkeypatch, "mmaccel.files.clips", save=saved)
    seen.put(monkeypatch, "mmaccel.video.generation", load=_load(seen, pipe), film=film)
    trace = SimpleNamespace(save=lambda path: PICTURE.save(path))
    seen.put(monkeypatch, "mmaccel.video.trace", trace_of=lambda _: trace, check_traced=lambda *_: None)


def _vlm(seen, monkeypatch):
    def read_video(path, **looks):
        seen.note(path=path, looks=looks)
        return SimpleNamespace(frames=f"frames of {path}", total_frames=100)

    def ask(target, processor, frames, **asked):
        seen.note(answered=target == "plain" or seen.get("answered", False), **asked)
        return ["an answer"], 1.0

    def questions(name, count):
        seen.note(asked=name)
        return [SimpleNamespace(frames="moving emoji", question="what moves?")]

    def read_at_most(path, frames):
        return read_video(path, frames=frames)

    seen.put(monkeypatch, "mmaccel.vlm.input.read_video", read_video=read_video, read_at_most=read_at_most)
    seen.put(monkeypatch, "mmaccel.vlm.answering", load=_load(seen, "onevision", "processor"), ask=ask)

    class Stream(contextlib.ExitStack):
        stats = SimpleNamespace(tokens=1, plain_tokens=2)

        def ask(self, question, **length):
            seen.note(questions=[question], answered=False, **length)
            return "an answer"

    def watch(stream, path, frames, fps, **still):
        seen.note(path=path, watched=True, **still)
        return SimpleNamespace(frames=1, decoded=1)

    seen.put(monkeypatch, "mmaccel.vlm.stream.video_stream", VideoStream=lambda *_: Stream())
    seen.put(monkeypatch, "mmaccel.vlm.stream.watching", watch=watch)
    drawn = SimpleNamespace(save=lambda frames, path: PICTURE.save(path))
    seen.put(monkeypatch, "mmaccel.vlm.pruning.kept", kept=lambda _: [drawn])
    seen.put(monkeypatch, "mmaccel.zoo", questions=questions)


def _speech(seen, monkeypatch):
    stream = SimpleNamespace(push=lambda _: [], finish=list, stats="stats")

    class Recognizer:
        def __init__(self, model, processor, policy, endpoint, **told):
            seen.note(policy=policy, endpoint=type(endpoint).__name__, **told)
            seen.note(silence=endpoint.silence, longest=endpoint.longest)

        def stream(self, rate, update_interval, channels):
            seen.note(rate=rate, update_interval=update_interval, channels=channels)
            return contextlib.nullcontext(stream)

    def transcribe_samples(samples, recognizer):
        seen.note(at_once=True)
        return Transcript("", (), (), "stats")

    def read_audio(path):
        seen.note(heard=path)
        return torch.zeros(1600)

    def compare_streams(model, **inputs):
        seen.note(streams=True, **inputs)
        return Result()

    recording = SimpleNamespace(samples="eight seconds", text="what is said")
    seen.put(monkeypatch, "mmaccel.speech.families.weights", load=_load(seen, "moonshine", "processor"))
    seen.put(monkeypatch, "mmaccel.speech.stream.recognizer", StreamingRecognizer=Recognizer)
    seen.put(monkeypatch, "mmaccel.speech.stream.transcribe", transcribe_samples=transcribe_samples)
    seen.put(monkeypatch, "mmaccel.speech.audio.audio", read_audio=read_audio)
    seen.put(monkeypatch, "mmaccel.speech.stream.stream_comparing", compare_streams=compare_streams)
    seen.put(monkeypatch, "mmaccel.speech.audio.recordings", example=lambda: recording)
    monkeypatch.setattr("mmaccel.speech.command._standard_input", lambda _: iter([b""]))


def _document(seen, monkeypatch):
    def read_picture(path):
        seen.note(seen=path)
        return SimpleNamespace(save=PICTURE.save)

    def example(wrong):
        seen.note(seen="a page", wrong=wrong)
        return SimpleNamespace(save=PICTURE.save), ["a region"]

    def read_regions(path):
        seen.note(regions=path)
        return ["a region"]

    def prompt_of(processor, asked):
        seen.note(prompt=asked)

    def read(target, processor, page, prompt, max_new_tokens, regions=None):
        seen.note(read=target == "plain" or seen.get("read", False), max_new_tokens=max_new_tokens)
        return "a page", 1.0

    parts = {"example": example, "read_regions": read_regions, "prompt_of": prompt_of, "read": read}
    seen.put(monkeypatch, "mmaccel.files.pictures", read_picture=read_picture)
    seen.put(monkeypatch, "mmaccel.vlm.reading", load=_load(seen, "reader", "processor"), **parts)


def _canvas(seen, monkeypatch):
    def inputs_of(processor, picture, question):
        seen.note(question=question)
        return {}

    def example():
        seen.note(seen="moving emoji")
        return "picture"

    class Commits:
        def save(self, path, tokenizer):
            PICTURE.save(path)

    def fill(self, gen_length, threshold, callback_on_step_end=None):
        seen.note(gen_length=gen_length, threshold=threshold)
        return SimpleNamespace(texts=["a list"])

    monkeypatch.setattr(Plain, "__call__", fill, raising=False)
    seen.put(monkeypatch, "mmaccel.canvas.generation", inputs_of=inputs_of, example=example)
    pipe = SimpleNamespace(tokenizer=None)
    seen.put(monkeypatch, "mmaccel.canvas.generation", load=_load(seen, pipe, "processor"))
    seen.put(monkeypatch, "mmaccel.canvas.commits", Commits=Commits)


def _bench(seen, monkeypatch):
    def benchmark_of(name):
        def rows(full):
            seen.note(full=full)
            return []

        def write_page(result, path):
            path.write_text("x")

        return SimpleNamespace(name=name, threads=2, parts=in_one(rows), write_page=write_page)

    def in_a_process(words):
        seen.note(words=[word for word in words if word != "--json"])
        return results.result([]), ""

    def write(folder, benchmarks):
        seen.note(folder=folder)
        return [folder / "index.md"]

    seen.put(monkeypatch, "mmaccel.cli.bench", benchmark_of=benchmark_of, all_benchmarks=list)
    seen.put(monkeypatch, "mmaccel.cli.bench", _in_a_process=in_a_process)
    seen.put(monkeypatch, "mmaccel.bench.index", write=write)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: seen.note(threads=count))


def _demo(seen, monkeypatch):
    def models(given, allow_any, device, dtype):
        seen.note(given=given, allow_any=allow_any, device=device, dtype=dtype)
        return "models"

    def launch(frame, host, port, allow_hosts):
        seen.note(host=host, port=port, allow_hosts=allow_hosts)

    app = SimpleNamespace(Models=models, Frame=lambda _: "frame", launch=launch)
    monkeypatch.setitem(sys.modules, "mmaccel.demos.app", app)
    monkeypatch.setattr(importlib.import_module("mmaccel.demos"), "app", app, raising=False)


def _serve(seen, monkeypatch):
    def serve(endpoint, limits, host, port, hosts, key, tell):
        seen.note(waiting=limits.waiting, batch=limits.batch, deadline=limits.deadline, streams=limits.sockets)
        seen.note(served=isinstance(endpoint.target, Plain), host=host, port=port, hosts=hosts, key=key)

    def replicated(command, arguments, limits, address, *count):
        seen.note(address=address, replicas=count)
        return command.served(arguments)

    monkeypatch.delenv("MMACCEL_API_KEY", raising=False)
    seen.put(monkeypatch, "mmaccel.serve.run", serve=serve, listening=lambda host, port: socket.socket())
    seen.put(monkeypatch, "mmaccel.cluster.replicas", replicated=replicated)
