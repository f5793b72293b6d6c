"""Published heads that lack something, or say something else."""

import json

from safetensors.torch import load_file, save_file


def without(name):
    """Takes a tensor out of the weights in a folder."""

    def spoiled(folder):
        weights = load_file(folder / "model.safetensors")
        del weights[name]
        save_file(weights, folder / "model.safetensors")

    return spoiled


def told_otherwise(**more):
    """Changes the configuration in a folder, and of a `dflash_config` what is named alone."""

    def spoiled(folder):
        told = json.loads((folder / "config.json").read_text())
        whole = {**told, **more}
        if "dflash_config" in told:
            whole["dflash_config"] = {**told["dflash_config"], **whole["dflash_config"]}
        (folder / "config.json").write_text(json.dumps(whole))

    return spoiled
