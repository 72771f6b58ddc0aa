"""Every route of the gateway, once: what answers it, and its line in the reference.

Pure but for the resources that it is given. A test holds that no route lacks its line and no
line its route.
"""

from __future__ import annotations

from typing import Any

from falcon.asgi import App

from gateway.dialects import sse
from gateway.dialects.ollama.bodies import OllamaChatBody, OllamaGenerateBody, OllamaShowBody
from gateway.dialects.ollama.dialect import OllamaChat, OllamaGenerate
from gateway.dialects.ollama.render import CONTENT_TYPE as NDJSON
from gateway.dialects.openai.bodies import ChatCompletionsBody, CompletionsBody
from gateway.dialects.openai.chat import OpenAIChat
from gateway.dialects.openai.completions import OpenAICompletions
from gateway.http.openapi import GENERATION_ERRORS, Route
from gateway.http.resources import (
    cluster,
    collectives,
    diagnostics,
    instances,
    models,
    nodes,
    pages,
)
from gateway.http.resources.exchange import GenerateResource
from gateway.service import ServiceHandle

PLAIN = "text/plain"
OPENAI = "OpenAI API"
OLLAMA = "Ollama API"
CLUSTER = "Cluster"
ITSELF = "This server"

_GENERATE = (
    Route(
        "POST",
        "/v1/chat/completions",
        "A chat completion, whole or streamed",
        OPENAI,
        body=ChatCompletionsBody,
        streams=sse.CONTENT_TYPE,
        errors=GENERATION_ERRORS,
    ),
    Route(
        "POST",
        "/v1/completions",
        "A text completion, whole or streamed",
        OPENAI,
        body=CompletionsBody,
        streams=sse.CONTENT_TYPE,
        errors=GENERATION_ERRORS,
    ),
)
_OLLAMA = (
    Route(
        "POST",
        "/api/chat",
        "A chat turn, streamed unless told otherwise",
        OLLAMA,
        body=OllamaChatBody,
        streams=NDJSON,
        errors=GENERATION_ERRORS,
        envelope="ollama",
    ),
    Route(
        "POST",
        "/api/generate",
        "A completion; without a prompt: load or unload",
        OLLAMA,
        body=OllamaGenerateBody,
        streams=NDJSON,
        errors=GENERATION_ERRORS,
        envelope="ollama",
    ),
    Route("GET", "/api/tags", "Models on disk", OLLAMA, errors=(401,), envelope="ollama"),
    Route(
        "POST",
        "/api/show",
        "One model in detail",
        OLLAMA,
        body=OllamaShowBody,
        errors=(400, 401, 404),
        envelope="ollama",
    ),
    Route("GET", "/api/ps", "Models that are loaded", OLLAMA, errors=(401,), envelope="ollama"),
    Route("GET", "/api/version", "Version of the API", OLLAMA, errors=(401,), envelope="ollama"),
)
_REST = (
    Route("GET", "/v1/models", "Models that are here", OPENAI, errors=(401,)),
    Route("GET", "/v1/models/{name:path}", "One model", OPENAI, errors=(401, 404)),
    Route("POST", "/v1/cancel/{request_id}", "Stop a request", CLUSTER, errors=(401, 404, 504)),
    Route("DELETE", "/v1/cancel/{request_id}", "Stop a request", CLUSTER, errors=(401, 404, 504)),
    Route(
        "POST",
        "/place_instance",
        "Load a copy of a model",
        CLUSTER,
        body=instances.PlaceBody,
        errors=(400, 401, 404, 409, 503, 507),
    ),
    Route(
        "GET",
        "/instance/placement",
        "What placing ?model= would do",
        CLUSTER,
        errors=(400, 401, 404, 503, 507),
    ),
    Route(
        "GET",
        "/instance/previews",
        "Every way to place ?model=, with bytes and speed, or why not",
        CLUSTER,
        errors=(400, 401, 404, 503, 507),
    ),
    Route("GET", "/instance/{instance}", "One instance", CLUSTER, errors=(401, 404)),
    Route(
        "DELETE",
        "/instance/{instance}",
        "Drain for ?drain_s=, then unload",
        CLUSTER,
        errors=(401, 404, 503),
    ),
    Route(
        "POST",
        "/rdma-test",
        "Test the collectives between nodes; answers at once with the test's id",
        CLUSTER,
        body=collectives.CollectiveTestBody,
        errors=(400, 401, 404, 409, 503, 507),
    ),
    Route(
        "GET",
        "/rdma-test/{instance}",
        "How far a collective test is, and what it has found",
        CLUSTER,
        errors=(401, 404),
    ),
    Route(
        "POST",
        "/node/{node}/{act}",
        "Rename, drain, undrain, forget or remember a node",
        CLUSTER,
        body=nodes.NodeBody,
        errors=(400, 401, 404, 409, 503),
    ),
    Route("GET", "/state", "State, readings, health of nodes", CLUSTER, errors=(401,)),
    Route("GET", "/queue", "What runs and what waits", CLUSTER, errors=(401,)),
    Route("GET", "/health", "How this process is", ITSELF),
    Route("GET", "/livez", "It lives", ITSELF, answers=PLAIN),
    Route("GET", "/readyz", "It takes requests", ITSELF, answers=PLAIN, errors=(503,)),
    Route("GET", "/metrics", "Prometheus metrics", ITSELF, answers=PLAIN, errors=(401,)),
    Route("GET", "/", "Who is here", ITSELF, answers=PLAIN),
    Route("HEAD", "/", "Who is here", ITSELF, answers=PLAIN),
    Route("GET", "/openapi.json", "This reference, for programs", ITSELF, errors=(401,)),
    Route("GET", "/docs", "This reference, for people", ITSELF, answers="text/html", errors=(401,)),
)
_DIAGNOSTICS = (
    Route("GET", diagnostics.ROOT, "Runtime, processes, runners, warnings", ITSELF, errors=(401,)),
    *(
        Route(
            "GET",
            f"{diagnostics.ROOT}/processes/{name}/stacks",
            "What each thread of a process is at (?format=text)",
            ITSELF,
            errors=(400, 401, 404, 409, 429, 503, 504),
        )
        for name in ("{name}", "{name}/{part}")
    ),
    *(
        Route(
            "POST",
            f"{diagnostics.ROOT}/processes/{name}/profile",
            "Sample a process: speedscope JSON or a flame graph",
            ITSELF,
            body=diagnostics.ProfileOrder,
            errors=(400, 401, 404, 409, 413, 429, 501, 503),
        )
        for name in ("{name}", "{name}/{part}")
    ),
)
ROUTES: tuple[Route, ...] = (*_GENERATE, *_OLLAMA, *_REST, *_DIAGNOSTICS)
"""What the reference tells of. Ollama's routes also answer under `/ollama`."""


