"""`gateway send` over every source of docs/sources.md, and what `gateway check` says of sources."""

from __future__ import annotations

import io
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.cli import main
from gateway.sources import BLOCKS, SCHEMES
from loadtest.examples import example
from tests.docs.test_sources_doc import SECRET, SECTIONS, environment
from tests.integration.senders import ENCRYPTION
from tests.integration.senders import SECRET as OTHER_SECRET
from tests.integration.webhooks import TASKS
from tests.support.config import toml
from tests.support.stack import Server, Stack

#: Seed and public key of RFC 8032, 7.1, test 1.
SEED = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
WORKER = {"app": TASKS}
#: The sources whose answers are encrypted.
ENCRYPTED = {"dingtalk", "wechat", "wecom"}


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """All blocks of the document and a route in one file, and the variables that it needs."""
    directory = tmp_path_factory.mktemp("documented")
    blocks = [b for s in SECTIONS.values() for b in re.findall(r"```toml\n(.*?)```", s, re.S)]
    text = "\n".join(sorted(blocks, key=lambda block: not block.startswith("public_url")))
    (directory / "secret").write_text("an old one")
    text = re.sub(r'file = "[^"]+"', f'file = "{directory}/secret"', text)
    needs = '\n[[routes]]\npath = "/needs"\nsource = "github"\nargs = ["json:/no/such/value"]\n'
    others = sorted(set(BLOCKS) - set(SECTIONS))
    examples = {name: example(name) for name in others}
    sources = {
        name: {"scheme": name, **each.options, **each.receiver} for name, each in examples.items()
    }
    more = toml(sources, [{"path": f"/{name}", "source": name} for name in others])
    (directory / "gateway.toml").write_text(f"{text}{needs}\n{more}")
    return directory / "gateway.toml", environment(text) | {"DISCORD_PUBLIC_KEY": PUBLIC}


@pytest.fixture(scope="module")
def gateway(stack: Stack, urls: list[str], worker: Server, documented) -> Server:
    file, env = documented
    return stack.gateway("--strategy=pika", *urls, "--config", str(file), env=env)


@pytest.fixture
def send(documented, gateway, monkeypatch, capsys):
    """Run `gateway send` to a path; return the exit code, standard output and error."""
    file, env = documented
    for name, value in env.items():
        monkeypatch.setenv(name, value)

    def run(path: str, *args: str) -> SimpleNamespace:
        code = main(["send", "--config", str(file), *args, gateway.url + path])
        return SimpleNamespace(code=code, **capsys.readouterr()._asdict())

    return run


# Sending ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_source_takes_what_is_sent_as_it(send, scheme):
    name = "partner" if scheme == "hmac" else scheme
    args = ["--event", "fork"] if scheme == "github" else []  # one that goes to our worker
    args += ["--secret", SEED] if scheme == "discord" else []
    said = example(scheme)
    if said.receiver and scheme != "discord":
        secrets = said.options["secrets"]
        for secret in [secrets] if isinstance(secrets, str) else secrets:
            args += ["--secret", secret]

    sent = send(f"/{name}", "--as", name, *args)

    assert (sent.code, sent.err) == (0, ""), sent.out
    head, _, body = sent.out.partition("\n\n")
    assert head.startswith("200 OK\nX-Delivery-ID: ") and "\nContent-Type: " in head
    assert ("(decrypted)" in head) == (scheme in ENCRYPTED)
    assert (body == "success\n") == (scheme == "dingtalk")
    assert body.strip()


def test_a_scheme_goes_with_a_secret_from_the_environment(send, monkeypatch):
    monkeypatch.setenv("MINE", SECRET)
    sent = send("/slack", "--as", "slack", "--secret", "env:MINE", "--event", "message")
    assert (sent.code, sent.err) == (0, "")
    assert '"type":"message"' in sent.out
    monkeypatch.setenv("MINE", "another")
    sent = send("/slack", "--as", "slack", "--secret", "env:MINE")
    reason = "The signature does not match."
    assert (sent.code, sent.err) == (1, f"gateway: {reason}\n")
    assert sent.out.startswith("401 Unauthorized\n") and "urn:celery-gateway:unverified" in sent.out


