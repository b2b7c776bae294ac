"""What is built and installed: two packages without tests, a worker with little, plugins."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support import command
from tests.support.config import route

ROOT = Path(__file__).parents[2]
#: What only the gateway needs.
GATEWAYS = ("cryptography", "hiredis", "pika", "pydantic", "tornado")
_BUILD = "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"


def build(kind: str, source: Path, to: Path) -> Path:
    """Build what `kind` says of the tree `source`, as pip would do it; fetches nothing."""
    argv = [sys.executable, "-c", _BUILD, f"build_{kind}", str(to)]
    subprocess.run(argv, cwd=source, check=True, capture_output=True)
    (built,) = (path for path in to.iterdir() if path.name.endswith((".whl", ".gz")))
    return built


def project(folder: Path) -> Iterator[str]:
    """Yield the names of the files below `folder`, from ROOT, but for what git ignores."""
    lines = (ROOT / ".gitignore").read_text().split()
    ignored = [line.removesuffix("/") for line in lines] + [".git"]
    for path in folder.iterdir():
        name = path.relative_to(ROOT).as_posix()
        if any(fnmatch(f"/{name}", one) or fnmatch(path.name, one) for one in ignored):
            continue
        if path.is_dir():
            yield from project(path)
        else:
            yield name


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> tarfile.TarFile:
    with tarfile.open(build("sdist", ROOT, tmp_path_factory.mktemp("sdist"))) as sdist:
        yield sdist


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> zipfile.ZipFile:
    """The wheel as it is made of the source distribution: what that lacks, it lacks."""
    source = tmp_path_factory.mktemp("source")
    # Before Python 3.11.4 there are no filters.
    sdist.extractall(source, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (tree,) = source.iterdir()
    with zipfile.ZipFile(build("wheel", tree, tmp_path_factory.mktemp("wheel"))) as wheel:
        yield wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("installed")
    wheel.extractall(home)
    return home


def python(installed: Path, code: str, *missing: str) -> subprocess.CompletedProcess[str]:
    """Run `code` with what is installed, where these modules are `missing`."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))\n"
    argv = [sys.executable, "-W", "error", "-c", hide + code]
    env = {"PYTHONPATH": str(installed)}
    return subprocess.run(argv, cwd=installed, env=env, capture_output=True, text=True)


def test_the_wheel_has_both_packages_and_no_tests(wheel):
    names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    assert {name.partition("/")[0] for name in names} == {"appserver", "gateway"}
    assert {
        "appserver/py.typed",
        "gateway/py.typed",
        "gateway/admin/pages/static/page.js",
        "gateway/admin/pages/templates/base.html",
        "gateway/cli/commands/costs.json",
    } <= {*names}
    modules = {str(p.relative_to(ROOT)) for top in ("appserver", "gateway") for p in
               (ROOT / top).rglob("*.py")}  # fmt: skip
    assert {name for name in names if name.endswith(".py")} == modules
    assert not [name for name in names if re.search(r"(^|/)(tests?|loadtest|conftest)\b", name)]


def test_the_source_distribution_has_what_the_project_has(sdist):
    files = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}
    made = {name for name in files if name == "PKG-INFO" or ".egg-info/" in name}
    assert files - made == set(project(ROOT))


