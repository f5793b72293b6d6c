"""`gumbel_exact` on the real classes gives the tokens of one-token Gumbel-max decoding with the same noise.

The reference knows nothing of windows, caches, masks or left padding: it runs the model's own forward over
the whole sequence again for every token, each picture and each guidance branch by itself.
"""

import pytest
import torch

import mmaccel
from mmaccel.image import SpeculativeJacobi, examples, window_decoding
from mmaccel.image.coupling import GumbelNoise

NOISE_SEED = 41
GUIDANCE = 3.0


def private_noise(batch, vocabulary, generator, device):
    """Noise from a generator of its own: the decoder draws acceptance tests from the one it is given."""
    return GumbelNoise(batch, vocabulary, torch.Generator().manual_seed(NOISE_SEED), device)


def unpadded(arguments):
    """Prompts one by one, as lists of ids without padding."""
    rows = zip(arguments["input_ids"], arguments["attention_mask"], strict=True)
    return [ids[mask.bool()] for ids, mask in rows]


class JanusReference:
    """Codes are fed through the codebook of the generation side; no forced tokens."""

    codes = examples.CODES

    def __init__(self, model, arguments):
        self.model, self.prompts = model, unpadded(arguments)
        side = int(model.config.vision_config.num_image_tokens**0.5)
        self.forced = [None] * side * side

    def unconditional(self, row):
        prompt = self.prompts[row].clone()
        prompt[(prompt != 1) & (prompt != 3)] = 0  # all but BOS and the image start become the pad token
        return prompt

    def logits(self, prompt, tokens):
        model = self.model
        embeddings = model.get_input_embeddings()(prompt[None])
        if tokens:
            codes = model.prepare_embeddings_for_image_generation(torch.tensor([tokens]))
            embeddings = torch.cat([embeddings, codes], 1)
        hidden = model.model.language_model(inputs_embeds=embeddings, use_cache=False).last_hidden_state
        return model.model.generation_head(hidden[:, -1])[0]

    def output(self, row, tokens):
        return torch.tensor(tokens)


class VocabularyReference:
    """Tokens are ids of the text vocabulary."""

    codes = examples.CODES

    def __init__(self, model, arguments):
        self.model, self.arguments, self.prompts = model, arguments, unpadded(arguments)
        self.read(arguments)

    def unconditional(self, row):
        return self.arguments["negative_prompt_ids"][min(row, len(self.arguments["negative_prompt_ids"]) - 1)]

    def logits(self, prompt, tokens):
        ids = torch.cat([prompt, torch.tensor([self.ids[t] for t in tokens], dtype=torch.long)])[None]
        output = self.model(input_ids=ids, position_ids=self.positions(len(prompt), len(tokens)), use_cache=False)
        return output.logits[0, -1, self.ids[: self.codes]]

    def output(self, row, tokens):
        return torch.cat([self.arguments["input_ids"][row], torch.tensor([self.ids[t] for t in tokens])])


class Emu3Reference(VocabularyReference):
    def read(self, arguments):
        vocabulary = self.model.config.vocabulary_map
        names = [f"<|visual token {i:06d}|>" for i in range(self.codes)]
        names += ["<|extra_200|>", "<|extra_201|>", "<|image end|>"]
        self.ids = [vocabulary[name] for name in names] + [2]
        line, frame, image, end = range(self.codes, self.codes + 4)
        rows, columns = arguments["image_sizes"][0]
        self.forced = ([None] * columns + [line]) * rows + [frame, image, end]

    def positions(self, prompt, done):
        return torch.arange(prompt + done)[None]


class GlmReference(VocabularyReference):
    """Positions on three axes: time, row and column; a grid starts behind the longer side of the last one."""

    def read(self, arguments):
        self.ids = [*range(self.codes), self.codes + 1]
        counts = arguments["images_per_sample"][0]
        self.grids = [(int(h), int(w)) for _, h, w in arguments["image_grid_thw"][:counts]][::-1]
        self.forced = [None] * sum(h * w for h, w in self.grids) + [self.codes]

    def positions(self, prompt, done):
        axes, start = [(i, i, i) for i in range(prompt)], prompt
        for rows, columns in self.grids:
            axes += [(start, start + r, start + c) for r in range(rows) for c in range(columns)]
            start += max(rows, columns)
        axes.append((start, start, start))
        return torch.tensor(axes[: prompt + done]).T[:, None]


