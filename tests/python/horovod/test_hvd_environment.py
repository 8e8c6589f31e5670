"""Who a process is, by the variables of whatever has started it."""

from __future__ import annotations

import contextlib
import os
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from taco_torch.horovod import job_name, slurm
from taco_torch.horovod.environment import DEFAULT_PORT, World, world
from taco_torch.horovod.exceptions import HorovodInternalError
from taco_torch.horovod.rendezvous import Place, find_places, meet, places_of

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "h1",
    "MASTER_PORT": "1234",
}
OPEN_MPI_4 = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "4",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "3,2",
    "SLURM_JOB_NODELIST": "gpu[05-09]",
}
HOROVODRUN = {
    "HOROVOD_RANK": "5",
    "HOROVOD_SIZE": "6",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "2",
    "HOROVOD_CROSS_SIZE": "3",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "999",
}


@pytest.fixture(autouse=True)
def nothing_is_known_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process asks for its job's name once; here each test is another."""
    monkeypatch.setattr(job_name, "_answers", {})


def test_a_process_that_nobody_has_launched_is_a_world_of_its_own() -> None:
    assert world({}) == World(0, 1, 0, 1, 0, 1, "127.0.0.1", 0)


def test_torchrun_s_variables() -> None:
    assert world(TORCHRUN) == World(3, 4, 1, 2, None, None, "h1", 1234)


def test_torchrun_s_agent_serves_the_store_anew_after_each_restart() -> None:
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    found = world({**TORCHRUN, **agent})
    assert found.agent_store
    assert found.incarnation == "2"
    assert not world(TORCHRUN).agent_store


def test_each_world_of_an_elastic_job_is_another() -> None:
    assert world({**HOROVODRUN, "TACORUN_WORLD": "7"}).incarnation == "7"


def test_horovodrun_s_variables() -> None:
    assert world(HOROVODRUN) == World(5, 6, 1, 2, 2, 3, "10.0.0.1", 999)


@pytest.mark.parametrize("variables", [OPEN_MPI_4, HYDRA], ids=["open mpi", "hydra"])
def test_ranks_of_mpirun_on_one_host_need_no_address(variables: dict[str, str]) -> None:
    assert world(variables) == World(1, 2, 1, 2, None, None, "127.0.0.1", DEFAULT_PORT)


def test_open_mpi_5_may_give_the_rank_by_pmix_alone() -> None:
    variables = {**OPEN_MPI_4, "PMIX_RANK": "1"}
    del variables["OMPI_COMM_WORLD_RANK"]
    assert world(variables).rank == 1


def test_a_pmix_rank_without_a_size_is_not_taken_for_a_job() -> None:
    assert world({"PMIX_RANK": "0"}).size == 1
    with pytest.raises(ValueError, match="PMIX_RANK is set, but OMPI_COMM_WORLD_SIZE is not"):
        world({"PMIX_RANK": "1"})


def test_srun_s_variables_say_all_but_the_port() -> None:
    port = job_name.port_of("slurm-4711.3")
    job = "slurm-4711.3"
    assert world(SRUN) == World(4, 5, 1, 2, None, None, "gpu07", port, job=job)
    assert world({**SRUN, "MASTER_ADDR": "h9", "MASTER_PORT": "77"}).address == "h9"
    assert world({**SRUN, "MASTER_ADDR": "h9", "MASTER_PORT": "77"}).port == 77


def test_older_names_of_srun_s_variables_will_do() -> None:
    names = ("PROCID", "NTASKS", "LOCALID", "NODEID", "JOB_NODELIST")
    older = {f"SLURM_{name}": SRUN[f"SLURM_{name}"] for name in names}
    older |= {"SLURM_JOBID": "4711", "SLURM_STEPID": "3", "SLURM_TASKS_PER_NODE": "3,2"}
    found = world(older)
    assert (found.rank, found.size, found.local_rank, found.local_size) == (4, 5, 1, 2)
    assert (found.address, found.job) == ("gpu05", "slurm-4711.3")


def test_tasks_of_srun_on_one_node_need_no_name_of_it() -> None:
    one = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "5", "SLURM_NODEID": "0"}
    one |= {"SLURM_STEP_NODELIST": "gpu07", "SLURM_STEP_NUM_NODES": "1"}
    assert world(one).address == "127.0.0.1"


