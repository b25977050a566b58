"""The examples of the service host, as one runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRINTED = {
    "purchase_orders": """\
booked: po-1 for Contoso, 1,619.46
booked: po-2 for Fabrikam, 40,575.10
booked: po-5 for Contoso, 45.59
to look at: po-3: MaxDeliveryCountExceeded
to look at: po-4: InvalidMessage
told: po-1 accepted, po-2 accepted, po-3 refused, po-4 refused, po-5 accepted
""",
    "inventory": """\
at noon: A-1 380, B-7 37
  for the operator: message 3: expected the number of a part, got 'X-9'
  for the operator: message 5: expected the number of a part, got 'B7'
  for the operator: message 7: expected the number of a part, got 'X-9'
  alert: large withdrawal of A-1
in the evening: A-1 380, B-7 47, X-9 20
  alerts: 1
""",
    "expense_dialogs": """\
in the books: Ana 78.50
set aside: reason 500, sqlite3.IntegrityError, message 1
Ben is told: error (500, 'Unable to process message.')
conversations left: 0
""",
    "order_saga": """\
Ana orders a lamp
  shipment: lamp reserved
  payment: Ana pays 49.90
  customer: order/Confirmed
Ben orders a sofa
  shipment: sofa reserved
  payment: Ben has too little
  shipment: cancelled
  customer: refused, (402, 'not enough money')
conversations left: 0
""",
    "expense_reports": """\
6 attempts at 3 reports
in the books: Ana 78.50
answered: report-2: {"error":500,"description":"Unable to process message."}
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_is_to_show(name: str) -> None:
    words = [sys.executable, "-m", f"examples.{name}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    # What fails on purpose is logged there, by Python's default.
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED[name]
