"""The parts of Kubernetes' and Kubeflow's kinds that the manifests of deploy/kubernetes use.

They are narrower than what a cluster takes: a key that is not listed here is an error, until
somebody has looked it up in the kind's own definition and added it.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from checkout import text_of
from strict_schema import Checked, Either, Object, problems

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|Ki|Mi|Gi)?")
ABSOLUTE = re.compile(r"/[\w./-]*")
IMAGE = re.compile(r"[a-z0-9./-]+(:[\w.-]+)?")


@functools.cache
def conf_keys() -> list[str]:
    """The keys that a harp.conf may have, by the source that reads it."""
    source = text_of("csrc/base/conf_file.cc")
    keys = re.findall(r'^    \{"(\w+)", "TACO_\w+"\},$', source, re.MULTILINE)
    assert {"driver", "interfaces", "key_file"} <= set(keys), keys
    return ["version", *keys]


def _problems_of_conf(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    settings = [line for line in lines if line and not line.startswith("#")]
    found, wrong = [], []
    for line in settings:
        setting = re.fullmatch(r"(\w+) = (\S+)", line)
        if setting is None or setting[1] not in conf_keys() or setting[1] in found:
            wrong.append(f"{line!r} is no setting of HARP's, or stands twice")
        else:
            found.append(setting[1])
    if found[:1] != ["version"]:
        wrong.append("the first key must be version")
    return wrong


# The configuration of a network plugin, a text of JSON inside of YAML.
_PLUGIN = Object(
    {
        "cniVersion": re.compile(r"\d+\.\d+\.\d+"),
        "type": "macvlan",
        "master": re.compile(r"[\w.-]{1,15}"),
        "mode": "bridge | private | vepa",
        "mtu": int,
        "ipam": Object(
            {"type": "whereabouts", "range": re.compile(r"[\d.]+/\d+")}, required="type range"
        ),
    },
    required="cniVersion type master ipam",
)


def _problems_of_plugin(text: str) -> list[str]:
    try:
        return list(problems(json.loads(text), _PLUGIN))
    except json.JSONDecodeError as error:
        return [f"it is no JSON: {error}"]


# Labels and annotations are free in Kubernetes; those that mean something to an operator are these.
LABELS = Object(
    {
        "trainer.kubeflow.org/framework": "torch",
        "trainer.kubeflow.org/trainjob-ancestor-step": "trainer",
        "training.kubeflow.org/job-name": NAME,
        "training.kubeflow.org/job-role": "launcher | worker",
    }
)
ANNOTATIONS = Object({"k8s.v1.cni.cncf.io/networks": NAME})
METADATA = Object({"name": NAME, "labels": LABELS}, required="name")
TEMPLATE_METADATA = Object({"labels": LABELS, "annotations": ANNOTATIONS})

_AMOUNTS = Object({"cpu": QUANTITY, "memory": QUANTITY, "hugepages-2Mi": QUANTITY})
RESOURCES = Object({"requests": _AMOUNTS, "limits": _AMOUNTS})
CAPABILITY = re.compile(
    "ALL|NET_ADMIN|NET_RAW|NET_BIND_SERVICE|BPF|IPC_LOCK|SYS_ADMIN|SYS_PTRACE|SYS_NICE"
)
_CAPABILITIES = Object({"add": [CAPABILITY], "drop": [CAPABILITY]}, required="drop")
_SECCOMP = Object({"type": "RuntimeDefault"}, required="type")
_POD_SECURITY = Object(
    {"runAsNonRoot": bool, "runAsUser": int, "runAsGroup": int, "seccompProfile": _SECCOMP},
    required="seccompProfile",
)
_CONTAINER_SECURITY = Object(
    {"runAsUser": int, "allowPrivilegeEscalation": bool, "capabilities": _CAPABILITIES},
    required="allowPrivilegeEscalation capabilities",
)
_VARIABLE = Object({"name": re.compile(r"[A-Z][A-Z0-9_]*"), "value": str}, required="name value")
_PROBE = Object(
    {
        "tcpSocket": Object({"port": Either(int, NAME)}, required="port"),
        "initialDelaySeconds": int,
        "periodSeconds": int,
        "failureThreshold": int,
    },
    required="tcpSocket",
)
CONTAINER = Object(
    {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "Always | IfNotPresent | Never",
        "command": [str],
        "args": [str],
        "env": [_VARIABLE],
        "ports": [Object({"name": NAME, "containerPort": int}, required="containerPort")],
        "readinessProbe": _PROBE,
        "securityContext": _CONTAINER_SECURITY,
        "resources": RESOURCES,
        "volumeMounts": [
            Object(
                {"name": NAME, "mountPath": ABSOLUTE, "readOnly": bool}, required="name mountPath"
            )
        ],
    },
    required="name image securityContext",
)
_VOLUME = Object(
    {
        "name": NAME,
        "configMap": Object({"name": NAME}, required="name"),
        "emptyDir": Object({"medium": "HugePages-2Mi | Memory", "sizeLimit": QUANTITY}),
    },
    required="name",
)
_SPREAD = Object(
    {
        "maxSkew": int,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule | ScheduleAnyway",
        "labelSelector": Object({"matchLabels": LABELS}, required="matchLabels"),
    },
    required="maxSkew topologyKey whenUnsatisfiable labelSelector",
)
POD = Object(
    {
        "restartPolicy": "Never | OnFailure",
        "hostUsers": bool,
        "securityContext": _POD_SECURITY,
        "topologySpreadConstraints": [_SPREAD],
        "containers": [CONTAINER],
        "volumes": [_VOLUME],
    },
    required="securityContext containers",
)
POD_TEMPLATE = Object({"metadata": TEMPLATE_METADATA, "spec": POD}, required="spec")

_REPLICA = Object(
    {
        "replicas": int,
        "restartPolicy": "Always | OnFailure | Never | ExitCode",
        "template": POD_TEMPLATE,
    },
    required="replicas restartPolicy template",
)
_MPI_JOB = Object(
    {
        "slotsPerWorker": int,
        "mpiImplementation": "OpenMPI | Intel | MPICH",
        "sshAuthMountPath": ABSOLUTE,
        "launcherCreationPolicy": "AtStartup | WaitForWorkersReady",
        "runPolicy": Object(
            {
                "backoffLimit": int,
                "cleanPodPolicy": "Running | None | All",
                "ttlSecondsAfterFinished": int,
            }
        ),
        "mpiReplicaSpecs": Object(
            {"Launcher": _REPLICA, "Worker": _REPLICA}, required="Launcher Worker"
        ),
    },
    required="mpiReplicaSpecs",
)
_JOB = Object({"backoffLimit": int, "template": POD_TEMPLATE}, required="template")
_REPLICATED_JOB = Object(
    {
        "name": "node",
        "template": Object({"metadata": TEMPLATE_METADATA, "spec": _JOB}, required="metadata spec"),
    },
    required="name template",
)
_RUNTIME = Object(
    {
        "mlPolicy": Object({"numNodes": int, "torch": Object({})}, required="torch"),
        "template": Object(
            {"spec": Object({"replicatedJobs": [_REPLICATED_JOB]}, required="replicatedJobs")},
            required="spec",
        ),
    },
    required="mlPolicy template",
)
_TRAIN_JOB = Object(
    {
        "runtimeRef": Object(
            {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime | ClusterTrainingRuntime",
                "name": NAME,
            },
            required="name",
        ),
        "trainer": Object(
            {
                "numNodes": int,
                "numProcPerNode": int,
                "image": IMAGE,
                "command": [str],
                "args": [str],
                "env": [_VARIABLE],
                "resourcesPerNode": RESOURCES,
            },
            required="numNodes numProcPerNode",
        ),
    },
    required="runtimeRef trainer",
)


def _kind(version: str, kind: str, **parts: Any) -> Object:
    fields = {"apiVersion": version, "kind": kind, "metadata": METADATA, **parts}
    return Object(fields, required=" ".join(fields))


KINDS = {
    "ConfigMap": _kind(
        "v1",
        "ConfigMap",
        data=Object({"harp.conf": Checked(str, _problems_of_conf)}, required="harp.conf"),
    ),
    "NetworkAttachmentDefinition": _kind(
        "k8s.cni.cncf.io/v1",
        "NetworkAttachmentDefinition",
        spec=Object({"config": Checked(str, _problems_of_plugin)}, required="config"),
    ),
    "MPIJob": _kind("kubeflow.org/v2beta1", "MPIJob", spec=_MPI_JOB),
    "TrainingRuntime": _kind("trainer.kubeflow.org/v1alpha1", "TrainingRuntime", spec=_RUNTIME),
    "TrainJob": _kind("trainer.kubeflow.org/v1alpha1", "TrainJob", spec=_TRAIN_JOB),
}


def problems_of_document(document: Any) -> list[str]:
    """Complaints about one document of a manifest, each with its path."""
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        return [f"kind is {kind!r}, but must be one of {', '.join(KINDS)}"]
    return list(problems(document, KINDS[kind]))


def pod_templates(document: Any) -> list[Any]:
    """The templates of pods inside a document, wherever they stand."""
    if isinstance(document, dict):
        own = [document] if "containers" in document.get("spec", {}) else []
        return own + [found for each in document.values() for found in pod_templates(each)]
    if isinstance(document, list):
        return [found for each in document for found in pod_templates(each)]
    return []
