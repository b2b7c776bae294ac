"""What `gateway dev` says of tasks that the worker of an app does not have."""

from gateway.cli.local.first_task import Described
from gateway.cli.local.welcome import warnings
from gateway.config.settings import Config

SOURCES = {"hub": {"scheme": "github", "secrets": "sixteen letters!"}}


def test_a_missing_task_is_told_with_the_deliveries_that_need_it(tmp_path):
    routes = [
        {"path": "/hub", "source": "hub", "events": ["push", "issues.*"], "task": "ci.biuld"},
        {"path": "/hub", "source": "hub", "task": "ci.note", "also": [{"task": "mail"}]},
        {"path": "/mails", "task": "mail"},
    ]
    config = Config(sources=SOURCES, routes=routes)

    said = warnings(config, "ci", Described(["ci.build", "ci.note"], False), tmp_path)

    assert said == [
        "warning: the app ci has no task ci.biuld, so /hub (push, issues.*) answers 502; "
        "did you mean ci.build?",
        "warning: the app ci has no task mail, so /mails answers 502 and /hub does not start it; "
        "it has ci.build, ci.note",
    ]
