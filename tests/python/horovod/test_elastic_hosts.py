"""The count of an elastic job's slots: what failures take away, and for how long."""

from __future__ import annotations

from taco_torch.launch.elastic_hosts import ElasticHosts
from taco_torch.launch.hosts import Host


def made(cooldown: tuple[int, int] | None = None) -> ElasticHosts:
    hosts = ElasticHosts(cooldown)
    assert hosts.replace([Host("a", 4), Host("b", 2)]) == (False, True)
    return hosts


def test_a_failure_takes_a_slot_and_a_loss_takes_all() -> None:
    hosts = made()
    assert hosts.failed("a", 0.0) is None
    assert hosts.slots("a", 1e9) == 3
    assert hosts.lost("b", 0.0) is None
    assert hosts.slots("b", 1e9) == 0
    assert hosts.total(1e9) == 3
    assert hosts.next_change() is None


def test_slots_come_back_after_times_that_double_up_to_the_most() -> None:
    hosts = made((10, 30))
    assert [hosts.failed("a", 0.0) for _ in range(4)] == [10, 20, 30, 30]
    assert hosts.failed("b", 5.0) == 10
    assert hosts.next_change() == 10
    assert [hosts.slots("a", now) for now in (0, 9.9, 10, 20, 30)] == [0, 0, 1, 2, 4]
    assert hosts.slots("b", 15.0) == 2


def test_a_host_that_comes_back_is_a_new_one() -> None:
    hosts = made()
    hosts.lost("b", 0.0)
    assert hosts.replace([Host("a", 3)]) == (True, False)
    assert hosts.replace([Host("a", 3), Host("b", 2)]) == (False, True)
    assert hosts.slots("b", 1.0) == 2
    assert hosts.replace([Host("a", 2), Host("b", 3)]) == (True, True)


def test_more_failures_than_slots_are_not_less_than_none() -> None:
    hosts = made()
    for _ in range(9):
        hosts.failed("b", 0.0)
    assert hosts.slots("b", 0.0) == 0
