"""Messages that clients hold by their lock tokens."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from lazaretto.errors import MessageLockLost
from lazaretto.model.messages import ReceivedMessage

if TYPE_CHECKING:
    from lazaretto.door.consumer import Consumer

#: A client whose lock ran out is told so for this long.
_KEPT: Final = timedelta(minutes=1)


class Held(NamedTuple):
    """A message, where it was received, and the link it was handed over on; None: by a request."""

    path: str
    message: ReceivedMessage
    consumer: Consumer | None


class HeldMessages(dict[uuid.UUID, Held]):
    """Messages by the tokens of their locks."""

    def find(self, token: uuid.UUID) -> Held:
        """Return the message that a token stands for. Raises MessageLockLost."""
        found = self.get(token)
        if found is None:
            raise MessageLockLost("expected the token of a lock that is held, got another")
        return found

    def forget(self, messages: list[ReceivedMessage]) -> None:
        """Forget messages that are settled."""
        for message in messages:
            if message.lock_token is not None:
                self.pop(message.lock_token, None)

    def sweep(self, now: datetime) -> None:
        """Forget those whose locks ran out a while ago; of sessions, those whose link has gone."""
        for token, held in list(self.items()):
            until = held.message.locked_until
            of_session = held.message.session_id is not None
            alive = held.consumer is not None and held.consumer.alive
            if until is None or (until + _KEPT < now and not (of_session and alive)):
                del self[token]
