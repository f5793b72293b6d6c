"""A case for every option of `batch`, as in `option_cases`, and what stands in for its folder and its work."""

from types import SimpleNamespace

from option_cases import CANVAS, HEARING, IMAGE, VIDEO, VLM, typed

PLACES = {
    "input": (["other.jsonl"], {"read": "other.jsonl"}),
    "--output": (["--output", "{}/b"], {"folder": "{}/b"}),
    "--root": (["--root", "files"], {"root": "files"}),
    "--ray": (["--ray", "10.0.0.5:6379"], {"address": "10.0.0.5:6379"}),
    "--workers": (["--ray", "--workers", "3"], {"address": "local", "workers": 3}),
    "--model": (["--model", "other"], {"model": "other"}),
    "--device": (["--device", "cpu:0"], {"device": "cpu:0"}),
    "--dtype": (["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
}


def many(method, ending, **values):
    """Cases of `batch`: what makes the outputs is in their manifest, under the options' own names."""
    own = {f"--{name.replace('_', '-')}": name for name in values}
    found = {option: ([option, str(values[name])], {name: values[name]}) for option, name in own.items()}
    found["--format"] = (["--format", ending], {"ending": ending} if ending != ".txt" and ending != ".md" else {})
    if method is not None:
        made = {"methods": [{"name": method.name, "settings": method.settings()}], "preset": None}
        found |= {
            "--method": (["--method", typed(method)], made),
            "--preset": (["--preset", "fast"], {"preset": "fast"}),
            "--plan": (["--plan", f"{{}}/{method.name}.json"], made),
            "--plain": (["--plain"], {"plain": True}),
            "--baseline": (["--baseline", "3"], {"baseline": 3}),
        }
    return {**PLACES, **found}


SPOKEN = {
    option: (words, {option[2:]: True if len(words) == 1 else words[1]}) for option, (words, _) in HEARING.items()
}
NUMBERS = {"silence": 0.8, "longest": 9.0, "rejoin": 14.0}
SPOKEN |= {f"--{name}": ([f"--{name}", f"{value:g}"], {name: value}) for name, value in NUMBERS.items()}
READING = many(VLM, ".md", regions="found.json", prompt="read", max_new_tokens=9)
for option in ("--method", "--plan"):
    READING[option] = (READING[option][0], {"methods": READING[option][1]["methods"]})
READING["--preset"] = (["--preset", "fast"], {"methods": [], "preset": "fast"})
BATCHES = {
    "batch image": many(IMAGE, ".webp", seed=3, count=2, guidance=2.5, temperature=1.5, top_k=11, top_p=0.9),
    "batch video": many(VIDEO, ".gif", seed=3, steps=7, frames=5, height=48, width=40, guidance=2.5, rate=24.0),
    "batch vlm": many(VLM, ".txt", question="why?", frames=5, fps=2.0, max_new_tokens=9),
    "batch document": READING,
    "batch canvas": many(CANVAS, ".txt", question="why?", gen_length=64, threshold=0.8),
    "batch speech": {**many(None, ".vtt"), **SPOKEN},
}
USUAL = {path: (["items.jsonl"], ["-o", "{}/a"]) for path in BATCHES}


def note_batch(seen, monkeypatch):
    """Take the place of what a batch reads and writes."""

    class Folder:
        path, records = "folder", {}

        def __init__(self, path, manifest, ending):
            seen.note(**manifest, folder=path, ending=ending)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    def read_items(path, batching, root):
        seen.note(read=path, root=root)
        return ["item"]

    def run(items, folder, command, usual, workers, baseline):
        seen.note(device=usual.device, baseline=baseline)

    def spread(command, usual, output, address, count):
        seen.note(address=address, workers=count)

    seen.put(monkeypatch, "mmaccel.batch.folder", OutputFolder=Folder)
    seen.put(monkeypatch, "mmaccel.batch.items", read_items=read_items)
    seen.put(monkeypatch, "mmaccel.cluster.spread", spread=spread)
    outcome = SimpleNamespace(failures={})
    seen.put(monkeypatch, "mmaccel.batch.run", run=lambda *given: run(*given) or outcome, tell=lambda *_: None)
