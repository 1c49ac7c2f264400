"""One small investigation for all tests of the report."""

from __future__ import annotations

import pytest

import gatewise as gw
from gatewise.report.investigation import Investigation, investigate


@pytest.fixture(scope="session")
def found() -> Investigation:
    model = gw.load_model("tiny")
    return investigate(model, gw.task("ioi", model, examples=8), edges=64, random_circuits=1)
