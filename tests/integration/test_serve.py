"""`gateway serve` as its users run it: real processes, signals, brokers and result stores."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from gateway import __version__
from gateway.config.strategies import STRATEGIES, properties
from gateway.process.child_handle import START_TIMEOUT
from tests.integration.checking import write
from tests.support import command
from tests.support.command import GATEWAY
from tests.support.environment import inherited
from tests.support.http_client import Answer, Connection, ask, connections, request
from tests.support.requests import REQUESTS, fetch, is_ready, metric, readiness
from tests.support.stack import Server, free_port
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
TIMEOUT = 20  # seconds for what takes as long as it takes
ROUTE = '[[routes]]\npath = "/"\n'
LARGE = '[[routes]]\npath = "/large"\ntask = "appserver.tasks.large"\n'
#: A route whose queue nobody consumes: its requests stay under way until they end.
NOBODY = ROUTE + '[[routes]]\npath = "/nobody"\nqueue = "nobody"\ndeadline = {}\n'


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def start_gateway(start_gateway: Start) -> Start:
    def start(config: str, *args: str) -> Server:
        """Start a gateway whose children are all ready."""
        server = start_gateway(config, *args)
        until(lambda: all(child.get("broker") == "" for child in readiness(server)[1]["children"]))
        return server

    return start


@pytest.fixture(scope="module")
def one(start_gateway: Start) -> Server:
    """A gateway with one child, for all tests that leave it as it was."""
    return start_gateway(ROUTE + LARGE)


@pytest.fixture(scope="module")
def two(start_gateway: Start) -> Server:
    """The same with two children, whose requests to nobody end soon."""
    return start_gateway(NOBODY.format(0.2), "--processes", "2")


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return command.run(*args, env=inherited() | env, timeout=TIMEOUT)


def post(server: Server, body: bytes, path: str = "/") -> Answer:
    return fetch(server.url + path, method="POST", body=body)


async def wait_at(connection: Connection, server: Server) -> None:
    """Send what nobody answers, and return once `server` has it under way."""
    connection.send(request(b"x", "/nobody"))
    while not await asyncio.to_thread(metric, server, "gateway_in_flight"):
        await asyncio.sleep(0.01)


def children(server: Server) -> list[int]:
    return [child["pid"] for child in readiness(server)[1]["children"]]


def answered(server: Server) -> float:
    return metric(server, REQUESTS, http_route="/", http_response_status_code=200)


def reloaded(server: Server) -> bool:
    return re.search(r"supervisor: reloaded$", server.output(), re.M) is not None


def exit_code(server: Server) -> int:
    """Wait for the end of a server that was told to stop."""
    return server._process.wait(TIMEOUT)


# The command line -------------------------------------------------------------------------


def test_option_without_a_command_means_serve(stack, urls, worker, failed_reloads):
    number, admin = free_port(), free_port()
    options = ["--strategy=ioloop", f"--port={number}", f"--admin-port={admin}", *urls]
    url = f"http://127.0.0.1:{admin}/readyz"

    def ready() -> bool:
        with suppress(OSError):
            return fetch(url).status == 200
        return False

    server = stack.spawn("gateway", [*GATEWAY, *options], ready=ready)
    assert fetch(f"http://127.0.0.1:{number}/", method="POST", body=b"hello").body == b"hello"
    assert "serving with the strategy ioloop" in server.output()


def test_environment_configures_it_all(stack, rabbitmq, redis_server, worker):
    env = {
        "GATEWAY_BROKER_URL": rabbitmq.url,
        "GATEWAY_RESULT_BACKEND": redis_server.url,
        "GATEWAY_STRATEGY": "pika",
        "GATEWAY_LOG_FORMAT": "json",
        "GATEWAY_PROCESSES": "2",
        "GATEWAY_MAX_BODY": "5",
        # What is not read: a mistake, and what a container has that was linked to another.
        "GATEWAY_BROKER_URI": "amqp://elsewhere",
        "GATEWAY_SERVICE_HOST": "10.0.0.1",
        "GATEWAY_PORT": "tcp://10.0.0.1:80",
    }
    server = stack.gateway(env=env)

    assert post(server, b"hello").body == b"hello"
    assert post(server, b"hello!").status == 413
    assert len(children(server)) == 2
    server.stop()
    lines = [json.loads(line) for line in server.output().splitlines()]
    assert {"serving with the strategy pika"} < {line["message"] for line in lines}
    assert "guest:guest" not in server.output()
    (line,) = (line for line in lines if "is not read" in line["message"])
    assert line["level"] == "warning"
    assert line["message"] == (
        "GATEWAY_BROKER_URI is not read: there is no such variable; "
        "did you mean GATEWAY_BROKER_URL?"
    )


def test_all_problems_are_told_and_nothing_starts(tmp_path):
    config = write(tmp_path, 'colour = "red"\n[[routes]]\npath = "x"\n')

    done = run("serve", *config, "--port", "70000", GATEWAY_TIMEOUT="never")

    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 4 and all(line.startswith("gateway: ") for line in lines), done.stderr
    for place in ("colour", "routes[0].path", "--port", "environment GATEWAY_TIMEOUT"):
        assert any(place in line for line in lines), place


@pytest.mark.parametrize("admin", [False, True])
def test_port_in_use_is_told_in_one_line(admin):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        ports = ["--port", "0", "--admin-port", number] if admin else ["--port", number]
        done = run("serve", *ports)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gateway: cannot listen on 127.0.0.1:{number}: Address already in use")


@pytest.mark.parametrize("flag", ["--port", "--admin-port"])
def test_dev_does_not_take_another_gateway_for_its_own(flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        done = run("dev", "--port", "0", "--admin-port", "0", flag, number)
    where = f"gateway: cannot listen on 127.0.0.1:{number}: Address already in use"
    assert (done.returncode, done.stderr) == (1, f"{where}; {flag} chooses another\n")
    assert "Ready" not in done.stdout


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_connections_are_refused_until_a_child_can_answer(tmp_path, kind):
    """A proxy then sends the request to another gateway, and it does not wait for this one."""
    config, number, path = tmp_path / "gateway.toml", free_port(), str(tmp_path / "socket")
    config.write_text("confirm_timeout = 2\n")  # how long a child waits for its broker
    where = ["--uds", path] if kind == "unix" else ["--port", str(number)]
    family, address = (
        (socket.AF_UNIX, path) if kind == "unix" else (socket.AF_INET, ("127.0.0.1", number))
    )

    def connected() -> int:
        with socket.socket(family) as client:
            return client.connect_ex(address)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = f"amqp://127.0.0.1:{silent.getsockname()[1]}//"
        argv = [*GATEWAY, "serve", *where, "--admin-port", "0", "--broker", broker]
        starting = subprocess.Popen(
            [*argv, "--config", str(config)], env=inherited(), stderr=subprocess.PIPE, text=True
        )
        try:
            assert any("bound to" in line for line in starting.stderr)
            assert connected() == errno.ECONNREFUSED
            assert any("serving with" in line for line in starting.stderr)
            assert connected() == 0
        finally:
            starting.kill()
            starting.communicate()


def test_unix_socket_that_cannot_be_is_told_in_one_line(tmp_path):
    for path, hint in [("no/such/socket", "No such file"), ("x" * 200, "path too long")]:
        done = run("serve", "--uds", str(tmp_path / path), "--admin-port", "0")
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1 and hint in line


def test_unix_socket_in_use_is_told_in_one_line_and_left_alone(tmp_path):
    path = tmp_path / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as taken, socket.socket(socket.AF_UNIX) as client:
        taken.bind(str(path))
        taken.listen()
        done = run("serve", "--uds", str(path), "--admin-port", "0")
        (line,) = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (1, "")
        problem = f"gateway: cannot listen on {path}: Address already in use; "
        assert line.startswith(problem) and "no other file may have its path" in line
        client.connect(str(path))


def test_unix_socket_does_not_take_the_place_of_a_file(tmp_path):
    file = tmp_path / "precious"
    file.write_text("data")
    done = run("serve", "--uds", str(file), "--admin-port", "0")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert file.read_text() == "data"


@cache
def completion(shell: str) -> str:
    return run("completion", shell).stdout


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["gateway", "de"], {"deliveries"}),
        (["gateway", ""], {"serve", "dev", "check", "send"}),
        (["gateway", "dev", "--a"], {"--app", "--admin-port"}),
        (["gateway", "dev", "--port", "80", "--br"], {"--broker"}),
        (["gateway", "serve", "--strategy", "t"], {"threadpool"}),
        (["gateway", "send", "--as", "wec"], {"wechat", "wecom"}),
        (["gateway", "deliveries", "s"], {"show"}),
        (["gateway", "deliveries", "list", "--st"], {"--strategy", "--status"}),
        (["gateway", "serve", "--log-format", ""], {"text", "json"}),
        (["gateway", "dev", "--config", "gate"], {"gateway"}),  # a folder's name, or a file's
    ],
)
def test_the_shell_completes_commands_options_and_values(words, some):
    script = completion("bash")
    given = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _shtab_gateway"
    argv = ["bash", "-c", f"{script}{asked}; echo ${{COMPREPLY[@]}}"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    assert some <= set(done.stdout.split())
    assert all(word.startswith(words[-1]) for word in done.stdout.split())


def test_a_command_whose_packages_are_missing_is_completed_by_its_name():
    program = "import sys; sys.modules['psutil'] = None; from gateway.cli import main; main()"
    argv = [sys.executable, "-c", program, "completion", "bash"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert "_gateway_dev_option_strings=(-h --help)" in done.stdout


def test_options_are_shown_without_loading_what_serves():
    program = (
        "import sys; sys.argv = ['gateway', 'serve', '--help']\n"
        "from gateway.cli import main\n"
        "try: main()\n"
        "finally: print('loaded:', *{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    _, _, loaded = done.stdout.partition("loaded:")
    assert "--strategy" in done.stdout and "argparse" in loaded.split()
    assert not {"asyncio", "tornado", "pydantic", "kombu"} & set(loaded.split())


def test_strategies_lists_the_table():
    done = run("strategies")
    assert (done.returncode, done.stderr) == (0, "")
    assert dict(line.split(maxsplit=1) for line in done.stdout.splitlines()) == {
        name: properties(name).summary for name in STRATEGIES
    }


# Sockets ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(stack, urls, tmp_path_factory) -> Server:
    """A gateway on a UNIX socket, its `path`, that was a dead one's; it logs requests."""
    path = tmp_path_factory.mktemp("told") / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = stack.gateway(*urls, "--uds", str(path), env={"GATEWAY_LOG_REQUESTS": "true"})
    server.path = path
    return server


