"""Traces of requests, by OpenTelemetry, which is imported only where `trace_sample` is set."""
