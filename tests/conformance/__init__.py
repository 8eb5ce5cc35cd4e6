"""The conformance suite: small programs, run plain and compiled, that must show the caller the same things."""
