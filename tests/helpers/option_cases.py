"""A case for every option of the command line: what is said, and what arrives."""

from mmaccel.canvas import FactorCommit
from mmaccel.cli.bench import benchmarks
from mmaccel.image import ZipAR
from mmaccel.speech import MergeAudioTokens
from mmaccel.video import EasyCache
from mmaccel.vlm import DyCoke

# By option: the words that give it, and what they change, by place. Nothing else may change. `{}` is a folder of the
# test, `...` any other value, None where nothing arrives. `files`, `printed` and `code` are the command's own, the
# other places are those of `arrivals`. Words that do not begin with an option stand instead of the command's usual
# ones, in USUAL; those that come third are what they are held against.
MODEL = {
    "--device": (["--device", "cpu:0"], {"device": "cpu:0"}),
    "--dtype": (["--dtype", "bfloat16"], {"dtype": "torch.bfloat16"}),
}


def model(other):
    return {**MODEL, "--model": (["--model", other], {"model": other})}


def methods(method):
    """Cases of what says how it is accelerated."""
    found = {"methods": [str(method)], "preset": None}
    return {
        "--method": (["--method", typed(method)], found),
        "--preset": (["--preset", "fast"], {"preset": "fast"}),
        "--plan": (["--plan", f"{{}}/{method.name}.json"], found),
    }


def typed(method):
    """A method with the settings that are not its default."""
    return f"{method.name}:" + ",".join(
        f"{key}={value}" for key, value in method.settings().items() if value != getattr(type(method), key)
    )


IMAGE, VIDEO, VLM, SPEECH = ZipAR(window=2), EasyCache(threshold=0.3), DyCoke(keep=0.2), MergeAudioTokens(keep=0.5)
CANVAS = FactorCommit(factor=2.0)
SIZES = {
    "--steps": (["--steps", "7"], {"steps": 7}),
    "--frames": (["--frames", "5"], {"frames": 5}),
    "--height": (["--height", "48"], {"height": 48}),
    "--width": (["--width", "40"], {"width": 40}),
}
CALLED = {"steps": "num_inference_steps", "frames": "num_frames"}
GUIDANCE = {"--guidance": (["--guidance", "2.5"], {"guidance_scale": 2.5})}
COUNTED = {
    "--rounds": (["--rounds", "4"], {"rounds": 4}),
    "--no-simple": (["--no-simple"], {"simple": False}),
}
SEEDED = {**COUNTED, "--seeds": (["--seeds", "2"], {"seeds": [0, 1]}), **GUIDANCE}
PROMPT = {"prompt": (["blue cup"], {"prompt": "blue cup"})}
CALL_SIZES = {
    option: (words, {CALLED.get(name, name): value for name, value in found.items()})
    for option, (words, found) in SIZES.items()
}
LOOKS = {
    "--frames": (["--frames", "5"], {"looks": {"frames": 5}}),
    "--max-new-tokens": (["--max-new-tokens", "9"], {"max_new_tokens": 9}),
}
ASKED = {
    "video": (
        ["other.mp4", "what?"],
        {"path": "other.mp4", "frames": "namespace(frames='frames of other.mp4', total_frames=100)"},
    ),
    "question": (["clip.mp4", "why?"], {"questions": ["why?"]}),
    "--example": (
        ["--example"],
        {"questions": ["what moves?"], "frames": "moving emoji", "asked": ..., "path": None, "looks": None},
    ),
}
HEARD = {
    "audio": (["other.wav", "two.wav"], {"audio": ["other.wav", "two.wav"]}),
    "--example": (["--example"], {"audio": ["eight seconds"], "reference": ["what is said"]}),
    "--reference": (["talk.wav", "--reference", "so"], {"reference": ["so"]}),
}
FILLED = {
    "picture": (["other.png"], {"seen": "other.png"}),
    "question": (["a.png", "what?"], {"question": "what?"}),
    "--example": (["--example"], {"seen": "moving emoji"}),
    "--gen-length": (["--gen-length", "64"], {"gen_length": 64}),
    "--threshold": (["--threshold", "0.8"], {"threshold": 0.8}),
}
READ = {
    option: (words, {**found, "methods": found.get("methods", [])}) for option, (words, found) in methods(VLM).items()
}
for _, found in (READ["--method"], READ["--plan"]):
    del found["preset"]
