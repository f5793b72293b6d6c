"""What the documentation says of the methods of autoregressive image models, and how it calls them."""

from __future__ import annotations

from mmaccel.modality import Advice

EXAMPLE = """import mmaccel
from mmaccel import image, zoo

model, processor = zoo.load("tiny-janus")
inputs = processor(text="big red heart on yellow", generation_mode="image", return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, generation_mode="image")
    print(fast.report)"""

ADVICE = {
    "image.GroupedSpeculative": Advice(
        "Models whose codebook holds many codes that look alike, so that exact drafts are often refused.",
        "Pictures stay as near to real ones as plain ones are, and tokens become less likely under the model. On the"
        " small model it is no faster than the best exact setting of SpeculativeJacobi: try that first.",
    ),
    "image.SpeculativeJacobi": Advice(
        "One picture or a few at a time, where a pass over 16 tokens costs hardly more than one over a single token.",
        "Nothing in quality. Wide windows cost time on a CPU, and a batch waits for the row that accepts least.",
        'window=16, init="repeat_left"',
    ),
    "image.ZipAR": Advice(
        "When time matters more than the last bit of quality: the number of passes is fixed, whatever the picture.",
        "Tokens are drawn without the right part of the row above, and pictures get worse as the window narrows.",
    ),
}
