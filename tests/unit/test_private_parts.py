"""Private names of other libraries that we use, each in one place: they are still there.

For their sake setup.cfg bounds these libraries from above.
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
from tests.docs.test_documents import ROOT

#: Where it is -> the module of ours that uses it.
USED = {
    "amqp.transport:_AbstractTransport._read_buffer": "appserver/task_stream.py",
    "celery.backends.base:BaseKeyValueStoreBackend._store_result": "appserver/result_script.py",
    "celery.backends.base:Backend._get_result_meta": "appserver/result_script.py",
    "celery.backends.base:BaseKeyValueStoreBackend._set_with_state": "appserver/result_script.py",
    "celery.backends.base:BaseKeyValueStoreBackend._get_task_meta_for": (
        "gateway/strategies/celery_results.py"
    ),
    "celery.backends.redis:RedisBackend._create_client": "appserver/attempts.py",
    "celery.backends.redis:ResultConsumer._reconnect_pubsub": (
        "gateway/strategies/celery_results.py"
    ),
    "celery.concurrency.asynpool:AsynPool._track_child_process": "appserver/processes.py",
    "celery.concurrency.asynpool:AsynPool._sentinel_poll": "appserver/processes.py",
    "celery.backends.redis:ResultConsumer._get_key_for_task": (
        "gateway/strategies/celery_results.py"
    ),
    "celery.backends.redis:ResultConsumer._socket_waiter": "gateway/strategies/celery_results.py",
    "celery.result:AsyncResult._get_task_meta": "gateway/strategies/celery_client.py",
    "celery.worker.request:Request._request_dict": "appserver/worker.py",
    "celery.worker.request:Request._body": "appserver/worker.py",
    "celery.worker.request:Request._content_type": "appserver/worker.py",
    "celery.worker.consumer.consumer:Consumer._maximum_prefetch_restored": (
        "appserver/task_stream.py"
    ),
    "celery.worker.consumer.consumer:Consumer._new_prefetch_count": "appserver/worker.py",
    "celery.worker.consumer.consumer:Consumer._restore_prefetch_count_after_connection_restart": (
        "appserver/worker.py"
    ),
    "celery.worker.consumer.delayed_delivery:DelayedDelivery._validate_broker_urls": (
        "appserver/delayed_delivery.py"
    ),
    "kombu.asynchronous.hub:Hub._ready": "appserver/bootsteps.py",
    "kombu.common:QoS._mutex": "appserver/worker.py",
    "pika.adapters.asyncio_connection:_AsyncioIOServicesAdapter._schedule_and_wrap_in_io_ref": (
        "gateway/amqp/connection.py"
    ),
    "pika.connection:Connection._on_data_available": "gateway/amqp/connection.py",
    "pika.connection:Connection._terminate_stream": "gateway/amqp/connection.py",
    "pika.connection:Connection._frame_buffer": "gateway/amqp/connection.py",
    "pika.connection:Connection._output_marshaled_frames": "gateway/amqp/connection.py",
    "pika.connection:Connection._adapter_emit_data": "gateway/amqp/connection.py",
    "pika.adapters.base_connection:BaseConnection._transport": "gateway/amqp/connection.py",
    "pika.adapters.base_connection:BaseConnection._proto_connection_lost": (
        "gateway/amqp/connection.py"
    ),
    "pika.adapters.base_connection:BaseConnection._on_connection_workflow_done": (
        "gateway/amqp/connection.py"
    ),
    "redis.asyncio.connection:AbstractConnection._writer": "gateway/stores/subscription.py",
    "tornado.http1connection:HTTP1Connection._parse_headers": "gateway/http/connection.py",
    "tornado.http1connection:HTTP1Connection._read_body": "gateway/http/connection.py",
    "tornado.http1connection:HTTP1Connection._read_chunked_body": "gateway/http/connection.py",
    "tornado.http1connection:HTTP1Connection._deliver_body": "gateway/http/connection.py",
    "tornado.http1connection:HTTP1Connection._max_body_size": "gateway/http/connection.py",
    "tornado.http1connection:HTTP1Connection._disconnect_on_finish": "gateway/http/connection.py",
    "tornado.web:RequestHandler._headers_written": "gateway/admin/api/changes.py",
}

PACKAGES = ("gateway", "appserver")
#: Python's own: of namedtuple, os, argparse, abc and typing.
STANDARD = {
    *("_asdict", "_replace", "_fields", "_make", "_exit", "_generate_next_value_"),
    *("_actions", "_SubParsersAction", "_abc_impl", "_is_protocol"),
}


@pytest.mark.parametrize("where", USED)
def test_it_is_there(where):
    module, _, name = where.partition(":")
    owner, _, attribute = name.partition(".")
    found = getattr(import_module(module), owner)
    # What a constructor sets, or another object's method, is found in its text only.
    source = (ROOT / import_module(module).__file__).read_text("utf-8")
    assert hasattr(found, attribute) or f".{attribute} = " in source


@pytest.mark.parametrize("where", USED)
def test_it_is_used_where_the_list_says(where):
    attribute = where.rpartition(".")[2]
    tree = ast.parse((ROOT / USED[where]).read_text("utf-8"))
    names = (
        (getattr(node, "attr", None), getattr(node, "name", None), _annotated(node))
        for node in ast.walk(tree)
    )
    assert any(attribute in some for some in names)


def _annotated(node: ast.AST) -> str | None:
    target = node.target if isinstance(node, ast.AnnAssign) else None
    return target.id if isinstance(target, ast.Name) else None


def test_setup_cfg_names_them_beside_the_bounds():
    comments = re.findall(r"^ +# .*", (ROOT / "setup.cfg").read_text("utf-8"), re.MULTILINE)
    named = set(re.findall(r"\b_\w+", " ".join(comments)))
    used = {where.rpartition(".")[2] for where in USED} | {"_AsyncioIOServicesAdapter"}
    assert named == used


def test_no_other_ones_are_used():
    listed = {where.rpartition(".")[2] for where in USED}
    assert {*read(), *replaced()} - STANDARD - listed == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def trees() -> Iterator[ast.AST]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield ast.parse(path.read_text())


def own(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module itself gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):  # slots, setattr
            yield node.value
        elif isinstance(node, ast.arg):
            yield node.arg


def read() -> Iterator[str]:
    """Yield the private attributes that are read and that no module of ours gives."""
    modules = list(trees())
    ours = {name for tree in modules for name in own(tree)}
    for tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours:
                yield node.attr


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
    for base in cls.__mro__[1:]:
        top = base.__module__.split(".")[0]
        if top not in PACKAGES and top not in sys.stdlib_module_names and top != "pydantic":
            yield from filter(is_private, vars(cls).keys() & vars(base).keys())
