"""Each row of docs/celery.md is shown by tests, which are listed here."""

from __future__ import annotations

import ast
import re

from tests.docs.test_documents import ROOT, text

DOCUMENT = text("docs/celery.md")

#: The tests that show a row, by its first cell: `reach::test_x` is test_x in a test_reach.py.
SHOWN = {
    "arguments": [
        "reach::test_a_task_gets_the_arguments_that_the_route_names",
        "strategies::test_bodies_come_back_byte_for_byte",
    ],
    "fairness between publishers": ["fairness::test_a_flood_does_not_hold_up_others"],
    "`priority`": [
        "reach::test_a_message_has_celery_s_options",
        "celery_features::test_a_message_with_a_higher_priority_comes_first",
    ],
    "`countdown`, `eta`": [
        "reach::test_a_message_has_celery_s_options", "task::test_settings_that_cannot_be",
    ],
    "`expires`": [
        "reach::test_a_message_has_celery_s_options",
        "celery_features::test_a_task_whose_sender_waits_no_more_does_not_run",
    ],
    "`time_limit`, `soft_time_limit`": ["celery_features::test_what_exceeds_a_time_limit_is_a_502"],
    "`ignore_result`": [
        "reach::test_a_result_that_nobody_wants_is_not_stored",
        "task::test_settings_that_cannot_be",
    ],
    "`retry()`, `autoretry_for`": [
        "celery_features::test_a_request_waits_until_the_last_try",
        "strategies::test_a_state_that_is_not_final_is_no_result",
    ],
    "`self.replace()` by a task, a chain or a group": [
        "replaced::test_the_task_in_its_place_answers", "stock_workers::test_a_stock_worker_serves",
    ],
    "`link_error`": ["reach::test_a_failure_calls_the_task_that_the_route_names"],
    "`link`": ["task::test_settings_that_cannot_be"],
    "groups, chains, chords as a route's task": ["replaced::test_the_task_in_its_place_answers"],
    "exchanges: direct, topic, fanout, headers": [
        "reach::test_an_exchange_routes_by_what_is_in_the_delivery",
        "celery_features::test_exchanges_of_each_type_route",
    ],
    "`task_routes` of the app": [
        "celery_features::test_the_route_names_the_queue_whatever_the_app_s_routes_say",
    ],
    "`task_serializer`": ["wire::test_the_message_is_what_the_gateway_publishes"],
    "result serializers": [
        "celery_features::test_a_stored_result_is_plain_json_or_a_502",
        "strategies::test_they_are_answers_or_a_502_and_nobody_elses_concern",
    ],
    "result compression": [
        "celery_features::test_a_stored_result_is_plain_json_or_a_502",
        "wire::test_the_results_are_what_the_app_server_stores_and_replies",
    ],
    "result backends": [
        "stock_workers::test_a_stock_worker_serves",
        "connections::test_results_outlive_the_failover_of_their_master",
        "config::test_url_needs_a_known_scheme_a_host_and_a_port_that_can_be",
    ],
    "task events, Flower": [
        "celery_features::test_task_events_name_the_gateway_s_tasks",
        "appserver::test_task_events_come_with_heartbeats",
    ],
    "queues by name, as one for each session": [
        "dynamic_queues::test_a_queue_is_made_on_first_use_and_consumed_at_once",
        "dynamic_queues::test_thirty_queues_go_when_they_are_idle",
    ],
    "remote control, `revoke`": [
        "celery_features::test_a_revoked_task_is_a_502",
        "further_tasks::test_a_task_whose_caller_has_gone_is_revoked_if_it_has_not_begun",
    ],
    "`task_id`": [
        "further_tasks::test_a_task_whose_id_comes_from_the_delivery_runs_once",
        "further_tasks::test_deliveries_that_lack_an_identity_are_different_tasks",
    ],
    "several tasks for one event": [
        "further_tasks::test_a_delivery_starts_several_tasks_and_its_own_one_answers",
    ],
    "rate limits, autoscale, `max_tasks_per_child`": [
        "celery_features::test_a_rate_limit_is_the_worker_s_own",
        "celery_features::test_a_pool_grows_with_its_tasks_and_its_processes_are_replaced",
    ],
    "`acks_late`, poison messages, lost workers": [
        "poison::test_a_prefetched_message_runs_again_after_a_lost_connection",
        "poison::test_poison_on_the_queue_celery_lies_among_the_dead_letters",
    ],
    "two copies of one message at once, after an outage": [
        "result_script::test_a_success_is_final",
    ],
    "the pools `prefork`, `threads`, `gevent`, `eventlet`, `solo`": [
        "lost_results::test_a_worker_goes_on",
        "remote_answers::test_a_worker_that_counts_no_lost_results_is_named_where_its_pool_drops_them",
    ],
    "`beat`, periodic tasks": ["celery_features::test_periodic_tasks_run_beside_the_gateway"],
    "stamping headers": [
        "celery_features::test_the_gateway_stamps_nothing_and_workers_keep_stamps",
    ],
    "brokers": [
        "readme::test_one_command_and_the_printed_curl_lines",
        "appserver::test_worker_on_redis_stores",
        "blocks::test_a_broker_that_was_asked_for_is_not_replaced",
    ],
    "workers in other languages": [
        "polyglot_workers::test_an_answer_has_the_status_and_the_headers_that_the_task_gave",
    ],
}  # fmt: skip


def rows() -> list[str]:
    """Return the first cell of each row of the table."""
    cells = re.findall(r"^\| (.*?) \|", DOCUMENT, re.M)
    return cells[1:]  # without the heading


def test_every_row_is_shown_by_a_test():
    without = [row for row in rows() if not SHOWN.get(row)]
    assert not without, (
        f"docs/celery.md says something of {', '.join(without)}, and no test shows it: write one, "
        "for example in tests/integration/test_celery_features.py, and name it in SHOWN in "
        "tests/docs/test_celery.py"
    )


def test_no_row_is_missing_or_said_twice():
    assert sorted(rows()) == sorted(SHOWN), "remove from SHOWN what docs/celery.md does not say"


def test_the_tests_that_show_the_rows_exist():
    named = {test for tests in SHOWN.values() for test in tests}
    written = {
        f"{module}::{node.name}"
        for module in {test.partition("::")[0] for test in named}
        for file in (ROOT / "tests").rglob(f"test_{module}.py")
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert named - written == set(), "they show rows of docs/celery.md: name them anew in SHOWN"
