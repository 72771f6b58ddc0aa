"""Talks to the node's API about loaded models: `shoal ps`, `load`, `stop`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, cast

import typer

from bus.wire.ids import InstanceId
from bus.wire.instances import Instance
from bus.wire.kv import not_a_kind
from gateway.cli.command import Invocation
from gateway.cli.node.node_api import NodeApi
from gateway.cli.node.node_state import NodeState
from gateway.cli.output.amounts import size, span
from gateway.cli.output.errors import NOT_FOUND, REFUSED, CliError
from gateway.cli.output.terminal import Output
from gateway.cli.verbs.cluster.pool import copy_lines, wait_line

LOOK_S = 0.25
PLACED_AGAIN_S = 5.0
"""Seconds within which the leader places a refused model again. The leader searches for a placement
twice a second."""


ModelName = Annotated[str, typer.Argument(help="A model, as listed by `shoal ls`.")]
Context = Annotated[
    int | None, typer.Option("--context", min=1, help="Context length to plan for, in tokens.")
]
Kv = Annotated[
    str | None,
    typer.Option(
        "--kv",
        help="Format of the KV cache: `full`, `8bit`, `4bit`, or a window of the last tokens, "
        "such as `window:4096`; default: the format in the model's card.",
    ),
]
Another = Annotated[
    bool, typer.Option("--another", help="Load one more replica, even if the model is in memory.")
]
Wait = Annotated[
    float, typer.Option("--wait", min=0.0, help="Seconds to wait until the model is ready.")
]


@dataclass(frozen=True, slots=True)
class AcknowledgedPlacement:
    """A placement that the leader acknowledged: the instance, and the index of the placement in the
    cluster's log."""

    instance: str
    term: int = 0
    index: int = 0

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> AcknowledgedPlacement:
        """Return the placement in a node's answer."""
        return cls(str(answer["instance"]), answer.get("term", 0), answer.get("index", 0))


def ps(invocation: Invocation) -> None:
    """Show the models in memory and their status."""
    state = invocation.state()
    output = invocation.output
    pulls = [
        (reading.node, pull)
        for reading in state.pulls
        for pull in reading.pulls
        if pull.phase not in ("done", "failed")
    ]
    waits = [wait.model_dump(mode="json") for reading in state.pool for wait in reading.waits]
    output.document(
        {
            "instances": [_fields(state, instance) for instance in state.instances],
            "waits": waits,
            "pulls": [{"node": node, **pull.model_dump(mode="json")} for node, pull in pulls],
        }
    )
    rows = [_row(state, instance) for instance in state.instances]
    columns = (
        "model",
        "status",
        "instance",
        ">running",
        ">waiting",
        ">tokens/s",
        ">memory",
        "KV",
        "leaves",
    )
    output.table(columns, rows)
    for wait in waits:
        output.say(wait_line(wait))
    for copy in (copy for reading in state.pool for copy in reading.copies):
        for line in copy_lines(copy.model_dump(mode="json")):
            output.say(line)
    for instance in state.instances:
        if instance.status == "failed":
            output.say(f"{instance.model} failed: {instance.reason}")
        elif (remark := _kv_remark(state, instance)) is not None:
            output.say(remark)
        if instance.unmet:
            output.say(f"{instance.model} does not match the request: {instance.unmet}")
        for line in (*_rank_lines(state, instance), *_draft_lines(state, instance)):
            output.say(line)
    for node, pull in pulls:
        far = f"{100 * pull.done_bytes // pull.total_bytes} %" if pull.total_bytes else pull.phase
        output.say(f"{state.names.get(node, node)} pulls {pull.model}: {far}")
    if not rows:
        output.note("no model is loaded; use `shoal load MODEL` or `shoal run MODEL`")


def load(
    invocation: Invocation,
    model: ModelName,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the placement and the memory.")
    ] = False,
    context: Context = None,
    keep_alive_s: Annotated[
        float | None,
        typer.Option("--keep-alive", help="Idle seconds until the model is unloaded; -1: never."),
    ] = None,
    kv: Kv = None,
    another: Another = False,
    wait_s: Wait = 300.0,
) -> None:
    """Load a model into memory and wait until it is ready."""
    api, output = invocation.api(), invocation.output
    body = {"model": model, "dry_run": dry_run, "if_absent": not another}
    wishes = {"context_tokens": context, "keep_alive_s": keep_alive_s, "kv": kv_kind(kv)}
    answer = api.post("/place_instance", {**body, **wishes})
    if dry_run:
        output.document(answer)
        plan = cast(dict[str, Any], answer.get("plan") or {})
        output.table(("", ""), [(key, word) for key in plan if (word := _word(key, plan[key]))])
        return
    instance = wait_ready(api, AcknowledgedPlacement.of(answer), output, wait_s)
    output.document({"model": instance.model, "instance": instance.instance, "status": "ready"})
    output.say(f"{instance.model} is ready ({instance.instance})")


