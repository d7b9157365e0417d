"""The routes of a scoring server, and what is asked at the one that is ours alone. Importable without torch."""

from dataclasses import dataclass

COMPLETIONS, TOKENIZE = "/v1/completions", "/tokenize"
"""vLLM's."""
SCORES = "/score_tokens"


@dataclass(slots=True, frozen=True)
class ScoreTokens:
    """In msgpack; the reply is a list of log-probabilities for each row."""

    rows: list[list[int]]
    begins: list[int]
    """The first token of each row whose log-probability is wanted: at least 1."""
