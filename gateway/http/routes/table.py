"""Talks to falcon: every route of the gateway in one table.

A row is a method of a path: what answers there and its line in the reference. The rows of the
APIs come from their own tables (`gateway.dialects.registry`). HEAD is answered wherever GET is.
"""

from __future__ import annotations

from functools import partial

from gateway.cluster.watch import EventTold, MemoryAnswer, SnapshotAnswer
from gateway.dialects.openai.answers import BenchAnswer
from gateway.dialects.openai.bodies import ChatCompletionsBody
from gateway.dialects.openai.chat import OpenAIBench
from gateway.dialects.registry import APIS, envelope_of
from gateway.dialects.sse import LAST
from gateway.http import diagnostics, page, tasks
from gateway.http.collectives import CollectiveAnswer
from gateway.http.openapi import GENERATION_ERRORS, Route
from gateway.http.resources import (
    access,
    cluster,
    collectives,
    figures,
    instances,
    jobs,
    nodes,
    pages,
    pool,
    pulls,
    quantizing,
    requests,
)
from gateway.http.resources.deletions import CustomModel, DeletedAnswer
from gateway.http.resources.tools import ExtractPage, OpenUrl, WebSearch
from gateway.http.routes.api_rows import PULLS, rows_of
from gateway.http.settings import SettingsAnswer, SettingsBody, SettingsOfAll, SettingsResource
from gateway.records import JobTold
from gateway.service import ServiceHandle

PLAIN = "text/plain"
SSE = "text/event-stream"
GZIP = "application/gzip"
NDJSON = "application/x-ndjson"
CLUSTER, ITSELF, JOBS, TOOLS = "Cluster", "This server", "Jobs", "Tools"
PROCESSES = f"{diagnostics.ROOT}/processes"
PEER = "/v1/diagnostics/cluster/{node}"
LOOKED_INTO = ((diagnostics.ROOT, ITSELF), (PEER, CLUSTER))
CONFIG = "/api/v1/config"
PLACES = (400, 401, 404, 409, 503, 507)
ASKS = (400, 401, 404, 503, 507)
FETCHES = (400, 401, 403, 429, 502, 504)
SEARCHES = (400, 401, 409, 429, 500, 502, 504)
SYNCS = (400, 401, 404, 409, 429, 500, 503, 507)
VERIFIES = (400, 401, 404, 429, 500, 504)
STACKS = (400, 401, 404, 409, 429, 503, 504)
PROFILES = (400, 401, 404, 409, 413, 429, 501, 503, 504)
OF_TRACES = (401, 404, 503, 504)
CANCELS = (400, 401, 404, 409, 413, 503, 504)


def _docs(handle: ServiceHandle) -> pages.Made:
    make = partial(pages.docs, ROUTES, handle.options.version)
    return pages.Made(make, "text/html; charset=utf-8")


def _openapi(handle: ServiceHandle) -> pages.Made:
    return pages.MadeForServer(partial(pages.openapi, ROUTES, handle.options.version))