@pytest.mark.parametrize(
    "more",
    [
        {"PMI_RANK": "4", "PMI_SIZE": "5", "PMI_FD": "9"},  # srun --mpi=pmi2
        {"PMIX_RANK": "4", "PMIX_NAMESPACE": "slurm.pmix.4711.3"},  # srun --mpi=pmix
    ],
    ids=["pmi2", "pmix"],
)
def test_variables_that_srun_sets_for_an_mpi_library_change_nothing(more: dict[str, str]) -> None:
    assert world({**SRUN, **more}) == world(SRUN)


def test_an_mpirun_s_variables_count_before_srun_s() -> None:
    assert world({**SRUN, **OPEN_MPI_4}).size == 2
    assert world({**SRUN, **HYDRA}).size == 2
    assert world({**SRUN, **TORCHRUN}).rank == 3


def test_a_script_of_sbatch_s_is_no_task() -> None:
    """Its variables are a first task's, but for the step's."""
    script = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "5"}
    script |= {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "gpu[05-09]"}
    for variables in (script, {**script, "SLURM_STEP_ID": str(0xFFFFFFFA)}):
        with pytest.warns(UserWarning, match=r"SLURM has 5 tasks .* Write srun before"):
            assert world(variables).size == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert world({**script, "SLURM_NTASKS": "1"}).size == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"SLURM_PROCID": "5"}, "SLURM_PROCID is 5, but SLURM_STEP_NUM_TASKS is 5"),
        ({"SLURM_PROCID": ""}, "SLURM_STEP_NUM_TASKS is set, but SLURM_PROCID is not"),
        ({"SLURM_STEP_ID": ""}, "SLURM_PROCID is 4, but SLURM_STEP_ID is not set"),
        ({"SLURM_STEP_ID": "batch"}, 'SLURM_STEP_ID is "batch"'),
        ({"SLURM_LOCALID": "2"}, "SLURM_LOCALID is 2, but the number of tasks on this node is 2"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID is 2, but SLURM_STEP_TASKS_PER_NODE is 3,2"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3,3"}, "is 3,3, which are 6 tasks, but there are 5"),
        ({"SLURM_STEP_TASKS_PER_NODE": "3x2"}, 'SLURM_STEP_TASKS_PER_NODE is "3x2", but must be'),
        ({"SLURM_STEP_NODELIST": "gpu[07-"}, r'SLURM_STEP_NODELIST is "gpu\[07-", but must be'),
        ({"SLURM_STEP_NODELIST": "gpu[8-7]"}, r'SLURM_STEP_NODELIST is "gpu\[8-7\]", but must'),
        ({"SLURM_STEP_NODELIST": "gpu07"}, "SLURM_STEP_NUM_NODES is 2, but .* are 1 nodes"),
        (
            {"SLURM_STEP_NODELIST": "", "SLURM_JOB_NODELIST": ""},
            "srun has started ranks on several hosts, .* set MASTER_ADDR",
        ),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, "set MASTER_ADDR"),
    ],
    ids=str,
)
def test_what_srun_s_variables_lack_or_contradict_is_named(
    change: dict[str, str], text: str
) -> None:
    missing = {"SLURM_NTASKS": "", "SLURM_STEP_NUM_TASKS": ""}
    with pytest.raises(ValueError, match="SLURM_PROCID is set, but SLURM_STEP_NUM_TASKS is not"):
        world({**SRUN, **missing})
    with pytest.raises(ValueError, match=text):
        world({**SRUN, **change})


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("node7", ["node7"]),
        ("node[1-3,7]", ["node1", "node2", "node3", "node7"]),
        ("n[008-010],login", ["n008", "n009", "n010", "login"]),
        ("rack[1-2]-n[a,3-4].site", [f"rack{r}-n{n}.site" for r in "12" for n in "a34"]),
    ],
)
def test_lists_of_nodes_as_slurm_writes_them(text: str, nodes: list[str]) -> None:
    assert slurm.expanded("SLURM_NODELIST", text) == nodes


