"""Draft and verify: the tokens of `generate`, in fewer passes."""

import pytest
import tiny_recognisers
import torch
from tensor_calls import TensorCalls
from tiny_recognisers import END, START

from mmaccel.decoding import match
from mmaccel.speech.decoding.realigned_draft import RealignedDraft
from mmaccel.speech.decoding.redecode import decode
from mmaccel.speech.families.adapter import Encoded, SpeechAdapter

NEW, VOCABULARY = 40, 64


def whisper():
    # more decoder layers than the encoder has; with tied embeddings it repeats the last token
    model = tiny_recognisers.whisper(decoder_layers=3, tie_word_embeddings=False)
    model.generation_config.update(is_multilingual=False, max_length=64)
    model.generation_config.update(suppress_tokens=[3, 4, 5], begin_suppress_tokens=[6, END], forced_decoder_ids=None)
    return model, {"input_features": noise(1, 8, 100)}


def moonshine():
    return tiny_recognisers.moonshine(tie_word_embeddings=False), {"input_values": noise(1, 16_000)}


def moonshine_streaming():
    return tiny_recognisers.moonshine_streaming(), {"input_values": noise(1, 16_000)}


MODELS = {"whisper": whisper, "moonshine": moonshine, "moonshine_streaming": moonshine_streaming}


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Tiny(SpeechAdapter):
    """An adapter without a tokenizer: the audio is given as inputs of the model."""

    family = "tiny"
    classes = ()
    frame_seconds = 0.02
    end_tokens = frozenset({END})
    prompt_tokens = [START]

    def encode(self, samples):
        raise NotImplementedError

    def prompt(self, context=""):
        return list(self.prompt_tokens)

    def limit(self, seconds):
        return NEW

    def banned(self, step):
        config = self.target.generation_config
        first = config.begin_suppress_tokens if step == 0 else None
        return [*(config.suppress_tokens or ()), *(first or ())]

    def text(self, tokens):
        raise NotImplementedError

    def words(self, encoded, tokens, prompt):
        raise NotImplementedError


class Case:
    def __init__(self, name):
        self.model, self.inputs = MODELS[name]()
        self.adapter = Tiny(self.model)
        with torch.no_grad():
            states = self.model.get_encoder()(**self.inputs).last_hidden_state
            self.encoded = Encoded(states, 1.0)
            out = self.model.generate(**self.inputs, max_new_tokens=NEW, do_sample=False, num_beams=1)
        if name == "whisper":  # its `generate` takes the prompt off
            self.greedy = out[0].tolist()
        else:
            self.greedy = out[0, 1:].tolist()
        self.greedy = self.greedy[: self.greedy.index(END)] if END in self.greedy else self.greedy

    def decode(self, draft=(), **more):
        calls = []
        handle = self.model.get_decoder().register_forward_hook(lambda *_: calls.append(1))
        kept = self.encoded.hidden_states.clone()
        found = decode(self.adapter, self.encoded, self.adapter.prompt(), draft, **more)
        handle.remove()
        assert torch.equal(self.encoded.hidden_states, kept), "the encoder's states were changed"
        assert found.forwards == len(calls)
        return found


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    return Case(request.param)


def other(token):
    """A token that is not this one, and ends nothing."""
    return 10 + (token + 1) % 40


def test_without_a_draft(case):
    found = case.decode()
    assert list(found.tokens) == case.greedy and len(set(case.greedy)) > 10
    assert found.forwards == len(case.greedy) + found.ended and found.accepted == 0
    assert found.ended == (len(case.greedy) < NEW)


def test_no_near_ties(case):
    """Else equal tokens would be luck."""
    with torch.no_grad():
        ids = torch.tensor([[*case.adapter.prompt(), *case.greedy]])
        logits = case.model(**case.inputs, decoder_input_ids=ids).logits[0]
    best = logits.topk(2).values
    assert float((best[:, 0] - best[:, 1]).min()) > 1e-3 * float(logits.std())


def test_perfect_draft(case):
    found = case.decode(case.greedy)
    assert list(found.tokens) == case.greedy and found.forwards == 1
    assert found.accepted == len(case.greedy) - (not found.ended)


@pytest.mark.parametrize("place", (0, 1, 9, 20))
def test_one_word_changed_put_in_or_left_out(case, place):
    """The rest of the draft is not lost."""
    greedy, wrong = case.greedy, other(case.greedy[place])
    drafts = {
        "substitution": [*greedy[:place], wrong, *greedy[place + 1 :]],
        "insertion": [*greedy[:place], wrong, *greedy[place:]],
        "deletion": [*greedy[:place], *greedy[place + 1 :]],
    }
    for name, draft in drafts.items():
        found = case.decode(draft)
        assert list(found.tokens) == greedy, name
        assert found.forwards <= 8, (name, found.forwards)
        assert found.forwards == run(draft, [*greedy, END] if found.ended else greedy), "as the draft alone counts"


