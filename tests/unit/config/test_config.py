"""Settings: who wins, what is refused and where it stands, and secrets that stay secret."""

from __future__ import annotations

import os
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.config.late import Fetch, Late
from gateway.config.loading import load
from gateway.config.notify import Notify
from gateway.config.problems import explain
from gateway.config.settings import Config, Route
from gateway.config.strategies import STRATEGIES, properties
from gateway.config.task import FurtherTask
from gateway.config.urls import TLS
from gateway.errors import ConfigError
from gateway.model import Text
from gateway.process.handover import Start, read, write
from gateway.sources import SCHEMES, find
from tests.support.each import for_each

OTHERS = ", ".join(name for name in STRATEGIES if not properties(name).amqp_only)

SECRET = "open-sesame"


@pytest.fixture
def toml(tmp_path):
    """Write a configuration file and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "gateway.toml"
        path.write_text(text)
        return path

    return write


def problems(flags=None, environ=None, path=None) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load(flags or {}, environ or {}, path)
    assert str(error.value) == "\n".join(error.value.problems)
    return error.value.problems


def test_refused_requests_have_a_tenth_of_the_journal():
    asked = {"journal": 1_000, "journal_refused": True}
    assert Config(**asked).most_refused == 100
    assert Config(**asked, journal_bytes=1_000_000).most_refused == 1
    assert Config(journal=1_000).most_refused == 0


def test_without_anything_there_is_one_unsigned_route():
    config = load({}, {})

    assert [(r.path, r.task, r.queue, r.answer) for r in config.routes] == [
        ("/", "api.core.main", "celery", "wait")
    ]
    assert (config.timeout, config.confirm_timeout, config.max_in_flight) == (10, 3, 10_000)
    assert (config.processes, config.max_body, config.max_header) == (1, 2**20, 2**14)
    assert (config.body_timeout, config.idle_timeout, config.grace) == (10, 75, 30)
    assert (config.host, config.port, config.backlog) == ("127.0.0.1", 8000, 4096)
    assert (config.admin_host, config.admin_port) == ("127.0.0.1", 9464)
    assert (config.strategy, config.log_format, config.loop) == ("redis", "text", "auto")


def test_flag_wins_over_environment_over_file_over_default(toml):
    path = toml("port = 3")
    environ = {"GATEWAY_PORT": "2"}

    assert load({"port": 1}, environ, path).port == 1
    assert load({"port": None}, environ, path).port == 2
    assert load({}, {}, path).port == 3
    assert load({}, {}).port == 8000


def test_environment_may_name_the_file_and_a_flag_another(toml, tmp_path):
    environ = {"GATEWAY_CONFIG": str(toml("port = 3"))}
    other = tmp_path / "other.toml"
    other.write_text("port = 4")

    assert load({}, environ).port == 3
    assert load({}, environ, other).port == 4


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("strategy", "ioloop", "ioloop"),
        ("timeout", "2.5", 2.5),
        ("uds", "/run/gateway.sock", Path("/run/gateway.sock")),
        ("processes", "2", 2),
        ("trace_follow", "yes", True),
        ("trace_sample", "0.5", 0.5),
        ("log_requests", "True", 1.0),
        ("log_requests", "0.25", 0.25),
        ("trusted_proxies", "10.0.0.1,10.0.0.2", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_settings_from_the_environment_are_converted(name, text, value):
    assert getattr(load({}, {f"GATEWAY_{name.upper()}": text}), name) == value


def test_no_result_backend_is_an_empty_text_in_the_environment():
    assert load({"strategy": "pika"}, {"GATEWAY_RESULT_BACKEND": ""}).results == ""


def test_tls_settings_of_file_and_environment_join(toml, tmp_path):
    path = toml("[tls]\nverify = false")
    ca = Path(ssl.get_default_verify_paths().cafile or path)

    tls = load({}, {"GATEWAY_TLS_CA": str(ca)}, path).tls

    assert (tls.ca, tls.verify) == (ca, False)


@pytest.mark.parametrize("urls", ['"amqp://a//;amqp://b//"', '["amqp://a//", "amqp://b//"]'])
def test_brokers_are_a_list_or_separated_as_celery_does(toml, urls):
    config = load({}, {}, toml(f"broker_url = {urls}"))
    assert config.brokers == ["amqp://a//", "amqp://b//"]
    assert config.amqp


def test_deadline_is_the_routes_or_else_the_timeout():
    routes = [{"path": "/"}, {"path": "/soon", "deadline": 2}]
    assert [route.deadline for route in Config(timeout=4, routes=routes).routes] == [4, 2]


def test_queue_arguments_follow_the_type():
    assert Route(path="/").arguments() == {}
    route = Route(path="/", queue="q", queue_type="quorum", queue_arguments={"x-delivery-limit": 3})
    assert route.arguments() == {"x-queue-type": "quorum", "x-delivery-limit": 3}


def test_tls_context_verifies_unless_told_not_to():
    assert Config().tls.context().verify_mode is ssl.CERT_REQUIRED
    lax = Config(tls={"verify": False}).tls.context()
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)


def test_all_problems_are_told_together_with_their_places(toml):
    path = toml("""
        colour = "red"
        port = "http"
        result_backend = { env = "NOWHERE" }
        [[routes]]
        path = "no-slash"
        deadline = 0
        [[routes]]
        path = "/{a}/{a}"
        colour = "blue"
        [tls]
        colour = "green"
        ca = "/nowhere.pem"
    """)

    found = problems({"processes": 0}, {"GATEWAY_TIMEOUT": "-1"}, path)

    for place, hint in [
        ("colour", "there are strategy, broker_url,"),
        ("port", "has to be a whole number"),
        ("result_backend", "NOWHERE is not set"),
        ("routes[0].path (path no-slash)", "has to begin with /"),
        ("routes[0].deadline (path no-slash)", "has to be above 0"),
        ("routes[1].colour (path /{a}/{a})", "path, source,"),
        ("tls.colour", "there are ca, cert,"),
    ]:
        assert any(p.startswith(f"{path}: {place}: ") and hint in p for p in found), (place, found)
    assert "--processes: has to be 1 or more" in found
    assert "environment GATEWAY_TIMEOUT: has to be above 0" in found


def test_what_was_meant_is_told(toml):
    path = toml("""
        jurnal = 5
        [[routes]]
        path = "/"
        dedline = 3
        [sources.shop]
        scheme = "gihub"
    """)
    assert sorted(problems(path=path)) == [
        f"{path}: jurnal: there is no such setting; did you mean journal?",
        f"{path}: routes[0].dedline (path /): there is no such setting; did you mean deadline?",
        f"{path}: sources.shop.scheme: there is no such scheme; did you mean github?",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('result_backend = ""\nstrategy = "ioloop"', "result_backend: "),
        ('broker_url = "redis://h"\nstrategy = "pika"', "strategy: pika needs an AMQP broker"),
        ('broker_url = "redis://h"\nstrategy = "gevent"', f"only {OTHERS} work"),
        ('broker_url = "redis://a;redis://b"', "broker_url: a list is possible with AMQP only"),
        ('broker_url = "amqp://a;amqps://b"',
         "broker_url: use amqps:// for all brokers of the list"),
        ('strategy = "gevent"\nloop = "uvloop"', "loop: gevent runs on asyncio's own loop"),
        ("routes = []", "routes: at least one is needed"),
        ('[[routes]]\npath = "/{a}"\n[[routes]]\npath = "/{b}"',
         "routes[1].path (path /{b}): an earlier route"),
        ('[[routes]]\npath = "/a"\nqueue = "q"\n[[routes]]\npath = "/b"\nqueue = "q"\n'
         'queue_type = "quorum"',
         "(path /b): the queue q has other values of declare"),
        ('[[routes]]\npath = "/{a}/{a}"', "with a different name each"),
        (f'[[routes]]\npath = "/{{{256 * "a"}}}"', "name has at most 255 characters"),
        ('[[routes]]\npath = "/{A}"', "write each parameter as {name}"),
        ('[[routes]]\npath = "/results/x"', "/results/ is reserved for result URLs"),
        ('[[routes]]\npath = "/a"\nfair_by = "remote"\n[[routes]]\npath = "/b"\n'
         'fair_by = "remote"\nfair_queues = 8',
         "the queue celery has other values of fair_queues than in routes[0] (path /"),
        ('strategy = "pika"\nresult_backend = ""\nstate_url = "redis://h"\n'
         '[[routes]]\npath = "/"\nidempotency = "header:X-Id"',
         "later tries read the result from result_backend"),
        ('public_url = "hooks.example.com"', "public_url: begins with https:// or http://"),
        ('public_url = "https://"', "public_url: begins with"),
        ('public_url = "https://h/"', "public_url: begins with"),
        ('public_url = "https://h?a=1"', "public_url: begins with"),
        ('public_url = "https://h#a"', "public_url: begins with"),
        ('public_url = "https://h\\n"', "public_url: begins with"),
        ('public_url = "https://h/\\u0000"', "public_url: begins with"),
        ('public_url = "https://\\u043f\\u0440.\\u0440\\u0444"', "xn--... in the host"),
        ('secret_key = "short"', "secret_key: has to have 16"),
        ('admin_token = "short"', "admin_token: has to have 16"),
        ('journal = 10\nadmin_host = "0.0.0.0"', "admin_token: everybody who reaches 0.0.0.0"),
        ('journal = 10\nadmin_host = ""', "admin_token: everybody who reaches the machine"),
        ('journal = 10\nadmin_host = "hooks.example"', "admin_token: everybody who reaches hooks"),
        ('[sources.x]\nscheme = "nobody"\nsecrets = "s"',
         "sources.x.scheme: there is no such scheme; `gateway senders` lists them"),
        ('[sources.x]\nsecrets = "s"', "sources.x.scheme: is needed, or signature and the keys "),
        ('[sources.x]\nscheme = "github"', "sources.x.secrets: is needed"),
        ('[sources.x]\nscheme = "github"\nsecrets = []',
         "sources.x.secrets: has to have 1 or more items"),
        ('[sources.x]\nscheme = "github"\nsecrets = [""]', "a secret is empty"),
        ('[sources.x]\nscheme = "github"\nsecrets = "s"\ncolour = 1',
         "sources.x.colour: there is no such setting; there are scheme, secrets,"),
        ('[sources.x]\nscheme = "twilio"\nsecrets = "s"\n[[routes]]\npath = "/"\nsource = "x"',
         "routes[0].source (path /): this sender signs the URL; set public_url"),
        ('[sources.x]\nscheme = "github"\nsecrets = "s"\n[[routes]]\npath = "/"\nsource = "x"\n'
         '[[routes]]\npath = "/"\nevents = ["push"]\nsource = "x"',
         "an earlier route takes all deliveries on /"),
        ('[tls]\nkey = "/dev/null"', "tls.key: "),
        (f'[tls]\nca = "{__file__}"', "tls.ca: [X509"),
        (f'[tls]\ncert = "{__file__}"', "a key without a password, and the certificate of that"),
        ('[tls]\nca = "/nowhere.pem"', "this account may not see it: /nowhere.pem"),
        (f'[tls]\nca = "{"x" * 5000}"', "tls.ca: no such file"),
        ("broker_url = []", "broker_url: names no broker; give a URL"),
        ('archive_url = "postgresql://me:se@cret@host/a"', "a character that has to be escaped"),
        ('archive_url = "postgresql://me@host/a#b"', "a character that has to be escaped"),
        ("timeout = 0", "timeout: has to be above 0"),
        ("max_body = -1", "max_body: has to be 0 or more"),
        ("port = 65536", "port: has to be 65535 or less"),
        ('[routes]\npath = "/"', "routes: each route is a table of its own: write [[routes]]"),
        ('[[route]]\npath = "/"', "route: there is no such setting; write [[routes]] for each"),
        ('[sources]\nscheme = "github"', "sources: a source has a name of its own: write [sources"),
        ('[[sources]]\nscheme = "github"', "sources: each source is a table with a name: write ["),
        ("port = []", "port: has to be a whole number"),
        ("port = 8000.5", "port: has to be a whole number"),
        ('timeout = "4.5"', "timeout: has to be a number, such as 4.5, without quotation marks"),
        ('log_requests = "true"', "log_requests: has to be true, false, or a share"),
        ("backlog = 4294967296", "backlog: has to be 65535 or less"),
        ("timeout = nan", "timeout: dates, nan, inf and numbers of more than 64 bits"),
        ("timeout = []", "timeout: has to be a number, such as 4.5"),
        ("journal_refused = true",
         "journal_refused: refused requests may fill a tenth of the journal, which has no "
         "room for one; set journal to 10 or more, and journal_bytes to 655360 or more"),
        ("log_requests = 5", "log_requests: has to be true, false, or a share"),
        ("trace_sample = 1.5", "trace_sample: has to be 1 or less"),
        ("trace_sample = -1", "trace_sample: has to be 0 or more"),
        ('trace_endpoint = "collector:4318"',
         "trace_endpoint: has to be a URL with a host that begins with http:// or https://"),
        ('trace_endpoint = "http://:4318"', "trace_endpoint: has to have a host"),
        ('trace_endpoint = "http://user:sesame@collector:4318"', "may not have a user, a query"),
        ('trace_endpoint = "http://collector/v1/traces?key=x"', "into OTEL_EXPORTER_OTLP_HEADERS"),
        ('trusted_proxies = "10.0.0.1"', "trusted_proxies: has to be a list"),
        ("tls = 5", "tls: has to be a table"),
        ("routes = [5]", "routes[0]: has to be a table"),
        ('[[routes]]\ntask = "t"', "routes[0].path: is needed"),
        ('[[routes]]\npath = "/paid"\nwhen = { "jsn:/status" = ["paid"] }',
         'routes[0].when."jsn:/status" (path /paid): is written as json:/pointer, header:NAME, '
         "query:NAME, param:name, body, event, remote, delivery or source; did you mean "
         "json:/pointer?"),
        ('[[routes]]\npath = "/{x}"\nqueue = "s-{parm:x}"\nqueue_pattern = "s-.+"',
         "source; did you mean param:name?"),
        ('strategy = "magic"', f" or '{[*STRATEGIES][-1]}'"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(toml, text, problem):
    (found,) = problems(path=toml(text))
    assert problem in found


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ('queue_type = "quorum"', "`celery` cannot have a queue_type"),
        ("queue_arguments = { x = 1 }", "`celery` cannot have a queue_type"),
        (f'queue = "{128 * "ü"}"', "has over 255 bytes"),
        ('answer = "maybe"', "'wait'"),
        ('source = "x"', "routes[0].source (path /): no such source; [sources] has none"),
        ('events = ["x"]', "routes[0].events (path /): only a source knows the event"),
        ('answer = "accept"', "needs secret_key and public_url"),
        ("prefer = true", "needs secret_key and public_url"),
        ("tries = 3", "routes[0].tries (path /): later tries are recognized by their identity"),
        ('queues = ["a", "b"]', ".queues (path /): ordering_key or fair_by says which of them"),
        ('queues = ["a", "a"]\nordering_key = "json:/x"', "name each queue only once"),
        ('queues = ["a", "b"]\nordering_key = "param:x"', "the path has no parameter x"),
        ('fair_by = "param:x"', "the path has no parameter x"),
        ("fair_queues = 8", "routes[0].fair_queues (path /): set it together with fair_by"),
        ('fair_by = "remote"\nfair_queues = 3',
         "routes[0].fair_queues (path /): has to be 4 or more"),
        ('fair_by = "delivery"', "name, remote or source"),
        ('fair_by = "remote"\nqueues = ["a", "b"]\nordering_key = "json:/x"',
         ".fair_by (path /): it spreads a publisher's deliveries over two queues, and"),
        ('fair_by = "remote"\nqueues = ["a", "b"]\nfair_queues = 4',
         "routes[0].fair_queues (path /): `queues` says how many there are"),
        ('fair_by = "remote"\nexchange = "events"',
         "routes[0].fair_by (path /): an exchange chooses the queues itself"),
        (f'fair_by = "remote"\nqueue = "{"x" * 250}"', "has over 255 bytes"),
        ('fair_by = "source"',
         "routes[0].fair_by (path /): all deliveries on the queue celery have one source"),
        ('idempotency = "header:"', "(path /): is auto, none, header:NAME"),
        ('prefer = true\nfallback = "success"', "needs secret_key and public_url"),
        ('answer = "accept"\nfallback = "success"', "needs secret_key and public_url"),
        ('durable = "yes"',
         "routes[0].durable (path /): has to be true or false, without quotation marks"),
        ('args = [{ from = "body", default = 2026-01-01 }]',
         "routes[0].args[0].default (path /): dates, nan, inf and numbers of more than 64 bits"),
        ('queue = "q"\nqueue_arguments = { x = 9223372036854775808 }',
         "routes[0].queue_arguments.x (path /): dates, nan, inf and numbers of more than 64"),
        ('task = ""', "(path /): has to have 1 or more characters"),
        ("task = 5", "(path /): has to be a text"),
        ("events = []", "(path /): has to have 1 or more"),
        ('ordering_key = "x"', "is written as json:/pointer, header:NAME"),
        ('content_type = "ü"', "has printable ASCII characters only"),
        ('queue = "q"\nqueue_arguments = { x = 1.5 }',
         "queue_arguments.x (path /): has to be a text, a whole number, true or false"),
        ('when = { "Headers: x" = "a" }',
         'routes[0].when."Headers: x" (path /): is written as json:/pointer'),
        ('when = { "json:status" = "a" }', "did you mean json:/pointer?"),
        ('when = { evnt = "a" }', "when.evnt (path /): is written as json:"),
        ('when = { "json:/status" = [1.5] }',
         'routes[0].when."json:/status"[0] (path /): has to be a text, a whole number, true or'),
        ('when = { "json:/a" = { env = "NOWHERE" } }',
         'routes[0].when."json:/a" (path /): the environment variable NOWHERE is not set'),
        ('priority = "jsn:/x"',
         ": routes[0].priority (path /): is written as json:/pointer, header:NAME, query:NAME, "
         "param:name, body, event, remote, delivery or source; did you mean json:/pointer?"),
        ('args = ["headers:x"]', "source; did you mean header:NAME?"),
        ('fair_by = "sourc"', "remote or source; did you mean source?"),
    ],
)  # fmt: skip
def test_a_route_that_cannot_work_is_refused(toml, settings, problem):
    (found,) = problems(path=toml(f'[[routes]]\npath = "/"\n{settings}'))
    assert problem in found


def test_all_that_cannot_work_in_all_routes_is_told_with_its_place(toml):
    path = toml("""\
