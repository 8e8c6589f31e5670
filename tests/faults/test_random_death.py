"""A short random-death campaign, and that the campaign itself can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from victim_trial import HANG_S, OPERATIONS, SLOWEST_S, Plan, Verdict, _judge

CAMPAIGN = Path(__file__).with_name("campaign.py")
KILLS = 24
SEED = 5000


@pytest.mark.whole(instead="PeerLoss.EverySurvivorNamesTheVictimWheneverItDies")
def test_survivors_name_the_dead_rank_and_go_on_without_it() -> None:
    run = subprocess.run(
        [sys.executable, CAMPAIGN, "--kills", str(KILLS), "--seed", str(SEED), "--slowest", "5"],
        capture_output=True,
        text=True,
        timeout=60 + KILLS * HANG_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"| all | {KILLS} |" in run.stdout


def test_these_trials_cover_every_operation_transport_and_death() -> None:
    plans = [Plan.of(seed) for seed in range(1000, 1500)]
    assert {plan.operation for plan in plans} == set(OPERATIONS)
    short = [Plan.of(seed) for seed in range(SEED, SEED + KILLS)]
    assert {plan.transport for plan in short} == {"shm", "udp", "mixed"}
    assert {plan.death for plan in short} == {"SIGKILL", "os._exit", "SIGSEGV"}
    assert any(plan.forked_child for plan in short)
    assert {plan.replace for plan in short} == {True, False}


def test_the_campaign_notices_what_is_amiss() -> None:
    plan = Plan.of(1)
    other = (plan.victim + 1) % plan.world
    wrong_rank = {"type": "PeerLostError", "rank": other, "text": "", "raised": 1.01}
    wrong_type = {"type": "CollectiveTimeoutError", "rank": None, "text": "", "raised": 1.01}
    too_late = {"type": "PeerLostError", "rank": plan.victim, "text": "", "raised": 3.0}
    right = {"type": "PeerLostError", "rank": plan.victim, "text": "", "raised": 1.01}
    cases = [({}, 1), ({"a": None}, 1), ({"a": wrong_rank}, 1), ({"a": wrong_type}, 1)]
    cases += [({"a": too_late}, 1), ({"a": {"crash": "x"}}, 1), ({"a": right}, 0)]
    for reports, faults in cases:
        verdict = Verdict(plan)
        _judge(verdict, reports, death=1.0, names=["a"], slowest_s=SLOWEST_S)
        assert len(verdict.faults) == faults, (reports, verdict.faults)
