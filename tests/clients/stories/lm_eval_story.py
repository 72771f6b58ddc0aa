"""lm-eval's calls by `local-completions`: tasks of ours, a local tokenizer, nothing of elsewhere.

The items (`items.jsonl`) and the tokenizer's folder (`tokenizer`) lie in the working directory;
what lm-eval made of each item is left beside them, to be compared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.tasks import TaskManager
from telling import At, tell, told

TASKS = Path(__file__).parent / "lm_eval_tasks"


def evaluate(at: At, task: str) -> dict[str, Any]:
    """Return what lm-eval finds in a task, four items a request and two requests at once."""
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": at.model, "base_url": f"{at.url}/v1/completions", "tokenizer": "tokenizer",
            "tokenizer_backend": "huggingface", "num_concurrent": 2, "max_retries": 1,
            "max_length": 2048,
        },
        batch_size=4, tasks=[task], task_manager=TaskManager(include_path=str(TASKS)),
        bootstrap_iters=0,
    )  # fmt: skip
    assert found is not None
    return found


@told("loglikelihood")
def scores(at: At) -> None:
    """Leave each choice's log-likelihood, whether greedy says the same, and the accuracy."""
    found = evaluate(at, "what_follows")
    choices = [
        {"doc": sample["doc_id"], "context": pair[0], "text": pair[1], "said": said}
        for sample in found["samples"]["what_follows"]
        for pair, said in zip(_arguments(sample), sample["filtered_resps"], strict=True)
    ]
    accuracy = found["results"]["what_follows"]["acc,none"]
    Path("likelihoods.json").write_text(json.dumps({"accuracy": accuracy, "choices": choices}))


@told("generate_until")
def generates(at: At) -> None:
    """Leave what was made of each text."""
    samples = evaluate(at, "go_on")["samples"]["go_on"]
    made = [{"doc": each["doc_id"], "text": each["filtered_resps"][0]} for each in samples]
    Path("generations.json").write_text(json.dumps(made))


def _arguments(sample: dict[str, Any]) -> list[Any]:
    """Return (context, continuation) of each choice, which lm-eval keeps as a list or by names."""
    kept = sample["arguments"]
    if isinstance(kept, dict):
        return [(each["arg_0"], each["arg_1"]) for each in kept.values()]
    return [tuple(each) for each in kept]


if __name__ == "__main__":
    tell("lm-eval", "lm-eval")
