"""Progress where nobody watches: a line now and then, and none for what is quick."""

from __future__ import annotations

import pytest

from gatewise import progress


def test_lines_where_standard_error_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))  # type: ignore[attr-defined]
    with progress.progress_bar("counting", 5) as bar:
        for _ in range(5):
            bar.advance()
    said = capsys.readouterr().err.splitlines()
    assert said == ["counting: 2 of 5, 12 s", "counting: 4 of 5, 24 s"]
    with progress.progress_bar("silent", 5, show=False) as bar:
        for _ in range(5):
            bar.advance()
    assert capsys.readouterr().err == ""
