"""Late results find their call once, while it is remembered."""

from __future__ import annotations

from conductor.conversation.device_calls import LateCall, LateCalls
from conductor.stores.base import CallRecord


def record(number: int) -> CallRecord:
    return CallRecord(f"c{number}", "device.do", "t1", "device", "write", 0)


def _taken(late: LateCall | None) -> CallRecord | None:
    return None if late is None else late.record


def test_a_late_result_finds_its_call_once() -> None:
    late = LateCalls(8, 600.0)
    late.add(record(1), now=10.0, wanted=True)
    assert late.take("c2", now=11.0) is None
    assert _taken(late.take("c1", now=11.0)) == record(1)
    assert late.take("c1", now=11.0) is None


def test_a_call_is_forgotten_after_its_time() -> None:
    late = LateCalls(8, 600.0)
    late.add(record(1), now=10.0, wanted=True)
    late.add(record(2), now=10.0, wanted=True)
    assert _taken(late.take("c1", now=609.9)) == record(1)
    assert late.take("c2", now=610.0) is None


def test_the_oldest_call_gives_way() -> None:
    late = LateCalls(3, 600.0)
    for number in range(5):
        late.add(record(number), now=0.0, wanted=True)
    assert [late.take(f"c{n}", now=1.0) is not None for n in range(5)] == [False, False, True, True, True]


def test_a_call_that_is_added_again_takes_one_place() -> None:
    late = LateCalls(2, 600.0)
    late.add(record(1), now=0.0, wanted=True)
    late.add(record(1), now=100.0, wanted=True)
    late.add(record(2), now=100.0, wanted=True)
    assert _taken(late.take("c1", now=650.0)) == record(1)
    assert _taken(late.take("c2", now=650.0)) == record(2)


def test_a_call_remembers_whether_its_result_deserves_a_turn() -> None:
    late = LateCalls(8, 600.0)
    late.add(record(1), now=0.0, wanted=False)
    late.add(record(2), now=0.0, wanted=True)
    found = [late.take(f"c{number}", now=1.0) for number in (1, 2)]
    assert [call.wanted for call in found if call is not None] == [False, True]


def test_a_job_is_remembered_for_longer_and_its_result_deserves_a_turn() -> None:
    late = LateCalls(8, 600.0)
    late.add(record(1), now=0.0, wanted=False)
    late.extend("c1", 500.0, 86_400.0)
    late.extend("c2", 500.0, 86_400.0)  # nobody's
    job = late.take("c1", now=86_899.0)
    assert job is not None and job.wanted
    assert late.take("c2", now=501.0) is None