def test_unix_socket_is_served_and_replaces_a_dead_one(told, worker):
    assert asyncio.run(ask(told.path, request(b"hello"))).body == b"hello"


def test_processes_share_the_work_and_their_counts_add_up(two):
    assert len(set(children(two))) == 2
    seen, sent = set(), 0

    async def some() -> list[Answer]:
        data = request(b"x", "/nobody")
        async with connections(two.port, 20) as opened:
            return await asyncio.gather(*(connection.ask(data) for connection in opened))

    # The ids that a process gives out share its prefix.
    while len(seen) < 2 and sent < 1000:
        for answer in asyncio.run(some()):
            assert (answer.status, answer.type) == (504, "deadline-passed")
            seen.add(answer.problem["task_id"][:18])
            sent += 1

    assert len(seen) == 2
    assert metric(two, REQUESTS, http_route="/nobody", http_response_status_code=504) == sent


# Children ---------------------------------------------------------------------------------


def test_memory_of_large_results_is_given_back(one, worker):
    large = 15_000_000
    assert len(post(one, b"", "/large?bytes=1000").body) == 1000
    before = one.rss_bytes()
    for _ in range(3):
        assert len(post(one, b"", f"/large?bytes={large}").body) == large
    # The buffer of the connection to Redis is let go with the next result.
    until(lambda: post(one, b"", "/large?bytes=1000") and one.rss_bytes() < before + large)


