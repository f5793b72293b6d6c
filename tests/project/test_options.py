"""Every option of every command arrives: each is given once, with a value that is not its default.

An option without a case fails, so that a new one gets its own here.
"""

import argparse
import json
import shutil

import pytest
from arrivals import stand_in
from batch_cases import BATCHES
from batch_cases import USUAL as USUAL_OF_BATCHES
from option_cases import CANVAS, IMAGE, SPEECH, VIDEO, VLM
from option_cases import CASES as OTHERS
from option_cases import USUAL as USUAL_OF_OTHERS

from mmaccel.cli import main as cli
from mmaccel.comparison import results
from mmaccel.plan import Plan

CASES, USUAL = {**OTHERS, **BATCHES}, {**USUAL_OF_OTHERS, **USUAL_OF_BATCHES}


def parsers(parser, path=()):
    """The parsers that stand at the end, by the words that lead there."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield " ".join(path), parser
    for name, one in below[0].choices.items() if below else ():
        yield from parsers(one, (*path, name))


def options(parser):
    """What a parser takes, as it is typed."""
    for action in parser._actions:
        if action.dest != "help":
            yield action.option_strings[-1] if action.option_strings else action.dest


PARSERS = dict(parsers(cli.build_parser()))
EVERY = [(path, option) for path, parser in PARSERS.items() for option in options(parser)]


def test_help_tells_every_default_and_fits_a_terminal():
    """A description that is not wrapped by argparse is by its command."""
    for path, parser in PARSERS.items():
        for action in parser._actions:
            if action.default not in (None, False, "", [], argparse.SUPPRESS):
                assert "default" in action.help, f"{path} {action.dest}={action.default}"
        assert all(len(line) <= 100 for line in (parser.description or "").splitlines()), path


@pytest.fixture(scope="module")
def once():
    """What arrived of command lines, by their words: most are the usual ones of a command."""
    return {}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with plans and results that commands read."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "results").mkdir()
    for method in (IMAGE, VIDEO, VLM, SPEECH, CANVAS):
        Plan((method,), "a family").save(folder / f"{method.name}.json")
    for name, speedup in (("old", 2.0), ("new", 1.0), ("more", 3.0)):
        row = results.row(
            modality="image", model="m", method="m", settings={}, exact=True, wall_seconds=1.0, speedup=speedup,
            quality=None, peak_extra_bytes=0, label="m", kind="method",
        )  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(results.result([row])))
    return folder


@pytest.fixture
def arrived(monkeypatch, tmp_path, capsys, files, once):
    """What arrives of a command line."""

    def run(*words):
        if words not in once:
            once[words] = arrive(*words)
        return once[words]

    def arrive(*words):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(files, folder)
        there = {path.name for path in folder.iterdir()}
        with monkeypatch.context() as patch:
            seen = stand_in(patch)
            code = cli.main([word.replace("{}", str(folder)) for word in words])
        said = capsys.readouterr()
        assert code in (0, 1), said.err
        made = sorted({path.name for path in folder.iterdir()} - there)
        seen |= {"files": made, "printed": said.out, "code": code}
        return {place: _anywhere(value, folder) for place, value in seen.items()}

    return run


def _anywhere(value, folder):
    return json.loads(json.dumps(value).replace(str(folder), "{}"))


def test_every_option_has_a_case():
    assert {(path, option) for path, cases in CASES.items() for option in cases} == set(EVERY)


@pytest.mark.parametrize(("path", "option"), EVERY)
def test_an_option_arrives(path, option, arrived):
    words, expected, *other = CASES[path][option]
    usual, always = USUAL.get(path, ([], []))
    usual = other[0] if other else usual
    stays = words[0].startswith("--") and words[0] != "--example"
    before = arrived(*path.split(), *usual, *always)
    after = arrived(*path.split(), *(usual if stays else []), *always, *words)
    places = {place for place in {*before, *after} if before.get(place) != after.get(place)}
    assert places == set(expected)
    for place, value in expected.items():
        assert value is ... or after.get(place) == value