def stop(
    invocation: Invocation,
    model: Annotated[str, typer.Argument(help="A model in memory, or an instance's id.")],
    drain_s: Annotated[
        float,
        typer.Option("--drain", min=0.0, max=3600.0, help="Seconds for open requests to finish."),
    ] = 30.0,
) -> None:
    """Unload a model after its running requests have finished."""
    api, output = invocation.api(), invocation.output
    state = api.state()
    name = model.removesuffix(":latest")
    means = {name, state.resolve(name)}
    instances = [
        instance for instance in state.instances if means & {instance.model, str(instance.instance)}
    ]
    if not instances:
        there = ", ".join(sorted({instance.model for instance in state.instances})) or "none"
        text = f"{model!r} is not in memory"
        raise CliError(text, remedy=f"in memory: {there}", code=NOT_FOUND)
    for instance in instances:
        api.delete(f"/instance/{instance.instance}?drain_s={drain_s:g}")
    ids = {instance.instance for instance in instances}
    ends_at = time.monotonic() + drain_s + 30.0
    while ids & set(api.state().state.instances):
        if time.monotonic() > ends_at:
            raise CliError(f"{model} is not unloaded yet", remedy="see `shoal ps`", code=REFUSED)
        time.sleep(LOOK_S)
    output.document({"model": instances[0].model, "unloaded": sorted(ids)})
    output.say(f"unloaded {instances[0].model} ({', '.join(sorted(ids))})")


def wait_ready(
    api: NodeApi, placed: AcknowledgedPlacement, output: Output, wait_s: float
) -> Instance:
    """Wait until an instance is ready and show its progress. If a worker refuses the instance, wait
    for the model's next placement. Raises CliError if loading fails.

    The node that answers may not have read the log up to the acknowledged placement. Until then, an
    instance that is missing in the node's state has not failed.
    """
    from rich.progress import DownloadColumn, TimeRemainingColumn

    instance_id = placed.instance
    ends_at = time.monotonic() + wait_s
    patience_at: float | None = None
    model, older = "", frozenset[str]()
    with output.progress("loading", DownloadColumn(), TimeRemainingColumn()) as show:
        while True:
            state = api.state()
            instance = state.state.instances.get(instance_id)
            if instance is not None and not model:
                model, older = instance.model, frozenset(state.state.instances)
            is_behind = (state.state.term, state.state.index) < (placed.term, placed.index)
            if instance is None and is_behind and time.monotonic() <= ends_at:
                time.sleep(LOOK_S)
                continue
            if instance is None or instance.status == "failed":
                after = _replacement(state, model, older)
                if after is not None:
                    output.detail(f"{after.model} was placed again ({after.instance})")
                    instance_id, patience_at = after.instance, None
                    continue
                may_follow = instance is not None and instance.place_again is not None
                patience_at = patience_at or time.monotonic() + PLACED_AGAIN_S
                if not may_follow or time.monotonic() > patience_at:
                    raise _not_loaded(instance_id, instance)
                time.sleep(LOOK_S)
                continue
            if instance.status == "ready":
                return instance
            far = state.progress_of(instance)
            show(
                f"{instance.model} is {instance.status}",
                description=f"{instance.model} {far.phase}",
                completed=far.done_bytes,
                total=far.total_bytes or None,
            )
            if time.monotonic() > ends_at:
                text = f"{instance.model} is not ready after {wait_s:.0f} s"
                raise CliError(text, remedy="loading continues; see `shoal ps`", code=REFUSED)
            time.sleep(LOOK_S)


def _replacement(state: NodeState, model: str, older: frozenset[str]) -> Instance | None:
    """Return the live instance that replaced a refused one; None if there is none. `older` are the
    instances that existed before."""
    living = [instance for instance in state.instances if instance.status in ("placed", "ready")]
    return next((i for i in living if i.model == model and i.instance not in older), None)


def _not_loaded(instance_id: str, instance: Instance | None) -> CliError:
    if instance is None:
        text = f"{instance_id} was removed while it was loading"
        return CliError(text, remedy="see `shoal logs master`")
    text = f"{instance.model} could not be loaded: {instance.reason}"
    return CliError(text, remedy="see `shoal logs worker`")


def _row(state: NodeState, instance: Instance) -> tuple[Any, ...]:
    reading = state.reading_of(instance)
    if reading is None:
        leaves = _leaves(state, instance, 0.0)
        return (
            instance.model,
            _status(state, instance),
            instance.instance,
            *[""] * 4,
            instance.kv,
            leaves,
        )
    ranks = state.ranks_of(instance)
    speed, memory = (
        f"{reading.generation_tokens_per_s:.0f}",
        size(sum(rank.active_bytes for rank in ranks)),
    )
    if process_bytes := sum(rank.process_bytes for rank in ranks):
        memory = f"{memory} (process {size(process_bytes)})"
    figures = (reading.running, reading.waiting, speed, memory, reading.kv or instance.kv)
    leaves = (
        "when idle" if instance.quantizes else _leaves(state, instance, reading.last_used_ago_s)
    )
    return (instance.model, _status(state, instance), instance.instance, *figures, leaves)