def test_killed_child_is_replaced_and_what_it_counted_stays(one, worker):
    connected, before = metric(one, "gateway_broker_connections_total"), answered(one)
    for _ in range(3):
        assert post(one, b"x").status == 200
    (old,) = children(one)

    os.kill(old, signal.SIGKILL)

    until(lambda: children(one) not in ([], [old]) and is_ready(one))
    assert answered(one) == before + 3
    assert post(one, b"x").status == 200
    assert answered(one) == before + 4
    assert metric(one, "gateway_broker_connections_total") == connected + 1
    assert metric(one, "gateway_connections_open") == 0


async def test_hangup_replaces_children_with_the_new_configuration(start_gateway, worker):
    # Given a gateway with two children and a file,
    server = start_gateway(f"processes = 2\n{ROUTE}")
    config, old = server.config, children(server)
    assert post(server, b"x").status == 200

    # when the file is broken, nothing changes;
    config.write_text("processes = 0\n[[routes]]\n")
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: server.output().count("not reloaded") == 2)
    # Nor when it is empty, as it is while somebody writes it.
    config.write_text("")
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: "not reloaded: the file has no [[routes]] any more" in server.output())
    assert children(server) == old and metric(server, "gateway_reload_failed") == 1
    assert post(server, b"x").status == 200

    # when it is good, all are replaced, and no sender notices.
    routes = '[[routes]]\npath = "/"\n[[routes]]\npath = "/new"\n'
    config.write_text(f'admin_host = "127.0.0.2"\n{routes}')

    async def client(answers: list[int]) -> None:
        """Send requests, each on a connection of its own, until all are replaced."""
        while not reloaded(server):
            async with await Connection.open(server.port) as connection:
                answers.append((await connection.ask(request(b"x"))).status)

    answers: list[int] = []
    os.kill(server.pid, signal.SIGHUP)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*(client(answers) for _ in range(10)))
    assert set(answers) == {200}
    until(lambda: len(children(server)) == 1)
    assert not set(children(server)) & set(old)
    assert post(server, b"x", "/new").status == 200
    assert metric(server, "gateway_reload_failed") == 0

    # What changes only with a restart is told once, and not when it is as it was.
    told = "admin_host stays 127.0.0.1: it changes only with a restart"
    assert server.output().count(told) == 1
    config.write_text(routes)
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: server.output().count("supervisor: reloaded") == 2)
    assert server.output().count(told) == 1


