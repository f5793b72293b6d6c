"""How pipelines of the zoo are saved: as those of diffusers that they are."""

from __future__ import annotations

import json

from diffusers.configuration_utils import ConfigMixin


class SavedAsDiffusers(ConfigMixin):
    """A mix-in before a pipeline's class: saved, it has the name of that, which `DiffusionPipeline` can open."""

    def to_json_string(self) -> str:
        """The configuration, with the class of diffusers."""
        config = json.loads(super().to_json_string())
        known = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("diffusers."))
        return json.dumps({**config, "_class_name": known.__name__}, indent=2, sort_keys=True) + "\n"