def test_what_a_worker_needs_is_little_and_leaves_its_celery_alone(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    requirements = metadata.get_all("Requires-Dist")

    def of(extra: str) -> set[str]:
        end = f'; extra == "{extra}"'
        return {one.removesuffix(end) for one in requirements if one.endswith(end)}

    def names(some: Iterable[str]) -> set[str]:
        return {re.match(r"[\w-]+", one)[0] for one in some}

    base = [one for one in requirements if "extra ==" not in one]
    assert names(base) == {"amqp", "celery", "kombu", "packaging", "redis"}
    assert "celery>=5.4" in base
    assert names(of("serve")) == {*GATEWAYS, "prometheus_client", "redis", "shtab"}
    for extra in ("gevent", "fast", "otel", "archive"):
        assert "celery-gateway[serve]" in of(extra)
    # All of the archive, but for what PostgreSQL needs.
    assert {one for one in of("archive") if not one.startswith("psycopg")} <= of("dev")
    assert "Python :: 3.14" in str(metadata.get_all("Classifier"))
    assert metadata["Requires-Python"] == ">=3.11"


def test_a_worker_needs_nothing_of_the_gateway(installed):
    modules = [f"appserver.{path.stem}" for path in (ROOT / "appserver").glob("[!_]*.py")]
    imports = "import " + ", ".join(modules)
    found = "import appserver; print(appserver.__file__, appserver.app.main)"
    done = python(installed, f"{imports}\n{found}", "gateway", *GATEWAYS)
    assert (done.stdout, done.stderr) == (f"{installed}/appserver/__init__.py appserver\n", "")


@pytest.mark.parametrize("missing", [GATEWAYS, ("tornado",), ("pydantic",), ("pika",)])
def test_the_command_without_its_extra_says_what_to_install(installed, missing):
    done = python(installed, "import gateway.__main__ as g; sys.exit(g.main(['serve']))", *missing)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"gateway: no \w+: pip install 'CHECKOUT-OR-WHEEL\[serve]'\n", done.stderr)


# Plugins ---------------------------------------------------------------------------------------


CONFIG = """\
[sources.shop]
scheme = "acme"
secrets = ["a secret of Acme"]
""" + route("/acme", None, source="shop")


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which the package can be imported, as after `pip install`."""
    directory = tmp_path_factory.mktemp("plugin")
    source = shutil.copytree(ROOT / "examples" / "plugin", directory / "source")
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    argv += ["--no-index", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*argv, directory / "target", source], check=True)
    (directory / "gateway.toml").write_text(CONFIG)
    config = str(directory / "gateway.toml")
    return {"PYTHONPATH": f"{ROOT}:{directory / 'target'}", "GATEWAY_CONFIG": config}


def test_the_strategy_and_the_sender_are_used_by_their_names(stack, rabbitmq, redis_server, plugin):
    # Given a gateway with the package's strategy, and a route of its sender,
    urls = ["--broker", rabbitmq.url, "--result-backend", redis_server.url]
    stack.worker(rabbitmq.url, redis_server.url)
    gateway = stack.gateway("--strategy=queries", *urls, env=plugin)
    url = f"{gateway.url}/acme"
    # when a delivery is signed as the sender would, it is answered with its task's result;
    send = ("send", "--as", "shop", url, "--data", '{"id": "1", "type": "paid"}')
    assert "200" in command.run(*send, env=plugin, check=True).stdout
    # and what is signed with another secret is refused.
    other = {**plugin, "GATEWAY_CONFIG": ""}
    refused = command.run("send", "--as", "acme", "--secret", "x", url, env=other)
    assert "401" in refused.stdout + refused.stderr


def test_the_command_runs(plugin: dict[str, str]):
    assert command.run("paths", env=plugin).stdout.split() == ["/acme", "api.core.main"]


def test_a_strategy_that_cannot_be_imported_is_named_by_the_process(stack, plugin, tmp_path):
    # Given an import that fails in the strategy's module,
    target = Path(plugin["PYTHONPATH"].partition(":")[2])
    broken = shutil.copytree(target, tmp_path / "broken")
    module = broken / "gateway_example" / "queries.py"
    module.write_text(f"{module.read_text()}\nimport a_module_that_nobody_wrote\n")
    env = {"PYTHONPATH": f"{ROOT}:{broken}"}
    # when a gateway is to use it, its process says so, without a traceback.
    argv = [*command.GATEWAY, "serve", "--strategy=queries", "--port=0", "--admin-port=0"]
    why = "ModuleNotFoundError: No module named 'a_module_that_nobody_wrote'"
    gateway = stack.spawn("gateway", argv, env=env, ready=why)
    assert "the package gateway-example 1.0 brings queries" in gateway.output()
    assert "Traceback" not in gateway.output()
