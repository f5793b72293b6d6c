"""A comparison with the preset `exact`: both pictures are the same, and it says so."""

import pytest
import torch

import mmaccel
from mmaccel.cli import main as cli
from mmaccel.image import GroupedSpeculative, SpeculativeJacobi, ZipAR, examples, generation
from mmaccel.image.comparing import verdict

KEEPS = SpeculativeJacobi(window=8, coupling="gumbel_exact")


@pytest.fixture(scope="module")
def painter():
    return generation.load("tiny-janus")


def test_the_preset_draws_the_plain_picture(painter):
    """Of two pictures of a prompt, at once."""
    settings = generation.ImageSettings(seed=5, count=2)
    plain = painter.generate(painter.target, ["red heart"], settings)
    with mmaccel.accelerate(painter.target, preset="exact") as fast:
        assert torch.equal(painter.generate(fast, ["red heart"], settings), plain)
        assert fast.report.forwards < 128 and fast.report.exact
        other = painter.generate(fast, ["red heart"], generation.ImageSettings(seed=6, count=2))
    assert not torch.equal(other, plain)


def test_compare_finds_equal_tokens():
    model, arguments = examples.janus()
    found = mmaccel.compare(model, KEEPS, SpeculativeJacobi(window=8), seeds=range(3), rounds=1, **arguments(2))
    _, keeps, maximal = found.rows
    assert keeps["equal"] and keeps["metrics"]["same"] == 1
    assert not maximal["equal"] and maximal["metrics"]["same"] < 1


def test_run_says_that_both_pictures_are_the_same(tmp_path, capsys):
    arguments = ["run", "image", "red heart", "--seed", "1", "--compare", "-o", str(tmp_path / "heart.png")]
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out.endswith("both pictures are the same, token for token\n")


def test_verdict():
    model, _ = examples.janus()
    one, other = torch.tensor([[1, 2]]), torch.tensor([[1, 3]])
    found = {
        (method, tokens is one): verdict(one, tokens, mmaccel.plan(model, method))
        for method in (KEEPS, SpeculativeJacobi(), ZipAR(window=2), GroupedSpeculative())
        for tokens in (one, other)
    }
    same = "both pictures are the same, token for token"
    assert found[KEEPS, True] == found[SpeculativeJacobi(), True] == same
    assert "near-tie" in found[KEEPS, False]
    assert "the distribution, not the noise" in found[SpeculativeJacobi(), False]
    assert {found[m, s] for m in (ZipAR(window=2), GroupedSpeculative()) for s in (True, False)} == {""}
