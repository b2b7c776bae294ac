"""`gateway senders`: the list, a block, and what it says of unknown names."""

from __future__ import annotations

import tomllib

import pytest

from gateway.cli import main
from gateway.sources import BLOCKS, SCHEMES


def test_all_senders_are_listed_with_what_they_need(capsys):
    assert main(["senders"]) == 0
    needs = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert sorted(needs) == sorted(SCHEMES)
    assert needs["square"] == "secrets, public_url"
    assert needs["meta"] == "secrets, verify_token"


def test_a_block_is_shown_as_it_is_written(capsys):
    for name in BLOCKS:
        assert main(["senders", "show", name]) == 0
        assert tomllib.loads(capsys.readouterr().out)["title"], name


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["wechat"], "wechat is code"),
        (["hmac"], "your own table"),
        (["strip"], "did you mean stripe?"),
        ([], "`gateway senders` lists them"),
    ],
)
def test_what_cannot_be_shown_is_told(capsys, args, words):
    assert main(["senders", "show", *args]) == 1
    assert words in capsys.readouterr().err
