"""Rewards by name: what counts as right, and what is said about a name or a reference that is wrong."""

from __future__ import annotations

import pytest

from bus.errors import ConfigError
from services.named_rewards import math_answer, named_reward, number, reference_check


def score(name: str, answer: str, reference: str) -> float:
    return named_reward(name)("", answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [("Paris", "Paris", 1), (" Paris\n", "Paris ", 1), ("paris", "Paris", 0), ("Paris.", "Paris", 0), ("", "", 1)],
)
def test_exact_compares_the_texts_without_white_space_at_the_ends(answer: str, reference: str, right: float) -> None:
    assert score("exact", answer, reference) == right


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("so it is 42.", 42),
        ("1 + 1 = 2, not 3", 3),
        ("1,234,567 in all", 1_234_567),
        ("1, 234", 234),
        ("12,34", 34),
        ("x = -3", -3),
        ("x = −3", -3),
        ("10-3", 3),
        ("(2)-7", 7),
        ("a-1", 1),
        ("0.5", 0.5),
        (".5", 0.5),
        ("= -.5", -0.5),
        ("6.02e23", 6.02e23),
        ("2E-3", 0.002),
        ("#### 1,000", 1000),
        ("the year 2024.", 2024),
        ("v1.2.3", 3),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_in_a_text_is_found(text: str, found: float | None) -> None:
    assert number.last_number(text) == found


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("1000000.5", "1000000", 1),
        ("1000002", "1000000", 0),
        ("0.0000000001", "0", 1),
        ("0.00000001", "0", 0),
        ("it costs $1,200", "$1200", 1),
        ("50", "50%", 1),
        ("The answer is 7", "3 + 4 is seven\n#### 7", 1),
        ("no idea", "7", 0),
    ],
)
def test_number_is_right_within_a_millionth(answer: str, reference: str, right: float) -> None:
    assert score("number", answer, reference) == right


@pytest.mark.parametrize("reference", ["1/2", "seven", "", "3 apples"])
def test_a_reference_that_is_no_number_is_refused_with_what_else_to_use(reference: str) -> None:
    check = reference_check("number")
    assert check is not None
    with pytest.raises(ValueError, match=f"the reference '{reference}' is no number: use the reward exact, math_verify"):
        check(reference)


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        (r"so it is $\frac{1}{2}$", "1/2", 1),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        (r"\boxed{2x+1}", "1+2x", 1),
        (r"\boxed{3}", "4", 0),
        ("I do not know", "4", 0),
        (r"$x \in (1, 2)$", r"$(1,2)$", 1),
    ],
)
def test_math_verify_compares_expressions(answer: str, reference: str, right: float) -> None:
    assert score("math_verify", answer, reference) == right


def test_math_verify_says_what_to_install_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_answer, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match="the package math-verify is not installed: install the extra `math`, or use the reward number"):
        named_reward("math_verify")


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"data.reward is 'numbr': there are exact, number, math_verify, or write .*; did you mean number\?"
    ):
        named_reward("numbr")
