"""Ready-made procedures for readers: call the function for each message's type."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from lazaretto.broker.handling.functions import refuse_lazy
from lazaretto.dialogs.activation import READER_WAIT, Procedure, Reader
from lazaretto.dialogs.dialog_messages import DialogMessage
from lazaretto.dialogs.dialog_transaction import DialogTransaction
from lazaretto.model.conversations import DIALOG_TIMER

_log = logging.getLogger("lazaretto.dialogs")

MessageHandler = Callable[[DialogMessage, DialogTransaction], None]


def by_type(handlers: Mapping[str, MessageHandler], *, max_wait: float = READER_WAIT) -> Procedure:
    """Return a procedure that gives each message, in a transaction of its own, to the function for its type.

    A function that raises rolls the transaction back: the message is charged a failure, and the service's
    way with poison decides. A message of a type that has no function can never be processed: it is set
    aside, and the far end receives an error. EndDialog and Error end the conversation, whether they have a
    function or not. The procedure returns when nothing has come for `max_wait` seconds.
    """
    procedures = dict(handlers)
    for name, function in procedures.items():
        refuse_lazy(function, f"the function for {name!r}", may_await=False)

    def procedure(reader: Reader) -> None:
        while not reader.stopping:
            received: list[DialogMessage] = []
            try:
                with reader.transaction() as work:
                    received = work.receive(max_wait=max_wait)
                    if not received:
                        return
                    _give(received[0], work, procedures)
            except Exception as error:
                if not received:
                    raise
                message = received[0]
                _log.warning(
                    "%s %s of conversation %s failed: %s",
                    message.type, message.number, message.conversation, type(error).__name__,
                )  # fmt: skip

    return procedure


def _give(message: DialogMessage, work: DialogTransaction, handlers: Mapping[str, MessageHandler]) -> None:
    function = handlers.get(message.type)
    if function is not None:
        function(message, work)
    elif not message.is_last and message.type != DIALOG_TIMER:
        work.invalid(message, error=f"service {message.service!r} has no function for {message.type!r}")
