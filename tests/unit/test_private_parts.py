"""Private names of other libraries that we use, each in one place: they are still there.

For the sake of the gateway's setup.cfg bounds its own libraries from above. Celery, kombu and
py-amqp are the user's, and have no such bound: `appserver.private_parts` looks for their names, and
`gateway.strategies.celery_results` for those that it replaces.
"""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import import_module

import pytest

import appserver
import gateway
from appserver.private_parts import PrivateParts, is_there
from tests.docs.test_documents import ROOT

#: The module of ours -> the names that it uses.
USED = {
    "gateway/strategies/celery_results.py": [
        "celery.backends.base:BaseKeyValueStoreBackend._get_task_meta_for",
        "celery.backends.redis:ResultConsumer._reconnect_pubsub",
        "celery.backends.redis:ResultConsumer._socket_waiter",
    ],
    "gateway/amqp/connection.py": [
        "pika.adapters.asyncio_connection:_AsyncioIOServicesAdapter._schedule_and_wrap_in_io_ref",
        "pika.connection:Connection._on_data_available",
        "pika.connection:Connection._terminate_stream",
        "pika.connection:Connection._frame_buffer",
        "pika.connection:Connection._output_marshaled_frames",
        "pika.connection:Connection._adapter_emit_data",
        "pika.adapters.base_connection:BaseConnection._transport",
        "pika.adapters.base_connection:BaseConnection._proto_connection_lost",
        "pika.adapters.base_connection:BaseConnection._on_connection_workflow_done",
    ],
    "gateway/stores/redis_client.py": ["redis.asyncio.connection:AbstractConnection._writer"],
    "gateway/http/connection.py": [
        "tornado.http1connection:HTTP1Connection._parse_headers",
        "tornado.http1connection:HTTP1Connection._read_body",
        "tornado.http1connection:HTTP1Connection._read_chunked_body",
        "tornado.http1connection:HTTP1Connection._deliver_body",
        "tornado.http1connection:HTTP1Connection._max_body_size",
        "tornado.http1connection:HTTP1Connection._disconnect_on_finish",
    ],
    "gateway/admin/pages/view.py": ["tornado.web:RequestHandler._finished"],
}

PACKAGES = ("gateway", "appserver")
#: Python's own: of namedtuple, os, argparse, abc and typing.
STANDARD = {
    *("_asdict", "_replace", "_fields", "_make", "_exit", "_generate_next_value_"),
    *("_actions", "_SubParsersAction", "_abc_impl", "_is_protocol"),
    *("_getframe", "_current_frames"),
    "_stream_request_body",  # Tornado's decorator sets it
}


def private_parts() -> Iterator[tuple[str, PrivateParts]]:
    """Yield what the app server looks for, with the module that uses it."""
    for module in pkgutil.iter_modules(appserver.__path__, "appserver."):
        for value in vars(import_module(module.name)).values():
            if isinstance(value, PrivateParts):
                yield module.name, value


ALL = {name: path for path, names in USED.items() for name in names} | {
    name: f"{module.replace('.', '/')}.py"
    for module, parts in private_parts()
    for name in parts.names
}


def test_they_are_there():
    for where in ALL:
        assert is_there(where), where
        assert not is_there(f"{where}_not")
        assert not is_there(f"no_{where}")


@pytest.mark.parametrize("module", sorted(set(ALL.values())))
def test_they_are_used_where_the_list_says(module):
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    used = {
        name
        for node in ast.walk(tree)
        for name in (getattr(node, "attr", None), getattr(node, "name", None), _annotated(node))
    }
    listed = {where.rpartition(".")[2] for where, path in ALL.items() if path == module}
    assert listed - used == set()


def _annotated(node: ast.AST) -> str | None:
    target = node.target if isinstance(node, ast.AnnAssign) else None
    return target.id if isinstance(target, ast.Name) else None


def test_setup_cfg_names_them_beside_the_bounds():
    comments = re.findall(r"^ +# .*", (ROOT / "setup.cfg").read_text("utf-8"), re.MULTILINE)
    named = set(re.findall(r"\b_\w+", " ".join(comments)))
    bounded = (each for names in USED.values() for each in names if not each.startswith("celery"))
    assert named == {each.rpartition(".")[2] for each in bounded} | {"_AsyncioIOServicesAdapter"}


def test_no_other_ones_are_used():
    listed = {where.rpartition(".")[2] for where in ALL}
    assert (read() | {*replaced()}) - STANDARD - listed == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def read() -> set[str]:
    """Return the private attributes that are read and that no module of ours gives."""
    ours, used = set[str](), set[str]()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Attribute):
                (ours if isinstance(node.ctx, ast.Store) else used).add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                ours.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # slots, setattr
                ours.add(node.value)
            elif isinstance(node, ast.arg):
                ours.add(node.arg)
    return set(filter(is_private, used - ours))


def replaced() -> Iterator[str]:
    """Yield the private attributes of others' classes that classes of ours replace."""
    for package in (appserver, gateway):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    for name, module in [*sys.modules.items()]:
        if name.split(".")[0] in PACKAGES:
            for cls in vars(module).values():
                if inspect.isclass(cls) and cls.__module__ == name:
                    yield from replaced_by(cls)


def replaced_by(cls: type) -> Iterator[str]:
    """Yield those of a class, also those that its mixins replace."""
    ours: set[str] = set()
    for base in cls.__mro__:
        top = base.__module__.split(".")[0]
        if top in PACKAGES:
            ours |= vars(base).keys()
        elif top not in sys.stdlib_module_names and top != "pydantic":
            yield from filter(is_private, ours & vars(base).keys())
