"""Which classes of transformers are recognisers, what their source does not tell, and why some cannot be served."""

from __future__ import annotations

# Each frame has a token or a blank.
CTC = (
    "Data2VecAudioForCTC",
    "GraniteSpeech5ForCTC",
    "HubertForCTC",
    "LasrForCTC",
    "ParakeetForCTC",
    "SEWDForCTC",
    "SEWForCTC",
    "UniSpeechForCTC",
    "UniSpeechSatForCTC",
    "Wav2Vec2BertForCTC",
    "Wav2Vec2ConformerForCTC",
    "Wav2Vec2ForCTC",
    "WavLMForCTC",
)
# Transducers whose encoder looks at all of the audio.
TRANSDUCERS = ("ParakeetForRNNT", "ParakeetForTDT")
# Transducers with a cache-aware encoder.
STREAMING_TRANSDUCERS = ("Nemotron3_5AsrForRNNT", "NemotronAsrStreamingForRNNT")