STREAMED = {  # if none of these is said, streams are compared
    option: (words, {**found, "methods": found.get("methods", []), "streams": None, "seeds": [0]})
    for option, (words, found) in methods(SPEECH).items()
}
for _, found in (STREAMED["--method"], STREAMED["--plan"]):
    del found["preset"]
OUTPUT = {"--output": (["--output", "{}/b.json"], {"files": ["b.json"], "printed": ...})}


def grid(key):
    return {
        "--setting": (["--setting", f"{key}=0.25,0.75"], {"grid": {key: [0.25, 0.75]}}),
        "--target-speedup": (["--target-speedup", "1.4"], {"target_speedup": 1.4}),
        "--floor": (["--floor", "3.5"], {"floor": 3.5}),
        "--plot": (["--plot", "{}/c.png"], {"files": ["c.png"], "printed": ...}),
        **OUTPUT,
    }


def tuned(method):
    return {"--method": (["--method", typed(method)], {"methods": [str(method)]})}


LIST = {"--modality": (["--modality", "video"], {"printed": ...})}
BENCH = {
    "--json": (["--json"], {"printed": ...}),
    "--full": (["--full"], {"full": True}),
    "--threads": (["--threads", "3"], {"threads": 3}),
    "--page": (["--page", "{}/page.md"], {"files": ["page.json", "page.md"]}),
}
STREAM = {
    "--rate": (["-", "--rate", "8000"], {"rate": 8000}, ["-"]),
    "--channels": (["-", "--channels", "2"], {"channels": 2}, ["-"]),
    "--update-interval": (["-", "--update-interval", "2"], {"update_interval": 2.0}, ["-"]),
}
HEARING = {
    "--policy": (["--policy", "append-only"], {"policy": "AppendOnly(hold=1)"}),
    "--endpoint": (["--endpoint", "energy"], {"endpoint": "EnergyEndpoint"}),
    "--silence": (["--silence", "0.8"], {"silence": 0.8}),
    "--longest": (["--longest", "9"], {"longest": 9.0}),
    "--packed": (["--packed"], {"packed": True}),
    "--language": (["--language", "de"], {"language": "de"}),
    "--task": (["--task", "translate"], {"task": "translate"}),
    "--prompt": (["--prompt", "Molloy"], {"prompt": "Molloy"}),
    "--rejoin": (["--rejoin", "14"], {"rejoin": 14.0}),
}
SERVED = {
    "--port": (["--port", "7999"], {"port": 7999}),
    "--host": (["--host", "::1"], {"host": "::1"}),
    "--allow-host": (["--allow-host", "a.org", "--allow-host", "b.org"], {"hosts": ["a.org", "b.org"]}),
    "--waiting": (["--waiting", "3"], {"waiting": 3}),
    "--batch": (["--batch", "2"], {"batch": 2}),
    "--deadline": (["--deadline", "9"], {"deadline": 9.0}),
    "--streams": (["--streams", "3"], {"streams": 3}),
    "--ray": (["--ray", "10.0.0.5:6379"], {"address": "10.0.0.5:6379", "replicas": [1, 1]}),
    "--replicas": (["--ray", "--replicas", "1-4"], {"address": "local", "replicas": [1, 4]}),
}
PLAIN = {
    "--plain": (["--plain"], {"methods": None, "preset": None, "served": False}),
}
CASES = {
    "methods": LIST,
    "presets": LIST,
    "plan": {
        **model("tiny-wan"),
        **methods(IMAGE),
        "--output": (["--output", "{}/b.json"], {"files": ["b.json"], "printed": ...}),
    },
    "run image": {
        "prompt": (["blue cup"], {"prompts": ["blue cup"]}),
        "--output": (["--output", "{}/b.webp"], {"files": ["b.webp"], "printed": ...}),
        **methods(IMAGE),
        "--compare": (["--compare"], {"files": ["a.compare.png", "a.png"], "printed": ...}),
        "--seed": (["--seed", "3"], {"seed": 3}),
        "--count": (["--count", "2"], {"count": 2}),
        "--guidance": (["--guidance", "2.5"], {"guidance": 2.5}),
        "--temperature": (["--temperature", "1.5"], {"temperature": 1.5}),
        "--top-k": (["--top-k", "11"], {"top_k": 11}),
        "--top-p": (["--top-p", "0.9"], {"top_p": 0.9}),
        **model("other"),
    },
    "run video": {
        **PROMPT,
        "--output": (["--output", "{}/b.webp"], {"files": ["b.webp"], "printed": ...}),
        **methods(VIDEO),
        "--compare": (["--compare"], {"files": ["a.compare.png", "a.png"], "printed": ...}),
        "--trace": (["--trace", "{}/t.png"], {"files": ["a.png", "t.png"], "printed": ...}),
        "--seed": (["--seed", "3"], {"seed": 3}),
        **SIZES,
        "--guidance": (["--guidance", "2.5"], {"guidance": 2.5}),
        "--rate": (["--rate", "24"], {"rate": 24.0}),
        **model("other"),
    },
    "run vlm": {
        "video": (["other.mp4", "what?"], {"path": "other.mp4"}),
        "question": (["clip.mp4", "why?"], {"questions": ["why?"]}),
        **methods(VLM),
        "--compare": (["--compare"], {"answered": True, "printed": ...}),
        "--picture": (["--picture", "{}/p.png"], {"files": ["p.png"], "printed": ...}),
        **LOOKS,
        "--fps": (["--fps", "2"], {"looks": {"fps": 2.0}}),
        "--watch": (["--watch"], {"watched": True, "looks": None, "methods": None, "preset": None, "printed": ...}),
        "--still": (["--watch", "--still", "80"], {"still": 80.0}, ["clip.mp4", "what?", "--watch"]),
        **model("other"),
    },
    "run speech": {
        "audio": (["other.wav"], {"heard": "other.wav"}),
        "--output": (["--output", "{}/b.json"], {"files": ["b.json"]}),
        "--live": (["--live"], {"at_once": None, "rate": 16_000, "update_interval": 0.5}),
        **STREAM,
        **HEARING,
        **model("other"),
    },
    "run document": {
        "page": (["other.png"], {"seen": "other.png"}),
        "--example": (["--example"], {"seen": "a page", "wrong": 0.05}),
        "--regions": (["--regions", "found.json"], {"regions": "found.json"}),
        "--wrong": (["--example", "--wrong", "0.1"], {"seen": "a page", "wrong": 0.1}),
        "--prompt": (["--prompt", "read"], {"prompt": "read"}),
        "--max-new-tokens": (["--max-new-tokens", "9"], {"max_new_tokens": 9}),
        **READ,
        "--compare": (["--compare"], {"read": True, "printed": ...}),
        "--output": (["--output", "{}/b.md"], {"files": ["b.md"], "printed": ...}),
        "--picture": (["--picture", "{}/p.png"], {"files": ["p.png"], "printed": ...}),
        **model("other"),
    },
    "run canvas": {
        **FILLED, **methods(CANVAS), **model("other"),
        "--compare": (["--compare"], {"printed": ...}),
        "--trace": (["--trace", "{}/t.png"], {"files": ["t.png"], "printed": ...}),
    },
    "compare canvas": {**FILLED, **COUNTED, **methods(CANVAS), **OUTPUT, **model("other")},
    "tune canvas": {**FILLED, **COUNTED, **grid("factor"), **tuned(CANVAS), **model("other")},
    "compare image": {
        "prompt": (["blue cup"], {"prompts": ["blue cup"]}),
        **SEEDED, **methods(IMAGE), **OUTPUT, **model("other"),
    },
    "compare video": {
        **PROMPT, **CALL_SIZES, **SEEDED, **methods(VIDEO), **OUTPUT, **model("other"),
    },
    "compare vlm": {
        **ASKED, **LOOKS, **COUNTED, **methods(VLM), **OUTPUT, **model("other"),
    },
    "compare speech": {
        **HEARD, **COUNTED, **STREAMED, **OUTPUT, **model("other"),
    },
    "tune image": {
        "prompt": (["blue cup"], {"prompts": ["blue cup"]}),
        **SEEDED, **grid("window"), **tuned(IMAGE), **model("other"),
    },
    "tune video": {
        **PROMPT, **CALL_SIZES, **SEEDED, **grid("threshold"), **tuned(VIDEO), **model("other"),
    },
    "tune vlm": {**ASKED, **LOOKS, **COUNTED, **grid("keep"), **tuned(VLM), **model("other")},
    "tune speech": {**HEARD, **COUNTED, **grid("keep"), **tuned(SPEECH), **model("other")},
    "env": {"--forget": (["--forget"], {"forgotten": True})},
    **{f"bench {name}": BENCH for name in benchmarks()},
    "bench all": {
        **BENCH,
        "--full": (["--full"], {"words": ["bench", "kernels", "--full"]}),
        "--threads": (["--threads", "3"], {"words": ["bench", "kernels", "--threads", "3"]}),
        "--page": (["--page", "{}/pages"], {"words": ..., "folder": ..., "files": ["pages"]}),
    },
    "bench difference": {
        "old": (["{}/more.json", "{}/new.json"], {"printed": ...}),
        "new": (["{}/old.json", "{}/more.json"], {"printed": ...}),
        "--json": (["--json"], {"printed": ...}),
        "--fail-below": (["--fail-below", "0.9"], {"code": 1}),
    },
    "bench index": {"folder": (["{}/results"], {"folder": ..., "printed": ...})},
    "demo": {
        "--port": (["--port", "7999"], {"port": 7999}),
        "--host": (["--host", "0.0.0.0"], {"host": "0.0.0.0"}),
        "--allow-host": (["--allow-host", "a.org", "--allow-host", "b.org"], {"allow_hosts": ["a.org", "b.org"]}),
        "--model": (["--model", "image=own"], {"given": {"image": ["own"]}}),
        "--allow-models": (["--allow-models"], {"allow_any": True}),
        **MODEL,
    },
    "serve image": {**SERVED, **PLAIN, **methods(IMAGE), **model("other")},
    "serve video": {**SERVED, **PLAIN, **methods(VIDEO), **model("other")},
    "serve vlm": {**SERVED, **PLAIN, **methods(VLM), **model("other")},
    "serve speech": {**SERVED, **HEARING, **model("other")},
}  # fmt: skip

CLIP = ["clip.mp4", "what?"]
USUAL = {
    "run image": (["red heart"], ["-o", "{}/a.png"]),
    "run video": (["red heart"], ["-o", "{}/a.png"]),
    "run vlm": (CLIP, []),
    "run speech": (["talk.wav"], []),
    "run document": (["a.png"], []),
    "run canvas": (["a.png"], []),
    "compare canvas": (["a.png"], []),
    "tune canvas": (["a.png"], ["--method", "FactorCommit"]),
    "compare image": (["red heart"], []),
    "compare video": (["red heart"], []),
    "compare vlm": (CLIP, []),
    "compare speech": (["talk.wav"], []),
    "tune image": (["red heart"], ["--method", "ZipAR"]),
    "tune video": (["red heart"], ["--method", "EasyCache"]),
    "tune vlm": (CLIP, ["--method", "DyCoke"]),
    "tune speech": (["talk.wav"], ["--method", "MergeAudioTokens"]),
    "bench difference": (["{}/old.json", "{}/new.json"], []),
}
