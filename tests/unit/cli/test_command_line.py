"""Options that no command has."""

from __future__ import annotations

import pytest

from gateway.cli import main


@pytest.mark.parametrize(
    ("argv", "usage", "words"),
    [
        (["serve", "--prot", "80"], "gateway serve", "--prot 80; did you mean --port?"),
        (["--prot=80"], "gateway serve", "--prot=80; did you mean --port?"),
        (["check", "extra"], "gateway check", "extra"),
        (
            ["send", "--as", "x", "http://127.0.0.1/", "--evnt", "e"],
            "gateway send",
            "--evnt e; did you mean --event?",
        ),
        (
            ["deliveries", "list", "--sate", "failed"],
            "gateway deliveries list",
            "--sate failed; did you mean --state?",
        ),
    ],
)
def test_an_unknown_option_names_its_command_and_the_nearest(capsys, argv, usage, words):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"usage: {usage} ")
    assert said.endswith(f"error: unrecognized arguments: {words}\n")
