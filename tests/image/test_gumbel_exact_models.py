"""`gumbel_exact` on the real classes gives the tokens of one-token Gumbel-max decoding with the same noise.

The reference knows nothing of windows, caches, masks or left padding: it runs the model's own forward over
the whole sequence again for every token, each picture and each guidance branch by itself.
"""

import pytest
import torch
from own_pictures import own

import mmaccel
from mmaccel.decoding import gumbel
from mmaccel.image import SpeculativeJacobi, examples

NOISE_SEED = 41
GUIDANCE = 3.0


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
        self.ids, self.sampled = list(range(self.codes)), self.codes

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
        self.sampled = model.get_output_embeddings().weight.shape[0]
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
def sequential(reference, batch, guidance, process=lambda logits: logits):
    """One-token Gumbel-max decoding, `[batch, ...]` as `generate` returns it; noise over all that the head says."""
    generator = torch.Generator().manual_seed(NOISE_SEED)
    tokens = [[] for _ in range(batch)]
    for forced in reference.forced:
        g = gumbel((batch, reference.sampled), generator)[:, reference.ids[: reference.codes]]
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


def compare(family, batch, guidance, window=8, init="uniform", **sizes):
    model, arguments = getattr(examples, family)(**sizes)
    call = arguments(batch, guidance=guidance)
    method = SpeculativeJacobi(window=window, coupling="gumbel_exact", init=init)
    with mmaccel.accelerate(model, method) as fast:
        generator = torch.Generator().manual_seed(NOISE_SEED)
        tokens = fast.generate(**call, generator=generator)
        assert fast.report.engaged
    reference = REFERENCES[family](model, call)
    wanted = sequential(reference, batch, guidance)
    assert torch.equal(tokens, wanted)
    codes = tokens[:, -len(reference.forced) :]
    assert len(codes.unique()) > 4, "a constant picture proves nothing"
    assert batch == 1 or not torch.equal(codes[0], codes[1])


@pytest.mark.parametrize("guidance", (1.0, GUIDANCE), ids=("plain", "guided"))
@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize("family", REFERENCES)
def test_same_tokens(family, batch, guidance):
    compare(family, batch, guidance)


@pytest.mark.parametrize("init", ("uniform", "repeat_left"))
@pytest.mark.parametrize("window", (2, 16))
@pytest.mark.parametrize("family", REFERENCES)
def test_every_window_and_init(family, window, init):
    compare(family, 2, GUIDANCE, window=window, init=init)


@pytest.mark.parametrize("family", ("emu3", "glm_image"))
def test_oblong_grid(family):
    compare(family, 2, GUIDANCE, rows=3, columns=5)


@pytest.mark.parametrize("family", REFERENCES)
def test_truncated_distribution(family):
    """Guidance comes before temperature, and temperature before top-k."""
    model, arguments = getattr(examples, family)()
    call = arguments(2, guidance=GUIDANCE, temperature=2.0, top_k=5)

    def process(logits):
        logits = logits / 2.0
        return logits.masked_fill(logits < logits.topk(5).values[..., -1:], -torch.inf)

    with mmaccel.accelerate(model, SpeculativeJacobi(window=6, coupling="gumbel_exact")) as fast:
        tokens = fast.generate(**call, generator=torch.Generator().manual_seed(NOISE_SEED))
    assert torch.equal(tokens, sequential(REFERENCES[family](model, call), 2, GUIDANCE, process))


@pytest.mark.parametrize("family", REFERENCES)
def test_one_seed_gives_one_picture_at_every_window(family):
    """What seed equivalence means to a user: the window is no part of the result."""
    model, arguments = getattr(examples, family)()
    pictures = []
    for window in (2, 5, 16):
        with mmaccel.accelerate(model, SpeculativeJacobi(window=window, coupling="gumbel_exact")) as fast:
            pictures.append(fast.generate(**arguments(2), generator=torch.Generator().manual_seed(0)))
    assert torch.equal(pictures[0], pictures[1]) and torch.equal(pictures[0], pictures[2])


SAMPLING = ({}, {"temperature": 0.8, "top_k": 9}, {"top_p": 0.9})
# Transformers' own guidance refuses several pictures of a prompt; that of Janus repeats its rows itself.
OWN_CASES = [(family, settings) for family in REFERENCES for settings in SAMPLING]
OWN_CASES.append(("janus", {"num_return_sequences": 2}))


@pytest.mark.parametrize("batch", (1, 3))
@pytest.mark.parametrize(("family", "settings"), OWN_CASES, ids=str)
def test_a_seed_gives_the_picture_of_the_models_own_generate(family, batch, settings):
    """Also from the global state, which is left as the model's own generate leaves it."""
    model, arguments = getattr(examples, family)()
    call = arguments(batch, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(NOISE_SEED)
        plain, after = own(family, model, call), torch.get_rng_state()
        with mmaccel.accelerate(model, SpeculativeJacobi(window=6, coupling="gumbel_exact")) as fast:
            torch.manual_seed(NOISE_SEED)
            assert torch.equal(fast.generate(**call), plain) and fast.report.engaged
            assert torch.equal(torch.get_rng_state(), after)
            generator = torch.Generator().manual_seed(NOISE_SEED)
            assert torch.equal(fast.generate(**call, generator=generator), plain)
            assert torch.equal(torch.get_rng_state(), after), "a call with a generator touched the global state"
            assert not torch.equal(fast.generate(**call), plain), "two calls in a row gave one picture"