@pytest.mark.parametrize(
    "text", ["", ",", "n[", "n]", "n[]", "n[1-]", "a,,b", "n[1-9999999]", "a b"]
)
def test_other_lists_of_nodes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"SLURM_NODELIST is .* a list of nodes"):
        slurm.expanded("SLURM_NODELIST", text)


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({**OPEN_MPI_4, "PMIX_NAMESPACE": "3921346561"}, "PMIX_NAMESPACE"),
        ({**OPEN_MPI_4, "PMIX_NAMESPACE": "prterun-h1-77@1"}, "PMIX_NAMESPACE"),
        ({**OPEN_MPI_4, "OMPI_MCA_ess_base_jobid": "3921346561"}, "OMPI_MCA_ess_base_jobid"),
        ({**HYDRA, "I_MPI_HYDRA_UUID": "be2e0000-77"}, "I_MPI_HYDRA_UUID"),
        (SRUN, "SLURM_STEP_ID"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_two_jobs_meet_at_places_of_their_own(variables: dict[str, str], names: str) -> None:
    one = world(variables)
    other = world({**variables, names: variables[names] + "9"})
    assert one == world(dict(variables)), "alike on all ranks"
    assert one.job != other.job
    assert one.port != other.port
    assert {one.port, other.port} <= set(range(20_000, 30_000))
    assert world({**variables, "MASTER_PORT": "77"}).port == 77


def test_mpich_s_name_of_a_job_is_asked_of_its_process_manager() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(world, {**HYDRA, "PMI_FD": str(ours.fileno())})
        assert theirs.recv(100) == b"cmd=get_my_kvsname\n"
        theirs.sendall(b"cmd=my_kvsname kvsname=kvs_77_0_5_h1 rc=0\n")
        assert answer.result(20).job == "kvs_77_0_5_h1"
        assert os.get_blocking(ours.fileno()), "as an MPI library expects it"
    assert world({**HYDRA, "PMI_FD": "999"}).port == DEFAULT_PORT
    job_name._answers.clear()
    with open(os.devnull) as no_socket:
        assert world({**HYDRA, "PMI_FD": str(no_socket.fileno())}).job == ""


def test_another_socket_is_not_taken_for_the_process_manager_s(tmp_path: Path) -> None:
    """The number is of a socket of the program's by then, which is told nothing."""
    internet = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(internet.getsockname())
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(tmp_path / "name"))
    named.listen()
    to_named = socket.socket(socket.AF_UNIX)
    to_named.connect(str(tmp_path / "name"))
    datagrams, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    others = (internet, client, named, to_named, datagrams, theirs)
    with contextlib.ExitStack() as sockets:
        for other in others:
            sockets.enter_context(other)
        for other in others:
            assert world({**HYDRA, "PMI_FD": str(other.fileno())}).job == ""
        accepted = [sockets.enter_context(each.accept()[0]) for each in (internet, named)]
        for receiver in (*accepted, theirs):
            receiver.setblocking(False)
            with pytest.raises(BlockingIOError):
                receiver.recv(1)


def test_the_process_manager_s_socket_stays_as_it_was_and_is_asked_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as threads:
        os.set_blocking(ours.fileno(), False)
        variables = {**HYDRA, "PMI_FD": str(ours.fileno())}
        answer = threads.submit(world, variables)
        assert theirs.recv(100) == b"cmd=get_my_kvsname\n"
        theirs.sendall(b"cmd=my_kvsname kvsname=kvs_78 rc=0\n")
        assert answer.result(20).job == "kvs_78"
        assert not os.get_blocking(ours.fileno())
        assert world(variables).job == "kvs_78"
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            theirs.recv(1)


