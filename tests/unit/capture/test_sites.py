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


def test_a_stack_as_deep_as_python_allows_is_one_stack() -> None:
    sites = Sites()

    def deep(left: int) -> int:
        return deep(left - 1) if left else sites.intern(sys._getframe(), -1)

    depths = (10, 150, 300, 700)
    numbers = [[deep(depth) for _ in range(3)] for depth in depths]
    assert all(len(set(same)) == 1 for same in numbers)
    assert len({same[0] for same in numbers}) == len(depths)
    assert [len(sites.frames(same[0])) - len(sites.frames(numbers[0][0])) for same in numbers] == [0, 140, 290, 690]


def test_a_frame_whose_code_has_no_hash_has_a_place() -> None:
    """Dynamo makes such code: a slice among the constants."""

    def caller(sites: Sites) -> int:
        return call(sites)

    caller.__code__ = caller.__code__.replace(co_consts=(*caller.__code__.co_consts, slice(1, 2)))
    sites = Sites()
    numbers = [caller(sites) for _ in range(2)]
    assert numbers[0] == numbers[1]
    assert sites.frames(numbers[0])[-1]["function"] == "caller"
