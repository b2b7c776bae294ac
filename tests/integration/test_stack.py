"""The stack starts real servers, survives their death, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from gateway.stack import reaper
from gateway.stack.server import poll
from loadtest import stack as servers
from tests.support.stack import RabbitMQ, Stack, StackError, free_port

WAIT = "import signal; signal.pause()"
# A process with a child in a session of its own, as the Erlang VM has.
FAMILY = """\
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print("child", child.pid, "is there")
child.wait()
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def exists(pid: int) -> bool:
    try:
        return state(pid) != "Z"
    except FileNotFoundError:
        return False


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def spawn_family(stack: Stack, **options):
    return stack.spawn("family", python(FAMILY), ready="is there", **options)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_no_descendant_outlives_its_server(stack: Stack, end: str):
    server = spawn_family(stack)
    pids = server.pids()
    assert len(pids) == 2

    getattr(server, end)()

    assert not server.alive()
    assert not any(exists(pid) for pid in pids)
    assert server.pids() == []


def test_stack_stops_everything_and_removes_its_directory():
    with Stack() as stack:
        pids = spawn_family(stack).pids() + spawn_family(stack).pids()
        assert all(exists(pid) for pid in pids)
    assert not any(exists(pid) for pid in pids)
    assert not stack.directory.exists()


def test_frozen_server_thaws_and_can_be_stopped_frozen(stack: Stack):
    server = spawn_family(stack)
    server.freeze()
    assert poll(lambda: {state(pid) for pid in server.pids()} == {"T"}, 5)
    server.thaw()
    assert server.alive()
    server.freeze()
    server.stop(timeout=5)
    assert not server.alive()


def test_death_at_start_is_told_with_the_end_of_the_output(stack: Stack):
    program = "for i in range(100): print('line', i)\nraise SystemExit(7)"
    with pytest.raises(StackError, match=r"(?s)brief exited with 7.*line 80\b.*line 99\b") as error:
        stack.spawn("brief", python(program), ready="never said")
    assert "line 79" not in str(error.value)


def test_missed_readiness_is_told_and_kills_the_process(stack: Stack):
    program = "import os, time; print('pid', os.getpid(), 'waits'); time.sleep(600)"
    with pytest.raises(StackError, match=r"late is not ready after 1 s\n +pid \d+ waits") as error:
        stack.spawn("late", python(program), ready="never said", timeout=1)
    assert not exists(int(str(error.value).split()[-2]))


def test_lines_are_given_to_on_line_and_kept_in_the_log():
    lines = []
    with Stack(on_line=lambda name, line: lines.append((name, line))) as stack:
        for _ in range(2):
            server = stack.spawn("echo", python(f"print('a\\nb'); {WAIT}"), ready="b")
        server.kill()
        assert ("echo-2", "a") in lines and ("echo-2", "b") in lines
        assert server.output() == "a\nb\n"


def test_cpu_seconds_and_rss_include_descendants(stack: Stack):
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint('burnt', flush=True)\n"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{WAIT}"
    server = stack.spawn("busy", python(program), ready="burnt")
    assert 0.4 < server.cpu_seconds() < 5
    assert 1e6 < server.rss_bytes() < 1e9


def test_free_port_is_out_of_the_range_for_outgoing_connections():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < lowest


# The tests run it in a process that stays.
@pytest.mark.parametrize("ctl", [RabbitMQ.ctl, servers.RabbitMQ.ctl], ids=["stays", "command"])
def test_rabbitmqctl_speaks_to_this_node(rabbitmq: RabbitMQ, ctl):
    assert ctl(rabbitmq, "eval", "node().").strip() == rabbitmq.env["RABBITMQ_NODENAME"]
    assert ctl(rabbitmq, "list_vhosts", "name", "tracing") == "name\ttracing\n/\tfalse\n"
    with pytest.raises(
        StackError, match=r"(?i)^rabbitmqctl .*no_such_queue: Error:\n.*not?\b.*found$"
    ):
        ctl(rabbitmq, "delete_queue", "no_such_queue")
    with pytest.raises(StackError, match=r"^rabbitmqctl .*nonsense: Command 'nonsense' not found"):
        ctl(rabbitmq, "nonsense")


