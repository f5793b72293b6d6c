"""Pictures of the models themselves."""

from mmaccel.image import examples


def own(family, model, call):
    """The model's own tokens; GLM-Image is told to keep to image codes, as the accelerated call does."""
    if family != "glm_image":
        return model.generate(**call)
    length = call["input_ids"].shape[1] + call["max_new_tokens"] - 1

    def allowed(_, ids):
        return [examples.CODES + 1] if len(ids) == length else list(range(examples.CODES))

    return model.generate(**call, prefix_allowed_tokens_fn=allowed)