def test_the_draft_is_the_start(case):
    """The usual case in a stream: what was heard before, and new words."""
    half = case.greedy[:17]
    found = case.decode(half)
    assert list(found.tokens) == case.greedy
    # behind its end the draft still helps where the text repeats itself
    assert found.forwards == len(case.greedy) + found.ended - found.accepted and 17 <= found.accepted <= 22


def test_garbage(case):
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        draft = torch.randint(7, VOCABULARY, (60,), generator=generator).tolist()
        found = case.decode(draft)
        assert list(found.tokens) == case.greedy and found.forwards <= len(case.greedy) + 1


def test_draft_longer_than_the_text_and_the_limit(case):
    longer = case.greedy + case.greedy
    found = case.decode(longer)
    assert list(found.tokens) == case.greedy and found.forwards == 1
    cut = case.decode(longer, max_new_tokens=7)
    assert list(cut.tokens) == case.greedy[:7] and not cut.ended and cut.forwards == 1
    assert case.decode(longer, max_new_tokens=0).tokens == () and case.decode(max_new_tokens=0).forwards == 0


def test_an_end_in_the_draft_ends_the_draft(case):
    found = case.decode([*case.greedy[:5], END, *case.greedy[6:]])
    assert list(found.tokens) == case.greedy and found.accepted == 5


def test_everything_is_banned_that_generate_bans():
    case = Case("whisper")
    config = case.model.generation_config
    config.suppress_tokens = [*config.suppress_tokens, VOCABULARY + 5]  # of a larger vocabulary: no notice is taken
    assert list(case.decode().tokens) == case.greedy
    allowed = set(case.greedy)
    assert not allowed & set(config.suppress_tokens) and case.greedy[0] not in config.begin_suppress_tokens
    config.suppress_tokens = None  # without them the text is another, so that the test above means something
    config.begin_suppress_tokens = [case.greedy[0]]
    changed = case.decode(case.greedy)
    assert list(changed.tokens) != case.greedy and changed.tokens[0] != case.greedy[0]


@pytest.mark.parametrize("drafted", (False, True))
def test_what_is_banned_first_is_allowed_later(drafted):
    """Whisper bans its end at the first place alone, whatever is drafted there and behind it."""
    case = Case("whisper")
    greedy, settings = case.greedy, case.model.generation_config
    end = next(token for token in greedy[8:] if token != greedy[0])
    text = greedy[: greedy.index(end)]
    later = next(token for token in text[1:] if token != greedy[0])
    settings.begin_suppress_tokens = [later, end]
    case.adapter.end_tokens = frozenset({end})
    out = case.model.generate(**case.inputs, max_new_tokens=NEW, do_sample=False, eos_token_id=end)
    assert out[0].tolist()[: len(text)] == text and len(out[0]) <= len(text) + 1
    found = case.decode(text if drafted else ())
    assert list(found.tokens) == text and found.ended
    assert found.forwards == (1 if drafted else len(text) + 1)


def test_the_random_state_is_not_touched(case):
    state = torch.get_rng_state()
    case.decode(case.greedy[::-1])
    assert torch.equal(torch.get_rng_state(), state)


def run(old, new):
    """Passes that it takes to find `new` with the draft `old`."""
    draft, decoded, rounds = RealignedDraft(old), [], 0
    while len(decoded) < len(new):
        block = draft.propose(len(new) - len(decoded) - 1)
        left = iter(new[len(decoded) :])
        verdict = match(block, lambda node, left=left: (next(left), False))
        decoded += verdict.tokens
        draft.observe(verdict)
        rounds += 1
    assert decoded == new
    return rounds


def test_realignment_counts():
    """60 words: all at once, then blocks of 8, 16, 32 after the mismatch."""
    words = list(range(60))
    assert run(words, words) == 1
    assert run([*words[:10], 99, *words[11:]], words) == 1 + 3  # 10 + 1, then 9, 17, 22
    assert run([*words[:10], *words[11:]], words) == 1 + 1 + 3  # one left out: found after another token
    assert run([*words[:10], 99, *words[10:]], words) == 1 + 3  # one too many: found at once
    assert run([*words[:10], 97, 98, 99, *words[10:]], words) == 1 + 3
    assert run([*words[:10], *words[30:]], words) <= 1 + 21 + 3  # nothing fits until words 30 and 31 are there
    assert run([99] * 60, words) == 60
    assert run([], words) == 60


def test_what_is_banned_of_many_places_is_written_at_once():
    """A GPU gets the tokens with each write."""
    case = Case("whisper")
    with TensorCalls() as calls:
        found = case.decode(case.greedy)
    assert found.forwards == 1 and calls.counts["__setitem__"] < len(case.greedy) // 2


def test_layers_that_round_a_token_by_all_others_of_a_pass_get_no_drafts():
    """In torch's dynamic int8, where a token has other numbers among drafts than alone."""
    case = Case("whisper")
    torch.ao.quantization.quantize_dynamic(case.model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)
    found = case.decode(case.greedy)
    assert found.tokens == case.decode().tokens and found.accepted == 0 and found.forwards > 3
