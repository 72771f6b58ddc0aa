"""Talks to the operating system: starts this node's gateway (`python -P -m gateway`)."""

from __future__ import annotations

import sys

from bus.process.identity import TOKEN_FILE, http_token, node_id
from bus.process.installation import running_code
from bus.process.logs import Log, death_note, log_strays
from bus.service import (
    EXIT_FAILED,
    EXIT_ROLE_TAKEN,
    AlreadyRunning,
    forbid_core_dumps,
    role_lock,
)
from bus.wire.errors import ShoalError
from conf.changing import SettingsTold
from conf.paths import COUNTERS
from conf.sections import masked
from conf.settings import Settings, hash_key, load_settings
from gateway.control.pulling import names_of
from gateway.fetching import policies_of
from gateway.http.server import serve
from gateway.view.options import Options


def options_of(settings: Settings) -> Options:
    owner_key = hash_key(http_token(settings.paths.state))
    return Options(
        node=node_id(settings.paths.state),
        node_name=settings.node_name,
        endpoints=settings.endpoints,
        metrics_folder=str(settings.paths.runtime / COUNTERS),
        host=settings.http_host,
        port=settings.http_port,
        has_port=settings.api,
        processes=settings.http_processes,
        request_timeout_s=settings.request_timeout_s,
        resume=settings.resume,
        strict_fields=settings.strict_fields,
        load_timeout_s=settings.runner.load_deadline_s,
        keys=(*settings.api_keys, *((owner_key,) if settings.http_owner_only else ())),
        owner_key=owner_key,
        anyone_pulls=settings.http_anyone_pulls,
        names=settings.http_names,
        origins=settings.cors_origins,
        trusted_proxies=settings.trusted_proxies,
        dashboard=settings.dashboard,
        log_level=settings.log_level,
        levels=settings.levels,
        settings=SettingsTold(settings),
        cluster_keys=settings.key_files,
        models_folder=str(settings.paths.models),
        records_file=str(settings.paths.records),
        tasks_file=str(settings.paths.tasks_file),
        clients_file=str(settings.paths.clients_file),
        keep_alive_most_s={
            "text": settings.keep_alive.client_text_s,
            "embedding": settings.keep_alive.client_embedding_s,
            "reranker": settings.keep_alive.client_embedding_s,
        },
        logs_folder=str(settings.paths.logs),
        history_file=str(settings.paths.history),
        request_rows=settings.records.request_rows,
        request_bytes=settings.records.request_bytes,
        request_days=settings.records.request_days,
        trace_sample=settings.records.trace_sample,
        trace_rows=settings.records.trace_rows,
        trace_bytes=settings.records.trace_bytes,
        trace_days=settings.records.trace_days,
        otlp_endpoint=settings.otlp.endpoint,
        otlp_headers=settings.otlp.named_headers,
        tls=settings.tls,
        fetch_enabled=settings.fetch.enabled,
        fetch_allow=settings.fetch.allow,
        fetch_bytes=settings.fetch.largest_bytes,
        fetch_s=settings.fetch.whole_s,
        fetch_redirects=settings.fetch.redirects,
        fetch_types=settings.fetch.types,
        pull_names=names_of(settings.pull_names),
        pull_on_demand=() if settings.offline else settings.pull_on_demand,
        search=settings.tools.search,
        search_url=settings.tools.search_url,
        answer_rows=settings.records.answer_rows,
        answer_bytes=settings.records.answer_bytes,
        answer_days=settings.records.answer_days,
        jobs_running=settings.jobs.running,
        jobs_per_client=settings.jobs.per_client,
        job_rows=settings.jobs.rows,
        job_bytes=settings.jobs.bytes,
        job_ttl_s=settings.jobs.ttl_s,
        version=running_code().partition("/")[0],
        settings_shown={
            key: {"value": masked(key, value), "source": source}
            for key, value, source in settings.rows()
        },
        secret_files=_secret_files(settings),
    )


def _secret_files(settings: Settings) -> tuple[str, ...]:
    """Return the paths of the files with keys and tokens. The files may not exist."""
    paths, tls = settings.paths, settings.tls
    files = (settings.cluster_key, paths.machine_key, paths.state / TOKEN_FILE)
    return (*map(str, files), *(() if tls is None else (tls.key,)))


def main() -> int:
    """Serve until a signal stops the gateway; return an exit code of `bus.service`."""
    log = Log(node="", process="gateway")
    log_strays(log)
    forbid_core_dumps()
    try:
        settings = load_settings()
        options = options_of(settings)
        log = Log(node=options.node, process="gateway", level=options.log_level)
        log_strays(log, death_note(options.endpoints.folder, "gateway"))
        if settings.trouble:
            log.warning(settings.trouble)
        policies_of(options)  # rejects an invalid allow list before the gateway serves
        with role_lock(options.endpoints, "gateway") as role:
            serve(options, role)
    except AlreadyRunning as error:
        log.error(str(error))
        return EXIT_ROLE_TAKEN
    except ShoalError as error:
        log.critical(str(error))
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
