"""Make the configuration of a private nginx from the project's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.stack.server import StackError

NGINX_CONF = Path(__file__).parents[2] / "deploy" / "nginx.conf"


def nginx_config(
    home: Path, port: int, upstream_ports: Sequence[int], directives: Mapping[str, str]
) -> str:
    """Return deploy/nginx.conf with its ports replaced and all its files below `home`.

    `directives` are new values for directives in that file. Raises StackError where the project was
    installed without the file.
    """
    if not NGINX_CONF.exists():
        raise StackError(f"{NGINX_CONF} is missing: nginx can be started from a checkout only")
    text = NGINX_CONF.read_text()
    # All upstream servers get the parameters of the first one in the file.
    server = re.compile(r"^ *server 127\.0\.0\.1:\d+([^;]*);\n", re.MULTILINE)
    found = server.search(text)
    parameters = found[1] if found else ""
    lines = "".join(f"        server 127.0.0.1:{p}{parameters};\n" for p in upstream_ports)
    once = iter([lines])
    text = server.sub(lambda _: next(once, ""), text)
    text = re.sub(r"\blisten \d+", f"listen 127.0.0.1:{port}", text)
    for name, value in directives.items():
        text = re.sub(rf"^( *{name}) [^;]*;", rf"\1 {value};", text, flags=re.MULTILINE)
    # Workers of another account could not access the private directory, and only root may set the
    # account.
    user = "user root;" if os.geteuid() == 0 else ""
    text = re.sub(r"^user .*;", user, text, flags=re.MULTILINE)
    for directory in ("/var/log/nginx", "/run"):
        text = text.replace(f"{directory}/", f"{home}/")
    # The compiled-in default directories belong to the machine's own nginx.
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"    {name}_temp_path {home}/{name};\n" for name in temporary)
    return text.replace("http {\n", f"http {{\n{paths}", 1)