@pytest.fixture(scope="module")
def failed_reloads(start_gateway, worker) -> Iterator[Future[None]]:
    """Begin `reload_in_vain`, which takes long, with the first test; the others run meanwhile."""
    # Given a gateway with two children,
    server = start_gateway(f"processes = 2\ngrace = 0.1\n{ROUTE}")
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(reload_in_vain, server)


def reload_in_vain(server: Server) -> None:
    text = server.config.read_text()
    for number, path in [(signal.SIGKILL, "/new"), (signal.SIGSTOP, "/newer")]:
        # and a new configuration,
        text += f'[[routes]]\npath = "{path}"\n'
        server.config.write_text(text)
        replace_in_vain(server, number, path)


def replace_in_vain(server: Server, number: signal.Signals, path: str) -> None:
    old, before = children(server), set(server.pids())
    vain, done = "not reloaded: the new child", "supervisor: reloaded\n"
    failed, succeeded = server.output().count(vain), server.output().count(done)

    # when the second new child dies, or never answers,
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: len(set(server.pids()) - before) == 2)
    os.kill(max(set(server.pids()) - before), number)

    # then the old ones serve on, and no others.
    patience = START_TIMEOUT + TIMEOUT
    until(lambda: server.output().count(vain) > failed, patience)
    until(lambda: children(server) == old, patience)
    assert server.output().count("; the old children stay\n") == failed + 1
    assert server.output().count(done) == succeeded
    assert {post(server, b"x", path).status for _ in range(20)} == {404}
    # Whoever dies is followed by one with the configuration that is in force,
    os.kill(old[0], signal.SIGKILL)
    until(lambda: len(children(server)) == 2 and old[0] not in children(server))
    until(lambda: is_ready(server))
    assert {post(server, b"x", path).status for _ in range(20)} == {404}
    # and the next hang-up has the new one.
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: server.output().count(done) > succeeded, patience)
    until(lambda: len(children(server)) == 2)
    assert post(server, b"x", path).status == 200


