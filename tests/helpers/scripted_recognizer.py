"""A recogniser whose words are tied to the audio: what it should hear is known, whatever a stream does."""

import statistics
from collections.abc import Sequence
from types import SimpleNamespace

import torch

from mmaccel.cache.argument import cache_of
from mmaccel.speech.families.adapter import Encoded, SpeechAdapter, Word

RATE = 16_000
FRAME = 160  # samples of an encoder position: 10 ms
END, START, FIRST = 0, 1, 2
WORD, GAP = 0.24, 0.08  # seconds of a spoken word, and between two


def spoken(words: Sequence[int], gap: float = GAP) -> torch.Tensor:
    """Audio of words by number: tones whose loudness says which."""
    pieces = []
    for word in words:
        length = round(WORD * RATE)
        tone = torch.sin(torch.arange(length) * 0.6)
        level = 0.1 + 0.8 * (word % 200) / 200
        pieces += [level * tone / tone.abs().max(), torch.zeros(round(gap * RATE))]
    return torch.cat(pieces)


def silence(seconds: float) -> torch.Tensor:
    return torch.zeros(round(seconds * RATE))


def talk() -> torch.Tensor:
    """Two sentences, with a pause between them; :data:`TEXT` says what they are."""
    return torch.cat([silence(0.5), spoken(range(12)), silence(1.5), spoken([20, 21])])


TEXT = " ".join(f"w{word}" for word in [*range(12), 20, 21])


class ScriptedModel(torch.nn.Module):
    """Decoder that tells the words of the encoder's states one by one, by its position."""

    VOCABULARY = 256

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.fail = 0

    def forward(self, decoder_input_ids, encoder_outputs, use_cache, **given):
        self.calls += 1
        if self.fail:
            self.fail -= 1
            raise RuntimeError("out of memory")
        past = cache_of(given).self_attention_cache
        rows = decoder_input_ids.shape[1]
        before = past.get_seq_length()
        past.update(torch.zeros(1, 1, rows, 1), torch.zeros(1, 1, rows, 1), 0)
        told = [FIRST + round(word) for word in encoder_outputs.last_hidden_state[0, :, 0].tolist()]
        logits = torch.zeros(1, rows, self.VOCABULARY)
        for row in range(rows):
            place = before + row  # the prompt is one token
            logits[0, row, told[place] if place < len(told) else END] = 1
        return SimpleNamespace(logits=logits)


class ScriptedAdapter(SpeechAdapter):
    """Hears the words of :func:`spoken`; one that is cut off is heard as another, as recognisers do."""

    family = "scripted"
    classes = ()
    longest = 30.0

    def __init__(self, appends: bool = False):
        super().__init__(ScriptedModel())
        self.processor = self
        self.appends = appends
        self.encoded: list[int] = []
        self.contexts: list[str] = []

    def encode(self, samples):
        """States `[1, words, 3]`: number, first and last position of each; half a word is number 199."""
        self.encoded.append(samples.numel())
        peaks = samples[: samples.numel() // FRAME * FRAME].view(-1, FRAME).abs().amax(1).tolist()
        words, place = [], 0
        while place < len(peaks):
            last = place
            while last < len(peaks) and peaks[last] > 0.05:
                last += 1
            if last > place:
                whole = last - place >= WORD * RATE / FRAME * 0.8
                number = round((statistics.median(peaks[place:last]) - 0.1) / 0.8 * 200) if whole else 199
                words.append((number, place, last))
            place = last + 1
        return Encoded(torch.tensor(words).reshape(1, -1, 3).float(), samples.numel() / RATE)

    @property
    def frame_seconds(self):
        return FRAME / RATE

    def prompt(self, context=""):
        self.contexts.append(context)
        return [START]

    def limit(self, seconds):
        return max(1, int(6.5 * seconds))

    def banned(self, step):
        return ()

    @property
    def end_tokens(self):
        return frozenset({END})

    def text(self, tokens):
        return " ".join(f"w{token - FIRST}" for token in tokens)

    def words(self, encoded, tokens, prompt):
        places = encoded.hidden_states[0].tolist()
        return [
            Word(f"w{token - FIRST}", first * self.frame_seconds, last * self.frame_seconds)
            for token, (_, first, last) in zip(tokens, places, strict=False)
        ]
