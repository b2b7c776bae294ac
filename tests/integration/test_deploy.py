"""What deploy/ names exists: files, commands, settings; and nginx accepts its configuration."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

from gateway.config import Config
from gateway.settings import load
from gateway.stack.nginx import nginx_config
from gateway.stack.programs import find

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OBJECTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/gateway.yaml").read_text()))
UNITS = sorted((ROOT / "deploy/systemd").iterdir())
#: Variables of the official images, by image.
OFFICIAL = {
    "rabbitmq": {"RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"},
    "redis": {"REDIS_PASSWORD"},
    "nginx": set(),
}


def judge(start, config: Path) -> None:
    """Let nginx judge a configuration; a warning is a failure, too."""
    nginx = start(lambda: find("nginx", "nginx"))
    argv = [nginx, "-t", "-q", "-p", str(config.parent), "-e", "stderr", "-c", str(config)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ports", [[10001], [10001, 10002, 10003, 10004, 10005]])
def test_nginx_accepts_the_configuration_for_any_number_of_gateways(start, tmp_path, ports):
    config = tmp_path / "nginx.conf"
    config.write_text(nginx_config(tmp_path, 10000, ports, {}))
    assert re.findall(r"^ *server 127\.0\.0\.1:(\d+)", config.read_text(), re.M) == list(
        map(str, ports)
    )
    judge(start, config)


def test_nginx_never_repeats_a_request_that_may_have_been_seen():
    directives = re.sub(r"#.*", "", (ROOT / "deploy/nginx.conf").read_text())
    assert re.findall(r"proxy_next_upstream (.*);", directives) == ["error"]


def test_nginx_closes_idle_upstream_connections_before_the_gateway_does():
    upstream = (ROOT / "deploy/nginx.conf").read_text().split("upstream gateway {")[1]
    seconds = int(re.search(r"keepalive_timeout (\d+)s;", upstream)[1])
    assert seconds < Config().idle_timeout / 2


def test_nginx_accepts_the_configuration_that_compose_makes(start, tmp_path, monkeypatch):
    # Given the edits that the service's command makes,
    edits = re.findall(r"-e '([^']+)'", SERVICES["nginx"]["command"][2])
    argv = ["sed", *(part for edit in edits for part in ("-e", edit)), ROOT / "deploy/nginx.conf"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    # then one name stands for all gateways,
    assert re.findall(r"^ *server (\S+) max_fails", text, re.M) == ["gateway:8000"]
    # and the rest is valid; nobody here could resolve that name.
    edited, config = tmp_path / "edited.conf", tmp_path / "nginx.conf"
    edited.write_text(text.replace("server gateway:8000", "server 127.0.0.1:8000"))
    monkeypatch.setattr("gateway.stack.nginx.NGINX_CONF", edited)
    config.write_text(nginx_config(tmp_path, 10000, [10001], {}))
    judge(start, config)


@pytest.mark.parametrize("name", SERVICES)
def test_compose_service_uses_what_exists(name):
    service = SERVICES[name]
    if "build" in service:
        assert (ROOT / "deploy" / service["build"] / "Dockerfile").exists()
        known = {f"GATEWAY_{field.upper()}" for field in Config.model_fields}
        assert_command_exists(service["command"])
    else:
        image, _, tag = service["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+", tag), "pin a minor version"
        known = OFFICIAL[image]
    assert set(service.get("environment", {})) <= known
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        assert source in COMPOSE["volumes"] or (ROOT / "deploy" / source).exists()


@pytest.mark.parametrize("name", SERVICES)
def test_compose_waits_for_healthy_servers_only_where_there_is_a_check(name):
    for dependency, wait in SERVICES[name].get("depends_on", {}).items():
        assert wait == {"condition": "service_healthy"}
        # The gateway's check is in its image.
        assert "healthcheck" in SERVICES[dependency] or dependency == "gateway"


def test_compose_holds_no_secret():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if "PASS" in name or "URL" in name or "BACKEND" in name:
                assert re.search(r"\$\{\w+:\?", value), f"{name} is not from the environment"


def test_dockerfile_copies_what_exists_and_is_not_ignored():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    sources = [path for paths in copies if not paths[0].startswith("--from") for path in paths]
    assert sources
    assert [path for path in sources if not (ROOT / path).exists()] == []
    kept = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M)
    assert sorted(kept) == sorted(sources)


def test_dockerfile_commands_exist():
    text = (ROOT / "Dockerfile").read_text()
    assert_command_exists(yaml.safe_load(re.search(r"^CMD (.*)$", text, re.M)[1]))
    assert_command_exists(shlex.split(re.search(r"docker run IMAGE (celery.*)", text)[1]))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_commands_that_exist(unit):
    service = read_unit(unit)["Service"]
    program, *arguments = service["ExecStart"].replace("%i", "8000").split()
    assert_command_exists([Path(program).name, *arguments])


def test_units_reload_gateways_only_and_wait_for_the_drain():
    gateway, worker = (read_unit(unit)["Service"] for unit in UNITS[::-1])
    assert gateway["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "ExecReload" not in worker
    assert int(gateway["TimeoutStopSec"]) > Config().grace


def pods() -> dict[str, dict]:
    """Return the pods' specifications by their deployment's name."""
    deployments = [o for o in OBJECTS if o["kind"] == "Deployment"]
    for each in deployments:
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"] == {"matchLabels": labels}
    return {o["metadata"]["name"]: o["spec"]["template"]["spec"] for o in deployments}


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_kubernetes_starts_commands_that_exist_with_what_they_need(name):
    pod = pods()[name]
    (container,) = pod["containers"]
    assert_command_exists(container["args"])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert container["envFrom"] == [{"secretRef": {"name": "gateway"}}]


def test_kubernetes_asks_and_reaches_the_gateway_where_it_listens():
    pod, config = pods()["gateway"], Config()
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.port, "admin": config.admin_port}
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("readiness", "liveness")}
    assert probes == {
        "readiness": {"path": "/readyz", "port": "admin"},
        "liveness": {"path": "/healthz", "port": "admin"},
    }
    (service,) = (o["spec"] for o in OBJECTS if o["kind"] == "Service")
    assert [port["targetPort"] for port in service["ports"]] == ["http"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + config.grace


def test_kubernetes_configuration_is_valid(tmp_path):
    (maps,) = (o["data"] for o in OBJECTS if o["kind"] == "ConfigMap")
    ((name, text),) = maps.items()
    file = tmp_path / name
    file.write_text(text)
    load({}, {}, file)
    assert f"/etc/gateway/{name}" in pods()["gateway"]["containers"][0]["args"]


def read_unit(path: Path) -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=False, delimiters="=")
    unit.optionxform = str
    unit.read(path)
    return unit


def assert_command_exists(argv: list[str]) -> None:
    program, *arguments = argv
    if program == "gateway":
        command = [sys.executable, "-m", "gateway", arguments[0], "--help"]
    else:
        assert program == "celery"
        command = [sys.executable, "-m", "celery", "worker", "--help"]
        assert arguments[:3] == ["-A", "appserver", "worker"]
        assert (ROOT / "appserver/__init__.py").exists()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for option in arguments:
        if option.startswith("--"):
            assert option.partition("=")[0] in done.stdout
