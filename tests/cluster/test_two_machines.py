"""A cluster of two nodes, by its address: each node has one core, so that two processes work on both."""

import os
from pathlib import Path

import pytest
from listening import client, listening
from toy_batch import EchoCommand, usual

from mmaccel.batch import run
from mmaccel.batch.folder import OutputFolder
from mmaccel.batch.items import Item
from mmaccel.cli import main as cli
from mmaccel.cluster.replicas import replicated
from mmaccel.cluster.spread import spread
from mmaccel.errors import SettingError
from mmaccel.modality import get_modality
from mmaccel.serve.app import ServerLimits

COMMAND, HELPERS = EchoCommand(), Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where the cluster is; its nodes were started in another folder."""
    pytest.importorskip("ray", reason='needs ray: pip install "mmaccel[ray]"')
    from ray.cluster_utils import Cluster

    looks = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HELPERS))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        cluster = Cluster(initialize_head=True, head_node_args=looks)
        cluster.add_node(**looks)
        yield cluster.address
        cluster.shutdown()


def test_items_are_made_on_both_nodes_and_paths_are_those_of_the_command(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = usual(journal="journal", pause=0.2)
    out, items = Path("out"), [Item(f"{number:03}", {"text": f"text-{number}"}) for number in range(8)]
    with OutputFolder(out, {}, ".txt") as folder:
        outcome = run.run(items, folder, COMMAND, given, spread(COMMAND, given, out, address, 2))
    assert outcome.made == 8 and not outcome.failures
    assert [file.read_text() for file in sorted(out.glob("*.txt"))] == [item.fields["text"] for item in items]
    workers = {line.split()[1] for line in (tmp_path / "journal").read_text().splitlines()}
    assert len(workers) == 2 and str(os.getpid()) not in workers
    assert not list((out / ".mmaccel").glob("seen-*"))
    with pytest.raises(SettingError, match="too few for --workers 3: ask for 2 or fewer"):
        next(spread(COMMAND, given, out, address, 3)([object()]))


def test_a_server_has_replicas_on_both_nodes(address):
    import psutil

    arguments = cli.build_parser().parse_args(["serve", "image"])
    del arguments.run
    limits = ServerLimits(deadline=120)
    with (
        replicated(get_modality("image").command(), arguments, limits, address, 2, 2) as endpoint,
        listening(endpoint, limits) as (_, place),
    ):
        mine = psutil.Process().children(recursive=True)
        nodes = {one.ppid() for one in mine if "ServeReplica" in " ".join(one.cmdline())}
        answers = [client(place).images.generate(prompt="red heart", extra_body={"seed": 7}) for _ in range(2)]
    assert answers[0].data[0].b64_json == answers[1].data[0].b64_json
    assert len(nodes) == 2, "each node starts its own processes"
