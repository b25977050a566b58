"""Authorization rules of queues and topics as ATOM has them, each made from the other. Pure."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Final
from xml.etree.ElementTree import Element

from lazaretto.model.clock import to_datetime
from lazaretto.model.signing import RIGHTS, SigningRule, check_signing_rules
from lazaretto.servicebus.atom.feeds import moment
from lazaretto.servicebus.atom.markup import element, text_of
from lazaretto.servicebus.atom.refusals import Refusal

_TYPE: Final = "SharedAccessAuthorizationRule"


def rules_of(found: Element | None, before: Sequence[SigningRule] = ()) -> list[SigningRule] | None:
    """Return the rules in an element; None: there is no element. Raises Refusal, InvalidOption.

    A rule without keys keeps those that it has, or is given new ones.
    """
    if found is None:
        return None
    by_name = {rule.name: rule for rule in before}
    rules = [_rule(one, by_name) for one in found]
    check_signing_rules(rules)
    return rules


def _rule(element: Element, by_name: dict[str, SigningRule]) -> SigningRule:
    kind = element.get("type")
    if kind != _TYPE:
        raise Refusal(400, f"expected a {_TYPE}, got {kind!r}")
    name = text_of(element.find("KeyName"))
    given = element.find("Rights")
    rights = {text_of(one) for one in (given if given is not None else ())}
    kept = by_name.get(name)
    return SigningRule(
        name=name,
        rights=tuple(one for one in RIGHTS if one in rights) if rights <= set(RIGHTS) else tuple(rights),
        primary=text_of(element.find("PrimaryKey")) or (_new_key() if kept is None else kept.primary),
        secondary=text_of(element.find("SecondaryKey")) or (_new_key() if kept is None else kept.secondary),
    )


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


def described(rules: Sequence[SigningRule]) -> str:
    """Return rules in XML, with their keys: for who may manage the entity."""
    return f"<AuthorizationRules>{''.join(_described(rule) for rule in rules)}</AuthorizationRules>"


def _described(rule: SigningRule) -> str:
    rights = "".join(element("AccessRights", right) for right in rule.rights)
    parts = (
        element("ClaimType", "SharedAccessKey"),
        element("ClaimValue", "None"),
        f"<Rights>{rights}</Rights>",
        element("CreatedTime", moment(to_datetime(rule.created))),
        element("ModifiedTime", moment(to_datetime(rule.modified))),
        element("KeyName", rule.name),
        element("PrimaryKey", rule.primary),
        element("SecondaryKey", rule.secondary),
    )
    return f'<AuthorizationRule i:type="{_TYPE}">{"".join(parts)}</AuthorizationRule>'
