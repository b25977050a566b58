"""Orders that are well, and orders with a planted cause of failure, and what tells them apart."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from lazaretto.model.filters.view import MessageView
from lazaretto.model.headers import Headers
from lazaretto.model.triage.features import Features, features_of

Order = dict[str, Any]

COUNTRIES = [
    "DE",
    "FR",
    "ES",
    "IT",
    "PL",
    "NL",
    "SE",
    "GB",
    "US",
    "BR",
    "IN",
    "JP",
    "CN",
    "AU",
    "CA",
    "MX",
    "ZA",
    "NG",
    "KE",
    "EG",
]
VERSIONS = [f"2.{a}.{b}" for a in range(4) for b in range(5)]
REGIONS = ["eu-west", "eu-north", "us-east", "us-west", "ap-south", "sa-east"]
CURRENCIES = ["EUR", "USD", "GBP", "PLN", "SEK", "INR", "BRL", "JPY"]
PAYMENTS = ["card", "paypal", "pix", "sepa", "invoice"]
NAMES = [
    "Meier",
    "Novak",
    "Rossi",
    "Silva",
    "Garcia",
    "Dubois",
    "Jansen",
    "Smith",
    "Brown",
    "Lind",
    "Sato",
    "Wang",
    "Patel",
    "Khan",
]


def order(r: random.Random, number: int) -> Order:
    day = f"{r.randint(1, 11):02d}-{r.randint(1, 28):02d}"
    return {
        "order_id": f"O-{number:09d}",
        "created": f"2026-{day}T{r.randint(0, 23):02d}:{r.randint(0, 59):02d}:00Z",
        "app_version": r.choice(VERSIONS), "region": r.choice(REGIONS),
        "channel": r.choice(["web", "mobile", "api"]), "currency": r.choice(CURRENCIES),
        "amount": round(r.lognormvariate(4, 1), 2) % 9000, "quantity": r.randint(1, 12),
        "payment": r.choice(PAYMENTS), "coupon": r.choice([None, None, "SAVE10", "NEW5"]),
        "gift": r.random() < 0.3,
        "customer": {
            "id": r.randint(1, 5_000_000), "name": r.choice(NAMES),
            "email": f"u{r.randint(1, 10**7)}@mail.com", "tier": r.choice(["basic", "basic", "gold", "plat"]),
            "country": r.choice(COUNTRIES),
            "address": {"zip": f"{r.randint(10000, 99999)}", "city": r.choice(NAMES)},
        },
        "items": [{"sku": f"S{r.randint(1, 99999)}", "qty": r.randint(1, 3)} for _ in range(r.randint(1, 3))],
    }  # fmt: skip


class Planted(NamedTuple):
    """A cause: what it makes of an order, the texts that explain it, and who has it by chance."""

    name: str
    truth: frozenset[str]
    spoil: Callable[[random.Random, Order], Any]
    by_chance: Callable[[Order], bool] = lambda o: False


def _version_region(r: random.Random, o: Order) -> None:
    o.update(app_version="2.1.4", region="eu-west")


def _three(r: random.Random, o: Order) -> None:
    o.update(channel="mobile", payment="pix")
    o["customer"].update(country="BR")


def _accented(r: random.Random, o: Order) -> None:
    o["customer"].update(name=f"{r.choice(NAMES)}{r.choice('äöüßéøñ')}{r.random()}")


def _spaced(r: random.Random, o: Order) -> None:
    o["customer"]["country"] += " " * r.randint(1, 9) + "\t" * r.randint(0, 9)


def _planted(
    name: str,
    spoil: Callable[[random.Random, Order], Any],
    *truth: str,
    by_chance: Callable[[Order], bool] = lambda o: False,
) -> Planted:
    return Planted(name, frozenset(truth), spoil, by_chance)


CAUSES = [
    _planted(
        "set", lambda r, o: o.update(currency=r.choice(["XAF", "XOF"])), "body.currency IN ('XAF', 'XOF')"
    ),
    _planted(
        "value", lambda r, o: o.update(app_version="2.3.1"), "body.app_version = '2.3.1'",
        by_chance=lambda o: o["app_version"] == "2.3.1",
    ),
    _planted(
        "two", _version_region, "body.app_version = '2.1.4' AND body.region = 'eu-west'",
        by_chance=lambda o: o["app_version"] == "2.1.4" and o["region"] == "eu-west",
    ),
    _planted("range", lambda r, o: o.update(amount=10000 + r.random() * 90000), "body.amount >= 10000"),
    _planted("type", lambda r, o: o.update(amount=str(o["amount"])), "TYPE(body.amount) = 'string'"),
    _planted(
        "missing", lambda r, o: o["customer"]["address"].pop("zip"), "NOT EXISTS(body.customer.address.zip)"
    ),
    _planted("empty", lambda r, o: o["customer"].update(email=""), "body.customer.email = ''"),
    _planted("array", lambda r, o: o.update(items=[]), "LENGTH(body.items) < 1"),
    _planted("accented", _accented, "IS_ASCII(body.customer.name) = FALSE"),
    _planted("negative", lambda r, o: o.update(quantity=-r.randint(0, 3)), "body.quantity < 1"),
    _planted(
        "three", _three, "body.channel = 'mobile' AND body.customer.country = 'BR' AND body.payment = 'pix'",
        by_chance=lambda o: (o["channel"], o["customer"]["country"], o["payment"]) == ("mobile", "BR", "pix"),
    ),
    _planted("null", lambda r, o: o.update(created=None), "body.created IS NULL"),
    _planted("spaces", _spaced, "TRIM(body.customer.country) <> body.customer.country"),
]  # fmt: skip


def features(value: Order) -> Features:
    body = json.dumps(value).encode()
    return features_of(MessageView(Headers(), size=len(body), body=lambda: body))


def good(r: random.Random, count: int) -> list[Order]:
    orders = (order(r, number) for number in itertools.count())
    return list(itertools.islice((o for o in orders if not any(c.by_chance(o) for c in CAUSES)), count))


def bad(r: random.Random, cause: Planted | None, count: int, foreign: float = 0.0) -> list[Order]:
    """Return orders that failed. `foreign`: the share of them that lack the cause."""
    made = good(r, count)
    for one in made:
        if cause is not None and r.random() >= foreign:
            cause.spoil(r, one)
    return made
