"""The table of operators in the documentation, from the verdicts of a sweep. Must not run anything."""

from __future__ import annotations

from collections.abc import Sequence

from tests.end_to_end.operator_verdict import Verdict


def markdown(verdicts: Sequence[Verdict]) -> str:
    """The page."""
    return ""
