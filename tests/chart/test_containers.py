"""The chart's commands as they stand, in what a container has: `make chart` runs this.

No cluster and no image is needed: a mount namespace, with the packages and Python read-only below
`/opt/gateway`, only `/tmp` to write to, the user 10001 without a home, and no capability. It needs
root, or sudo.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.stack.stack import answers_ok
from tests.chart.test_chart import ROOT, objects, rendered, variables
from tests.support.requests import post
from tests.support.stack import RabbitMQ, Server, Stack, free_port
from tests.support.waiting import until

#: Beside the values' own route: one whose task takes a while.
SLOW = """
[[routes]]
path = "/slow"
task = "appserver.tasks.sleep"
queue = "webhooks"
queue_type = "quorum"
queue_arguments = { x-dead-letter-exchange = "gateway.dead", x-delivery-limit = 20 }
"""
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]
PYTHON = Path(sys.prefix).resolve()
#: As the Dockerfile's. The packages come first: the checkout that is installed may be another one.
IMAGE = {
    "PATH": f"{PYTHON}/bin:/usr/bin:/bin",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPATH": "/opt/gateway",
}
RIGHTS = ["--reuid=10001", "--regid=10001", "--clear-groups", "--no-new-privs", "--inh-caps=-all"]
RIGHTS += ["--bounding-set=-all"]


class Container:
    """A root directory like the image's, with a pod's volumes."""

    def __init__(self, directory: Path, config: str):
        self._root = directory / "root"
        for name in ("tmp", "proc", "dev", "etc/gateway", "opt/gateway", "var/lib/gateway"):
            (self._root / name).mkdir(parents=True)
        user = "gateway:x:10001:10001::/nonexistent:/usr/sbin/nologin\n"
        (self._root / "etc/passwd").write_text(user)
        (volume := directory / "config").mkdir()
        (volume / "gateway.toml").write_text(config)
        mounts = {volume: "/etc/gateway", Path("/usr"): "/usr"}
        mounts |= {PYTHON: str(PYTHON), Path(sys.base_prefix): sys.base_prefix}
        mounts |= {ROOT / name: f"/opt/gateway/{name}" for name in ("gateway", "appserver")}
        for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")):
            if path.is_symlink():
                (self._root / path.name).symlink_to(os.readlink(path))
            elif path.exists():
                mounts[path] = str(path)
        self._script = [f"root={shlex.quote(str(self._root))}", "mount --bind $root $root"]
        # First, as the packages may be below /tmp.
        for name, size in (("tmp", "16m"), ("var/lib/gateway", "32m")):
            self._script.append(f"mount -t tmpfs -o size={size},mode=1777 tmpfs $root/{name}")
        for source, target in mounts.items():
            self._script += [
                f"mkdir -p $root{target}",
                f"mount --bind {shlex.quote(str(source))} $root{target}",
                f"mount -o remount,bind,ro $root{target}",
            ]
        self._script += [
            "mount --rbind /proc $root/proc; mount --rbind /dev $root/dev",
            "mount -o remount,bind,ro $root",
        ]

    def command(self, args: list[str], env: dict[str, str]) -> list[str]:
        """Return the command that executes `args` as a container's first process does."""
        variables = [f"{name}={value}" for name, value in (IMAGE | env).items()]
        inside = ["setpriv", *RIGHTS, "env", "-i", "-C", "/opt/gateway", *variables, *args]
        script = "; ".join(["set -e", *self._script, f"exec chroot $root {shlex.join(inside)}"])
        return [*SUDO, "unshare", "--mount", "sh", "-c", script]


@pytest.fixture
def container(tmp_path: Path) -> Container:
    config = objects("ConfigMap")["hooks-gateway"]["data"]["gateway.toml"]
    return Container(tmp_path, config + SLOW)


@pytest.fixture
def servers(stack: Stack, rabbitmq: RabbitMQ, redis_server: Server) -> dict[str, str]:
    """Return what is in both roles' secrets."""
    return {"GATEWAY_BROKER_URL": rabbitmq.url, "GATEWAY_RESULT_BACKEND": redis_server.url}


@pytest.fixture
def worker(container: Container, stack: Stack, servers: dict[str, str]) -> Iterator[Server]:
    pod = pod_of("hooks-worker")
    (own,) = pod["containers"]
    argv = container.command(own["args"], servers | variables(pod))
    yield (server := stack.spawn("pod-worker", argv, ready=" ready."))
    server.stop()


def pod_of(name: str) -> dict:
    (found,) = (
        each
        for each in rendered()
        if each["kind"] == "Deployment" and each["metadata"]["name"] == name
    )
    return found["spec"]["template"]["spec"]


def test_a_container_has_the_rights_of_the_chart_and_no_more(container):
    asked = "id -u; touch /etc/a /opt/gateway/a /opt/gateway/gateway/a /usr/a; touch /tmp/a"
    argv = container.command(["sh", "-c", f"{asked} && ls /tmp/a; echo home: $HOME"], {})
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout.split() == ["10001", "/tmp/a", "home:"]
    assert done.stderr.count("Read-only file system") == 4


def test_gateway_and_worker_serve_and_end_in_the_chart_s_order(
    container, stack, rabbitmq, servers, worker
):
    pod = pod_of("hooks-gateway")
    (own,) = pod["containers"]
    port, admin = free_port(), free_port()
    env = {"GATEWAY_PORT": str(port), "GATEWAY_ADMIN_PORT": str(admin)}
    secret = {**servers, "GATEWAY_STATE_URL": servers["GATEWAY_RESULT_BACKEND"]}
    secret["GATEWAY_SECRET_KEY"] = "of this test only"
    argv = container.command(own["args"], secret | variables(pod) | env)
    path = own["readinessProbe"]["httpGet"]["path"]
    gateway = stack.spawn("pod-gateway", argv, ready=lambda: answers_ok(admin, path))
    url = f"http://127.0.0.1:{port}"

    # First the pause, in which the Ingress still sends requests.
    pause = container.command(own["lifecycle"]["preStop"]["exec"]["command"], {})
    begun, stopping = time.monotonic(), subprocess.Popen(pause)
    statuses = set()
    while stopping.poll() is None:
        statuses.add(post(url, b"hello").code)
    assert (stopping.returncode, statuses) == (0, {200})
    # Then SIGTERM, and time for the requests and tasks that have begun.
    answers = []
    slow = threading.Thread(target=lambda: answers.append(post(f"{url}/slow?seconds=5", b"slow")))
    slow.start()
    until(lambda: "webhooks\t1" in rabbitmq.ctl("list_queues", "name", "messages_unacknowledged"))
    worker.stop(timeout=pod_of("hooks-worker")["terminationGracePeriodSeconds"])
    gateway.stop(timeout=begun + pod["terminationGracePeriodSeconds"] - time.monotonic())
    slow.join()

    assert [(answer.code, answer.body) for answer in answers] == [(200, b"slow")]
    for server in (gateway, worker):
        assert server._process.returncode == 0
        said = server.output()
        assert not any(
            word in said for word in ("Traceback", "Read-only file system", "Permission denied")
        )
