"""Networks that are laid out otherwise than one network a link: two interfaces of a host on one
network, and routers between hosts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from conftest import taco_only
from fabric import Fabric
from hosts import host_ranks, join, needs_hosts, sent_by
from test_many_paths import count_paths, reduce, reduce_often

pytestmark = [taco_only, needs_hosts]


@pytest.mark.parametrize("family", [4, 6])
def test_two_interfaces_on_one_network_share_what_is_sent(family: int) -> None:
    """The kernel would send everything by the first."""
    with (
        Fabric(hosts=3, links=2, rate="200mbit", between="bridge") as fabric,
        host_ranks(fabric, family=family) as ranks,
    ):
        ranks.run(join)
        assert ranks.run(count_paths, 4) == [4] * 3
        before = [[sent_by(fabric, host, link) for link in (0, 1)] for host in range(3)]
        ranks.run(reduce_often)
        for host in range(3):
            sent = [sent_by(fabric, host, link) - before[host][link] for link in (0, 1)]
            assert min(sent) > 0.15 * sum(sent), f"host {host} sent {sent} bytes by its links"


def test_an_interface_that_comes_to_a_network_which_has_one_is_used() -> None:
    with (
        Fabric(hosts=2, links=2, rate="200mbit", between="bridge") as fabric,
        host_ranks(fabric) as ranks,
    ):
        fabric.set_carrier(0, False, link=1)
        ranks.run(join)
        assert ranks.run(count_paths, 1) == [1, 1]
        fabric.set_carrier(0, True, link=1)
        assert ranks.run(count_paths, 2) == [2, 2]


@pytest.mark.whole(instead="test_an_interface_that_comes_to_a_network_which_has_one_is_used")
def test_the_interface_that_the_kernel_prefers_may_go() -> None:
    with (
        Fabric(hosts=2, links=2, rate="200mbit", between="bridge") as fabric,
        host_ranks(fabric) as ranks,
    ):
        ranks.run(join)
        assert ranks.run(count_paths, 2) == [2, 2]
        fabric.set_carrier(1, False, link=0)
        ranks.run(reduce)
        assert ranks.run(count_paths, 1) == [1, 1]
        fabric.set_carrier(1, True, link=0)
        assert ranks.run(count_paths, 2) == [2, 2]


@pytest.mark.parametrize(
    ("variables", "paths"), [({}, 4), ({"TACO_PATHS": "2"}, 2), ({"TACO_PATHS": "1"}, 1)]
)
def test_several_flows_cross_a_router(variables: Mapping[str, str], paths: int) -> None:
    """The master's own host cannot know of the router, and has one port; the other one has four."""
    with (
        Fabric(hosts=2, rate="200mbit", between="routers") as fabric,
        host_ranks(fabric, variables) as ranks,
    ):
        ranks.run(join)
        assert ranks.run(count_paths, paths) == [paths, paths]
        ranks.run(reduce)


def test_neighbours_have_one_flow() -> None:
    with Fabric(hosts=2, rate="200mbit") as fabric, host_ranks(fabric) as ranks:
        ranks.run(join)
        ranks.run(reduce_often, 2)
        assert ranks.run(count_paths, 1) == [1, 1]
