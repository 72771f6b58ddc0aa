"""Talks to MLX: samples tokens, applies grammars, guesses drafts, and keeps the results of steps
that are not read yet.

All arrays belong to the engine's thread. Only these operations wait for the device: `result_of`,
reading the last token of a row with a grammar, and reading guesses.
"""

from runner.mlx.sampling.batch_sampler import BatchSampler, Drawn, RowDraw
from runner.mlx.sampling.draft_model import DraftModel
from runner.mlx.sampling.drafted import advance
from runner.mlx.sampling.grammar_mask import GrammarMasks
from runner.mlx.sampling.pending_step import DrawnRows, PendingStep, Proposals, result_of
from runner.mlx.sampling.prompt_scoring import ScoredChunk, ScoredRows, score_chunks
from runner.mlx.sampling.proposer import (
    HiddenProposer,
    Proposer,
    greedy_draw,
    guess_sampler,
    peak_memory,
    read_guesses,
)
from runner.mlx.sampling.row import AdmittedRows, EngineRow
from runner.mlx.sampling.token_source import ReceivingSource, RowDraft, SamplingSource, TokenSource

__all__ = [
    "AdmittedRows",
    "BatchSampler",
    "DraftModel",
    "Drawn",
    "DrawnRows",
    "EngineRow",
    "GrammarMasks",
    "HiddenProposer",
    "PendingStep",
    "Proposals",
    "Proposer",
    "ReceivingSource",
    "RowDraft",
    "RowDraw",
    "SamplingSource",
    "ScoredChunk",
    "ScoredRows",
    "TokenSource",
    "advance",
    "greedy_draw",
    "guess_sampler",
    "peak_memory",
    "read_guesses",
    "result_of",
    "score_chunks",
]
