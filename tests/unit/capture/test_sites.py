import sys

from numscope.capture.sites import Sites


def call(sites):
    return sites.intern(sys._getframe(1), -1)


def test_the_same_line_is_one_stack_and_another_line_another():
    sites = Sites()
    numbers = [call(sites) for _ in range(3)]
    other = call(sites)
    assert len(set(numbers)) == 1
    assert other not in numbers


def test_the_users_frame_is_the_innermost_one_outside_the_framework_and_us():
    sites = Sites()
    call(sites)
    rows = sites.take_new()
    frame = rows["frames"][0][rows["user"][0]]
    assert frame["file"] == __file__
    assert frame["function"] == "test_the_users_frame_is_the_innermost_one_outside_the_framework_and_us"
    assert frame["code"] == "call(sites)"
    assert sites.take_new()["stack"] == []
