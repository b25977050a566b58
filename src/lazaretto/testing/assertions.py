"""Assertions on dead letters, with errors that list the actual ones."""

from __future__ import annotations

from lazaretto.broker.broker import Broker
from lazaretto.model.entities import EntityPath
from lazaretto.model.failure import shown_reason
from lazaretto.model.messages import DeadLetter

#: Dead letters that a failed assertion describes.
_SHOWN = 5


def assert_no_dead_letters(broker: Broker, path: str | None = None) -> None:
    """Raise AssertionError if a queue has dead letters; with no path, if any queue has.

    The error names the first five, each with its reason and its error.
    """
    paths = [queue.path for queue in broker.queues()] if path is None else [EntityPath.parse(path).queue]
    letters = [(each, letter) for each in paths for letter in broker.dead_letters(each, limit=_SHOWN + 1)]
    if letters:
        raise AssertionError("expected no dead letters, got\n" + _described(letters))


def assert_dead_letter(
    broker: Broker,
    path: str,
    *,
    reason: str | None = None,
    error_type: str | None = None,
    text: str | None = None,
    body: bytes | None = None,
) -> DeadLetter:
    """Return the one dead letter of a queue that is as described; raise AssertionError otherwise.

    `reason` and `error_type` are compared whole; an error type also by its last part, so that
    "JSONDecodeError" is "json.decoder.JSONDecodeError". `text` is part of the error's message.
    The letter comes with its attempts.
    """
    queue = EntityPath.parse(path).queue
    letters = list(broker.dead_letters(queue))
    matches = [
        letter
        for letter in letters
        if (reason is None or letter.reason == reason)
        and (error_type is None or error_type in _names(letter.error_type))
        and (text is None or text in (letter.error_message or ""))
        and (body is None or (letter.message is not None and letter.message.body == body))
    ]
    if len(matches) != 1:
        criteria = {"reason": reason, "error_type": error_type, "text": text, "body": body}
        asked = ", ".join(f"{name}={value!r}" for name, value in criteria.items() if value is not None)
        there = _described([(queue, letter) for letter in letters]) if letters else "  none at all"
        raise AssertionError(
            f"expected one dead letter in {queue!r} with {asked or 'anything'}, got {len(matches)};"
            f" there are\n{there}"
        )
    return broker.dead_letter(queue, matches[0].sequence_number)


def _names(error_type: str | None) -> tuple[str, ...]:
    return (error_type, error_type.rpartition(".")[2]) if error_type else ()


def _described(letters: list[tuple[str, DeadLetter]]) -> str:
    lines = [
        f"  {queue} {letter.sequence_number}: "
        + shown_reason(letter.reason, letter.error_type, letter.error_message)
        for queue, letter in letters[:_SHOWN]
    ]
    if len(letters) > _SHOWN:
        lines.append("  and more")
    return "\n".join(lines)
