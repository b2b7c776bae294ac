"""The Helm chart renders what each Kubernetes and each operator takes; `make chart` runs this.

`make chart` builds helm and fetches the operators' custom resource definitions, as Go modules.
"""

from __future__ import annotations

import functools
import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from appserver.queues import named_queues
from gateway.config.loading import load
from gateway.config.settings import Config
from gateway.process.child_handle import START_TIMEOUT
from tests.integration.test_deploy import SERVICES, assert_command_exists

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/celery-gateway"
HELM = ROOT / "build/chart/helm"
KUBERNETES = [f"1.{minor}" for minor in range(29, 38)]
#: Values to render with: none, and each file of the chart's own.
VALUES = ["values.yaml", *(f"ci/{path.name}" for path in sorted(CHART.glob("ci/*.yaml")))]
#: Modules whose archives contain custom resource definitions; the oldest version and the newest.
DEFINITIONS = {
    "github.com/kedacore/keda/v2@v2.12.1": "config/crd/bases/keda.sh_*.yaml",
    "github.com/kedacore/keda/v2@v2.21.0": "config/crd/bases/keda.sh_*.yaml",
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": (
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"
    ),
}
#: The keys that KEDA's scalers know, of those that we use; and those of the cluster operator 2. No
#: registry has its definition.
SCALERS = {
    "rabbitmq": {"protocol", "queueName", "mode", "value"},
    "prometheus": {"serverAddress", "query", "threshold"},
}
RABBITMQ = {
    "replicas", "image", "persistence", "resources", "affinity", "terminationGracePeriodSeconds",
    "rabbitmq",
}  # fmt: skip


