"""The command `mmaccel serve`."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from listening import client

from mmaccel.cli import main as cli
from mmaccel.modality import modalities

COMMAND = [sys.executable, "-c", "from mmaccel.cli.main import main; raise SystemExit(main())", "serve"]


def test_images_are_served_until_it_is_stopped():
    started = subprocess.Popen(
        [*COMMAND, "image", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MMACCEL_API_KEY": "secret"},
    )
    try:
        line = started.stdout.readline()
        address = re.match(r"mmaccel serves tiny-janus on (http://127\.0\.0\.1:\d+)/v1/images/generations ", line)[1]
        answer = client(address, "secret").images.generate(prompt="red heart", extra_body={"seed": 1})
        assert len(answer.data) == 1
    finally:
        started.send_signal(signal.SIGINT if os.name == "posix" else signal.CTRL_C_EVENT)
        _, errors = started.communicate(timeout=60)
    assert started.returncode in (0, 130) and "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (["image", "--host", "0.0.0.0"], "is open to others: set MMACCEL_API_KEY"),
        (["image", "--plain", "--preset", "fast"], "--plain is without methods"),
        (["image", "--port", "70000"], "--port 70000"),
        (["image", "--model", "tiny-wan"], "draws no pictures"),
        (["image", "--host", "192.0.2.1"], "MMACCEL_API_KEY"),
    ),
)
def test_what_cannot_be_served_is_refused_in_a_line(words, message, capsys, monkeypatch):
    monkeypatch.delenv("MMACCEL_API_KEY", raising=False)
    assert cli.main(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_an_address_of_another_machine_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("MMACCEL_API_KEY", "secret")
    assert cli.main(["serve", "image", "--host", "192.0.2.1"]) == 2
    assert "cannot listen on 192.0.2.1, port 8000: choose others" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(capsys, monkeypatch):
    monkeypatch.setattr("mmaccel.cli.serve._served", lambda *_: pytest.fail("the model was loaded first"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["serve", "image", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}: choose others" in capsys.readouterr().err


def test_the_kinds_are_those_that_can_be_served(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    told = capsys.readouterr().out
    for modality in modalities():
        assert (f"\n    {modality.name} " in told) == bool(modality.serving)
