"""Classes that transformers has since 5.24, of which the documentation's tables say so much as that none was tried."""

import transformers
from packaging.version import Version

SINCE_5_24 = {
    "Apertus1p5ForConditionalGeneration",
    "Apertus1p5TextForCausalLM",
    "DoryForCausalLM",
    "HYV4VLForConditionalGeneration",
    "Inkling2LoopForCausalLM",
    "Inkling2LoopForConditionalGeneration",
    "LaraMiniForCausalLM",
    "OmniASRForCTC",
    "OmniASRForConditionalGeneration",
}


def exists(name: str) -> bool:
    """Whether the installed transformers has a class, or is too old for it."""
    if Version(transformers.__version__) < Version("5.24") and name in SINCE_5_24:
        return not hasattr(transformers, name)
    return hasattr(transformers, name)