def helm(*arguments: str | Path) -> str:
    done = subprocess.run([HELM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def rendered(values: str = "values.yaml", version: str = "1.34", *more: str) -> list[dict]:
    """Return the objects of a release ``hooks`` in the namespace ``shop``."""
    arguments = ["template", "hooks", CHART, "--namespace", "shop", "--values", CHART / values]
    text = helm(*arguments, "--kube-version", version, *more)
    return [each for each in yaml.safe_load_all(text) if each]


def objects(kind: str, values: str = "values.yaml") -> dict[str, dict]:
    found = [each for each in rendered(values) if each["kind"] == kind]
    return {each["metadata"]["name"]: each for each in found}


def pods(values: str = "values.yaml") -> dict[str, dict]:
    """Return the pods' specifications by their deployment's name."""
    deployments = objects("Deployment", values)
    for each in deployments.values():
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"] == {"matchLabels": labels}
    return {name: each["spec"]["template"]["spec"] for name, each in deployments.items()}


def variables(pod: dict) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {each["name"]: each.get("value", each) for each in container.get("env", [])}


def strict(schema: Any) -> Any:
    """Allow no property that a definition does not name, and an integer or a string as such."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if made.get("x-kubernetes-int-or-string"):
        return {}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


@functools.cache
def definitions() -> dict[str, list[dict]]:
    """Return the strict schemas of custom resources by apiVersion and kind."""
    schemas: dict[str, list[dict]] = {}
    for module, files in DEFINITIONS.items():
        argv = ["go", "mod", "download", "-json", module]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT / "build/chart")
        assert done.returncode == 0, done.stdout
        found = list(Path(json.loads(done.stdout)["Dir"]).glob(files))
        assert found
        for path in found:
            spec = yaml.safe_load(path.read_text())["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
                schema = strict(version["schema"]["openAPIV3Schema"])
                # Their type is an object, without more.
                schema["properties"]["metadata"] = {"type": "object"}
                schemas.setdefault(key, []).append(schema)
    return schemas


def test_helm_finds_nothing_to_say_of_it():
    for values in VALUES:
        assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--values", CHART / values)


@pytest.mark.parametrize("values", VALUES)
def test_every_object_is_taken_strictly(values):
    own = 0
    for version in KUBERNETES:
        for each in rendered(values, version):
            assert each["metadata"]["namespace"] == "shop"
            key = f"{each['apiVersion']} {each['kind']}"
            if key in definitions():
                for schema in definitions()[key]:
                    jsonschema.validate(each, schema)
            elif key == "rabbitmq.com/v1beta1 RabbitmqCluster":
                assert each["spec"].keys() == RABBITMQ
            else:
                kubernetes_validate.validate(each, version, strict=True)
                own += 1
    assert own >= 3 * len(KUBERNETES)


def test_what_is_not_known_is_refused():
    (keda,) = (o for o in rendered("ci/tls.yaml") if o["metadata"]["name"] == "hooks-gateway"
               and o["kind"] == "ScaledObject")  # fmt: skip
    for schema in definitions()["keda.sh/v1alpha1 ScaledObject"]:
        with pytest.raises(jsonschema.ValidationError, match="'sepc' was unexpected"):
            jsonschema.validate({**keda, "sepc": {}}, schema)
    done = subprocess.run(
        [HELM, "template", CHART, "--kube-version", "1.28"], capture_output=True, text=True
    )
    assert "incompatible with Kubernetes v1.28" in done.stderr
    # A name that is written wrongly does not pass in silence.
    wrong = [HELM, "template", CHART, "--set", "gateway.replicaCount=3"]
    done = subprocess.run(wrong, capture_output=True, text=True)
    assert done.returncode and "replicaCount" in done.stderr


@pytest.mark.parametrize("values", VALUES)
def test_every_pod_has_no_more_rights_than_it_needs(values):
    for name, pod in pods(values).items():
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] in objects("ServiceAccount", values)
        account = pod["securityContext"]
        assert account["runAsUser"] == 10001 and account["runAsNonRoot"] is True
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        # On different machines and zones, and one at a time.
        labels = objects("Deployment", values)[name]["spec"]["selector"]
        spread = pod["topologySpreadConstraints"]
        assert [each["labelSelector"] for each in spread] == [labels, labels]
        budget = objects("PodDisruptionBudget", values)[name]["spec"]
        assert budget == {"maxUnavailable": 1, "selector": labels}
    for each in objects("ServiceAccount", values).values():
        assert each["automountServiceAccountToken"] is False


def test_the_commands_exist_and_get_one_s_own_secret_only():
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert_command_exists(container["args"])
        assert container["envFrom"] == [{"secretRef": {"name": name.removeprefix("hooks-")}}]
        assert variables(pod).keys() <= {"GATEWAY_QUEUES", "GATEWAY_GRACE", "GATEWAY_HISTORY"}


def test_the_gateway_is_asked_and_reached_where_it_listens_and_has_time_to_end():
    pod, config = pods()["hooks-gateway"], Config()
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.port, "admin": config.admin_port}
    kinds = ("startup", "readiness", "liveness")
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in kinds}
    assert probes == {
        "startup": {"path": "/healthz", "port": "admin"},
        "readiness": {"path": "/readyz", "port": "admin"},
        "liveness": {"path": "/healthz", "port": "admin"},
    }
    # None is killed that still loads.
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > START_TIMEOUT
    (service,) = objects("Service").values()
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    assert service["spec"]["selector"].items() <= labels_of("hooks-gateway").items()
    # First the pause, in which requests come; then the grace; then the end.
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = int(variables(pod)["GATEWAY_GRACE"])
    assert grace == config.grace
    assert pod["terminationGracePeriodSeconds"] > pause + grace


def labels_of(name: str, values: str = "values.yaml") -> dict[str, str]:
    return objects("Deployment", values)[name]["spec"]["template"]["metadata"]["labels"]


def test_the_ingress_repeats_nothing_and_waits_longer_than_the_gateway():
    (ingress,) = objects("Ingress", "ci/operators.yaml").values()
    asked = {key.rpartition("/")[2]: v for key, v in ingress["metadata"]["annotations"].items()}
    assert asked["proxy-next-upstream"] == "error timeout"
    assert int(asked["proxy-read-timeout"]) > Config().timeout
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    (service,) = objects("Service", "ci/operators.yaml")
    assert path["backend"]["service"] == {"name": service, "port": {"name": "http"}}


def test_nobody_reaches_the_admin_port_but_probes_and_prometheus():
    policies = objects("NetworkPolicy")
    # Which allows nothing.
    assert policies["hooks-worker"]["spec"].keys() == {"podSelector", "policyTypes"}
    policy = policies["hooks-gateway"]["spec"]
    assert policy["podSelector"] == {"matchLabels": labels_of("hooks-gateway")}
    senders = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
    assert senders.keys() == {"http", "admin"}
    assert senders["http"] is None
    assert senders["admin"] and all("ipBlock" not in sender for sender in senders["admin"])
    limited = objects("NetworkPolicy", "ci/operators.yaml")["hooks-gateway"]["spec"]
    assert [bool(rule.get("from")) for rule in limited["ingress"]] == [True, True]


def test_a_changed_configuration_replaces_the_gateways_only(tmp_path):
    def checksums(*more: str) -> dict[str, object]:
        found = rendered("values.yaml", "1.34", *more)
        pods = (each["spec"]["template"] for each in found if each["kind"] == "Deployment")
        return {
            each["metadata"]["labels"]["app.kubernetes.io/component"]: json.dumps(each)
            for each in pods
        }

    other = tmp_path / "gateway.toml"
    other.write_text('[[routes]]\npath = "/b"\ntask = "b"\n')
    before, after = checksums(), checksums("--set-file", f"config={other}")
    assert before["worker"] == after["worker"] and before["gateway"] != after["gateway"]


@pytest.mark.parametrize("values", [v for v in VALUES if v != "ci/workers-only.yaml"])
def test_workers_consume_the_queues_of_the_configuration(values, tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text(objects("ConfigMap", values)["hooks-gateway"]["data"]["gateway.toml"])
    routes = load({}, {}, file).routes
    consumed = {
        queue.name: queue.queue_arguments
        for pod in pods(values).values()
        if "GATEWAY_QUEUES" in variables(pod)
        for queue in named_queues(variables(pod)["GATEWAY_QUEUES"])
    }
    declared = {route.queue: route.arguments() for route in routes if route.queue_type == "quorum"}
    assert declared == {queue: consumed[queue] for queue in declared} != {}


def test_workers_of_one_s_own_app_have_its_image_its_queues_and_their_own_numbers():
    found = pods("ci/own-app.yaml")
    images = {name: pod["containers"][0]["image"] for name, pod in found.items()}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert images == {
        "hooks-gateway": f"registry.example.com/celery-gateway:{version}",
        "hooks-quick": "registry.example.com/shop:7",
        "hooks-slow": f"registry.example.com/shop@sha256:{'0' * 64}",
        "hooks-old": "registry.example.com/shop:7",
    }
    command = ["celery", "-A", "shop", "worker", "--concurrency=4", "--loglevel=INFO"]
    quick, slow, old = (found[f"hooks-{name}"] for name in ("quick", "slow", "old"))
    assert quick["containers"][0]["args"] == [*command, "--pool=threads"]
    assert variables(quick) == {"GATEWAY_QUEUES": "orders,mail", "SHOP_MODE": "live"}
    assert quick["nodeSelector"] == {"kubernetes.io/arch": "amd64"}
    assert slow["terminationGracePeriodSeconds"] == 600
    assert slow["containers"][0]["envFrom"] == [{"secretRef": {"name": "slow"}}]
    memory = slow["containers"][0]["resources"]
    assert memory == {"requests": {"cpu": "250m", "memory": "384Mi"}, "limits": {"memory": "4Gi"}}
    assert old["containers"][0]["args"] == [*command, "-Q", "letters"]
    assert variables(old) == {}


def test_only_workers_or_only_gateways_can_be_installed():
    assert pods("ci/workers-only.yaml").keys() == {"hooks-worker"}
    assert not objects("Service", "ci/workers-only.yaml")
    gateways = rendered("values.yaml", "1.34", "--set", "workers.worker=null")
    assert [o["metadata"]["name"] for o in gateways if o["kind"] == "Deployment"] == [
        "hooks-gateway"
    ]


def test_all_roles_trust_the_servers_own_authority():
    for pod in pods("ci/tls.yaml").values():
        told = variables(pod)
        assert {told["GATEWAY_TLS_CA"], told["GATEWAY_TLS_CERT"], told["GATEWAY_TLS_KEY"]} == {
            "/etc/tls/ca.crt", "/etc/tls/tls.crt", "/etc/tls/tls.key",
        }  # fmt: skip
        (volume,) = (v for v in pod["volumes"] if v["name"] == "tls")
        assert volume["secret"] == {"secretName": "servers-tls"}


def test_keda_scales_by_every_queue_within_the_numbers():
    found = objects("ScaledObject", "ci/operators.yaml")
    assert found.keys() == pods("ci/operators.yaml").keys()
    for name, each in found.items():
        spec = each["spec"]
        assert spec["scaleTargetRef"] == {"name": name}
        assert 0 < spec["minReplicaCount"] <= spec["fallback"]["replicas"]
        assert spec["fallback"]["replicas"] <= spec["maxReplicaCount"]
        # Or each installation would reset them.
        assert "replicas" not in objects("Deployment", "ci/operators.yaml")[name]["spec"]
        for trigger in spec["triggers"]:
            assert trigger["metadata"].keys() == SCALERS[trigger["type"]]
            # Go decodes them into strings, and refuses numbers.
            assert all(isinstance(value, str) for value in trigger["metadata"].values())
    triggers = found["hooks-worker"]["spec"]["triggers"]
    assert [t["metadata"]["queueName"] for t in triggers] == ["webhooks", "reports"]
    authentication = objects("TriggerAuthentication", "ci/operators.yaml")["hooks-worker"]
    # It logs in as the workers do.
    url = variables(pods("ci/operators.yaml")["hooks-worker"])["GATEWAY_BROKER_URL"]
    (ref,) = authentication["spec"]["secretTargetRef"]
    assert ref == {"parameter": "host", **url["valueFrom"]["secretKeyRef"]}
    # With an authentication of one's own there is no other.
    assert not objects("TriggerAuthentication", "ci/tls.yaml")
    (trigger,) = objects("ScaledObject", "ci/tls.yaml")["hooks-worker"]["spec"]["triggers"]
    assert trigger["authenticationRef"] == {"name": "broker"}


def test_prometheus_reads_what_keda_and_the_alerts_ask_for():
    values = "ci/operators.yaml"
    (trigger,) = objects("ScaledObject", values)["hooks-gateway"]["spec"]["triggers"]
    # Of this release only: other namespaces may have one of the same name.
    assert 'namespace="shop",pod=~"hooks-gateway-.*"' in trigger["metadata"]["query"]
    assert float(trigger["metadata"]["threshold"]) < Config().max_in_flight
    (monitor,) = objects("PodMonitor", values).values()
    labels = labels_of("hooks-gateway", values)
    assert monitor["spec"]["selector"] == {"matchLabels": labels}
    assert f'job="{labels[monitor["spec"]["jobLabel"]]}"' in (
        (ROOT / "deploy/prometheus/rules.yaml").read_text()
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    policy = objects("NetworkPolicy", values)["hooks-gateway"]["spec"]
    (rule,) = (r for r in policy["ingress"] if r["ports"] == [{"port": endpoint["port"]}])
    (namespace,) = rule["from"][0]["namespaceSelector"]["matchLabels"].values()
    assert f".{namespace}.svc:" in trigger["metadata"]["serverAddress"]


def test_the_cluster_of_rabbitmq_fits_its_quorum_queues():
    (cluster,) = objects("RabbitmqCluster", "ci/operators.yaml").values()
    spec = cluster["spec"]
    assert spec["replicas"] == 3
    # The version of compose, which is tested.
    assert spec["image"] == SERVICES["rabbitmq"]["image"]
    memory = spec["resources"]["limits"]["memory"]
    assert memory == spec["resources"]["requests"]["memory"]
    # Three logs of 512 MiB are below the memory at which publishers are blocked.
    assert int(memory.removesuffix("Gi")) * 0.4 > 3 * 0.5
    name = cluster["metadata"]["name"]
    (term,) = spec["affinity"]["podAntiAffinity"].popitem()[1]
    assert term["labelSelector"] == {"matchLabels": {"app.kubernetes.io/name": name}}
    for pod in pods("ci/operators.yaml").values():
        ref = variables(pod)["GATEWAY_BROKER_URL"]["valueFrom"]["secretKeyRef"]
        assert ref == {"name": f"{name}-default-user", "key": "connection_string"}


def test_the_shipped_configuration_names_the_route_s_own_keys():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    (route,) = tomllib.loads(values["config"])["routes"]
    # The comment's sum, with the workers' own numbers.
    worker = values["worker"]
    assert route["queue"] in worker["queues"]
    text = " ".join((CHART / "values.yaml").read_text().replace("#", "").split())
    assert f"here {worker['scaling']['messages']} * 0.2 s / {worker['concurrency']} = 1 s" in text