def _rank_lines(state: NodeState, instance: Instance) -> list[str]:
    """Return the memory of each rank of a group, and the number of answers cut for lack of
    memory."""
    ranks = state.ranks_of(instance)
    lines = [
        f"{instance.model} rank {rank.rank} on {state.names.get(rank.node, rank.node)}: "
        f"{size(rank.active_bytes)} of {size(rank.limit_bytes)}, peak {size(rank.peak_bytes)}"
        f"{f'; its process {size(rank.process_bytes)}' if rank.process_bytes else ''}"
        for rank in ranks
        if len(instance.shards) > 1
    ]
    ended = sum(rank.memory_ends for rank in ranks)
    if ended:
        lines.append(f"{instance.model}: answers cut for lack of memory: {ended}")
    return lines


def _draft_lines(state: NodeState, instance: Instance) -> list[str]:
    """Return how many of the tokens of each drafter the model has accepted since its load."""
    reading = state.reading_of(instance)
    counts = {} if reading is None else reading.drafters
    return [
        f"{instance.model}: {accepted} of {tokens} drafted tokens accepted "
        f"({100 * accepted / tokens:.0f} %, {drafter})"
        for drafter, (_, tokens, accepted) in counts.items()
        if tokens
    ]


def kv_kind(word: str | None) -> str | None:
    """Return the value of `--kv`. Raises CliError if it is not a valid KV format."""
    if word is not None and (wrong := not_a_kind(word)) is not None:
        raise CliError(f"--kv {word!r}", remedy=wrong, code=2)
    return word


def _kv_remark(state: NodeState, instance: Instance) -> str | None:
    """Return a remark if the instance's KV cache has more bits than requested; None otherwise."""
    reading, card = state.reading_of(instance), state.models.get(instance.model)
    if instance.kv != "full" and reading is not None and reading.kv == "full":
        text = f"{instance.model} keeps its KV cache in full precision, not as {instance.kv}"
        return f"{text}: its layers have no KV cache of that kind"
    if card is None or not card.kv_full_because:
        return None
    notes = (note for _, note in state.passed_over if note.taken and note.name == instance.model)
    return next(
        (f"{instance.model}: {note.why}" for note in notes if card.kv_full_because in note.why),
        None,
    )


def _status(state: NodeState, instance: Instance) -> str:
    if instance.yields_to and instance.status == "ready":
        return f"evicted for {instance.yields_to}"
    if instance.instance in _replicas(state) and instance.status == "ready":
        return "replica"
    far = state.progress_of(instance)
    if instance.quantizes is not None and instance.status == "ready":
        reading = state.reading_of(instance)
        done, total = (reading.done_bytes, reading.total_bytes) if reading else (0, 0)
        return f"quantized from {instance.quantizes.source}, {100 * done // max(1, total)} %"
    if far.phase != "fetching":
        return instance.status
    return f"fetching {100 * far.done_bytes // max(1, far.total_bytes)} %"


def _replicas(state: NodeState) -> set[InstanceId]:
    """Return the instances that the leader lists as replicas."""
    return {copy.instance for reading in state.pool for copy in reading.copies if copy.replica}


def _leaves(state: NodeState, instance: Instance, idle_s: float) -> str:
    if instance.instance in _replicas(state):
        return "when it is loaded"
    pin = state.state.pins.get(instance.model)
    if pin is not None or instance.pinned:
        return f"pinned by {pin.by}" if pin is not None and pin.by else "pinned"
    return (
        "never"
        if instance.keep_alive_s < 0
        else f"in {span(max(0.0, instance.keep_alive_s - idle_s))}"
    )


def _fields(state: NodeState, instance: Instance) -> dict[str, Any]:
    reading = state.reading_of(instance)
    values = None if reading is None else reading.model_dump(mode="json")
    ranks = [rank.model_dump(mode="json") for rank in state.ranks_of(instance)]
    return {**instance.model_dump(mode="json"), "reading": values, "ranks": ranks}


def _word(key: str, value: Any) -> str:
    """Return a value of a plan as text; empty for None. Objects in lists are left out: `place
    --dry-run` shows them as tables, and `--json` in full."""
    if key.endswith("_bytes") and isinstance(value, int | float):
        return size(value)
    if isinstance(value, list):
        return ", ".join(item for item in cast(list[object], value) if isinstance(item, str))
    return "" if value is None else str(value)
