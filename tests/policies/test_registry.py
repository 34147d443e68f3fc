"""Policies by name."""

from __future__ import annotations

import pytest

from bus.errors import ConfigError
from policies.registry import POLICIES, create, nearest


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_has_its_name_and_records_all_its_settings(name: str) -> None:
    policy = create(name, {})
    assert policy.name == name
    assert len(policy.params) > 1
    assert create(policy.name, policy.params).params == policy.params


@pytest.mark.parametrize("name", ["default", "fixed_ratio", "static_fully_async"])
def test_the_policies_with_a_ratio_record_it(name: str) -> None:
    assert create(name, {"deactivate_ratio": 0.6}).params == {"deactivate_ratio": 0.6, "only_hybrid": None}


def test_the_ratio_starts_at_three_tenths() -> None:
    assert create("default", {}).params["deactivate_ratio"] == 0.3


def test_an_unknown_policy_names_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError, match=r"'fixed_ration'.*did you mean 'fixed_ratio'.*default, fixed_ratio, .*static_fully_async"):
        create("fixed_ration", {})


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'deactivate_ration'.*did you mean 'deactivate_ratio'"):
        create("default", {"deactivate_ration": 0.5})


@pytest.mark.parametrize("value", [-0.01, 1.01, "much", None])
def test_a_ratio_outside_its_limits_is_refused_with_its_value(value: str | float | None) -> None:
    with pytest.raises(ConfigError, match=f"policy default: deactivate_ratio is {value!r}"):
        create("default", {"deactivate_ratio": value})


def test_of_equally_near_words_the_earlier_one_is_named() -> None:
    assert nearest("aa", ("ab", "ac")) == "ab"