def add_routes(app: App[Any, Any], handle: ServiceHandle) -> None:
    """Give the application everything that it answers."""
    listings = models.Listings(handle)
    version = handle.options.version
    ollama: dict[str, object] = {
        "/api/chat": GenerateResource(handle, OllamaChat()),
        "/api/generate": GenerateResource(handle, OllamaGenerate()),
        "/api/tags": models.OllamaTags(listings),
        "/api/show": models.OllamaShow(listings),
        "/api/ps": models.OllamaPs(listings),
        "/api/version": models.OllamaVersion(),
    }
    resources: dict[str, object] = {
        "/v1/chat/completions": GenerateResource(handle, OpenAIChat()),
        "/v1/completions": GenerateResource(handle, OpenAICompletions()),
        "/v1/models": models.OpenAIModels(listings),
        "/v1/models/{name:path}": models.OpenAIModel(listings),
        "/v1/cancel/{request_id}": cluster.CancelResource(handle),
        "/place_instance": instances.PlaceInstance(handle),
        "/instance/placement": instances.PlacementPlan(handle),
        "/instance/previews": instances.PlacementPreviews(handle),
        "/instance/{instance}": instances.InstanceResource(handle),
        "/rdma-test": collectives.CollectiveTests(handle),
        "/rdma-test/{instance}": collectives.CollectiveTestResource(handle),
        "/node/{node}/{act}": nodes.NodeResource(handle),
        "/state": cluster.StateResource(handle),
        "/queue": cluster.QueueResource(handle),
        "/health": cluster.HealthResource(handle),
        "/livez": cluster.LiveResource(),
        "/readyz": cluster.ReadyResource(handle),
        "/metrics": cluster.MetricsResource(handle),
        "/": pages.Root(handle),
        "/openapi.json": pages.OpenApi(ROUTES, version),
        "/docs": pages.Docs(ROUTES, version),
        **diagnostics.resources(handle),
        **ollama,
        **{f"/ollama{path}": resource for path, resource in ollama.items()},
        "/ollama": pages.Root(handle),
    }
    for path, resource in resources.items():
        app.add_route(path, resource)
