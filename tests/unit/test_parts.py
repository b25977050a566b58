"""Parts of a cause's letters become the same whole, however they were divided and in whatever order."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from lazaretto.model.triage.parts import HOUR, Part, Sample, hashed, merge
from lazaretto.model.triage.verify import Tally

_MOST = 5
Letter = tuple[int, int, int]
_LETTERS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 10**6), st.integers(0, 5 * HOUR)),
    max_size=60,
    unique_by=lambda letter: letter[1],
)


def part_of(letter: Letter) -> Part:
    cause, number, when = letter
    return Part(cause, 1, number, when, when, {when // HOUR: 1}, [number])


@given(_LETTERS, st.randoms(use_true_random=False))
def test_division_and_order_play_no_role(letters: list[Letter], r: object) -> None:
    shuffled = list(letters)
    r.shuffle(shuffled)  # type: ignore[attr-defined]
    cut = sorted(r.randrange(len(letters) + 1) for _ in range(3))  # type: ignore[attr-defined]
    pieces = [shuffled[a:b] for a, b in zip([0, *cut], [*cut, len(letters)], strict=True)]
    merged = [part for piece in pieces for part in merge(map(part_of, piece), _MOST).values()]
    found = merge(merged, _MOST)
    for cause in {letter[0] for letter in letters}:
        mine = [letter for letter in letters if letter[0] == cause]
        whole = found.pop(cause)
        assert (whole.letters, whole.first) == (len(mine), min(number for _, number, _ in mine))
        assert (whole.began, whole.latest) == (min(t for *_, t in mine), max(t for *_, t in mine))
        assert whole.hours == Counter(t // HOUR for *_, t in mine)
        sample = Sample(_MOST)
        for _, number, _ in mine:
            sample.add(number)
        assert sorted(whole.sample, key=hashed) == sample.numbers()
        again = Sample(_MOST)
        again.merge(whole.letters, whole.sample)
        assert (again.count, again.numbers()) == (sample.count, sample.numbers())
    assert not found


def test_tallies_add_up() -> None:
    tally = Tally(["body.a IS NULL", "body.b = 1"])
    tally.merge((5, (2, 3), 1))
    tally.merge((7, (4, 0), 3))
    assert tally.counted() == (12, (6, 3), 4)
