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


def changed(change):
    """Changes the weights in a folder by a function of all of them."""

    def spoiled(folder):
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")

    return spoiled


def in_two_files(folder):
    """Writes the weights in a folder as large models have them, and forgets the one file."""
    weights, files = load_file(folder / "model.safetensors"), {}
    for number, names in enumerate((sorted(weights)[::2], sorted(weights)[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in names}, folder / file)
        files |= dict.fromkeys(names, file)
    told = {"metadata": {"total_size": 0}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(told))
    (folder / "model.safetensors").unlink()


def told_otherwise(**more):
    """Changes the configuration in a folder, and of a `dflash_config` what is named alone."""

    def spoiled(folder):
        told = json.loads((folder / "config.json").read_text())
        whole = {**told, **more}
        if "dflash_config" in told:
            whole["dflash_config"] = {**told["dflash_config"], **whole["dflash_config"]}
        (folder / "config.json").write_text(json.dumps(whole))

    return spoiled