@pytest.mark.parametrize("answer", ["", "cmd=my_kvsname rc=-1\n", "gone"])
def test_a_process_manager_that_does_not_answer_is_an_error(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ranks may have its answer, and would wait for this one elsewhere."""
    monkeypatch.setattr(job_name, "_ANSWER_S", 0.1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if answer == "gone":
            theirs.close()
        else:
            theirs.sendall(answer.encode())
        with pytest.raises(ValueError, match=r"PMI_FD is \d+, .* unset PMI_FD on all ranks"):
            world({**HYDRA, "PMI_FD": str(ours.fileno())})


def test_of_two_launchers_one_counts_whichever_is_the_inner() -> None:
    """Variables alone do not say which has started the other."""
    assert world({**OPEN_MPI_4, **TORCHRUN}).rank == 3
    assert world({**TORCHRUN, **HOROVODRUN}).rank == 5
    assert world({**OPEN_MPI_4, **SRUN}).size == 2
    assert world({**HYDRA, **SRUN}).size == 2


def test_several_hosts_need_an_address() -> None:
    several = {**OPEN_MPI_4, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        world(several)
    assert world({**several, "MASTER_ADDR": "h9"}).address == "h9"


def test_the_first_host_of_a_hostfile_has_rank_0(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\n\nh7:2 slots=2\nh8\n")
    several = {**OPEN_MPI_4, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    assert world({**several, "OMPI_MCA_orte_default_hostfile": str(file)}).address == "h7"


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({**TORCHRUN, "RANK": "three"}, 'RANK is "three"'),
        ({**TORCHRUN, "RANK": "4"}, "RANK is 4, but WORLD_SIZE is 4"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "LOCAL_RANK is 2"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE is not"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK is not"),
        ({"PMI_SIZE": "2"}, "PMI_RANK is not"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_it(
    variables: dict[str, str], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        world(variables)


def test_an_empty_variable_counts_as_not_set() -> None:
    assert world({**HOROVODRUN, "HOROVOD_CROSS_RANK": ""}).cross_rank is None


def test_ranks_of_one_host_are_counted_where_no_launcher_has() -> None:
    rows: list[list[str | int | None]] = [
        ["a", None, None, None, None],
        ["b", None, None, None, None],
        ["a", None, None, None, None],
    ]
    assert places_of(rows) == [Place(0, 2, 0, 2), Place(0, 1, 1, 2), Place(1, 2, 0, 1)]


def test_what_the_launcher_says_counts() -> None:
    rows: list[list[str | int | None]] = [["a", 0, 1, 0, 2], ["a", 0, 1, 1, 2]]
    assert places_of(rows) == [Place(0, 1, 0, 2), Place(0, 1, 1, 2)]


class GoneStore:
    """One whose host has ended."""

    def set(self, *_: object) -> None:
        raise RuntimeError("Broken pipe")

    add = set

    def check(self, _: object) -> bool:
        raise RuntimeError("Broken pipe")


def test_a_store_that_has_gone_is_told_as_other_losses_are() -> None:
    store: Any = GoneStore()
    with pytest.raises(HorovodInternalError, match="Broken pipe"):
        find_places(store, World(0, 2, 0, 2, 0, 1, "127.0.0.1", 1), {})


class CountedStore:
    """One that counts what it is asked."""

    def __init__(self) -> None:
        self.kept = HashStore()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.kept, name)


def test_ranks_tell_each_other_all_at_once() -> None:
    counted = CountedStore()
    store: Any = counted
    find_places(store, World(0, 1, 0, 1, 0, 1, "127.0.0.1", 1), {"HOROVOD_CACHE_CAPACITY": 1})
    assert counted.calls == ["add", "set", "wait", "multi_get"]


def test_two_jobs_that_meet_at_one_port_are_told() -> None:
    store = HashStore()
    places = [World(rank, 2, rank, 2, 0, 1, "127.0.0.1", 29500) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads:
        assert len(list(threads.map(lambda place: find_places(store, place, {}), places))) == 2
    with pytest.raises(ValueError, match=r"two processes are rank 1 .* set MASTER_PORT"):
        find_places(store, places[1], {})


def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = int(other.getsockname()[1])
        place = World(0, 2, 0, 2, 0, 1, "127.0.0.1", port, job="mine")
        with pytest.raises(ValueError, match=rf"port {port}, where .* set MASTER_PORT"):
            meet(place, 5.0)


def test_settings_that_differ_between_ranks_are_named_on_all_of_them() -> None:
    store = HashStore()
    for alike in (True, False):
        ranks = [World(rank, 2, rank, 2, 0, 1, "127.0.0.1", 1) for rank in range(2)]
        given = [{"HOROVOD_CACHE_CAPACITY": 1 if alike else 1 + rank.rank} for rank in ranks]
        room = PrefixStore(str(alike), store)
        with ThreadPoolExecutor(2) as threads:
            ends = [
                threads.submit(find_places, room, *each) for each in zip(ranks, given, strict=True)
            ]
        for end in ends:
            if alike:
                end.result()
                continue
            with pytest.raises(ValueError, match="CACHE_CAPACITY is 1 on rank 0 and 2 on rank 1"):
                end.result()