def test_only_the_secret_of_its_own_source_is_needed(send, capsys, tmp_path):
    file = tmp_path / "other.toml"
    file.write_text(
        f'[sources.known]\nscheme = "github"\nsecrets = "{SECRET}"\n'
        '[sources.other]\nscheme = "stripe"\nsecrets = { env = "NOT_SET" }\n'
    )

    def curl(name: str, *args: str) -> int:
        return main(
            ["send", "--curl", "--config", str(file), "--as", name, *args, "http://127.0.0.1/"]
        )

    assert curl("known") == 0
    assert capsys.readouterr().err == ""
    assert curl("other") == 1
    why = "sources.other.secrets: the environment variable NOT_SET is not set"
    assert capsys.readouterr().err == f"gateway: {why}\n"
    assert curl("other", "--secret", SECRET) == 0
    for wrong in (
        'sources = "none"', "[sources]\nknown = 5", "public_url = 5",
        '[sources.github]\nscheme = "nosuch"', "[sources.github]\nscheme = 5",
        '[sources.github]\nscheme = ["a"]', '[sources.github]\nsecrets = "x"',
    ):  # fmt: skip
        file.write_text(wrong)
        capsys.readouterr()
        assert curl("github", "--secret", SECRET) == 1
        assert capsys.readouterr().err.startswith(f"gateway: {file}: ")
    file.write_text('public_url = { env = "NOT_SET" }')
    assert curl("github", "--secret", SECRET) == 1
    assert "public_url: the environment variable NOT_SET is not set" in capsys.readouterr().err


def test_a_refused_sample_says_so(send):
    sent = send("/needs", "--as", "github")
    assert sent.code == 1 and sent.out.startswith("400 ")
    assert sent.err.splitlines()[1].startswith("gateway: the body was the scheme's sample; ")
    sent = send("/needs", "--as", "github", "--data", "{}")
    assert len(sent.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "data", "body"),
    [
        ("shopify", ['{"n":1}', '{"n":1}'], '{"n":1}'),
        # Its identity is in the body.
        ("partner", [None, None], '{"id":"7","type":"hello","event":{"id":"7","type":"hello"}}'),
    ],
)
def test_one_id_is_one_delivery(send, source, data, body):
    given = [("--data", text) if text else () for text in data]
    sent = [send(f"/{source}", "--as", source, "--id", "7", *each) for each in given]
    assert [each.err for each in sent] == ["", ""]
    first, second = (each.out.splitlines() for each in sent)
    assert first[-1] == body
    assert [line for line in second if "X-Delivery-ID" not in line] == [
        line for line in first if "X-Delivery-ID" not in line
    ]


def test_the_body_may_come_from_anywhere(send, tmp_path, monkeypatch):
    file = tmp_path / "body"
    file.write_bytes(b"from a file")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"from a pipe")))
    for data, body in [("a text", "a text"), (f"@{file}", "from a file"), ("-", "from a pipe")]:
        assert send("/x", "--as", "x", "--data", f"{data}").out.endswith(f"\n\n{body}\n")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("github", '{"it\'s": "$HOME `date` \\\\ \\"",\n"ß": 1}'),
        ("twilio", "Body=it%27s&CallStatus=busy"),
        ("standard", b"@no file\n"),
        ("standard", b"\0\xff'\n\"$HOME"),
    ],
)
def test_the_curl_line_sends_the_same(send, tmp_path, name, data):
    file = tmp_path / "body"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())

    event = ["--event", "fork"] if name == "github" else []
    sent = send(f"/{name}?a=b", "--as", name, "--data", f"@{file}", "--curl", *event)

    assert (sent.code, sent.err) == (0, "")
    done = subprocess.run(["sh", "-c", sent.out.replace("curl ", "curl -sS ")], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, file.read_bytes(), b"")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--as", "nobody"], "nobody is neither a source nor a scheme"),
        (["--as", "hmac"], "--secret: the scheme hmac needs it"),
        (["--as", "hmac", "--secret", "env:UNSET"], "the environment variable UNSET is not set"),
        (["--as", "hmac", "--secret", SECRET], "hmac: signature: is needed"),
        (["--as", "github", "--secret", ""], "github: secrets: "),
        (["--as", "github", "--option", "rate"], "--option: rate is not of the form KEY=VALUE"),
        (["--as", "github", "--option", "colour=red"], "colour: there is no such setting"),
        (["--as", "github", "--option", "scheme=githob"], "github: scheme: there is no such"),
        (["--as", "wechat", "--aes-key", SECRET], "wechat: aes_key: an EncodingAESKey has 43"),
        (["--as", "github", "--data", "@/no/such/file"], "--data: /no/such/file cannot be read"),
        (["--as", "twilio", "--data", "a&" * 2000], "the body cannot be signed: "),
        (["--as", "github", "--id", "€\r"], "correct --event, --id or --secret"),
        (
            ["--as", "gitlab", "--secret", f"{SECRET}\n{SECRET}"],
            "correct --event, --id or --secret",
        ),
        (["--as", "github", "--config", "/no/such/file"], "/no/such/file: cannot be read"),
    ],
)
def test_what_cannot_be_sent_is_told_in_one_line(send, args, words):
    sent = send("/", *args)
    assert (sent.code, sent.out) == (1, "")
    (line,) = sent.err.splitlines()
    assert line.startswith("gateway: ") and words in line
    assert SECRET not in line