REFERENCES = {"janus": JanusReference, "emu3": Emu3Reference, "glm_image": GlmReference}


@torch.no_grad()
def sequential(reference, batch, guidance, noise, process=lambda logits: logits):
    """One-token Gumbel-max decoding, `[batch, ...]` as `generate` returns it."""
    vocabulary = reference.codes + len(set(reference.forced) - {None})
    noise = noise(batch, vocabulary, None, torch.device("cpu"))
    tokens = [[] for _ in range(batch)]
    for position, forced in enumerate(reference.forced):
        g = noise.at(torch.full((batch, 1), position), position, position)[:, 0, : reference.codes]
        for row in range(batch):
            if forced is not None:
                tokens[row].append(forced)
                continue
            logits = reference.logits(reference.prompts[row], tokens[row])
            if guidance != 1:
                other = reference.logits(reference.unconditional(row), tokens[row])
                logits = other + guidance * (logits - other)
            p = process(logits[None]).softmax(-1)[0]
            tokens[row].append(int((p.log() + g[row]).argmax()))
    return torch.stack([reference.output(row, tokens[row]) for row in range(batch)])


def compare(family, batch, guidance, monkeypatch, window=8, init="uniform", **sizes):
    monkeypatch.setattr(window_decoding, "GumbelNoise", private_noise)
    model, arguments = getattr(examples, family)(**sizes)
    call = arguments(batch, guidance=guidance)
    method = SpeculativeJacobi(window=window, coupling="gumbel_exact", init=init)
    with mmaccel.accelerate(model, method) as fast:
        generator = torch.Generator().manual_seed(1)
        tokens = fast.generate(**call, generator=generator)
        assert fast.report.engaged
    reference = REFERENCES[family](model, call)
    wanted = sequential(reference, batch, guidance, private_noise)
    assert torch.equal(tokens, wanted)
    codes = tokens[:, -len(reference.forced) :]
    assert len(codes.unique()) > 4, "a constant picture proves nothing"
    assert batch == 1 or not torch.equal(codes[0], codes[1])


@pytest.mark.parametrize("guidance", (1.0, GUIDANCE), ids=("plain", "guided"))
@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("family", REFERENCES)
def test_same_tokens(family, batch, guidance, monkeypatch):
    compare(family, batch, guidance, monkeypatch)


@pytest.mark.parametrize("init", ("uniform", "repeat_left"))
@pytest.mark.parametrize("window", (2, 16))
@pytest.mark.parametrize("family", REFERENCES)
def test_every_window_and_init(family, window, init, monkeypatch):
    compare(family, 2, GUIDANCE, monkeypatch, window=window, init=init)


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_oblong_grid(family, monkeypatch):
    compare(family, 2, GUIDANCE, monkeypatch, rows=3, columns=5)


@pytest.mark.parametrize("family", REFERENCES)
def test_truncated_distribution(family, monkeypatch):
    """Guidance comes before temperature, and temperature before top-k."""
    monkeypatch.setattr(window_decoding, "GumbelNoise", private_noise)
    model, arguments = getattr(examples, family)()
    call = arguments(2, guidance=GUIDANCE, temperature=2.0, top_k=5)

    def process(logits):
        logits = logits / 2.0
        return logits.masked_fill(logits < logits.topk(5).values[..., -1:], -torch.inf)

    with mmaccel.accelerate(model, SpeculativeJacobi(window=6, coupling="gumbel_exact")) as fast:
        tokens = fast.generate(**call)
    assert torch.equal(tokens, sequential(REFERENCES[family](model, call), 2, GUIDANCE, private_noise, process))


@pytest.mark.parametrize("family", REFERENCES)
def test_one_seed_gives_one_picture_at_every_window(family):
    """What seed equivalence means to a user: the window is no part of the result."""
    model, arguments = getattr(examples, family)()
    pictures = []
    for window in (2, 5, 16):
        with mmaccel.accelerate(model, SpeculativeJacobi(window=window, coupling="gumbel_exact")) as fast:
            pictures.append(fast.generate(**arguments(2), generator=torch.Generator().manual_seed(0)))
    assert torch.equal(pictures[0], pictures[1]) and torch.equal(pictures[0], pictures[2])