[[routes]]
path = "/a/{b}"
args = ["param:c"]
kwargs = { "d-e" = "body" }
revoke = true
answer = "accept"
fair_queues = 8
also = [{ task = "more", routing_key = "x", expires = 1.0, countdown = 2.0 }]
[[routes]]
path = "/results/x"
redact = ["param:y"]
""")

    found = [problem.removeprefix(f"{path}: ") for problem in problems(path=path)]

    assert [problem.partition("): ")[0] for problem in found] == [
        "routes[0].fair_queues (path /a/{b}",
        "routes[0].kwargs (path /a/{b}",
        "routes[0].args (path /a/{b}",
        "routes[0].revoke (path /a/{b}",
        "routes[0].also[0].routing_key (path /a/{b}",
        "routes[0].also[0].expires (path /a/{b}",
        "routes[1].path (path /results/x",
        "routes[1].redact (path /results/x",
    ]


@pytest.mark.parametrize("url", ["http://h", "https://h:1/a", "https://xn--e1afmkfd.xn--p1ai/%D0"])
def test_public_url_is_taken_as_senders_see_it(url):
    assert Config(public_url=url).public_url == url


@pytest.mark.parametrize(
    "route",
    [
        'answer = "wait-then-accept"\nfallback = "success"',
        'answer = "accept"\nfallback = "success"\nsource = "github"',
        'answer = "wait"\nfallback = "success"',
    ],
)
def test_what_is_never_answered_with_a_location_needs_no_key(toml, route):
    source = '[sources.github]\nscheme = "github"\nsecrets = "s"\n'
    config = load({}, {}, toml(f'{source}[[routes]]\npath = "/"\n{route}'))
    assert config.secret_key is None


def test_a_problem_with_a_flag_names_it_as_it_is_given():
    (found,) = problems({"broker_url": "http://h"})
    assert found.startswith("--broker: has to be a URL ")


@pytest.mark.parametrize("name", ["broker_url", "result_backend"])
@pytest.mark.parametrize(
    "url",
    [
        "", "localhost", "http://host", "amqp://", "redis://", "redis://h:x", "amqp://h:99999",
        "db+postgresql://h/db",
    ],
)  # fmt: skip
def test_url_needs_a_known_scheme_a_host_and_a_port_that_can_be(toml, name, url):
    if (name, url) == ("result_backend", ""):
        url = "://"  # an empty one means that there is none
    (found,) = problems(path=toml(f'{name} = "{url}"'))
    known = "redis://" if name == "result_backend" else ("amqp://", "redis://")
    told = "has to have a host" if url.startswith(known) else "has to be a URL with a host"
    assert told in found


def test_a_variable_that_is_not_utf_8_is_told(toml):
    text = os.fsdecode(b"amqp://\xff")
    found = problems(environ={"GATEWAY_BROKER_URL": text})
    assert found[0] == "environment GATEWAY_BROKER_URL: it is not UTF-8"
    path = toml('secret_key = { env = "KEY" }')
    (found,) = problems(environ={"KEY": text}, path=path)
    assert found == f"{path}: secret_key: the environment variable KEY is not UTF-8"


def test_a_mark_at_the_beginning_of_a_file_is_not_a_part_of_it(tmp_path):
    """Editors of Windows write it."""
    path, key = tmp_path / "gateway.toml", tmp_path / "key"
    key.write_text("0123456789abcdef", "utf-8-sig")
    path.write_text(f'secret_key = {{ file = "{key}" }}', "utf-8-sig")
    assert load({}, {}, path).secret_key.get_secret_value() == "0123456789abcdef"


def test_tls_file_that_is_missing_is_told_with_its_variable():
    (found,) = problems(environ={"GATEWAY_TLS_CA": "/nowhere.pem"})
    assert "GATEWAY_TLS_CA" in found and "/nowhere.pem" in found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"port =", "not valid TOML: "),
        (b"# \xff", "byte 2 is not UTF-8; save it as that"),
        (b"a = " + b"[" * 5_000 + b"]" * 5_000, "it is nested over 200 levels deep"),
        (b"a." * 3_000 + b"b = 1", "it is nested over 200 levels deep"),
    ],
)
def test_file_that_is_no_toml_is_one_problem(tmp_path, content, problem):
    path = tmp_path / "gateway.toml"
    path.write_bytes(content)
    assert problems(path=path)[0].startswith(f"{path}: {problem}")
    # With one [routes] the value is wrong, and with two the file is.
    path.write_text('[routes]\npath = "/a"\n[routes]\npath = "/b"\n')
    assert problems(path=path)[0].endswith("; write [[routes]] for each route")


def test_a_file_that_is_missing_is_told_with_what_has_named_it(tmp_path):
    path = tmp_path / "absent.toml"
    missing = f"{path}: cannot be read: No such file or directory"
    correct = "names this file: correct the path, let this account read it, or"
    variable = {"GATEWAY_CONFIG": str(path)}
    assert problems(environ=variable) == [
        f"{missing}; GATEWAY_CONFIG {correct} unset GATEWAY_CONFIG"
    ]
    flag = [f"{missing}; --config {correct} leave out --config"]
    assert problems(path=path) == problems(environ={"GATEWAY_CONFIG": "/other"}, path=path) == flag


def test_secrets_stand_in_the_environment_in_files_or_in_place(toml, tmp_path):
    (tmp_path / "secret").write_text("redis://:from-file@h/0\n")
    path = toml(f"""
        broker_url = [{{ env = "BROKER" }}, "amqp://in-place@h"]
        result_backend = {{ file = "{tmp_path / "secret"}" }}
    """)

    config = load({}, {"BROKER": "amqp://from-env@h"}, path)

    assert config.brokers == ["amqp://from-env@h", "amqp://in-place@h"]
    assert config.results == "redis://:from-file@h/0"


@pytest.mark.parametrize(
    ("secret", "hint"),
    [
        ('{ env = "NOWHERE" }', "the environment variable NOWHERE is not set"),
        ('{ file = "/nowhere" }', "the file /nowhere cannot be read"),
        ('{ file = "BINARY" }', "cannot be read"),
        ('{ file = "/a\\u0000b" }', "cannot be read"),
        ("{ file = 5 }", "the file 5 cannot be read"),
        ("{ env = 5 }", "5"),
    ],
)
def test_secret_that_is_not_there_is_a_problem_with_its_place(toml, tmp_path, secret, hint):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    path = toml(f"result_backend = {secret.replace('BINARY', str(tmp_path / 'binary'))}")

    # The real environment is stricter than a dict: its names are texts.
    (problem,) = problems(environ=os.environ, path=path)
    assert problem.startswith(f"{path}: result_backend: ") and hint in problem


def test_secret_that_is_not_there_is_not_called_wrong_as_well(toml):
    path = toml("""
        secret_key = { env = "KEY" }
        [sources.shop]
        scheme = "github"
        secrets = [{ env = "NEW" }, { file = "/nowhere" }]
    """)
    assert problems(path=path) == [
        f"{path}: secret_key: the environment variable KEY is not set",
        f"{path}: sources.shop.secrets[0]: the environment variable NEW is not set",
        f"{path}: sources.shop.secrets[1]: the file /nowhere cannot be read: "
        "No such file or directory",
    ]


def test_secrets_are_in_no_text_of_the_configuration():
    config = load(
        {"result_backend": f"redis://:{SECRET}@h/0"},
        {"GATEWAY_BROKER_URL": f"amqp://u:{SECRET}@a;amqp://u:{SECRET}@b"},
    )

    texts = [repr(config), str(config), f"{config}", repr(config.broker_url), str(vars(config))]
    texts += [config.model_dump_json(), str(config.model_dump())]

    assert not any(SECRET in text for text in texts)
    # Yet they travel to the children.
    assert read(write(Start(config, [], 0))).config.results == f"redis://:{SECRET}@h/0"


@pytest.mark.parametrize(
    "text",
    [
        f'broker_url = "http://{SECRET}@h"', f'broker_url = ["amqp://h", 5, "{SECRET}"]',
        f'broker_url = "amqp://u:{SECRET}@h:port"', f'result_backend = "{SECRET}://h"',
        f'result_backend = "redis://:{SECRET}@[h"', f'result_backend = {{ text = "{SECRET}" }}',
        f'result_backend = ["{SECRET}"]', f'broker_url = "redis://:{SECRET}@a;redis://b"',
        f'broker_url = "redis://:{SECRET}@a"\nstrategy = "pika"',
        f'broker_url = "amqp://{SECRET}@h"\nport = "x"', f'broker_url = "amqp://{SECRET}@h',
        f'state_url = "{SECRET}"', f'secret_key = ["{SECRET}"]', f'admin_token = ["{SECRET}"]',
        f'[sources.x]\nscheme = "{SECRET}"',
        f'[sources.x]\nscheme = "github"\nsecrets = [["{SECRET}"]]',
        f'[sources.x]\nscheme = "standard"\nsecrets = "whsec_{SECRET}!"',
    ],
)  # fmt: skip
def test_secrets_are_in_no_problem(toml, text):
    with pytest.raises(ConfigError) as error:
        load({}, {}, toml(text))
    chain, texts = error.value, []
    while chain:  # what a traceback would print
        texts += [str(chain), repr(chain)]
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    assert not any(SECRET in text for text in texts)


@pytest.mark.parametrize(
    "flags",
    [
        {"port": 8000, "admin_port": 8000},
        {"port": 8000, "admin_port": 8000, "host": "0.0.0.0"},
        {"port": 8000, "admin_port": 8000, "admin_host": "::"},
        {"port": 9464},
    ],
)
def test_webhooks_and_dashboard_do_not_share_a_port(flags):
    (problem,) = problems(flags)
    number = flags["port"]
    assert problem.endswith(f"{number} is the port for webhooks; choose another, or 0 for none")
    assert "admin" in problem


@pytest.mark.parametrize(
    "flags",
    [
        {"port": 0, "admin_port": 0},
        {"port": 8000, "admin_port": 8000, "uds": "/run/gateway.sock"},
        {"port": 8000, "admin_port": 8000, "host": "192.0.2.1", "admin_host": "127.0.0.1"},
    ],
)
def test_ports_of_different_addresses_may_be_the_same(flags):
    assert load({**flags, "port": None} if "uds" in flags else flags, {})


def test_the_largest_body_and_its_message_must_fit(toml):
    (problem,) = problems(path=toml("max_in_flight_bytes = 2000000"))
    assert "max_in_flight_bytes: has to be at least twice the sum of max_body" in problem
    assert load({}, {}, toml("max_in_flight_bytes = 2000000\nmax_body = 500000"))


@for_each("model", [Config, Route, TLS, *(find(s).options_class for s in SCHEMES)])
def test_no_problem_is_told_in_pydantics_words(model):
    """Whatever a setting is given, what comes back speaks of settings, not of inputs."""
    for name in model.model_fields:
        for value in (None, True, -1, 1e30, "", "\0", [], [[]], {}, {"x": {}}, object()):
            try:
                model.model_validate({name: value})
            except ValidationError as error:
                for line in explain(error, model):
                    assert not re.search(r"\b(Input|input|valid|Field|Value|should)\b", line), line


#: A value of each type of JSON and of TOML; lists and tables that no setting takes.
VALUES = {
    "boolean": True, "integer": 4, "number": 4.5, "string": "4", "date": datetime.now(UTC),
    "array": [[]], "object": {"x": {}},
}  # fmt: skip
#: What is a list of one, or has its types in no schema.
ALSO = {"broker_url": "string", "secrets": "string", "receive_id": "string", "list": "string"}
ALSO |= {"pick": "string", "log_requests": "boolean"}
MODELS = [Config, Route, FurtherTask, TLS, Notify, Late, Fetch]


def types(schema, of) -> set[str]:
    """Return the types of JSON that a schema allows; `of` are the definitions that it names."""
    found = {schema["type"]} if "type" in schema else set()
    found |= {"string"} if "const" in schema or "enum" in schema else set()
    for each in [*schema.get("anyOf", []), *schema.get("allOf", [])]:
        found |= types(each, of)
    return found | types(of[schema["$ref"].rpartition("/")[2]], of) if "$ref" in schema else found


@pytest.mark.filterwarnings("ignore:.*not JSON serializable")  # no default of an argument
@for_each("model", [*MODELS, *(find(s).options_class for s in SCHEMES)])
def test_a_value_of_another_type_is_refused(model):
    """A value of a setting has a type of its schema: nothing is made of another one."""

    def told(name, value) -> bool:
        try:
            model.model_validate({name: value})
        except ValidationError as error:
            return any(re.match(rf"{name}\b", line) for line in explain(error, model))
        return False

    schema = model.model_json_schema()
    for name, each in schema["properties"].items():
        allowed = types(each, schema.get("$defs", {})) | {ALSO.get(name)}
        for kind, value in VALUES.items():
            if allowed != {None} and not {kind, "number" if kind == "integer" else kind} & allowed:
                assert told(name, value), (name, kind)
        for kind, text in (("integer", "4"), ("number", "4.5"), ("boolean", "true")):
            if kind in allowed and told(name, Text(text)):  # then it is out of its limits
                assert told(name, VALUES[kind]), (name, text)


def test_a_path_from_the_environment_is_not_shown(toml):
    path = toml('[[routes]]\npath = { env = "HOOK" }\ndeadline = 0\n')
    (problem,) = problems(environ={"HOOK": f"/{SECRET}"}, path=path)
    assert problem == f"{path}: routes[0].deadline: has to be above 0"


def test_a_pointer_from_the_environment_is_not_shown(toml):
    path = toml('[[routes]]\npath = "/"\nargs = [{ env = "PLACE" }]\n')
    (problem,) = problems(environ={"PLACE": f"jsn:/{SECRET}"}, path=path)
    assert SECRET not in problem and "did you mean json:/pointer?" in problem


def test_what_several_routes_have_in_common_is_told_once(toml):
    routes = "".join(
        f'[[routes]]\npath = "/{n}"\nqueue = "q"\nqueue_arguments = {{ x = {n} }}\n'
        for n in range(3)
    )
    (problem,) = problems(path=toml(routes))
    assert problem.endswith(
        "routes[1] (path /1): the queue q has other values of declare, queue_type or "
        "queue_arguments than in routes[0] (path /0); make them the same"
    )


def test_a_further_task_that_declares_a_queue_otherwise_is_told_with_its_place(toml):
    also = '[[routes.also]]\ntask = "t"\nqueue = "q"\nqueue_type = "quorum"\n'
    found = problems(path=toml(f'[[routes]]\npath = "/"\nqueue = "q"\n{also}'))
    assert any("routes[0].also[0] (path /): the queue q has other" in each for each in found)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("999", ["has to be 255 or less"]),
        ("-1", ["has to be 0 or more"]),
        ("1.5", ["has to be a whole number", "has to be a text in quotation marks"]),
        ("[1]", ["has to be a whole number", "has to be a text in quotation marks"]),
    ],
)
def test_a_number_out_of_its_limits_is_not_told_to_be_a_text(toml, value, told):
    found = problems(path=toml(f'[[routes]]\npath = "/"\npriority = {value}\n'))
    assert [each.partition("(path /): ")[2] for each in found] == told


@pytest.mark.parametrize("beat", ["soon", "-1", "1.5", "3601", "²"])
def test_a_heartbeat_is_whole_seconds(toml, beat):
    with pytest.raises(ConfigError, match="heartbeat= has to be whole seconds"):
        load({}, {}, toml(f'broker_url = "amqp://h?heartbeat={beat}"'))