@pytest.mark.parametrize(
    ("args", "notes"),
    [
        (["github", "--event", "issues.opened"], []),
        (["github", "--event", "issues.opened", "--id", "7", "--data", '{"action":"opened"}'], []),
        (
            ["github", "--event", "issues.opened", "--data", "{}"],
            ["--event issues.opened: the event of this delivery is issues"],
        ),
        (
            ["partner", "--event", "order.paid", "--id", "7", "--data", '{"n":8}'],
            [
                "--event order.paid: this delivery has no event",
                "--id 7: this delivery has no identity",
            ],
        ),
    ],
)
def test_a_note_says_which_flag_has_no_effect(send, args, notes):
    sent = send(f"/{args[0]}", "--as", *args)
    why = ", as the source reads it elsewhere, or not at all"
    told = [line for line in sent.err.splitlines() if line.startswith("gateway: --")]
    assert told == [f"gateway: {note}{why}" for note in notes]


def test_a_note_says_why_the_source_will_refuse_it(send):
    for args, reason in [(["discord"], "--secret"), (["wechat", "--data", "<xml>"], "XML")]:
        sent = send(f"/{args[0]}", "--as", *args)
        assert sent.code == 1 and sent.out.startswith("40")
        line, refused = sent.err.splitlines()
        assert line.startswith("gateway: the source will refuse this: ") and reason in line
        assert refused.startswith("gateway: ")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:8000/", "URL: is written as http://HOST:PORT/PATH or https://..."),
        ("http://[::1/", "URL: is written as "),
        ("http://127.0.0.1:99999/", "URL: is written as "),
        ("http://127.0.0.1/a b", "URL: is written as "),
        ("http://127.0.0.1/\u00e9", "URL: is written as "),
        (f"http://user:{SECRET}@127.0.0.1:99999/", "URL: is written as "),
        (f"http://user:{SECRET}@127.0.0.1:1/", "gateway: 127.0.0.1:1: Connection refused"),
        ("http://127.0.0.1:1/", "Connection refused"),
        ("http://no-such-host.invalid/", "no-such-host.invalid: "),
    ],
)
def test_a_url_that_cannot_be_sent_to_is_told_in_one_line(capsys, url, words):
    assert main(["send", "--as", "github", "--secret", SECRET, url]) == 1
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and line.startswith("gateway: ") and words in line
    assert SECRET not in line


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Run a server that answers one request with these bytes; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):  # what is unread would reset the connection
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "Remote end closed connection without response; start the gateway, or correct URL"),
        (b"SSH-2.0-x\r\n", "no complete answer in HTTP (BadStatusLine: SSH-2.0-x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "no complete answer in HTTP ("),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % 10**20, "no complete answer in HTTP ("),
    ],
)
def test_what_is_no_complete_answer_is_told_in_one_line(capsys, answer, said):
    with answering(answer) as url:
        assert main(["send", "--as", "github", "--secret", SECRET, url]) == 1
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == "" and said in line


def test_what_a_terminal_would_interpret_in_an_answer_is_escaped(capsys):
    with answering(b"HTTP/1.1 200 \x1b[1m\r\nX-A: \x1b[2m\r\n\r\na\n\x1b[3m") as url:
        assert main(["send", "--as", "github", "--secret", SECRET, url]) == 0
    out = capsys.readouterr().out
    assert out == "200 \\u001b[1m\nX-A: \\u001b[2m\n\na\n\\u001b[3m\n"


# Checking -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stores", [True, False])
def test_check_says_what_sources_leave_open_and_who_cannot_store(
    stack, rabbitmq, redis_server, urls, tmp_path, capsys, stores
):
    # Given sources of all kinds, and a worker that may store nothing,
    sources = {
        "plain": {"scheme": "wechat", "secrets": OTHER_SECRET, "tolerance": 0},
        "safe": {"scheme": "wechat", **ENCRYPTION},
        "robot": {"scheme": "dingtalk", "secrets": OTHER_SECRET},
        "stripe": {"scheme": "stripe", "secrets": OTHER_SECRET, "tolerance": 0},
    }
    file = tmp_path / "gateway.toml"
    file.write_text(toml(sources, [{"path": f"/{name}", "source": name} for name in sources]))
    worker = stack.worker(rabbitmq.url, redis_server.url if stores else "")

    code = main(["check", "--strategy", "pika", "--config", str(file), *urls])

    worker.kill()
    found = re.findall(r"^(\w+) +(.*?)(?:: (.*))?$", capsys.readouterr().out, re.M)
    body, clock = "the body is not signed: ", "tolerance 0: "
    open_bodies = {name for status, name, text in found if status == "warn" and body in text}
    clocks = {name for status, name, text in found if status == "warn" and clock in text}
    assert open_bodies == {"source plain (wechat), robot (dingtalk)"}
    assert [name for status, name, _ in found if status == "ok" and "source" in name] == [
        "source safe"
    ]
    assert clocks == {"source plain", "source stripe"}
    words = {name: status for status, name, _ in found}
    assert words["stored results"] == ("ok" if stores else "FAIL")
    assert words["replies"] == "ok"
    assert code == (0 if stores else 1)
    assert OTHER_SECRET not in str(found)
