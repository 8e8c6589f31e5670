"""Who a process is, by the variables of whatever has started it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from taco_torch.horovod.environment import DEFAULT_PORT, World, world
from taco_torch.horovod.exceptions import HorovodInternalError
from taco_torch.horovod.rendezvous import Place, find_places, places_of

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


def test_the_inner_of_two_launchers_knows() -> None:
    assert world({**OPEN_MPI_4, **TORCHRUN}).rank == 3
    assert world({**TORCHRUN, **HOROVODRUN}).rank == 5


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
    assert counted.calls == ["set", "wait", "multi_get"]


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
