"""A small GPT trained on the text of Python's standard library, compiled and beside eager."""
