"""No secret that a client or an operator gives stands in any file, process, figure, trace, log or
capture of two nodes, but where the table says so and why.

The prompts go from one node's gateway to the other's runner. Everything is logged (`debug`);
runners are killed, made to crash and to raise what was said to them; then each file of both homes,
their runtime folders and temporary folders is searched, and all that the nodes tell. The
environment of processes is the operator's own, and is not.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import resource
import signal
import socket
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from conf.paths import find_paths
from tests.harness import quoting_faults
from tests.harness.clusters import Cluster
from tests.harness.embedding_folders import write_encoder
from tests.harness.hub import Faults, HubServer
from tests.harness.nodes import MODEL, Node, eventually, kill
from tests.harness.planted import Planted, headers, raw_requests, refused, taken
from tests.harness.providers import Provider, provider
from tests.harness.pulling import REPOSITORY, tiny
from tests.harness.secret_search import Found, SecretSearch
from tests.processes.conftest import PROVING

pytestmark = [pytest.mark.nodes, pytest.mark.slow, pytest.mark.timeout(1200)]

ROUNDS = 3 if PROVING else 1
LEVELS = ("debug", "info") if PROVING else ("debug",)
EMBEDDER = "encoder"
TASKS = """
[providers.cloud]
kind = "openai"
base_url = "{url}/v1"
key_env = "PLANTED_PROVIDER_KEY"
"""
RECORDS = "records.sqlite"


@dataclass(frozen=True)
class Exemption:
    """Secrets that stand somewhere by a user's order: whose places' names have the word `planted`,
    where `stands` says; and why."""

    planted: str
    stands: Callable[[str], bool]
    why: str


def _in_records(place: str) -> bool:
    return f"/state/{RECORDS}" in place


def _in_the_log(place: str) -> bool:
    return "/state/journal" in place or place.partition(" (")[0] in ("GET /events", "GET /state")


def _of_requests(place: str) -> bool:
    told = ("GET /requests/recent", "GET /requests/stats", "shoal requests")
    return _in_records(place) or place.partition(" (")[0] in told


EXEMPTIONS = (
    Exemption("kept:", _in_records, "answers, conversations and jobs that a client has kept"),
    Exemption(
        "the name of a model",
        _of_requests,
        "which model was asked for, whether there is one or not",
    ),
    Exemption("derived:", _in_the_log, "what a derived model is made of is the cluster's"),
)
"""All of them, as docs/operations/security.md lists them."""
VIEWS = (
    "/state", "/events", "/queue", "/pool", "/clients", "/leases", "/tasks", "/settings",
    "/apikeys", "/health", "/metrics", "/metrics/snapshot", "/metrics/history", "/memory",
    "/requests/recent", "/requests/stats", "/v1/traces", "/v1/traces/cluster", "/v1/traces/stats",
    "/v1/diagnostics/node", "/v1/diagnostics/cluster", "/v1/models", "/api/tags", "/api/ps",
    "/store/registry", "/store/storage", "/",
)  # fmt: skip
"""What a node tells of itself."""
VERBS = (
    ("status", "--json"), ("doctor", "--json"), ("requests",), ("pool",), ("clients",), ("ps",),
    ("config", "show"), ("trace", "ls"), ("monitor", "--once", "--json"), ("logs", "-n", "200"),
)  # fmt: skip


class Site:
    """Two nodes, the hub and the provider that they ask, and what was planted."""

    def __init__(self, folder: Path, level: str, hub: HubServer, cloud: Provider) -> None:
        self.planted, self.hub, self.cloud, self.folder = Planted(), hub, cloud, folder
        at = self.planted.at
        self.key = f"sk-{at('an API key in the environment')}"
        (folder / "faults").mkdir(parents=True)
        self.cluster = Cluster(
            2,
            None,
            SHOAL_LOG_LEVEL=level,
            SHOAL_API_KEYS=self.key,
            SHOAL_API_KEY=self.key,
            SHOAL_FETCH__ENABLED="true",
            SHOAL_FETCH__ALLOW="example.org",
            PLANTED_PROVIDER_KEY=f"sk-{at('a key of a provider')}",
            HF_ENDPOINT=hub.url,
            HF_TOKEN=f"hf_{at('a token of a hub')}",
            OTEL_EXPORTER_OTLP_HEADERS=f"authorization=Bearer {at('a header of OTLP')}",
            PLANTED_ANYTHING=at("the environment"),
            **quoting_faults.variables(folder / "faults"),
        )
        for number, node in enumerate(self.cluster.nodes):
            own = folder / f"user-{number}"
            (own / "tmp").mkdir(parents=True)
            node.env |= {
                "SHOAL_HTTP_PROCESSES": "2",
                "TMPDIR": str(own / "tmp"),
                "HOME": str(own),
                "HF_HOME": str(own / "hf"),
                "SHOAL_NODE_NAME": f"box{number}",
            }
            node.headers = {"Authorization": f"Bearer {self.key}"}
            node.http.headers.update(node.headers)
            paths = find_paths(node.home)
            paths.models.mkdir(parents=True)
            write_encoder(paths.models / EMBEDDER)
            paths.tasks_file.parent.mkdir(parents=True, exist_ok=True)
            paths.tasks_file.write_text(TASKS.format(url=cloud.url))

    @property
    def here(self) -> Node:
        """The node that is asked."""
        return self.cluster.nodes[0]

    @property
    def there(self) -> Node:
        """The node that answers."""
        return self.cluster.nodes[1]

    def folders(self) -> Iterator[Path]:
        """All that the nodes may write to, and where what crashes leaves its memory."""
        yield self.folder
        for node in self.cluster.nodes:
            paths = find_paths(node.home)
            yield from (node.home, paths.runtime, paths.kernels, paths.measured, paths.preloads)
        yield Path("/dev/shm")

    def search(self) -> SecretSearch:
        """The search for all that was planted so far."""
        return SecretSearch(self.planted.by_place)

    def files(self) -> set[Found]:
        """What stands in any file."""
        search = self.search()
        found = {one for each in self.folders() for one in search.in_folder(each, _is_anothers)}
        assert search.looked_at > 60, "hardly any files were found"
        return found


def _is_anothers(path: Path) -> bool:
    """Whether a path is another user's, as some in /dev/shm are."""
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_uid != os.getuid()
    return True


