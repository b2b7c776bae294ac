"""What `[notify]` may say."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.loading import load
from gateway.errors import ConfigError

URL = "https://hooks.example/x?key=hidden"
MAIL = "smtps://user@mail.example?from=a@b.example&to=c@d.example"


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"kind": "slack", "url": URL}, ""),
        ({"kind": "webhook", "url": URL, "secret": "aGlkZGVuLXNlY3JldC1vZi0yNC1ieXRlcw=="}, ""),
        ({"kind": "email", "url": MAIL, "secret": "hidden", "share": 0.5, "every": 60}, ""),
        ({"kind": "dingtalk", "url": "http://10.0.0.1:8080/", "secret": "SEChidden"}, ""),
        ({"kind": "pager", "url": URL}, "notify.kind: has to be"),
        ({"kind": "slack"}, "notify.url: is needed"),
        ({"kind": "slack", "url": "hooks.example"}, "notify.url: write https://HOST..., in ASCII"),
        ({"kind": "slack", "url": "https://h:x/hidden"}, "notify.url: write https://HOST..."),
        ({"kind": "slack", "url": "https://h:0/hidden"}, "notify.url: write https://HOST..."),
        ({"kind": "email", "url": URL}, "notify.url: write smtps://HOST..., in ASCII"),
        ({"kind": "email", "url": "smtp://h?to=a@b"}, "smtps://HOST?from=ADDRESS&to=ADDRESS"),
        ({"kind": "email", "url": "smtp://h?from=a@b&to=c@d%0aX"}, "smtps://HOST?from=ADDRESS"),
        ({"kind": "webhook", "url": URL}, "notify.secret: is needed, as it signs the message"),
        ({"kind": "webhook", "url": URL, "secret": "hidden!"}, "secret is base64"),
        ({"kind": "slack", "url": URL, "secret": "hidden"}, "its URL is the secret"),
        ({"kind": "slack", "url": URL, "share": 2}, "notify.share: "),
        ({"kind": "slack", "url": URL, "rate": 2}, "notify.rate: there is no such setting"),
    ],
)  # fmt: skip
def test_a_table_is_read_or_told(tmp_path, table: dict[str, Any], problem: str):
    file = tmp_path / "gateway.toml"
    lines = [f"{name} = {value!r}" for name, value in table.items()]
    file.write_text("\n".join(["journal = 100", "[notify]", *lines]))
    if not problem:
        config = load({}, {}, file)
        assert config.notify is not None and config.notify.kind == table["kind"]
        assert "hidden" not in repr(config)
        return
    with pytest.raises(ConfigError) as error:
        load({}, {}, file)
    assert problem in str(error.value)
    assert "hidden" not in str(error.value)


def test_without_a_journal_there_is_nothing_to_tell(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text(f'[notify]\nkind = "slack"\nurl = "{URL}"\n')
    with pytest.raises(ConfigError, match="notify: failures are counted with a journal"):
        load({}, {}, file)
