"""What deploy/ names exists: files, commands, settings; and nginx accepts its configuration."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
import redis
import yaml

from appserver.queues import named_queues
from gateway.config.loading import load
from gateway.config.route import Route
from gateway.config.settings import Config
from gateway.stack.programs import find
from loadtest.stack import nginx_config
from tests.support.stack import Server, Stack, free_port

ROOT = Path(__file__).parents[2]
#: As it is where no variable with a default is set.
COMPOSE = yaml.safe_load(
    re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (ROOT / "deploy/compose.yaml").read_text())
)
SERVICES = COMPOSE["services"]
CHART = ROOT / "deploy/helm/celery-gateway"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
SOCKET = ROOT / "deploy/systemd/gateway@.socket"
#: Variables of the official images, by image.
OFFICIAL = {
    "rabbitmq": {"RABBITMQ_DEFAULT_USER", "RABBITMQ_DEFAULT_PASS"},
    "redis": {"REDIS_PASSWORD", "STATE_PASSWORD"},
    "nginx": set(),
}
#: What a worker reads, and all that it is given: appserver/settings.py.
WORKERS = {
    "GATEWAY_BROKER_URL", "GATEWAY_RESULT_BACKEND", "GATEWAY_RESULT_EXPIRES", "GATEWAY_QUEUES"
}  # fmt: skip


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
    found = re.findall(r"^ *server 127\.0\.0\.1:(\d+)", config.read_text(), re.M)
    assert found == list(map(str, ports))
    judge(start, config)


def test_nginx_never_repeats_a_post_that_may_have_been_seen():
    directives = re.sub(r"#.*", "", (ROOT / "deploy/nginx.conf").read_text())
    # A connection that cannot be made is a timeout, too; after a POST nginx heeds neither.
    assert re.findall(r"proxy_next_upstream (.*);", directives) == ["error timeout"]


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
    monkeypatch.setattr("loadtest.stack.NGINX_CONF", edited)
    config.write_text(nginx_config(tmp_path, 10000, [10001], {}))
    judge(start, config)


@pytest.mark.parametrize("name", SERVICES)
def test_compose_service_uses_what_exists(name):
    service = SERVICES[name]
    if "build" in service:
        assert (ROOT / "deploy" / service["build"] / "Dockerfile").exists()
        known = {f"GATEWAY_{field.upper()}" for field in Config.model_fields} | WORKERS
        assert_command_exists(service["command"])
    else:
        image, _, tag = service["image"].partition(":")
        assert re.fullmatch(r"\d+\.\d+", tag), "pin a minor version"
        known = OFFICIAL[image]
    assert set(service.get("environment", {})) <= known
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    for volume in service.get("volumes", []):
        source, named, _ = volume.partition(":")
        assert not named or source in COMPOSE["volumes"] or (ROOT / "deploy" / source).exists()


@pytest.mark.parametrize("name", SERVICES)
def test_compose_waits_for_healthy_servers_only_where_there_is_a_check(name):
    for dependency, wait in SERVICES[name].get("depends_on", {}).items():
        assert wait == {"condition": "service_healthy"}
        # The gateway's check is in its image.
        assert "healthcheck" in SERVICES[dependency] or dependency == "gateway"


def test_compose_serves_a_configuration_that_can_be_edited():
    gateway = SERVICES["gateway"]
    volume, _ = gateway["volumes"]
    source, target, mode = volume.split(":")
    command = gateway["command"]
    assert (target, mode) == (command[command.index("--config") + 1], "ro")
    routes = load({}, {}, ROOT / "deploy" / source).routes
    # One that the workers of the same file consume.
    named = SERVICES["worker"]["environment"]["GATEWAY_QUEUES"]
    assert declared_by(routes) == declared_by_workers(named)
    assert not [arg for arg in SERVICES["worker"]["command"] if arg.startswith(("-Q", "--queues"))]


def test_what_a_reload_reads_again_is_in_files():
    """The unit's comments show secrets where a reload finds new ones, and what it cannot change."""
    unit = next(unit for unit in UNITS if unit.name == "gateway@.service").read_text()
    shown = re.findall(r"^# +(\w+) = \{ (\w+) = ", unit, re.M)
    assert shown == [("broker_url", "file"), ("secrets", "file")]
    assert "LoadCredential=" in unit and "with a restart only" in unit


