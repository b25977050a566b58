"""The wake file: whose turn it is to write, and who is told of news."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE

from lazaretto.store.sqlite import wake_file, writers_line
from lazaretto.store.sqlite.news import News
from lazaretto.store.sqlite.wake_file import READER_BELL, READERS, WRITER_BELL, WakeFile
from lazaretto.store.sqlite.writers_line import WritersLine

pytestmark = pytest.mark.skipif(not wake_file.is_there(), reason="needs futexes")

PLACE = 7


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[WakeFile]]:
    store = tmp_path / "store.db"
    store.touch()
    files = [WakeFile(store) for _ in range(3)]
    yield files
    for file in files:
        file.close()


def is_rung(file: WakeFile, bell: int = READER_BELL) -> bool:
    return bool(file.words[(file.offset(file.slot) + bell) >> 2])


def listen(news: News, seconds: float = 30) -> list[bool]:
    """Listen until told or woken; return whether there were news of the place."""
    told: list[bool] = []

    def notify(is_news: Callable[[int], bool]) -> None:
        told.append(is_news(PLACE))
        news.wake()

    news.listen(seconds, notify)
    return told


def test_each_has_a_slot_and_a_closed_ones_is_taken_again(files: list[WakeFile], tmp_path: Path) -> None:
    assert [file.slot for file in files] == [0, 1, 2]
    files[1].set_waiting(READERS, True)
    files.pop(1).close()
    files.append(WakeFile(tmp_path / "store.db"))
    assert files[-1].slot == 1
    assert files[0].waiting(READERS) == []


def test_who_waits_is_told(files: list[WakeFile]) -> None:
    here, there = News(files[0]), News(files[1])
    there.watch(PLACE, True, 1)
    before = there.number(PLACE)

    timer = threading.Timer(0.02, here.tell, ({PLACE: 1},))
    timer.start()
    assert listen(there) == [True]
    assert there.number(PLACE) != before
    timer.join()


def test_as_many_are_woken_as_there_are_messages(files: list[WakeFile]) -> None:
    sender, *waiting = map(News, files)
    for news in waiting:
        news.watch(PLACE, True, 1)
    sender.tell({PLACE: 1})
    assert sum(map(is_rung, files)) == 1
    # The one that was rung has not looked yet: the other one is next.
    sender.tell({PLACE: 1})
    assert sum(map(is_rung, files)) == 2


def test_who_waits_for_something_of_its_own_is_always_woken(files: list[WakeFile]) -> None:
    sender, *waiting = map(News, files)
    for news in waiting:
        news.watch(PLACE, False, 1)
    sender.tell({PLACE: 1})
    assert [is_rung(file) for file in files] == [False, True, True]


def test_who_waits_elsewhere_or_no_more_is_left_alone(files: list[WakeFile]) -> None:
    sender, elsewhere, gone = map(News, files)
    elsewhere.watch(PLACE + 1, True, 1)
    gone.watch(PLACE, True, 1)
    gone.watch(PLACE, True, -1)
    sender.tell({PLACE: 5})
    assert not any(map(is_rung, files))


def test_a_timer_and_a_call_end_the_listening(files: list[WakeFile]) -> None:
    here, there = News(files[0]), News(files[1])
    here.wake()
    assert listen(here) == []
    there.watch(PLACE, True, 1)
    here.ring_for_timer()
    assert listen(here) == listen(there) == []


def test_the_dead_wait_no_more(files: list[WakeFile], tmp_path: Path) -> None:
    dead = files.pop()
    News(dead).watch(PLACE, True, 1)
    # As the kernel does it.
    dead.close()
    files[0].memory[READERS + dead.slot] = 1
    News(files[1]).watch(PLACE, True, 1)
    files[0].clear_dead()
    assert files[0].waiting(READERS) == [files[1].slot]


def test_who_has_waited_longest_is_next(files: list[WakeFile]) -> None:
    writer, second, first = map(WritersLine, files)
    with first.standing(), second.standing():
        _await_turn_of_others(writer, files)
        assert is_rung(files[2], WRITER_BELL)
        assert not is_rung(files[1], WRITER_BELL)
    writer.pass_on()
    assert not writer.is_others_turn()


def test_nobody_is_woken_before_a_turn_ends(files: list[WakeFile]) -> None:
    writer, other = map(WritersLine, files[:2])
    with writer.standing():
        pass
    with other.standing() as sleep:
        writer.turn_ends = time.monotonic_ns() + 120_000_000_000
        writer.pass_on()
        assert not is_rung(files[1], WRITER_BELL)
        assert not writer.is_others_turn()
        # It sleeps over the writer's pause, but over none that no writer can have.
        assert files[1].pause > 0
        files[0].pause = time.monotonic_ns() + 120_000_000_000
        sleep(0)


def test_only_who_is_next_tries(files: list[WakeFile]) -> None:
    writer, second, first = map(WritersLine, files)
    with first.standing() as sleep_first, second.standing() as sleep_second:
        _await_turn_of_others(writer, files)
        assert not sleep_second(0)
        assert sleep_first(0)


def test_the_first_one_takes_the_turn_of_who_writes_no_more(files: list[WakeFile]) -> None:
    writer, second, first = map(WritersLine, files)
    with writer.standing():
        pass
    with second.standing() as sleep_second:
        files[1].set_times(2, time.monotonic_ns())
        with first.standing():
            files[2].set_times(1, time.monotonic_ns())
            writer.turn_ends = time.monotonic_ns() + 120_000_000_000
            files[0].pause = 1
            assert not sleep_second(0)
            assert not writer.is_others_turn()
        assert writer.is_others_turn()


def test_who_comes_between_two_commits_leaves_the_turn(
    files: list[WakeFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers_line, "_PAUSE", 120_000_000_000)
    writer, waiting, other = map(WritersLine, files)
    with writer.standing():
        pass
    with waiting.standing():
        writer.turn_ends = time.monotonic_ns() + 120_000_000_000
        writer.pass_on()
        other.pass_on()
        assert not is_rung(files[1], WRITER_BELL)
        assert not writer.is_others_turn()


def test_who_writes_now_and_then_wakes_the_next_one_at_once(files: list[WakeFile]) -> None:
    writer, other = map(WritersLine, files[:2])
    with other.standing():
        writer.pass_on()
        assert is_rung(files[1], WRITER_BELL)


def test_who_waits_longer_than_a_turn_is_woken_by_the_next_commit(files: list[WakeFile]) -> None:
    writer, other = map(WritersLine, files[:2])
    with other.standing():
        files[1].set_times(1, time.monotonic_ns())
        writer.pass_on()
        writer.pass_on()
        assert is_rung(files[1], WRITER_BELL)


def test_a_turn_ends_while_others_wait(files: list[WakeFile]) -> None:
    writer, other = map(WritersLine, files[:2])
    assert not writer.is_others_turn()
    with other.standing() as sleep:
        writer.pass_on()
        sleep(0)
        _await_turn_of_others(writer, files[:2])
        assert writer.is_others_turn()


def test_who_does_not_look_up_any_more_is_passed_over(files: list[WakeFile]) -> None:
    writer, other = map(WritersLine, files[:2])
    with other.standing():
        writer.turn_ends = 1
        files[1].set_times(1, 1)
        assert not writer.is_others_turn()
        writer.pass_on()
        assert writer.turn_ends is None
        assert not is_rung(files[1], WRITER_BELL)


def _await_turn_of_others(writer: WritersLine, files: list[WakeFile]) -> None:
    """Write until this writer's turn ends, while all others look up."""
    end = time.monotonic() + PATIENCE
    writer.pass_on()
    while not writer.is_others_turn():
        assert time.monotonic() < end
        for file in files[1:]:
            since, _ = file.times(file.slot)
            file.set_times(since, time.monotonic_ns())
        writer.pass_on()
