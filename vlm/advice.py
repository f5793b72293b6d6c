"""Advice and example code for the documentation of methods on language and vision-language models."""

from __future__ import annotations

from mmaccel.modality import Advice

EXAMPLE = """import mmaccel
from mmaccel import vlm, zoo

model, processor = zoo.load("tiny-onevision")
asked = zoo.questions("tiny-onevision", 1)[0]
inputs = processor(videos=[asked.frames], text=asked.question, return_tensors="pt")
with mmaccel.accelerate(model, {method}) as fast:
    tokens = fast.generate(**inputs, max_new_tokens=8)
    print(processor.decode(tokens[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), asked.answer)
    print(fast.report)"""

ADVICE = {
    "vlm.CompressKV": Advice(
        "Long answers to long prompts: every decoding step reads a small cache.",
        "What the end of the prompt does not ask for is gone, also for the next turn.",
    ),
    "vlm.DyCoke": Advice(
        "Video that changes slowly, on any of the families; it asks nothing of the tower.",
        "The tower still sees everything, which is most of the time in a small model.",
        "keep=0.15",
    ),
    "vlm.EarlyTom": Advice(
        "LLaVA models that are shown many frames: the vision tower has less to do as well.",
        "Frames that were merged before the tower had read them can lose what told them apart.",
        "keep=0.15",
    ),
    "vlm.FastV": Advice(
        "When which tokens matter depends on the question.",
        "The first layers still see everything, so that the first token gains least of all.",
        "keep=0.15",
    ),
    "vlm.FastVID": Advice(
        "Video that is cut into scenes.",
        "Small things between its anchors, which the questions of the small model ask for.",
    ),
    "vlm.FrameFusion": Advice(
        "Video that stands still, and models whose tower must not be touched.",
        "The layers before see everything, and only the others gain.",
    ),
    "vlm.HoliTom": Advice(
        "Long video of which much stands still, on models whose attention says what matters.",
        "Where few tokens are left, answers about small things; compare it with DyCoke on your own clips.",
        "keep=0.25",
    ),
    "vlm.IDPruner": Advice(
        "Few tokens of varied content: what it keeps is important and unlike the rest.",
        "Choosing token after token takes time; raise step= to choose several at once.",
    ),
    "vlm.SelectKV": Advice(
        "Very long contexts, from which every step needs something else.",
        "The whole cache stays in memory; at 2,000 tokens choosing costs more than reading all.",
    ),
    "vlm.SparsePrefill": Advice(
        "Prompts of many thousand tokens: the longer, the more.",
        "Nearly nothing at 8,000 tokens; at 2,000 there is little to gain.",
    ),
    "vlm.StreamingCompression": Advice(
        "Frames that come one by one, in a VideoStream with bounded memory.",
        "It knows no later frame, and can keep what a look at the whole clip would have dropped.",
    ),
    "vlm.SuffixDecoding": Advice(
        "Answers that repeat the prompt or an earlier answer: rewriting, reading of documents, code.",
        "Nothing in quality; a little time where nothing repeats, as in a short answer.",
    ),
    "vlm.VidCom2": Advice(
        "Models whose tower gives no attention, or runs compiled.",
        "It goes by what is unusual, and that need not be what is asked for.",
    ),
    "vlm.VisionZip": Advice(
        "Single pictures, and clips in which every frame is looked at by itself.",
        "What stands still is kept again in every frame, which leaves less room for what changes.",
    ),
}
