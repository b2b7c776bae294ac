"""The commands of the pages that answer questions, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_documents import ROOT, text
from tests.docs.test_readme import running
from tests.support.stack import free_port

PAGES = re.findall(
    r": ([\w-]+\.md)$", text("mkdocs.yml").split("- Questions:")[1].split("- How to:")[0], re.M
)
APP = re.search(r"```python\n(.*?)```", text("README.md"), re.S)[1]
SENDER = re.findall(r"```toml\n(.*?)```", text("README.md"), re.S)[1]
(SLOW,) = re.findall(r"```toml\n(.*?)```", text("docs/slow-task.md"), re.S)


def commands(page: str) -> list[str]:
    lines = re.findall(r"^(?:    |       )((?:gateway|curl) .*)$", text(f"docs/{page}"), re.M)
    spans = re.findall(r"`(gateway [a-z]+ [^`<]*--[^`]*)`", text(f"docs/{page}"))
    # A name in capitals stands for one of the reader's.
    return [*lines, *(span for span in spans if not re.search("[A-Z]{3}", span))]


@pytest.mark.long
def test_each_command_of_a_question_runs(tmp_path: Path):
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "gateway.toml").write_text(SLOW + SENDER)
    port, admin = free_port(), free_port()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SHOPIFY_SECRET": "any-text"}
    words = ["--app", "shop", "--config", "gateway.toml"]
    words += ["--port", str(port), "--admin-port", str(admin)]
    ran = {}
    with running(*words, cwd=tmp_path, env=env) as (_, said):
        (exported,) = re.findall(r"^    export (.*)", said, re.M)
        env |= dict(each.split("=", 1) for each in shlex.split(exported))
        for page in PAGES:
            for command in commands(page):
                if command.startswith("gateway dev"):
                    assert command.split()[2:] == words[:4]  # it is what runs here
                    continue
                line = command.replace(":8000/", f":{port}/").replace(":9464/", f":{admin}/")
                line = re.sub("^gateway ", f"{shlex.quote(sys.executable)} -m gateway ", line)
                done = subprocess.run(
                    line, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True
                )
                some = done.stdout or "no such deliveries" in done.stderr
                assert done.returncode == 0 and some, (page, command, done)
                ran[command] = done.stdout
    assert len(ran) > 8
    curl = next(out for line, out in ran.items() if line.startswith("curl -s -i"))
    assert curl.startswith("HTTP/1.1 200") and "order 7 of berlin is taken" in curl
