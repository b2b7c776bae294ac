"""The metrics of a gateway: their names, types, labels and meanings.

Where OpenTelemetry's semantic conventions name a metric, it has that name and those of its labels
that can differ, as Prometheus spells them. The names of all others begin with ``gateway_``.
https://opentelemetry.io/docs/specs/semconv/http/http-metrics/
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-metrics/
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

#: Upper bounds of all histograms (seconds): those that the conventions advise, and three more.
BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    30.0,
)  # fmt: skip
#: The methods that a label may have; RFC 9110, RFC 5789. All others are `OTHER`, as the
#: conventions say.
METHODS = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
)
#: A method that is none of `METHODS`, and all labels of what a process has no room to count apart.
OTHER = "_OTHER"

REQUESTS = "http_server_request_duration_seconds"
ACTIVE = "http_server_active_requests"
SENT = "messaging_client_sent_messages_total"
PUBLISHED = "messaging_client_operation_duration_seconds"
ERRORS = "gateway_request_errors_total"
UNVERIFIED = "gateway_verification_failures_total"
WAITS = "gateway_result_wait_seconds"
MISSES = "gateway_deadline_misses_total"
RECONNECTS = "gateway_reconnects_total"
UNROUTED = "gateway_events_unrouted_total"
FILTERED = "gateway_deliveries_filtered_total"
LATE = "gateway_late_tasks_total"
LATE_ANSWERS = "gateway_late_answers_total"
LAG = "gateway_event_loop_lag_seconds"
QUEUES = "gateway_dynamic_queues"


@dataclass(frozen=True, slots=True)
class Metric:
    """``alike``: a gauge that has the same value in every process, so that none is added up.

    ``known`` are labels whose series are there from the beginning, at zero: Prometheus does not
    see how a new series has come to its first value.
    """

    type: str
    about: str
    labels: tuple[str, ...] = ()
    alike: bool = False
    known: tuple[tuple[str, ...], ...] = ()


_MESSAGING = ("messaging_operation_name", "messaging_system")
#: The values of these labels.
RABBITMQ, REDIS = ("publish", "rabbitmq"), ("publish", "redis")

#: What the serving processes count.
METRICS = {
    REQUESTS: Metric(
        HISTOGRAM,
        "Seconds from a request's arrival to its answer.",
        ("http_route", "http_request_method", "http_response_status_code"),
    ),
    ACTIVE: Metric(GAUGE, "Requests whose header has arrived and that are not answered."),
    PUBLISHED: Metric(
        HISTOGRAM,
        "Seconds from a message's publishing to the broker's confirm, or to its error.",
        (*_MESSAGING, "error_type"),
    ),
    SENT: Metric(COUNTER, "Messages handed to the broker.", _MESSAGING),
    WAITS: Metric(
        HISTOGRAM,
        "Seconds for which requests have waited for a published task's result.",
        ("strategy", "outcome"),
    ),
    "gateway_in_flight": Metric(GAUGE, "Requests in flight."),
    "gateway_in_flight_bytes": Metric(
        GAUGE, "Bytes of requests in flight, and of what connections have received."
    ),
    "gateway_connections_open": Metric(GAUGE, "HTTP connections open."),
    ERRORS: Metric(COUNTER, "Requests answered with an error, by its type.", ("error_type",)),
    UNVERIFIED: Metric(
        COUNTER,
        "Requests that their source's scheme has refused.",
        ("source", "scheme", "reason"),
    ),
    MISSES: Metric(
        COUNTER,
        "Requests whose task had no result by the deadline, by what they were answered.",
        ("http_route", "answer"),
    ),
    "gateway_duplicates_joined_total": Metric(
        COUNTER, "Deliveries that have joined the task of an earlier try."
    ),
    "gateway_clients_gone_total": Metric(COUNTER, "Requests whose client left before the answer."),
    UNROUTED: Metric(
        COUNTER,
        "Verified deliveries that were ignored, as no route takes their event.",
        ("http_route",),
    ),
    FILTERED: Metric(
        COUNTER,
        "Verified deliveries that were ignored, as they fulfil the `when` of no route.",
        ("http_route",),
    ),
    "gateway_results_unclaimed_total": Metric(
        COUNTER, "Results that no request waits for: late, or foreign."
    ),
    LATE: Metric(
        COUNTER,
        "Deliveries whose task has ended after their answer, by state and by what the answer was:"
        " accepted (a 2xx, or a replay), error, or unknown; with a journal.",
        ("state", "answer"),
        known=tuple(
            (state, answer)
            for state in ("succeeded", "failed", "dead-lettered", "expired")
            for answer in ("accepted", "error", "unknown")
        ),
    ),
    LATE_ANSWERS: Metric(
        COUNTER,
        "Results that came after the answer, by what became of them: answered (the sender has taken"
        " it), failed, uncertain, or dropped, as there was nothing to send.",
        ("http_route", "result"),
    ),
    "gateway_journal_lost_total": Metric(
        COUNTER, "Deliveries, and refused requests, that could not be written to the journal."
    ),
    "gateway_journal_deliveries": Metric(GAUGE, "Deliveries in the journal.", alike=True),
    "gateway_journal_open": Metric(
        GAUGE, "Deliveries in the journal whose task's end is looked for.", alike=True
    ),
    "gateway_journal_bytes": Metric(GAUGE, "Bytes of the journal's deliveries.", alike=True),
    "gateway_notifications_failed_total": Metric(
        COUNTER, "Messages about failures that could not be sent."
    ),
    "gateway_archive_waiting": Metric(
        GAUGE, "Deliveries that have changed since they were archived.", alike=True
    ),
    "gateway_archive_lag_seconds": Metric(
        GAUGE, "Seconds since the first change that is not archived.", alike=True
    ),
    "gateway_archive_room_used": Metric(
        GAUGE, "How much of what the journal may hold is not archived, 0 to 1.", alike=True
    ),
    "gateway_archive_missed": Metric(
        GAUGE, "Deliveries that have left the journal before they were archived.", alike=True
    ),
    "gateway_state_keys": Metric(
        GAUGE, "Keys in the Redis database of the claims, whatever they are.", alike=True
    ),
    "gateway_state_available_ratio": Metric(
        GAUGE,
        "The share of claims whose Redis answers, 0 to 1: a part of a cluster may be away.",
        alike=True,
    ),
    "gateway_state_memory_ratio": Metric(
        GAUGE, "How full the Redis of the claims is, from 0 to 1.", alike=True
    ),
    QUEUES: Metric(
        GAUGE, "Dynamic queues that exist, as far as this process knows.", ("http_route",)
    ),
    "gateway_worker_results_lost": Metric(
        GAUGE,
        "Results that workers could neither reply nor store, of those of `appserver.setup` that"
        " answer, since each was started. They are asked once a minute.",
        alike=True,
    ),
    "gateway_broker_connections_total": Metric(
        COUNTER, "Connections to the broker that were opened."
    ),
    "gateway_results_connections_total": Metric(
        COUNTER, "Connections to the result store that were opened."
    ),
    RECONNECTS: Metric(
        COUNTER,
        "Connections that were opened after a process's first.",
        ("server",),
        known=(("broker",), ("results",)),
    ),
    LAG: Metric(HISTOGRAM, "Seconds by which an event loop was late, measured once a second."),
}

#: What the parent adds about itself.
PARENT = {
    "gateway_build_info": Metric(GAUGE, "The value is 1.", ("version", "strategy", "python")),
    "gateway_ready": Metric(GAUGE, "1 if a process serves at least one route."),
    "gateway_processes": Metric(GAUGE, "Serving processes."),
    "gateway_process_restarts_total": Metric(
        COUNTER, "Serving processes that ended unexpectedly and were replaced."
    ),
    "gateway_reload_failed": Metric(
        GAUGE, "1 if the last reload has failed, so that the configuration of before is served."
    ),
    "gateway_start_time_seconds": Metric(
        GAUGE, "When the gateway was started, in seconds since the epoch."
    ),
    "gateway_differing": Metric(
        GAUGE,
        "Other gateways of this deployment that differ from this one, by what differs: lost, clock,"
        " secret_key, prefix, broker, routes; version and settings may differ for a while.",
        ("kind",),
    ),
}
