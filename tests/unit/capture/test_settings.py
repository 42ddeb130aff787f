import pytest

from numscope.core.errors import SettingsError
from numscope.core.settings import CaptureSettings, numbers


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (None, list(range(12))),
        (3, [3]),
        ([0, 4], [0, 4]),
        ("4-10:2", [4, 6, 8, 10]),
        ("1,3-4", [1, 3, 4]),
        (["2", 5], [2, 5]),
        ("9-", [9, 10, 11]),
        (range(0, 12, 5), [0, 5, 10]),
        (lambda step: step % 6 == 0, [0, 6]),
    ],
)
def test_steps_can_be_named_in_every_documented_way(spec, chosen):
    wanted = numbers(spec, "steps")
    assert [step for step in range(12) if wanted(step)] == chosen


@pytest.mark.parametrize("spec", ["x", "5-3", "4-10:0", "", True, 1.5])
def test_steps_that_mean_nothing_are_an_error_that_shows_a_valid_form(spec):
    with pytest.raises(SettingsError, match="steps"):
        CaptureSettings.of(steps=spec)


def test_unknown_settings_name_the_nearest_valid_one():
    with pytest.raises(SettingsError, match="did you mean 'level'"):
        CaptureSettings.of(levle="mix")
    with pytest.raises(SettingsError, match="did you mean 'stats'"):
        CaptureSettings.of(keep="stat")