# fmt: off
ROUTES: tuple[Route, ...] = (
    *(row for api in APIS for row in rows_of(api)),
    Route("POST", "/bench/chat/completions", "A chat completion, and how fast it was", CLUSTER,
          partial(figures.BenchResource, dialect=OpenAIBench()), body=ChatCompletionsBody,
          answer=BenchAnswer, errors=GENERATION_ERRORS, scope="inference", counts=True),
    Route("POST", "/v1/cancel/{request_id}", "Stop a request", CLUSTER,
          cluster.CancelResource, answer=cluster.CancelAnswer, errors=(401, 404, 504)),
    Route("DELETE", "/v1/cancel/{request_id}", "Stop a request", CLUSTER,
          cluster.CancelResource, answer=cluster.CancelAnswer, errors=(401, 404, 504)),
    Route("POST", "/v1/jobs", "Submit a request that runs without its client", JOBS,
          jobs.JobList, body=jobs.JobBody, answer=JobTold, status=202,
          errors=(400, 401, 404, 413, 429, 503), scope="inference"),
    Route("GET", "/v1/jobs",
          "The client's jobs, the latest first (?limit=, ?after=; ?all=true: everybody's)", JOBS,
          jobs.JobList, answer=jobs.JobsAnswer, errors=(400, 401, 403, 404, 503),
          scope="inference"),
    Route("GET", "/v1/jobs/{job}", "A job, and its result when it has ended", JOBS,
          jobs.JobResource, answer=jobs.JobAnswer, errors=(400, 401, 403, 404, 503),
          scope="inference"),
    Route("DELETE", "/v1/jobs/{job}", "Remove a job that has ended, and its result", JOBS,
          jobs.JobResource, answer=jobs.RemovedJob, errors=(400, 401, 403, 404, 409, 503),
          scope="inference"),
    Route("GET", "/v1/jobs/{job}/events",
          "What a job says, as it comes, and at its end the job (?starting_after=)", JOBS,
          jobs.JobEvents, answers="", streams=SSE, ends_with=LAST,
          errors=(400, 401, 403, 404, 429, 503), scope="inference"),
    Route("POST", "/v1/jobs/{job}/cancel", "Stop a job", JOBS,
          jobs.JobCancel, answer=jobs.JobAnswer, errors=(400, 401, 403, 404, 409, 503),
          scope="inference"),
    Route("POST", "/place_instance", "Load a copy of a model", CLUSTER,
          instances.PlaceInstance, body=instances.PlaceBody, answer=instances.PlacedAnswer,
          errors=PLACES),
    Route("POST", "/instance", "Load a copy of a model on nodes that are named, by hand", CLUSTER,
          instances.NewInstance, body=instances.InstanceBody, answer=instances.PlacedAnswer,
          errors=PLACES),
    Route("GET", "/instance/placement", "What placing ?model= would do", CLUSTER,
          instances.PlacementPlan, answer=instances.PlacedAnswer, errors=ASKS),
    Route("GET", "/instance/previews",
          "Every way to place ?model=, with bytes and speed, or why not", CLUSTER,
          instances.PlacementPreviews, errors=ASKS),
    Route("GET", "/pool",
          "What waits and why, copies, pins, leases, the last hour's loads",
          CLUSTER, pool.PoolResource, answer=pool.PoolAnswer, errors=(401,)),
    Route("POST", "/pin", "Keep a model in memory, loaded where it is not", CLUSTER,
          partial(pool.PinResource, pinned=True), body=pool.PinBody, answer=pool.PinAnswer,
          errors=PLACES),
    Route("POST", "/unpin", "Let a pinned model leave memory again", CLUSTER,
          partial(pool.PinResource, pinned=False), body=pool.PinBody, answer=pool.PinAnswer,
          errors=(400, 401, 404, 409, 503)),
    Route("GET", "/tasks", "The tasks and providers of this node's tasks.toml, and what is loaded",
          CLUSTER, tasks.TaskList, answer=tasks.TasksAnswer, errors=(401, 503)),
    Route("GET", CONFIG, "What is set while the cluster runs", CLUSTER,
          tasks.ConfigResource, answer=tasks.ConfigAnswer, errors=(401, 503),
          envelope=envelope_of(CONFIG)),
    Route("PUT", CONFIG, "Set it, on all nodes: {\"allowCloudFallback\": false}", CLUSTER,
          tasks.ConfigResource, body=tasks.ConfigBody, answer=tasks.ConfigAnswer,
          errors=(400, 401, 503), envelope=envelope_of(CONFIG)),
    Route("GET", "/settings",
          "The node's settings: in force, from where, what runs (?nodes=all: where others differ)",
          ITSELF, SettingsResource, answer=SettingsAnswer, errors=(400, 401, 503)),
    Route("PUT", "/settings", "Change the node's shoal.toml (?nodes=all: every node's)", ITSELF,
          SettingsResource, body=SettingsBody, answer=SettingsAnswer,
          errors=(400, 401, 403, 503, 507)),
    Route("GET", "/config", "The settings of all nodes: as /settings?nodes=all", CLUSTER,
          SettingsOfAll, answer=SettingsAnswer, errors=(401, 503)),
    Route("PUT", "/config", "Change the shoal.toml of every node: as /settings?nodes=all", CLUSTER,
          SettingsOfAll, body=SettingsBody, answer=SettingsAnswer,
          errors=(400, 401, 403, 503, 507)),
    Route("GET", "/clients",
          "Clients of this node: what each has asked for, whether it rests, and its profile",
          CLUSTER, pool.ClientList, answer=pool.ClientsAnswer, errors=(401,)),
    Route("GET", "/leases", "Memory that is kept for other things than models", CLUSTER,
          pool.LeaseList, answer=pool.LeasesAnswer, errors=(401,)),
    Route("POST", "/leases", "Keep memory of a node for something else; models make way for it",
          CLUSTER, pool.LeaseList, body=pool.LeaseBody, answer=pool.LeaseAnswer, errors=PLACES),
    Route("POST", "/leases/{lease}/renew", "Say that a lease is still needed", CLUSTER,
          pool.LeaseRenewal, body=pool.RenewalBody, answer=pool.LeaseAnswer,
          errors=(400, 401, 404, 503)),
    Route("POST", "/leases/{lease}/ask-back", "Ask who has a lease to give it back", CLUSTER,
          pool.LeaseAsking, answer=pool.LeaseAnswer, errors=(401, 404, 503)),
    Route("DELETE", "/leases/{lease}", "Let a lease's memory be others' again", CLUSTER,
          pool.LeaseResource, answer=pool.LeaseLetGo, errors=(401, 404, 503)),
    Route("GET", "/instance/{instance}", "One instance", CLUSTER,
          instances.InstanceResource, answer=instances.InstanceAnswer, errors=(401, 404)),
    Route("DELETE", "/instance/{instance}", "Drain for ?drain_s=, then unload", CLUSTER,
          instances.InstanceResource, answer=instances.CommandDone,
          errors=(400, 401, 404, 409, 503)),
    Route("POST", "/rdma-test",
          "Test the collectives between nodes; answers at once with the test's id", CLUSTER,
          collectives.CollectiveTests, body=collectives.CollectiveTestBody,
          answer=instances.CommandDone, errors=PLACES),
    Route("GET", "/rdma-test/{instance}",
          "How far a collective test is, and what it has found", CLUSTER,
          collectives.CollectiveTestResource, answer=CollectiveAnswer, errors=(401, 404)),
    Route("GET", "/store/health", "Whether there is room for models on each node", CLUSTER,
          pulls.StoreHealth, answer=pulls.StoreHealthAnswer, errors=(401,)),
    Route("GET", "/store/registry", "Each model on any node's disk, and where it lies", CLUSTER,
          pulls.StoreRegistry, answer=pulls.RegistryAnswer, errors=(401, 503)),
    Route("GET", "/store/models/{name:path}", "Where a model lies, and its files on this node",
          CLUSTER, pulls.ModelInStore, answer=pulls.ModelInStoreAnswer, errors=(401, 404, 503)),
    Route("POST", "/store/models/{name:path}",
          "Have a node get a model: from a node that has it, else from the hub", CLUSTER,
          pulls.ModelInStore, body=pulls.DownloadBody, streams=NDJSON,
          answer=pulls.PullEvent, event=pulls.PullEvent, errors=PULLS),
    Route("DELETE", "/store/models/{name:path}", "Delete a model from the disks of all nodes",
          CLUSTER, pulls.ModelInStore, answer=DeletedAnswer, errors=(401, 403, 404, 409)),
    Route("GET", "/store/storage",
          "What lies on the disks of all nodes: bytes by kind, limits, what would go next",
          CLUSTER, pulls.StorageResource, answer=pulls.StorageAnswer, errors=(401,)),
    Route("POST", "/store/purge-staging",
          "Delete what a node fetched itself and can have again; or tell what would go", CLUSTER,
          pulls.PurgeStaging, body=pulls.PurgeBody, answer=pulls.PurgeAnswer,
          errors=(400, 401, 403, 404, 503, 504)),
    Route("POST", "/node/{node}/{act}", "Rename, drain, undrain, forget or remember a node",
          CLUSTER, nodes.NodeResource, body=nodes.NodeBody, answer=nodes.NodeAnswer,
          errors=(400, 401, 404, 409, 503)),
    Route("POST", "/models/pull",
          "Pull a model from a hub to a node; copied where another node has it", CLUSTER,
          pulls.PullModel, body=pulls.PullBody, streams=NDJSON,
          answer=pulls.PullAnswer, event=pulls.PullEvent, errors=PULLS),
    Route("POST", "/models/add",
          "Have the cluster know a model of a hub: pull it, as /models/pull does", CLUSTER,
          pulls.AddModel, body=pulls.AddBody, streams=NDJSON,
          answer=pulls.PullEvent, event=pulls.PullEvent, errors=PULLS),
    Route("DELETE", "/models/custom/{name:path}",
          "Forget a model that was made of another; delete any other from all nodes", CLUSTER,
          CustomModel, answer=DeletedAnswer, errors=(401, 403, 404, 409)),
    Route("POST", "/models/sync",
          "Have a node, or all, copy models from nodes that have them", CLUSTER,
          pulls.SyncModels, body=pulls.SyncBody, streams=NDJSON,
          answer=pulls.SyncEnd, event=pulls.SyncLine, errors=SYNCS),
    Route("GET", "/models/search",
          "Models of the hub that run here, by words (?query=, ?author=, ?limit=)", CLUSTER,
          pulls.SearchModels, answer=pulls.SearchAnswer, errors=SEARCHES),
    Route("GET", "/models/card/{name:path}",
          "What a model's card says on each node, and the settings that come of it", CLUSTER,
          pulls.ModelCardResource, errors=(401, 404, 503)),
    Route("PUT", "/models/card/{name:path}",
          "Write a model's card on all nodes that have it, in TOML or JSON; in force at once",
          CLUSTER, pulls.ModelCardResource, body=pulls.CardBody,
          errors=(400, 401, 403, 404, 409, 412, 413, 503)),
    Route("DELETE", "/models/card/{name:path}", "Take a model's card away from all nodes",
          CLUSTER, pulls.ModelCardResource, errors=(401, 403, 404, 409, 412, 503)),
    Route("POST", "/models/verify",
          "Read a model on a node's disk, and hold it against the hashes that it came with",
          CLUSTER, pulls.VerifyModel, body=pulls.VerifyBody, streams=NDJSON,
          answer=pulls.VerifyEvent, event=pulls.VerifyEvent, errors=VERIFIES),
    Route("POST", "/models/quantize",
          "Make a model of another in fewer bits; answers at once with the instance that makes it",
          CLUSTER, quantizing.QuantizeModels, body=quantizing.QuantizeBody,
          answer=quantizing.QuantizeAnswer, errors=PLACES),
    Route("GET", "/apikeys", "The cluster's API keys, and what they were used for", CLUSTER,
          access.KeyList, answer=access.KeysAnswer, errors=(401, 503)),
    Route("POST", "/apikeys", "Make an API key; the answer alone has it", CLUSTER,
          access.KeyList, body=access.NewKeyBody, answer=access.NewKey,
          errors=(400, 401, 409, 503)),
    Route("DELETE", "/apikeys/{key}", "Take an API key no longer, by its id or name", CLUSTER,
          access.KeyResource, answer=access.RemovedKey, errors=(401, 404, 503)),
    Route("POST", "/apikeys/{key}/rotate", "Give an API key another secret", CLUSTER,
          access.KeyRotation, body=access.RotationBody, answer=access.RotatedKey,
          errors=(400, 401, 404, 503)),
    Route("GET", "/state", "State, readings, health of nodes", CLUSTER,
          cluster.StateResource, answer=cluster.StateAnswer, errors=(401,)),
    Route("GET", "/node_id", "The id of the node that is asked", ITSELF, cluster.NodeIdentity,
          answer=str, errors=(401,), scope="inference"),
    Route("POST", "/admin/restart",
          "Have services of a node begin anew, a moment after the answer (?node_id=, ?process=)",
          CLUSTER, diagnostics.Restart, errors=(400, 401, 404, 503, 504)),
    Route("GET", "/events",
          "The log's last events, or as they happen (?limit=, ?after=, ?stream=true)", CLUSTER,
          figures.LogEvents, answer=figures.EventsAnswer, streams=SSE, event=EventTold,
          errors=(400, 401, 429)),
    Route("GET", "/queue", "What runs and what waits", CLUSTER,
          cluster.QueueResource, answer=cluster.QueueAnswer, errors=(401,)),
    Route("GET", "/requests/recent",
          "The requests that ended last (?limit=, ?model=, ?client=, ?errors_only=, ?since=)",
          CLUSTER, requests.RecentRequests, answer=requests.RecentAnswer, errors=(400, 401, 503)),
    Route("GET", "/requests/stats",
          "What the requests of the last ?window_s= took, by model and client", CLUSTER,
          requests.RequestStats, answer=requests.StatsAnswer, errors=(400, 401, 503)),
    Route("GET", "/v1/tracing", "Which share of requests is traced unasked", CLUSTER,
          figures.Tracing, answer=figures.TracingAnswer, errors=(401,)),
    Route("PUT", "/v1/tracing", "Trace each request, none, or a share, on every node", CLUSTER,
          figures.Tracing, body=figures.TracingBody, answer=figures.TracingSetAnswer,
          errors=(400, 401, 503)),
    Route("GET", "/v1/traces", "The traces that this node keeps (?limit=, ?model=)", CLUSTER,
          figures.TraceList, answer=figures.TracesAnswer, errors=(400, 401, 503)),
    Route("GET", "/v1/traces/cluster", "The same of every node (?limit=, ?model=)", CLUSTER,
          figures.ClusterTraces, answer=figures.ClusterTracesAnswer, errors=(400, 401, 503)),
    Route("GET", "/v1/traces/stats",
          "How long the parts of traced requests took (?window_s=, ?model=)", CLUSTER,
          figures.TraceStats, answer=figures.TraceStatsAnswer, errors=(400, 401, 503)),
    Route("POST", "/v1/traces/delete", "Remove some traces", CLUSTER,
          figures.TraceRemoval, body=figures.TracesRemovedBody,
          answer=figures.TracesRemovedAnswer, errors=(400, 401, 503, 504)),
    # whichever node has a trace, it is had of that one, under either name
    *(row for one in ("/v1/traces/{request}", "/v1/traces/cluster/{request}") for row in (
        Route("GET", one, "A trace as Chrome's trace events, for Perfetto",
              CLUSTER, figures.TraceResource, answer=figures.ChromeTrace, errors=OF_TRACES),
        Route("DELETE", one, "Remove a trace", CLUSTER,
              figures.TraceResource, answer=figures.TraceRemovedAnswer, errors=OF_TRACES),
        Route("GET", f"{one}/raw", "A trace as it is kept", CLUSTER,
              figures.RawTrace, errors=OF_TRACES),
        Route("GET", f"{one}/stats", "How long the parts of a trace took", CLUSTER,
              figures.TraceTimes, answer=figures.TraceTimesAnswer, errors=OF_TRACES),
    )),
    Route("POST", "/v1/tools/open_url", "The text of the page at a URL", TOOLS, OpenUrl,
          body=OpenUrl.body, answer=OpenUrl.answer, errors=FETCHES, scope="inference"),
    Route("POST", "/v1/tools/extract_page", "The main text and the links of a page", TOOLS,
          ExtractPage, body=ExtractPage.body, answer=ExtractPage.answer, errors=FETCHES,
          scope="inference"),
    Route("POST", "/v1/tools/web_search", "Pages that a search engine finds", TOOLS,
          WebSearch, body=WebSearch.body, answer=WebSearch.answer,
          errors=(400, 401, 403, 429, 502, 504), scope="inference"),
    Route("GET", "/health", "How this process is", ITSELF, cluster.HealthResource,
          answer=cluster.HealthAnswer, scope="inference"),
    Route("GET", "/livez", "It lives", ITSELF, cluster.LiveResource,
          answers=PLAIN, scope="inference"),
    Route("GET", "/readyz", "It takes requests", ITSELF,
          cluster.ReadyResource, answers=PLAIN, errors=(503,), scope="inference"),
    Route("GET", "/metrics", "Prometheus metrics", ITSELF,
          cluster.MetricsResource, answers=PLAIN, errors=(401,), keyless="anyone"),
    Route("GET", "/metrics/snapshot", "What the cluster does now", ITSELF,
          figures.MetricsSnapshot, answer=SnapshotAnswer, errors=(401,)),
    Route("GET", "/metrics/stream", "The same once a second, each an event `snapshot`", ITSELF,
          figures.MetricsStream, answers="", streams=SSE, event=SnapshotAnswer, errors=(401, 429)),
    Route("GET", "/metrics/history", "The last hour's figures, a point each ten seconds", ITSELF,
          figures.MetricsHistory, answer=figures.HistoryAnswer, errors=(401, 503)),
    Route("GET", "/memory", "What memory is promised and taken, by node and rank", ITSELF,
          figures.Memory, answer=MemoryAnswer, errors=(401,)),
    Route("GET", "/memory/live", "The same once a second, each an event `memory`", ITSELF,
          figures.LiveMemory, answers="", streams=SSE, event=MemoryAnswer, errors=(401, 429)),
    Route("GET", "/", "Who is here; for browsers the page", ITSELF, page.Front, answers=PLAIN,
          scope="inference"),
    Route("GET", "/dashboard", "The page that shows the cluster", ITSELF, page.Dashboard,
          answers="text/html", errors=(404,), scope="inference"),
    Route("GET", "/dashboard/{name}", "A file of the page", ITSELF, page.DashboardFile,
          answers="text/html", errors=(404,), scope="inference"),
    Route("GET", "/openapi.json", "This reference, for programs", ITSELF,
          _openapi, errors=(401,), scope="inference"),
    Route("GET", "/docs", "This reference, for people", ITSELF,
          _docs, answers="text/html", errors=(401,), scope="inference"),
    Route("GET", diagnostics.ROOT, "Runtime, processes, runners, warnings", ITSELF,
          diagnostics.NodeDiagnostics, errors=(401,)),
    Route("GET", "/v1/diagnostics/cluster", "The same of every node (?node=)", CLUSTER,
          diagnostics.ClusterDiagnostics, errors=(400, 401)),
    Route("GET", "/v1/diagnostics/cluster/timeline",
          "What runners did last, merged by time; the rank that the others wait for "
          "(?model=, ?instance=, ?node=, ?entries=)", CLUSTER,
          diagnostics.ClusterTimeline, errors=(400, 401)),
    Route("GET", PEER, "What /v1/diagnostics/node tells, of another node", CLUSTER,
          diagnostics.PeerDiagnostics, errors=(401, 404, 503, 504)),
    Route("POST", "/v1/diagnostics/capture",
          "Stacks, flight recorders, memory, logs, versions, settings of every node: a tar.gz",
          CLUSTER, diagnostics.ClusterCapture, body=diagnostics.CaptureBody, answers=GZIP,
          errors=(400, 401, 413)),
    *(Route("POST", f"{root}/capture", "The capture of one node: a tar.gz", group,
            diagnostics.CaptureOfNode, answers=GZIP, errors=(401, 404))
      for root, group in LOOKED_INTO),
    # one of several processes under a name is `gateway/1`
    *(Route("GET", f"{root}/processes/{name}/stacks",
            "What each thread of a process is at (?format=text)", group,
            diagnostics.ProcessStacks, errors=STACKS)
      for root, group in LOOKED_INTO for name in ("{name}", "{name}/{part}")),
    Route("GET", f"{PROCESSES}/{{name}}/log", "The last lines of a process's log (?lines=)",
          ITSELF, diagnostics.ProcessLog, errors=(400, 401, 404)),
    *(Route("POST", f"{root}/processes/{name}/profile",
            "Sample a process: speedscope JSON or a flame graph", group,
            diagnostics.ProcessProfile, body=diagnostics.ProfileOrder, errors=PROFILES)
      for root, group in LOOKED_INTO for name in ("{name}", "{name}/{part}")),
    *(Route("POST", f"{root}/runners/{{name}}/cancel",
            "Have a runner end a request, though its gateway be gone", group,
            diagnostics.RunnerCancel, body=diagnostics.RowCancelBody, errors=CANCELS)
      for root, group in LOOKED_INTO),
)
# fmt: on
