"""docs/sources.md: every scheme, blocks that load, the options and the habits of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import sources
from gateway.config.loading import load
from gateway.sources import OWN, SCHEMES, find
from gateway.sources.base import Options
from gateway.sources.block import Block
from tests.docs.test_documents import text

DOCUMENT = text("docs/sources.md")
SECTIONS = dict(re.findall(r"^## ([a-z]+)\n(.*?)(?=^## |\Z)", DOCUMENT, re.M | re.S))
BLOCKS = [
    pytest.param(block, id=name)
    for name, section in SECTIONS.items()
    for block in re.findall(r"```toml\n(.*?)```", section, re.S)
]

#: Good as the secret of any scheme: 64 hexadecimal digits, which are base64 as well.
SECRET = "0123456789abcdef" * 4


def environment(block: str) -> dict[str, str]:
    """Return a good value for each variable that `block` names."""
    names = re.findall(r'env = "(\w+)"', block)
    return {name: SECRET[:43] if name.endswith("AES_KEY") else SECRET for name in names}


def write(block: str, to: Path) -> dict[str, str]:
    """Write a block to a file, and those that it names beside it; return its variables."""
    for path in re.findall(r'file = "([^"]+)"', block):
        secret = to.parent / path.rpartition("/")[2]
        secret.write_text(SECRET)
        block = block.replace(path, str(secret))
    to.write_text(block)
    return environment(block)


def test_every_key_of_a_block_is_in_the_table():
    section = SECTIONS["hmac"].split("```toml")[0]
    documented = {"title", "sources", "waits", "unchecked", "samples", "example", "secret_form"}
    for name, field in Block.model_fields.items():
        assert name in documented or f"`{field.alias or name}`" in section, name


def test_every_scheme_has_a_section_with_a_block():
    assert list(SECTIONS) == sorted(SECTIONS)
    assert set(SCHEMES) - set(sources.BLOCKS) <= set(SECTIONS) <= set(SCHEMES)
    for scheme, section in SECTIONS.items():
        assert scheme == OWN or f'scheme = "{scheme}"' in section
        assert "Identity: " in section


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_loads(block, tmp_path):
    file = tmp_path / "gateway.toml"
    config = load({}, write(block, file), file)

    # It has one source, which is routed, and every secret came from outside.
    (name,) = config.sources
    assert {route.source for route in config.routes} == {name}
    assert not re.search(r'(secrets|aes_key|token) = "', block)


def test_every_option_of_a_scheme_is_in_its_section():
    common = set(Options.model_fields)
    for scheme, section in SECTIONS.items():
        own = set(find(scheme).options_class.model_fields) - common if scheme != OWN else set()
        mentioned = set(re.findall(r"`(\w+)(?: = [^`]*)?`|^(\w+) = ", section, re.M))
        mentioned = {a or b for a, b in mentioned}
        assert own - mentioned == set(), scheme


def test_the_table_has_every_scheme_and_its_deadline():
    rows = re.findall(r"^\| `([a-z]+)` \|.*\| ([^|]+) \| [^|]*\|$", DOCUMENT, re.M)
    habits = {scheme: find(scheme).deadline for scheme in SECTIONS}
    assert dict(rows) == {s: f"{d:g}" if d else "`timeout`" for s, d in habits.items()}