def test_hangup_waits_for_a_silent_new_child(start_gateway, rabbitmq, proxy, worker):
    # Given a new child that has answered its parent, and is not ready,
    url = rabbitmq.url.replace(f":{rabbitmq.port}", f":{proxy.port}")
    server = start_gateway(f"confirm_timeout = 0.5\n{ROUTE}", "--broker", url)
    (old,) = children(server)
    proxy.stall()
    os.kill(server.pid, signal.SIGHUP)
    until(lambda: server.output().count("serving with the strategy") == 2)
    (new,) = set(children(server)) - {old}

    # when it is silent for longer than a healthy one may be,
    os.kill(new, signal.SIGSTOP)
    for _ in range(2):
        assert fetch(f"{server.admin_url}/healthz").status == 503
    os.kill(new, signal.SIGCONT)
    proxy.resume()

    # then it takes the place of the old one all the same.
    until(lambda: children(server) == [new])
    assert reloaded(server)
    assert "not reloaded" not in server.output()
    assert post(server, b"x").status == 200


def test_killed_childs_successor_is_not_doubled_by_a_hangup(one):
    """A child that is away when the others are replaced comes back with what is new, or not."""
    for _ in range(2):  # each death makes the next pause longer
        pids = children(one)
        os.kill(pids[0], signal.SIGKILL)
        until(lambda pids=pids: children(one) not in ([], pids))
    pids = children(one)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: not children(one))

    os.kill(one.pid, signal.SIGHUP)

    until(lambda: reloaded(one))
    pause_is_over = time.monotonic() + 2
    until(lambda: len(children(one)) > 1 or time.monotonic() > pause_is_over)
    assert len(children(one)) == 1


def test_signals_to_a_whole_group_are_the_parents_from_the_first_moment(tmp_path):
    """Ctrl-C and a hangup end no child that is still loading, and a hangup ends no parent."""
    config, log = tmp_path / "gateway.toml", tmp_path / "log"
    config.write_text(ROUTE)
    nobody = ["--broker", "amqp://127.0.0.1:1", "--result-backend", "redis://127.0.0.1:1/0"]
    argv = [*GATEWAY, "serve", *nobody, "--config", str(config)]
    argv += ["--port", str(free_port()), "--admin-port", "0"]

    def waits_for_hangups() -> bool:
        status = Path(f"/proc/{parent.pid}/status").read_text()
        (blocked,) = re.findall(r"^SigBlk:\s*(\w+)", status, re.M)
        return bool(int(blocked, 16) & 1 << signal.SIGHUP - 1)

    with (
        log.open("w") as file,
        subprocess.Popen(argv, stdout=file, stderr=file, env=inherited()) as parent,
    ):
        try:
            family = psutil.Process(parent.pid)
            until(lambda: waits_for_hangups() or family.children())
            parent.send_signal(signal.SIGHUP)
            until(family.children)
            first = family.children()[0]
            for number in (signal.SIGINT, signal.SIGHUP):
                first.send_signal(number)
            until(lambda: "reloading: replacing 1 children" in log.read_text())
            until(lambda: log.read_text().count("serving with the strategy") == 2)
            assert first.is_running()
        finally:
            parent.terminate()
    said = log.read_text()
    assert parent.returncode == 0
    assert "ended with exit code" not in said and "Traceback" not in said


# Stopping ---------------------------------------------------------------------------------


