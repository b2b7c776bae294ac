"""A private Prometheus that watches one gateway."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

from gateway.stack.loopback import answers_ok
from gateway.stack.programs import find
from tests.support.stack import Server, Stack, free_port

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules.yaml"
CONFIG = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: gateway
    static_configs: [{{targets: ["{target}"]}}]
"""
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def shortened(rules: str, factor: float) -> str:
    """Divide each `for:` and each range of the rules by `factor`."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{round(1000 * int(found[2]) * _SECONDS[found[3]] / factor)}ms"

    return re.sub(r"(for: |\[)(\d+)([smh])\b", shorter, rules)


class Prometheus:
    """Asks a gateway's admin port, and evaluates the shortened rules, each second."""

    def __init__(self, stack: Stack, gateway: Server, directory: Path, factor: float):
        directory.mkdir()
        (directory / "rules.yaml").write_text(shortened(RULES.read_text(), factor))
        config = directory / "prometheus.yml"
        config.write_text(CONFIG.format(target=urlsplit(gateway.admin_url).netloc))
        port = free_port()
        argv = [find("prometheus", "prometheus"), f"--config.file={config}"]
        argv += [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={directory}/data"]
        ready = "/-/ready"
        self.server = stack.spawn("prometheus", argv, ready=lambda: answers_ok(port, ready))
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def firing(self) -> set[str]:
        """Return the names of the alerts that are firing."""
        alerts = self._ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def scraped_since(self, time: float) -> bool:
        """Has the gateway answered since `time`, in seconds since the epoch?"""
        # Of anything but a series, `timestamp` is the time of the query.
        query = quote('timestamp(up{job="gateway"}) and up{job="gateway"} == 1')
        found = self._ask(f"query?query={query}")["result"]
        return bool(found) and float(found[0]["value"][1]) > time

    def _ask(self, path: str) -> dict:
        with urlopen(f"{self._url}/{path}", timeout=10) as answer:
            return json.load(answer)["data"]