@pytest.fixture(scope="module", params=LEVELS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    hub = HubServer({REPOSITORY: tiny()})
    # a user who has core dumps on: what starts from here inherits it
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    with provider() as cloud:
        made = Site(tmp_path_factory.mktemp("site"), request.param, hub, cloud)
        try:
            made.cluster.up()
            made.cluster.place(excluded_nodes=[made.here.node_id()])
            yield made
        finally:
            made.cluster.close()
            hub.close()
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


# --- what is done with secrets ------------------------------------------------------------------


@pytest.mark.proof
def test_what_is_taken_is_answered(site: Site) -> None:
    """Each dialect's requests are answered with what they have the model say."""
    for number in range(ROUNDS):
        for asked in taken(site.planted, f"taken {number}", EMBEDDER):
            extra = headers(site.planted, f"with what is taken {number}")
            answer = site.here.http.post(asked.path, json=asked.body, headers=extra, timeout=120)
            assert answer.status_code == 200, (asked.path, answer.text)
            for secret in asked.says:
                assert SecretSearch({"said": secret}).in_bytes(answer.content, asked.path), (
                    asked.path,
                    answer.text[-500:],
                )


def test_what_is_wrong_is_refused(site: Site) -> None:
    planted = site.planted
    for number, node in itertools.product(range(ROUNDS), site.cluster.nodes):
        way = f"refused {number} at {node.env['SHOAL_NODE_NAME']}"
        extra = headers(planted, way)
        for method, path, how in refused(planted, way):
            answer = node.http.request(method, path, headers=extra, timeout=60, **how)
            assert answer.status_code >= 400, (method, path, how, answer.text)
        for name in ("Authorization", "x-api-key", "api-key"):
            wrong = {name: f"Bearer sk-{planted.at(f'{way}: a wrong key in {name}')}"}
            assert httpx.get(f"{node.url}/state", headers=wrong).status_code == 401
        query = {"key": planted.at(f"{way}: a key in a query"), "api_key": site.key}
        assert httpx.get(f"{node.url}/v1/models", params=query).status_code == 401
        for head in raw_requests(planted, way, f"127.0.0.1:{node.base_port}"):
            with socket.create_connection(("127.0.0.1", node.base_port), 30) as link:
                link.settimeout(30)
                with contextlib.suppress(OSError):
                    link.sendall(head)
                    while link.recv(65536):
                        pass


def test_errors_that_quote_a_request_are_told_without_it(site: Site) -> None:
    def chat(fault: str, **more: Any) -> httpx.Response:
        secret = site.planted.at(f"fault {fault} {more}")
        return site.here.chat(f"{fault} {secret}", **more)

    assert chat(quoting_faults.IN_PARSING).status_code == 500
    assert chat(quoting_faults.IN_PREPARING).status_code == 400
    assert "internal" in chat(quoting_faults.IN_A_STREAM, stream=True, max_tokens=5).text
    chat(quoting_faults.IN_A_RUNNER, stream=True, max_tokens=5)
    told = {
        "a request failed": site.here,
        "a thread was stopped by an uncaught error": site.here,
        "error in a task that nothing waits for": site.here,
        "a stream failed": site.here,
        "stopped by an internal error": site.there,
    }
    for message, node in told.items():
        eventually(
            lambda message=message, node=node: _stories(node, message),
            60,
            f"{message} stands in a log, with where it came from",
        )
    _serves_again(site)


def test_runners_that_are_killed_and_that_crash_leave_nothing(site: Site) -> None:
    for number in (signal.SIGKILL, signal.SIGSEGV):
        secret = site.planted.at(f"the prompt of a runner that ends by {number.name}")
        stream = site.here.stream(
            secret, max_tokens=2000, ignore_eos=True, x_resume=False
        ).flowing()
        name, pid = site.there.runner()
        assert psutil.Process(pid).rlimit(psutil.RLIMIT_CORE)[0] == 0, name
        kill(pid, number)
        stream.wait(120)
        _serves_again(site)
    dumped = [one for folder in site.folders() for one in folder.rglob("core*")]
    assert dumped == []


def test_hubs_and_providers_are_told_keys_and_nothing_else_is(site: Site) -> None:
    planted, node = site.planted, site.here
    eventually(lambda: "cloud" in node.http.get("/tasks").text, 30, "the provider is known")
    for model in ("says", "unknown-key", "dies", "broken", "picky"):
        for stream in (False, True):
            secret = planted.at(f"a provider's {model}, {stream}")
            node.chat(secret, model=f"cloud:{model}", stream=stream)
    assert site.cloud.heard[-1].headers["authorization"].endswith(planted.at("a key of a provider"))
    signed = f"{site.hub.url}/signed?X-Amz-Signature={planted.at('a signature of a hub')}"
    for faults in (
        Faults(needs_token="another"),
        Faults(redirect=signed, needs_token=node.env["HF_TOKEN"]),
        Faults(needs_token=node.env["HF_TOKEN"], status=403, code="GatedRepo"),
    ):
        site.hub.faults = faults
        answer = node.http.post("/models/pull", json={"model": REPOSITORY}, timeout=60)
        assert answer.status_code >= 400 or "error" in answer.text, answer.text
    node.http.get("/models/search", params={"query": planted.at("a search at a hub")}, timeout=60)


def test_what_clients_have_kept_goes_when_they_say_so(site: Site) -> None:
    http = site.here.http
    for way in ("kept", "gone"):
        for path in list(_kept(site, way)):
            eventually(lambda path=path: http.get(path).status_code == 200, 30, f"{path} is kept")
            if way == "gone":
                assert http.delete(path, timeout=60).status_code == 200
    system = site.planted.at("derived: the system's words")
    made = {"model": "brief", "from": MODEL, "stream": False, "system": system}
    assert http.post("/api/create", json=made).json() == {"status": "success"}
    key = http.post("/apikeys", json={"name": "alice"}).json()["key"]
    site.planted.by_place["an API key that was made"] = key.removeprefix("sk-shoal-")


def _kept(site: Site, way: str) -> Iterator[str]:
    """Have things kept; the path of each."""
    at, http = site.planted.at, site.here.http
    response = {"model": MODEL, "input": at(f"{way}: response"), "max_output_tokens": 20}
    yield f"/v1/responses/{http.post('/v1/responses', json=response).json()['id']}"
    turns = [{"role": "user", "content": at(f"{way}: chat")}]
    chat = {"model": MODEL, "messages": turns, "max_tokens": 5, "store": True}
    yield f"/v1/chat/completions/{http.post('/v1/chat/completions', json=chat).json()['id']}"
    item = {"role": "user", "content": at(f"{way}: item")}
    made = http.post("/v1/conversations", json={"items": [item]}).json()["id"]
    yield f"/v1/conversations/{made}"
    turns = [{"role": "user", "content": at(f"{way}: job")}]
    job = {"model": MODEL, "messages": turns, "max_tokens": 5}
    order = {"path": "/v1/chat/completions", "body": job}
    path = f"/v1/jobs/{http.post('/v1/jobs', json=order).json()['id']}"
    eventually(lambda: http.get(path).json().get("status") == "done", 60, "the job is done")
    yield path


# --- where they are looked for ------------------------------------------------------------------


@pytest.mark.proof
def test_what_nodes_tell_has_none(site: Site) -> None:
    """While a request runs whose prompt is one, too."""
    secret = site.planted.at("the prompt of a request under way")
    streams = [site.here.stream(secret, max_tokens=3000, ignore_eos=True) for _ in range(2)]
    for stream in streams:
        stream.flowing()
    search = site.search()
    found: set[Found] = set()
    for node in site.cluster.nodes:
        for place, content in _views(node):
            found |= search.in_bytes(content, place)
        found |= search.in_processes(node.all_processes())
        answer = node.http.post("/v1/diagnostics/capture", json={}, timeout=300)
        found |= search.in_bytes(answer.content, "capture")
        with tarfile.open(fileobj=io.BytesIO(answer.content), mode="r:gz") as tar:
            assert len([one for one in tar.getnames() if "/logs/" in one]) >= 6
    for words in VERBS:
        done = site.here.shoal(*words)
        assert done.returncode == 0 or words[0] == "doctor", done.stderr
        found |= search.in_bytes((done.stdout + done.stderr).encode(), f"shoal {' '.join(words)}")
    for stream in streams:
        stream.wait(300)
    left = _not_allowed(found)
    assert left == [], left


def test_no_file_has_one_but_what_a_user_has_kept(site: Site) -> None:
    running = site.files()
    left = _not_allowed(running, but="gone")
    assert left == [], left
    for one in EXEMPTIONS:
        assert any(one.planted in found.secret for found in running), one
    assert _open_to_others(site) == []
    for node in site.cluster.nodes:
        assert node.down().returncode == 0
    assert _not_allowed(site.files()) == [], "what was deleted is overwritten"


def _open_to_others(site: Site) -> list[Path]:
    """The files and folders that nodes made and others may read."""
    found: list[Path] = []
    for node in site.cluster.nodes:
        paths = find_paths(node.home)
        for folder in (paths.state, paths.runtime):
            made = [folder, *folder.rglob("*")]
            found += [one for one in made if not one.is_symlink() and _mode(one) & 0o077]
    return found


def _mode(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    return 0


def _not_allowed(found: Iterable[Found], but: str = "\0") -> list[Found]:
    """What no exception excuses, and whose place's name does not begin with `but`."""
    return sorted(
        one
        for one in found
        if not one.secret.startswith(but)
        and not any(each.planted in one.secret and each.stands(one.place) for each in EXEMPTIONS)
    )


def _views(node: Node) -> Iterator[tuple[str, bytes]]:
    """All that a node tells: of itself, its traces, its processes."""
    for path in VIEWS:
        answer = node.http.get(path, timeout=60)
        assert answer.status_code == 200, (path, answer.text)
        yield f"GET {path}", answer.content
    for trace in node.http.get("/v1/traces").json()["traces"]:
        for path in (f"/v1/traces/{trace['request']}", f"/v1/traces/{trace['request']}/raw"):
            yield f"GET {path}", node.http.get(path, timeout=60).content
    processes = [*node.processes(), "gateway/1", "gateway/2"]
    for name in processes:
        path = f"/v1/diagnostics/node/processes/{name}"
        if PROVING or name.startswith(("gateway/", "runner")):  # a capture has them all
            yield f"GET {path}/stacks", node.http.get(f"{path}/stacks", timeout=120).content
        if "/" not in name:
            yield f"GET {path}/log", node.http.get(f"{path}/log?lines=1000", timeout=60).content
    path = "/v1/diagnostics/node/processes/gateway/profile"
    yield f"POST {path}", node.http.post(path, json={"seconds": 1}, timeout=120).content


def _stories(node: Node, message: str) -> bool:
    """Whether an error stands in a node's logs with the code that it passed."""
    logs = find_paths(node.home).logs
    lines = [
        json.loads(line)
        for path in logs.glob("*.log")
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith("{") and message in line
    ]
    return any("quoting_faults" in str(line.get("error")) for line in lines)


def _serves_again(site: Site) -> None:
    """Wait until the model answers, on the other node, after a runner's end."""
    site.cluster.place(excluded_nodes=[site.here.node_id()], if_absent=True)
    eventually(
        lambda: site.here.chat("hello", max_tokens=2).status_code == 200, 120, "it answers again"
    )
