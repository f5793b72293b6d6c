"""Step methods where diffusers splits the tokens of a transformer over processes."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ranks
import torch
from diffusers import WanTransformer3DModel
from diffusers.models import _modeling_parallel
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from mmaccel.video import private
from mmaccel.video.families.context_parallel import agreed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signals of POSIX")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What one, two and four processes drew, by their number and rank."""

    made = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(Path(ranks.__file__)), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]

    def read(world):
        told = [json.loads((made / f"{world}/{rank}.json").read_text()) for rank in range(world)]
        clips = [load_file(made / f"{world}/{rank}.safetensors") for rank in range(world)]
        return [SimpleNamespace(clips=clip, **one) for clip, one in zip(clips, told, strict=True)]

    return {world: read(world) for world in (1, 2, 4)}


@pytest.mark.parametrize("world", (2, 4))
@pytest.mark.parametrize("name", ("plain", *ranks.WORKING))
def test_the_clip_is_that_of_one_process(found, name, world):
    (alone,) = found[1]
    for rank in found[world]:
        assert rank.computed[name] == alone.computed[name]
        torch.testing.assert_close(rank.clips[name], alone.clips[name], rtol=1e-3, atol=1e-3)
    if name != "plain":
        assert not torch.equal(alone.clips[name], alone.clips["plain"]), "the method did nothing"


@pytest.mark.parametrize("world", (2, 4))
def test_what_one_process_computes_all_compute(found, world):
    (alone,) = found[1]
    assert 0 in alone.computed["apart"] != alone.computed["easy"]
    assert 0 in alone.computed["astray"] != alone.computed["steps"]
    for rank in found[world]:
        for name in ("apart", "astray"):
            assert rank.computed[name] == alone.computed[name]
            torch.testing.assert_close(rank.clips[name], alone.clips[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("world", (2, 4))
def test_processes_that_shard_the_weights_compute_the_same_steps_of_their_own_clips(found, world):
    first, *others = found[world]
    assert 0 in first.computed["weights"] != found[1][0].computed["easy"]
    for rank in others:
        assert rank.computed["weights"] == first.computed["weights"]
        assert not torch.equal(rank.clips["weights"], first.clips["weights"]), "each draws its own"


def test_methods_that_look_between_the_layers_are_refused_by_name(found):
    (alone,) = found[1]
    assert not any(alone.refused.values())
    refused = found[2][0].refused
    assert all("measure in one process" in refused.pop(name) for name in ("auto", "auto of weights"))
    told = refused.pop("first of weights")
    assert "would each decide for themselves" in told and told.endswith("Use video.BlockCache")
    for name, told in refused.items():
        assert "context parallelism has split those of WanTransformer3DModel" in told, name
        assert "use video.HeterogeneousSteps or video.EasyCache" in told


@pytest.mark.parametrize("world", (2, 4))
def test_a_language_model_whose_experts_are_split_takes_drafts(found, world):
    """The same tokens in as many passes; those that grow by measured seconds are refused, as these differ."""
    *alone, nothing = found[1][0].texts
    assert not nothing and all(tokens == alone[0][0] for tokens, _ in alone)
    assert len(alone) == 5 and all(passes < 20 for _, passes in alone[1:])
    for rank in found[world]:
        *texts, refused = rank.texts
        assert texts == alone and "say vlm.FusedDraft(always=True)" in refused


@pytest.mark.parametrize("world", (2, 4))
def test_methods_by_which_processes_would_part_are_refused(found, world):
    assert not any(found[1][0].whole.values())
    for rank in found[world]:
        for told in rank.whole.values():
            assert "MixtralForCausalLM" in told and "split over processes" in told


def test_without_it_a_decision_stays():
    assert [agreed(torch.nn.Linear(1, 1), decision) for decision in (True, False)] == [True, False]


def test_only_those_that_exchange_something_in_a_forward_decide_together():
    """Not the replicas of hybrid sharding, and not a process by itself."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        first, second = (init_device_mesh("cpu", sizes) for sizes in ((2, 2), (4, 1)))

        def groups(*places):
            model = torch.nn.ParameterList(
                DTensor.from_local(torch.ones(2, 2), mesh, placements, run_check=False) for mesh, placements in places
            )
            return private.shared_groups(model)

        whole, rows, columns = Replicate(), Shard(0), Shard(1)
        assert groups((first, (whole, rows))) == {first.get_group(1): "cpu"}
        assert groups((first, (whole, whole)), (first, (columns, rows))) == dict.fromkeys(first.get_all_groups(), "cpu")
        assert not groups((first, (whole, whole)), (second, (whole, rows)))
        assert list(groups((second, (rows, columns)), (first, (whole, rows)))) == [
            second.get_group(0),
            first.get_group(1),
        ]
    finally:
        torch.distributed.destroy_process_group()


def test_the_private_names_are_there():
    assert hasattr(WanTransformer3DModel, private.PARALLEL)
    assert "_flattened_mesh" in vars(_modeling_parallel.ContextParallelConfig)
