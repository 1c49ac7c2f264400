"""One small report for all tests of the report."""

from __future__ import annotations

import pytest

import gatewise as gw
from gatewise.report import Report, make_report


@pytest.fixture(scope="session")
def found() -> Report:
    model = gw.load_model("tiny")
    return make_report(model, gw.task("ioi", model, examples=8), edges=64, random_circuits=1)