def test_rabbitmq_listens_on_loopback_only(rabbitmq: RabbitMQ):
    listeners = rabbitmq.ctl("eval", "[inet:sockname(P) || P <- erlang:ports()].")
    addresses = [line for line in listeners.splitlines() if "{ok,{{" in line]
    assert addresses
    assert all("{{127,0,0,1}," in line for line in addresses), listeners


@pytest.mark.parametrize("kind", ["redis", "embedded"])
def test_redis_protocol_servers_restart_empty(stack: Stack, start, kind: str):
    server = start(getattr(stack, kind))
    with server.client as client:
        client.set("key", "value")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.restart()
        assert client.get("key") is None


@pytest.mark.parametrize("kind", ["redis", "embedded"])
def test_redis_protocol_servers_read_no_dump_of_another_one(stack: Stack, start, kind: str):
    first = start(stack.redis)
    with first.client as client:
        client.set("key", "value")
        client.save()
    second = start(getattr(stack, kind))
    assert second.client.get("key") is None


def test_nothing_that_configures_servers_is_inherited(stack: Stack, monkeypatch):
    monkeypatch.setenv("GATEWAY_BROKER_URL", "amqp://elsewhere")
    program = "import os; print(sorted(os.environ), 'ready')"
    server = stack.spawn("env", python(f"{program}; {WAIT}"), ready="ready")
    assert "PATH" in server.output()
    assert "GATEWAY" not in server.output()


def test_interrupt_of_the_terminal_does_not_reach_servers():
    # In a process group of its own, as a shell gives to a foreground job.
    program = """\
import os, signal, sys
WAIT = "print('up', flush=True); import signal; signal.pause()"
from gateway.stack import Stack
with Stack() as stack:
    server = stack.spawn("s", [sys.executable, "-c", WAIT], ready="up")
    try:
        os.killpg(0, signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(0 if server.alive() else 1)
"""
    subprocess.run([sys.executable, "-c", program], check=True, start_new_session=True, timeout=100)


def test_servers_and_directory_go_when_the_owner_is_killed():
    program = """\
import os, signal, sys
from loadtest.stack import Stack
with Stack() as stack:
    server = stack.spawn("s", ["sleep", "600"])
    server.restart()
    print(server.pid, stack.directory, flush=True)
    signal.pause()
"""
    with subprocess.Popen(python(program), stdout=subprocess.PIPE, text=True) as owner:
        pid, directory = owner.stdout.readline().split()
        assert exists(int(pid))
        owner.kill()
    assert poll(lambda: not exists(int(pid)) and not Path(directory).exists(), 10)


def test_who_has_the_process_id_of_one_that_has_ended_is_left_alone(stack: Stack):
    ended = stack.spawn("ended", python("pass"))
    assert poll(lambda: not ended.alive(), 10)
    other = stack.spawn("other", python(f"print('up', flush=True); {WAIT}"), ready="up")
    ended._process.pid = other.pid  # as the kernel may give it again by then
    assert ended.family() == [] and ended.pids() == []
    ended.signal(signal.SIGTERM)
    ended.stop()
    assert other.alive()


def test_the_reaper_leaves_alone_who_has_the_id_of_a_group_that_has_ended():
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as other:
        with subprocess.Popen(
            [sys.executable, "-I", "-c", REAPER], stdin=subprocess.PIPE, text=True
        ) as process:
            process.communicate(f"+{other.pid}\n", timeout=60)
        assert process.returncode == 0 and other.poll() is None
        other.kill()


# The reaper that takes a process for another one than at first.
REAPER = f"""
import runpy, sys, tempfile
sys.argv = ["reaper.py", tempfile.mkdtemp()]
names = runpy.run_path({reaper.__file__!r})
starts = iter(["1", "2"])
names["main"].__globals__["started"] = lambda pid: next(starts)
names["main"]()
"""
