"""A private RabbitMQ node: its files, its environment, its command-line tool."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gateway.stack.loopback import free_port
from gateway.stack.programs import find_rabbitmq
from gateway.stack.server import Server, StackError

_CTL_TIMEOUT = 60  # seconds for one command


class RabbitMQ(Server):
    """A RabbitMQ node."""

    def ctl(self, *args: str) -> str:
        """Run rabbitmqctl against this node and return its output.

        Raises StackError with its message when it fails, or does not end within 60 s.
        """
        argv = [find_rabbitmq("rabbitmqctl"), "-q", *args]
        command = f"rabbitmqctl {' '.join(args)}"
        try:
            done = subprocess.run(
                argv, env=self.env, capture_output=True, text=True, timeout=_CTL_TIMEOUT
            )
        except subprocess.TimeoutExpired as exc:
            raise StackError(f"{command}: no answer in {_CTL_TIMEOUT} s") from exc
        if done.returncode:
            raise StackError(f"{command}: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def rabbitmq_environment(home: Path, port: int, epmd_port: int, config: str) -> dict[str, str]:
    """Return the environment of a node that shares nothing with the machine's own RabbitMQ.

    Its files are below `home`, an empty directory. The Erlang cookie is in the parent directory of
    `home`, so that several nodes can form a cluster. `config` is added to its rabbitmq.conf.
    """
    (home / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n{config}")
    for nothing in ("advanced.config", "plugins"):
        (home / nothing).write_text("[].\n")
    loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
    # Without this, idle schedulers spin before they sleep, which counts as the broker's CPU time.
    no_spinning = "+sbwt none +sbwtdcpu none +sbwtdio none"
    return {
        "HOME": str(home.parent),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"rabbit{port}@localhost",
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "absent"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} {no_spinning}",
        "RABBITMQ_CTL_ERL_ARGS": loopback,
        # With this the VM replaces the start script's process, so that signals reach it.
        "RUNNING_UNDER_SYSTEMD": "true",
    }
