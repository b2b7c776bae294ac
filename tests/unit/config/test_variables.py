"""GATEWAY_* variables: those that are read, those that are others', and those that are misspelt."""

from __future__ import annotations

import re

import pytest

from gateway.config.loading import unknown_variables
from tests.docs.test_documents import ROOT

KUBERNETES = {
    "GATEWAY_PORT": "tcp://10.0.0.1:80", "GATEWAY_SERVICE_HOST": "10.0.0.1",
    "GATEWAY_SERVICE_PORT": "80", "GATEWAY_SERVICE_PORT_HTTP": "80",
    "GATEWAY_PORT_80_TCP": "tcp://10.0.0.1:80", "GATEWAY_PORT_80_TCP_PROTO": "tcp",
    "GATEWAY_PORT_80_TCP_PORT": "80", "GATEWAY_PORT_80_TCP_ADDR": "10.0.0.1",
    "GATEWAY_ADMIN_PORT": "udp://10.0.0.2:53", "GATEWAY_DNS_PORT_53_UDP_ADDR": "10.0.0.2",
    "GATEWAY_DNS_SERVICE_HOST": "10.0.0.2",
}  # fmt: skip


def test_what_the_code_reads_is_known():
    files = [*ROOT.glob("gateway/**/*.py"), *ROOT.glob("appserver/*.py")]
    texts = [file.read_text("utf-8") for file in files]
    names = {name for text in texts for name in re.findall(r"\"(GATEWAY_[A-Z_]*[A-Z])\"", text)}
    assert "GATEWAY_QUEUES" in names
    assert unknown_variables(dict.fromkeys(names, "x"), None) == {}


def test_what_kubernetes_and_others_say_is_not_ours():
    assert unknown_variables({**KUBERNETES, "MY_GATEWAY_X": "1", "PATH": "/bin"}, None) == {}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("GATEWAY_BROKER_URI", "GATEWAY_BROKER_URL"),
        ("GATEWAY_BROKER", "GATEWAY_BROKER_URL"),
        ("GATEWAY_broker_url", "GATEWAY_BROKER_URL"),
        ("GATEWAY_RESULTS_EXPIRE", "GATEWAY_RESULT_EXPIRES"),
        ("GATEWAY_QUEUE", "GATEWAY_QUEUES"),
        ("GATEWAY_TLS_CERTS", "GATEWAY_TLS_CERT"),
        ("GATEWAY_ADMN_PORT", "GATEWAY_ADMIN_PORT"),
        ("GATEWAY_INTERFACE", ""),
        ("GATEWAY_", ""),
    ],
)
def test_a_name_that_nobody_reads_is_told_with_the_nearest(name, near):
    assert unknown_variables({name: "8002", **KUBERNETES}, None) == {name: near}


def test_what_the_file_names_is_read(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text('[sources.a]\nsecrets = ["b", { env = "GATEWAY_SECRET" }]\n')
    assert unknown_variables({"GATEWAY_SECRET": "x"}, file) == {}
    assert unknown_variables({"GATEWAY_SECRET": "x", "GATEWAY_CONFIG": str(file)}, None) == {}
    assert unknown_variables({"GATEWAY_SECRET": "x"}, None) == {
        "GATEWAY_SECRET": "GATEWAY_SECRET_KEY"
    }
    file.write_text("no TOML")
    assert list(unknown_variables({"GATEWAY_SECRETS": "x"}, file)) == ["GATEWAY_SECRETS"]