async def test_stopping_under_load_answers_every_request_that_was_taken(start_gateway, worker):
    server = start_gateway(ROUTE, "--processes", "2")

    async def client(answers: list[int]) -> None:
        """Send requests one after the other until told that this was the last one."""
        async with await Connection.open(server.port) as connection:
            while True:
                answer = await connection.ask(request(b"x"))
                answers.append(answer.status)
                if answer.headers.get("connection") == "close":
                    assert await connection.at_end()
                    return

    answers: list[int] = []
    clients = [asyncio.ensure_future(client(answers)) for _ in range(50)]
    while len(answers) < 200:
        await asyncio.sleep(0.01)
    os.kill(server.pid, signal.SIGTERM)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*clients)
    assert set(answers) == {200} and len(answers) > 200
    assert exit_code(server) == 0
    assert "Traceback" not in server.output()


def test_requests_under_way_are_answered_and_new_connections_are_refused(start_gateway):
    # As a service manager ends it, and as a terminal does.
    stopping = {start_gateway(NOBODY.format(3)): kill for kill in (os.kill, os.killpg)}

    async def talk(server: Server) -> Answer:
        async with await Connection.open(server.port) as connection:
            # Given a request under way,
            await wait_at(connection, server)
            # when the gateway is told to stop,
            kill = stopping[server]
            kill(server.pid, signal.SIGTERM if kill is os.kill else signal.SIGINT)
            # then nobody is let in any more,
            answer = asyncio.ensure_future(connection.answer())
            while not answer.done():
                try:
                    (await Connection.open(server.port)).writer.close()
                except ConnectionRefusedError:
                    break
                except ConnectionResetError:
                    pass  # it came while the gateway closed its listening socket
                await asyncio.sleep(0.02)
            assert not answer.done()
            # and the request is answered.
            return await answer

    async def both() -> list[Answer]:
        return await asyncio.gather(*map(talk, stopping))

    for answer in asyncio.run(asyncio.wait_for(both(), TIMEOUT)):
        assert (answer.status, answer.type) == (504, "deadline-passed")
    for server in stopping:
        assert exit_code(server) == 0
        said = server.output()
        assert f"bound to {server.url.removeprefix('http://')}\n" in said
        assert f"dashboard, health and metrics on {server.admin_url}/\n" in said
        assert re.search(
            r"draining\n(.*\n)*.*drained: all requests are answered\n.*stopped\n", said
        )
        assert "Traceback" not in said


async def test_the_log_says_how_many_requests_were_cut_off(start_gateway):
    busy = start_gateway(NOBODY.format(60))
    busy.config.write_text(f"grace = 0.2\n{NOBODY.format(60)}")
    os.kill(busy.pid, signal.SIGHUP)
    until(lambda: "reloaded" in busy.output())

    async with asyncio.timeout(TIMEOUT), await Connection.open(busy.port) as connection:
        await wait_at(connection, busy)
        os.kill(busy.pid, signal.SIGTERM)
        with suppress(ConnectionResetError):
            assert await connection.at_end()

    assert exit_code(busy) == 0
    assert "drained: requests cut off after `grace` without an answer: 1\n" in busy.output()


def test_requests_are_lines_of_the_log_only_where_that_is_said(told, one, worker):
    before = told.output().count("requests: ")

    async def all_of(address: int | Path) -> list[Answer]:
        async with await Connection.open(address) as connection:
            calls = [request(b"x"), request(b"x", "/no?secret=1"), request(method="PUT")]
            answers = [await connection.ask(call) for call in calls]
            return [*answers, await connection.ask(b"POST / HTTP/1.1\r\n\r\n")]

    answers = [asyncio.run(all_of(address)) for address in (one.port, told.path)][1]
    assert [answer.status for answer in answers] == [200, 404, 405, 400]
    until(lambda: told.output().count("requests: ") == before + len(answers))
    form = r"requests: (\w+) (\S+) (\d+) [\d.]+ ms delivery=(\S+?)(?: \w+=\S+?)*(?:: (.+))?$"
    lines = re.findall(form, told.output(), re.M)[before:]
    told_of = [" ".join(line[:3]) for line in lines]
    assert told_of == ["POST / 200", "POST /no 404", "PUT / 405", "POST / 400"]
    ids = [line[3] for line in lines]
    assert ids[1:] == [answer.problem["delivery_id"] for answer in answers[1:]]
    assert len(set(ids)) == 4 and "secret" not in told.output()
    # What was not answered by a task says why.
    assert [bool(line[4]) for line in lines] == [False, True, True, True]
    assert "requests: " not in one.output()


