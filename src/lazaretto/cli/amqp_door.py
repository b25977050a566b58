"""How `lazaretto serve` serves AMQP 1.0, and whom it lets in: its options, checked together."""

from __future__ import annotations

import dataclasses
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from lazaretto.cli.command import Options, option
from lazaretto.cli.exits import usage
from lazaretto.cli.http_door import EVERY_ADDRESS, in_url
from lazaretto.cli.parse import number
from lazaretto.cli.secret_files import local_certificate, secret_of

if TYPE_CHECKING:
    from lazaretto.servicebus import AccessPolicy

#: A policy as an option: its name, its rights, and the file with its key.
_POLICY_TEXT: Final = re.compile(r"([^:]+):([A-Za-z,]+):(.+)")


@dataclasses.dataclass(frozen=True, slots=True)
class AmqpDoor:
    """How AMQP is served. `amqp`: the port; None: it is not.

    `local`: whether it encrypts with a certificate that is made for localhost.
    """

    amqp: Annotated[
        int | None,
        option(
            "Port for clients of Service Bus and AMQP; 0: a free one.  [default: none]",
            "PORT",
            parser=number(0, 65_535),
        ),
    ] = None
    amqp_host: Annotated[str, option("Address where AMQP 1.0 is served.", "ADDRESS")] = "127.0.0.1"
    key_file: Annotated[
        Path | None, option("File with the key that AMQP clients sign their tokens with.  [default: none]")
    ] = None
    second_key_file: Annotated[
        Path | None, option("File with another such key, while clients change keys.  [default: none]")
    ] = None
    more_policies: Annotated[
        list[str] | None,
        option(
            "Another key, such as reader:Listen:reader.key; repeatable.  [default: none]",
            "NAME:RIGHTS:FILE",
            "--policy",
        ),
    ] = None
    certificate: Annotated[
        Path | None, option("Certificate for HTTP and AMQP over TLS, as PEM.  [default: no TLS]")
    ] = None
    private_key: Annotated[Path | None, option("Its key, as PEM.  [default: in the certificate's file]")] = (
        None
    )
    local: Annotated[bool, option("Make and use a certificate for localhost.", "", "--tls")] = False
    insecure: Annotated[bool, option("Serve AMQP without TLS or keys beyond this machine.")] = False
    plain: Annotated[bool, option("Serve without TLS too, on the same ports.")] = False
    names_of_host: Annotated[
        list[str] | None,
        option(
            "Name of this host that clients without a key may ask by over HTTP; repeatable.  "
            "[default: those without a dot]", "NAME", "--host-name",
        ),
    ] = None  # fmt: skip
    more_ports: Annotated[
        list[int] | None,
        option(
            "Another port for the same; repeatable.  [default: none]",
            "PORT",
            "--amqp-also",
            parser=number(1, 65_535),
        ),
    ] = None

    @property
    def key_files(self) -> list[Path]:
        """The files with keys."""
        own = [one for one in (self.key_file, self.second_key_file) if one is not None]
        return own + [Path(_parts_of(one)[2]) for one in self.more_policies or ()]

    @property
    def encrypts(self) -> bool:
        """Whether clients may use TLS."""
        return self.local or self.certificate is not None

    def check(self) -> None:
        """Refuse what cannot be served. Raises InvalidOption, and usage errors."""
        from lazaretto.servicebus import check_address

        if self.amqp is None and (unused := self._given()):
            raise usage(f"give --amqp with {unused}: without it AMQP is not served")
        if self.plain and not self.encrypts:
            raise usage("give --certificate or --tls with --plain: without them nothing is encrypted")
        tls = self.tls()
        if self.amqp is not None:
            tls = None if self.plain else tls
            check_address(self.amqp_host, tls, self.policies(), insecure=self.insecure)

    def _given(self) -> str:
        """Return an option that has no effect without a port; "": none was given."""
        options = {
            "--key-file": self.key_file,
            "--second-key-file": self.second_key_file,
            "--policy": self.more_policies,
            "--amqp-also": self.more_ports,
            "--plain": self.plain,
            "--host-name": self.names_of_host,
        }
        return next((name for name, value in options.items() if value), "")

    def policies(self) -> list[AccessPolicy]:
        """Return whose keys clients need; none: everybody is let in. Raises a usage error."""
        from lazaretto.servicebus import ROOT_POLICY, AccessPolicy

        more = [_policy_of(one) for one in self.more_policies or ()]
        if self.key_file is None:
            if self.second_key_file is not None:
                raise usage("give --key-file with --second-key-file: the second key is for a change of keys")
            return more
        second = None if self.second_key_file is None else secret_of(self.second_key_file, "key")
        return [AccessPolicy(ROOT_POLICY, secret_of(self.key_file, "key"), secondary=second), *more]

    def tls(self) -> ssl.SSLContext | None:
        """Return the certificate with which the server encrypts; None: it does not. Raises a usage error."""
        if self.certificate is None and self.private_key is not None:
            raise usage("give --certificate with --private-key")
        if self.certificate is not None and self.local:
            raise usage("give --certificate or --tls, not both")
        if not self.encrypts:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.read_certificate(context)
        return context

    def read_certificate(self, context: ssl.SSLContext) -> None:
        """Read the certificate and its key, also again: connections that begin later have it.

        Raises a usage error.
        """
        if self.certificate is None:
            context.load_cert_chain(local_certificate().server)
            return
        try:
            # A key with a password would be asked for at the terminal.
            context.load_cert_chain(self.certificate, self.private_key, password="")
        except (OSError, ValueError) as error:
            text = f"expected a certificate and its key as PEM in {str(self.certificate)!r}"
            raise usage(f"{text}, got {type(error).__name__}: {error}") from None

    def told(self) -> dict[str, str]:
        """Return what clients must know to trust a certificate that was made for them."""
        if not self.local:
            return {}
        made = local_certificate()
        return {"authority": str(made.authority), "fingerprint": made.fingerprint}

    def connection_string(self, port: int) -> str:
        """Return how clients of Service Bus connect."""
        from lazaretto.servicebus import connection_string

        key = "KEY" if self.key_files else "any"
        host = "localhost" if self.amqp_host in ("127.0.0.1", *EVERY_ADDRESS) else in_url(self.amqp_host)
        return connection_string(host, port, key=key, plain=self.plain or not self.encrypts)


def _parts_of(text: str) -> tuple[str, list[str], str]:
    parts = _POLICY_TEXT.fullmatch(text)
    if parts is None:
        raise usage(f"expected --policy to be such as reader:Listen:reader.key, got {text!r}")
    return parts[1], parts[2].split(","), parts[3]


def _policy_of(text: str) -> AccessPolicy:
    """Return the policy that an option describes. Raises a usage error."""
    from lazaretto.servicebus import ROOT_POLICY, AccessPolicy, Right

    name, words, file = _parts_of(text)
    rights_of = {right.value.lower(): right for right in Right}
    if name == ROOT_POLICY or not all(word.lower() in rights_of for word in words):
        rights = ", ".join(right.value for right in Right)
        raise usage(f"expected --policy to name another key than {ROOT_POLICY}, and {rights}, got {text!r}")
    return AccessPolicy(
        name, secret_of(Path(file), "key"), frozenset(rights_of[word.lower()] for word in words)
    )


AmqpOptions = Annotated[AmqpDoor, Options.of(AmqpDoor)]
