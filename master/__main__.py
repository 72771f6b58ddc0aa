"""The master process: a candidate of this node, `python -P -m master`."""

from __future__ import annotations

import sys

from bus.service import Shell, run_service
from bus.wire.ids import ModelId, NodeId
from conf.paths import make_folders
from conf.settings import Settings, load_settings
from master.consensus import CandidateSettings
from master.decisions import Policy
from master.placement import RunnerSizing
from master.pool import PoolSettings
from master.service import Master, MasterSettings


def master_settings(settings: Settings) -> MasterSettings:
    """Return the settings that the master needs."""
    policy = Policy(
        keep_alive_s=settings.keep_alive_s,
        keep_alive_by_kind=dict.fromkeys(
            ("embedding", "reranker"), settings.keep_alive.embedding_s
        ),
        preload=tuple(ModelId(model) for model in settings.preload),
        sizing=RunnerSizing(
            max_rows=settings.runner.max_rows,
            prefix_cache_bytes=settings.runner.prefix_cache_bytes,
        ),
        pool=PoolSettings(
            turn_s=settings.pool.turn_s,
            turn_loads=settings.pool.turn_loads,
            ageing_per_s=settings.pool.ageing_per_s,
            replicas=settings.pool.replicas,
            replica_rows=settings.pool.replica_rows,
            replica_after_s=settings.pool.replica_after_s,
            replica_gone_s=settings.pool.replica_gone_s,
        ),
    )
    state = settings.paths.state
    port, listen = settings.port_of("candidate"), settings.cluster.listen
    candidate = CandidateSettings(
        journal=settings.paths.journal,
        term_file=state / "term",
        priority=settings.master_priority,
        voters=tuple(NodeId(voter) for voter in settings.voters),
        expects_others=bool(settings.cluster.peers),
        addresses=tuple(f"tcp://{host}:{port}" for host in settings.announced_hosts()),
    )
    return MasterSettings(
        candidate=candidate,
        policy=policy,
        settle_grace_s=settings.settle_grace_s,
        listen=(f"tcp://{listen}:{port}",) if listen else (),
    )


def main() -> int:
    """Run until a signal ends the process."""
    settings = load_settings()
    make_folders(settings.paths)

    def build(shell: Shell) -> Master:
        """Return the master service, with the process's settings and paths."""
        client = shell.client(follow=False)
        return Master(client, shell.reactor, shell.log, master_settings(settings))

    return run_service("master", build=build, **settings.process_arguments())


if __name__ == "__main__":
    sys.exit(main())
