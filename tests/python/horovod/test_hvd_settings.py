"""The HOROVOD_* variables: what they say, and what is refused."""

from __future__ import annotations

import re

import pytest
from checkout import text_of

from taco_torch.horovod.settings import VARIABLES, Settings, settings


def test_without_variables_the_defaults_are_in_force() -> None:
    assert settings({}) == Settings()
    assert settings({variable.name: " " for variable in VARIABLES}) == Settings()


def test_each_variable_says_what_it_is_for() -> None:
    found = settings(
        {
            "HOROVOD_FUSION_THRESHOLD": "0",
            "HOROVOD_CYCLE_TIME": "2.5",
            "HOROVOD_CACHE_CAPACITY": "7",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9.5",
            "HOROVOD_TIMELINE": "trace.json",
            "HOROVOD_TIMELINE_MARK_CYCLES": "True",
            "HOROVOD_START_TIMEOUT": "30",
        }
    )
    assert found == Settings(0, 0.0025, 7, 3.0, 9.5, False, "trace.json", True, 30.0)


def test_the_stall_check_can_be_switched_off() -> None:
    found = settings({"HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_STALL_CHECK_TIME_SECONDS": "5"})
    assert (found.stall_warning_seconds, found.stall_shutdown_seconds) == (0.0, 0.0)


def test_a_dynamic_timeline_waits_for_the_program() -> None:
    assert settings({"HOROVOD_TIMELINE": "DYNAMIC"}).timeline == ""


@pytest.mark.parametrize("text", ["x", "-1", "nan", "1e99", "0x10", "1_0"])
@pytest.mark.parametrize(
    "name",
    [each.name for each in VARIABLES if each.name != "HOROVOD_TIMELINE"],  # takes any text
)
def test_a_malformed_value_is_an_error_that_names_it(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f'{name} is "{re.escape(text)}", but must be'):
        settings({name: text})


def test_the_table_of_all_variables_has_these_alike() -> None:
    rows, defaults = {}, {}
    for line in text_of("docs/environment.md").splitlines():
        if line.startswith("| `HOROVOD_"):
            name, _, unit, fallback, accepted, meaning = line.strip("| ").split(" | ")
            unit = "" if unit == "-" else f"{unit}, "
            rows[name.strip("`")] = f"{unit}{accepted}"
            defaults[name.strip("`")] = "" if fallback == "(none)" else fallback.strip("`")
            assert meaning
    del rows["HOROVOD_ELASTIC_TIMEOUT"]  # tacorun's alone
    assert rows == {each.name: each.accepted for each in VARIABLES}
    for name in rows:
        assert settings({name: defaults[name]}) == Settings(), name
