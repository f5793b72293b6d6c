"""The presses of NVIDIA's kvpress on given prompts, by the Python of an environment that has it.

    python demos/vlm/kvpress_rival.py < tasks.json > found.jsonl

Its transformers is older than ours, so this file imports nothing of mmaccel; `compressed_caches` starts it. The prompt
is computed once, and each press is given what its hooks were to be given, on a copy of the cache.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch


def presses(kvpress: Any, dropped: float) -> dict[str, Any]:
    """Those that need nothing but the model and the prompt, by name, each with its own defaults; one drops nothing."""
    plain = {
        name: getattr(kvpress, name)(compression_ratio=dropped)
        for name in (
            "SnapKVPress",
            "PyramidKVPress",
            "ExpectedAttentionPress",
            "TOVAPress",
            "KeyDiffPress",
            "KnormPress",
            "LagKVPress",
            "CompactorPress",
            "StreamingLLMPress",
        )
    }
    ada = {
        f"AdaKVPress({name})": kvpress.AdaKVPress(copy.deepcopy(plain[name]))
        for name in ("SnapKVPress", "ExpectedAttentionPress")
    }
    return {"plain": kvpress.KnormPress(compression_ratio=0.0), **plain, **ada}


class Prompt:
    """A prompt that was computed: its cache, the logits behind it, and what each layer's attention was given."""

    @torch.no_grad()
    def __init__(self, model: Any, tokens: list[int]) -> None:
        from transformers import DynamicCache

        self.model, self.length = model, len(tokens)
        self.layers = [layer.self_attn for layer in model.model.layers]
        self.calls: list[tuple[Any, Any, Any]] = []
        for layer in self.layers:
            layer.rotary_emb = model.model.rotary_emb  # where presses look for it
        hooks = [layer.register_forward_hook(self._note, with_kwargs=True) for layer in self.layers]
        self.cache = DynamicCache()
        output = model(torch.tensor([tokens]), **_cached(model, self.cache), logits_to_keep=1)
        for hook in hooks:
            hook.remove()
        self.logits = output.logits[0, -1]

    def _note(self, _: Any, given: Any, named: Any, output: Any) -> None:
        self.calls.append((given, named, (None, *output[1:])))

    @torch.no_grad()
    def pressed(self, press: Any) -> Any:
        """A copy of the cache, pressed."""
        cache = copy.deepcopy(self.cache)
        press.post_init_from_model(self.model)
        for layer, (given, named, output) in zip(self.layers, self.calls, strict=True):
            layer.masked_key_indices = None
            press.forward_hook(layer, given, {**named, "past_key_values": cache}, output)
        return cache

    @torch.no_grad()
    def logits_of(self, cache: Any, forced: list[int] | None, count: int) -> Iterator[torch.Tensor]:
        """Logits of `count` tokens behind the prompt, which are `forced` or else the likeliest."""
        logits = self.logits
        for place in range(count):
            yield logits
            token = int(logits.argmax()) if forced is None else forced[place]
            at = torch.tensor([self.length + place])
            handed = {**_cached(self.model, cache), "position_ids": at[None], "cache_position": at}
            output = self.model(torch.tensor([[token]]), **handed)
            logits = output.logits[0, -1]


def _cached(model: Any, cache: Any) -> dict[str, Any]:
    """The argument that hands a cache to a model: `cache` since transformers 5.24, before it `past_key_values`."""
    known = inspect.signature(model.prepare_inputs_for_generation).parameters
    return {"cache" if "cache" in known else "past_key_values": cache}


def found(model: Any, ways: dict[str, Any], tasks: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The loss of each text and the answer about each needle, for each press."""
    for number, (tokens, following) in enumerate(tasks["texts"]):
        prompt = Prompt(model, tokens)
        for way, press in ways.items():
            logits = prompt.logits_of(prompt.pressed(press), following, len(following))
            losses = [-float(one.log_softmax(-1)[token]) for one, token in zip(logits, following, strict=True)]
            yield {"way": way, "text": number, "loss": sum(losses) / len(losses)}
    for number, tokens in enumerate(tasks["needles"]):
        prompt = Prompt(model, tokens)
        for way, press in ways.items():
            logits = prompt.logits_of(prompt.pressed(press), None, tasks["answer"])
            yield {"way": way, "needle": number, "tokens": [int(one.argmax()) for one in logits]}


def main() -> None:
    """Answer the tasks of standard input."""
    import kvpress
    from transformers import AutoModelForCausalLM

    tasks = json.load(sys.stdin)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(tasks["folder"], gguf_file=tasks["file"], dtype=torch.float32).eval()
    for one in found(model, presses(kvpress, 1 - tasks["keep"]), tasks):
        sys.stdout.write(json.dumps(one) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