async def test_second_signal_ends_at_once(start_gateway):
    server = start_gateway(NOBODY.format(60))

    async with asyncio.timeout(TIMEOUT), await Connection.open(server.port) as connection:
        await wait_at(connection, server)
        os.kill(server.pid, signal.SIGTERM)
        while "draining" not in server.output():
            await asyncio.sleep(0.01)
        os.kill(server.pid, signal.SIGTERM)
        with suppress(ConnectionResetError):
            assert await connection.at_end()
    exit_code(server)
    assert "Traceback" not in server.output()


# Health -----------------------------------------------------------------------------------


def test_frozen_child_is_not_healthy_now_and_again(two):
    health = f"{two.admin_url}/healthz"
    (frozen, _) = children(two)
    assert fetch(health).status == 200

    for _ in range(2):
        os.kill(frozen, signal.SIGSTOP)
        for _ in range(2):
            answer = fetch(health)
            assert (answer.status, json.loads(answer.body)["healthy"]) == (503, False)
        assert is_ready(two)  # the other one serves
        os.kill(frozen, signal.SIGCONT)
        until(lambda: fetch(health).status == 200)


def test_health_waits_for_nobody_to_ask_for_readiness(one):
    (old,) = children(one)
    os.kill(old, signal.SIGKILL)
    until(lambda: old not in one.pids())
    # Sooner than a new child would have to have answered.
    assert TIMEOUT < START_TIMEOUT
    until(lambda: fetch(f"{one.admin_url}/healthz").status == 200)


def test_the_pages_load_nothing_else(one):
    page = fetch(f"{one.admin_url}/")

    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=UTF-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    files = set(re.findall(r'(?:src|<link[^>]* href)="([^"]+)"', page.body.decode())) - {"data:,"}
    assert {file.partition("?")[0] for file in files} == {"./page/style.css", "./page/page.js"}
    for file in files:
        found = fetch(f"{one.admin_url}/{file[2:]}")
        assert "immutable" in found.headers["cache-control"]
        other = fetch(f"{one.admin_url}/{file[2:].partition('?')[0]}?other")
        assert other.headers["cache-control"] == "no-cache" and other.body == found.body
        assert found.status == 200 and not re.search(r"https?:", found.body.decode())
        assert found.headers["content-type"].startswith("text/")
    assert fetch(f"{one.admin_url}/page/other.js").status == 404
    told = readiness(one)[1]
    assert (told["version"], told["strategy"]) == (__version__, "redis")


def test_hangup_changes_nothing_unless_all_new_children_are_ready(failed_reloads):
    failed_reloads.result()


def test_broker_that_is_away_fails_readiness_not_liveness(one, rabbitmq, worker, failed_reloads):
    wait([failed_reloads])  # which needs the same broker
    rabbitmq.ctl("stop_app")
    try:
        until(lambda: not is_ready(one))
        (child,) = readiness(one)[1]["children"]
        assert child["broker"] and not child["results"]
        assert fetch(f"{one.admin_url}/healthz").status == 200
        answer = post(one, b"x")
        assert (answer.status, answer.type) == (503, "broker-unavailable")
        assert answer.headers["retry-after"] == "1"
        assert children(one) == [child["pid"]]
    finally:
        rabbitmq.ctl("start_app")

    until(lambda: is_ready(one))
    until(lambda: post(one, b"x").status == 200)  # as soon as the worker is back, too


# The last one with this gateway.
def test_children_of_a_killed_parent_end(two):
    ended = children(two)
    assert len(ended) == 2
    os.kill(two.pid, signal.SIGKILL)
    two._process.wait()
    until(lambda: not set(ended) & set(two.pids()))