def test_each_gateway_has_a_place_for_its_history():
    gateway = SERVICES["gateway"]
    directory, _, _ = gateway["environment"]["GATEWAY_HISTORY"].rpartition("/")
    assert directory in gateway["volumes"]  # without a name, as containers share one with a name
    # A volume is made with the owner that the directory has in the image.
    (user,) = re.findall(r"^USER (\w+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert f"install --directory --owner {user} {directory}" in (ROOT / "Dockerfile").read_text()
    service = read_unit(next(unit for unit in UNITS if "@" in unit.name))["Service"]
    assert service["Environment"] == f"GATEWAY_HISTORY=%S/{service['StateDirectory']}/history"
    assert "%i" in service["StateDirectory"]


def test_compose_holds_no_secret():
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if "PASS" in name or "URL" in name or "BACKEND" in name:
                assert re.search(r"\$\{\w+:\?", value), f"{name} is not from the environment"


def test_workers_are_given_only_what_they_need():
    assert set(SERVICES["worker"]["environment"]) <= WORKERS
    assert "state" not in SERVICES["worker"]["networks"]
    assert SERVICES["state"]["networks"] == ["state"]
    text = (ROOT / "docs/deploy.md").read_text()
    secrets = re.findall(r"create secret generic (\w+) (.*?)(?=\n +(?:kubectl|helm))", text, re.S)
    given = {name: set(re.findall(r"=(GATEWAY_\w+)=", text)) for name, text in secrets}
    assert given["worker"] <= WORKERS < given["gateway"] | WORKERS
    assert {*given} == {VALUES["gateway"]["existingSecret"], VALUES["worker"]["existingSecret"]}
    gateway, worker = (read_unit(unit)["Service"] for unit in UNITS[::-1])
    assert gateway["EnvironmentFile"] != worker["EnvironmentFile"]
    # Who runs under the same account can read the other's environment.
    assert gateway["User"] != worker["User"] == worker["Group"]
    assert worker["InaccessiblePaths"] == "-/etc/gateway"


@pytest.fixture
def deployed_redis(stack: Stack, start, tmp_path):
    """Start a Redis as compose does, in a directory and on a port of its own."""
    start(lambda: find("redis-server", "redis-server"))

    def run(service: str) -> tuple[Server, redis.Redis]:
        port, (shell, flag, command) = free_port(), SERVICES[service]["command"]
        command = command.replace("$$", "$").replace("--dir /data", "")
        (password,) = SERVICES[service]["environment"]
        argv = [shell, flag, f"{command} --port {port} --bind 127.0.0.1 --dir {tmp_path}"]
        ready = "Ready to accept connections"
        server = stack.spawn(service, argv, env={password: "secret"}, ready=ready)
        return server, redis.Redis(port=port, password="secret")

    return run


def test_claims_outlive_a_redis_that_is_killed(deployed_redis):
    server, client = deployed_redis("state")
    with client:
        client.set("gateway:claim", "taken")
        server.kill()
        server.restart()
        assert client.get("gateway:claim") == b"taken"
        options = client.config_get("maxmemory", "maxmemory-policy", "appendfsync", "appendonly")
    assert (options["appendonly"], options["appendfsync"]) == ("yes", "everysec")
    assert options["maxmemory-policy"] == "noeviction"
    # Nothing of it is lost with the container, and a rewrite of the file has room.
    assert SERVICES["state"]["volumes"] == ["state:/data"]
    assert "--dir /data" in SERVICES["state"]["command"][2]
    assert bytes_of(SERVICES["state"]["mem_limit"]) > 2 * int(options["maxmemory"])
    # The document's formula, for the rate that the comment names and answers of a few bytes.
    formula = "(200 bytes + 1.25 × the answer's) × deliveries a second × idempotency_window"
    assert formula in (ROOT / "docs/reliability.md").read_text()
    (rate,) = re.findall(r"here (\d+) a second", (ROOT / "deploy/compose.yaml").read_text())
    assert int(options["maxmemory"]) >= 200 * int(rate) * Config().idempotency_window


def test_results_are_not_written_to_disk_and_never_evicted(deployed_redis):
    _, client = deployed_redis("redis")
    with client:
        options = client.config_get("maxmemory", "maxmemory-policy", "save", "appendonly")
    assert (options["save"], options["appendonly"]) == ("", "no")
    assert options["maxmemory-policy"] == "noeviction"
    assert bytes_of(SERVICES["redis"]["mem_limit"]) > int(options["maxmemory"])
    assert "volumes" not in SERVICES["redis"]


def bytes_of(limit: str) -> int:
    return int(limit.removesuffix("m")) * 1024 * 1024


def test_no_port_is_for_webhooks_here_and_for_the_dashboard_there():
    # Given the ports that webhooks go to, and those of the dashboards,
    nginx = (ROOT / "deploy/nginx.conf").read_text()
    upstreams = set(map(int, re.findall(r"^ *server [\d.]+:(\d+)", nginx, re.M)))
    unit = next(unit for unit in UNITS if unit.name == "gateway@.service")
    instances = re.findall(r"gateway@(\d+)", unit.read_text())
    lines = [read_unit(unit)["Service"]["ExecStart"].replace("%i", i) for i in instances]
    lines += re.findall(r"^    gateway serve .*$", (ROOT / "docs/start.md").read_text(), re.M)
    lines.append(" ".join(SERVICES["gateway"]["command"]))
    arguments = (CHART / "templates/gateway.yaml").read_text().split("args: ")[1].split("]")[0]
    lines.append(" ".join(arguments.split()))
    started = [port_of(line, "--port", Config().port) for line in lines]
    dashboards = {port_of(line, "--admin-port", Config().admin_port) for line in lines}
    # then none is both, nor anything else's, and each process has its own.
    others = {80, 443, 5672, 5671, 6379, 15672, 25672, 4369}
    assert len(lines) >= 5 and (upstreams | set(started)).isdisjoint(dashboards | others)
    assert dashboards.isdisjoint(others)
    assert sorted(map(int, instances)) == sorted(upstreams)
    units = [port_of(line, "--admin-port", 0) for line in lines[: len(instances)]]
    assert len(set(units)) == len(instances) and Config().admin_port not in units
    # What the image asks is where its command listens.
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.findall(r"127\.0\.0\.1:(\d+)/healthz", dockerfile) == [str(Config().admin_port)]
    assert re.findall(r"^EXPOSE (\d+)$", dockerfile, re.M) == [str(Config().port)]


def port_of(command: str, flag: str, default: int) -> int:
    found = re.search(rf"{flag}[ =](\d+)", command)
    return int(found[1]) if found else default


def locked(name: str) -> dict[str, str]:
    """Return each requirement of a list with its version and its hashes.

    Where it is needed may differ, as that depends on what else is in the list.
    """
    entries = re.split(r"^(?=\w)", (ROOT / name).read_text(), flags=re.M)[1:]
    return {
        entry.split("==")[0].lower(): re.sub(r" ;.* \\$", " \\\\", entry, flags=re.M)
        for entry in entries
    }


#: The lists of what is installed, and the extras that each has; None: all of them.
LISTS = {
    "constraints.txt": None,
    "constraints-image.txt": ["build", "serve", "gevent", "fast", "otel", "archive"],
    "constraints-run.txt": ["build", "dev", "serve"],
}


@pytest.mark.parametrize("name", LISTS)
def test_all_that_is_installed_is_pinned_by_its_hashes(name):
    requirements = locked(name)
    assert [n for n, entry in requirements.items() if "--hash=sha256:" not in entry] == []
    # The lists name no place to get it from, and neither do the commands.
    for file in (name, "Makefile", "Dockerfile"):
        assert re.findall(r"--(?:extra-)?index-url|--find-links", (ROOT / file).read_text()) == []
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = LISTS[name] or list(setup["options.extras_require"])
    wanted = setup["options"]["install_requires"].split("\n")
    wanted += [line for e in extras for line in setup["options.extras_require"][e].split("\n")]
    # An extra may include another one of ours.
    others = f"{setup['metadata']['name']}["
    wanted = [w for w in wanted if w and w[0] != "#" and not w.startswith(others)]
    wanted = {re.split(r"[<>=[]", w)[0].replace("_", "-") for w in wanted}
    assert wanted <= requirements.keys()


@pytest.mark.parametrize("name", LISTS)
def test_what_is_installed_is_what_is_tested(name):
    everything = locked("constraints.txt")
    assert [n for n, e in locked(name).items() if everything[n] != e] == []


@pytest.mark.parametrize(
    ("file", "name"), [("Makefile", "$(1)"), ("Dockerfile", "constraints-image.txt")]
)
def test_installing_verifies_hashes_and_fetches_nothing_else(file, name):
    text = re.sub(r"\\\n\s*", "", (ROOT / file).read_text())
    pip = r"(?:/pip|\$\(PIP\)(?: --quiet)?)"
    installs = re.findall(rf"{pip} install (.*?)(?: &&| \|\||$)", text, re.M)
    first, second = installs
    # A source distribution would fetch what builds it.
    wanted = f"--require-hashes --only-binary :all: --requirement {name}"
    assert first.split("cache-dir ")[-1] == wanted
    own = "--no-deps --no-build-isolation"
    assert second.split("cache-dir ")[-1] in (f"{own} .", f"{own} --editable .")


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
    name, _, app = service.get("Environment", "").partition("=")
    command = service["ExecStart"].replace("%i", "8000").replace(f"${{{name}}}", app)
    program, *arguments = command.split()
    assert_command_exists([Path(program).name, *arguments])


def test_the_socket_is_the_one_that_the_unit_would_bind():
    socket, gateway = read_unit(SOCKET), read_unit(SOCKET.with_suffix(".service"))
    assert "--port %i " in gateway["Service"]["ExecStart"]
    assert socket["Socket"]["ListenStream"] == f"{Config().host}:%i"
    assert int(socket["Socket"]["Backlog"]) == Config().backlog


def test_systemd_understands_the_units_where_it_is_installed(tmp_path):
    if analyze := shutil.which("systemd-analyze"):
        for unit in (*UNITS, SOCKET):
            # Its own programs are in no machine's /opt.
            text = re.sub(r"/opt/gateway/bin/\w+", "/bin/true", unit.read_text())
            (tmp_path / unit.name.replace("@", "@8000")).write_text(text)
        units = sorted(map(str, tmp_path.iterdir()))
        argv = [analyze, "verify", "--man=no", "--recursive-errors=no", *units]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_units_reload_gateways_only_and_wait_for_the_drain():
    gateway, worker = (read_unit(unit)["Service"] for unit in UNITS[::-1])
    assert gateway["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert "ExecReload" not in worker
    assert int(gateway["TimeoutStopSec"]) > Config().grace


def test_workers_consume_the_queues_that_the_document_names():
    # On one machine they have the routes of compose.
    named, *_ = re.findall(r"echo GATEWAY_QUEUES=(\S+) ", (ROOT / "docs/deploy.md").read_text())
    routes = load({}, {}, ROOT / "deploy/gateway.toml").routes
    assert declared_by(routes) == declared_by_workers(named)


def declared_by(routes: list[Route]) -> dict[str, dict[str, object]]:
    return {route.queue: route.arguments() for route in routes}


def declared_by_workers(names: str) -> dict[str, dict[str, object]]:
    return {queue.name: queue.queue_arguments for queue in named_queues(names)}


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
