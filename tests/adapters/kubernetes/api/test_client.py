"""How the cluster is found, and requests to slow servers, large answers and other servers."""

import asyncio
import gc
import os
import ssl
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from kubernetes_asyncio.client import Configuration
from structlog.testing import capture_logs

from autoscaler.adapters.kubernetes.api.client import MANAGER_LIMIT, ApiError, Kube, field_manager, object_path
from autoscaler.config.settings import KubeSettings
from autoscaler.ports import Unavailable
from tests.harness.certificates import Certificates
from tests.harness.kube_api import KubeApi
from tests.harness.process import PATIENCE_S, eventually, free_port


@asynccontextmanager
async def serving(answer, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def fails(answer, timeout_s: float = PATIENCE_S) -> ApiError:
    async with serving(answer) as url, Kube.using(Configuration(host=url), timeout_s) as kube:
        with pytest.raises(ApiError) as caught:
            await kube.request("GET", "/version")
        return caught.value


async def test_request_ends_at_the_time_out_without_an_answer():
    async def silent(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    error = await fails(silent, timeout_s=0.2)
    assert error.status == 0
    assert str(error) == "GET /version: no answer: nothing within 0.2 s"


async def test_error_names_a_closed_port():
    async with Kube.using(Configuration(host=f"http://127.0.0.1:{free_port()}"), PATIENCE_S) as kube:
        with pytest.raises(ApiError, match="no answer: ClientConnectorError"):
            await kube.request("GET", "/version")


async def test_html_of_a_proxy_is_an_error():
    async def proxy(request: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")

    error = await fails(proxy)
    assert (error.status, error.message) == (502, "Bad Gateway")


async def test_invalid_retry_after_counts_as_absent():
    async def busy(request: web.Request) -> web.Response:
        return web.json_response({"message": "slow\ndown"}, status=429, headers={"Retry-After": "7"})

    async def nonsense(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "-1e9"})

    error = await fails(busy)
    assert (error.status, error.retry_after_s, error.message) == (429, 7.0, "slow down")
    assert (await fails(nonsense)).retry_after_s is None


async def test_endless_answer_is_cut_off():
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * (4 << 20))

    assert "larger than" in (await fails(endless, timeout_s=30)).message


async def test_oversized_error_answer_is_still_an_error():
    async def verbose(request: web.Request) -> web.Response:
        return web.Response(status=403, text="x" * (1 << 20))

    error = await fails(verbose)
    assert (error.status, error.message) == (403, "Forbidden")


async def test_proxy_is_used_only_outside_the_cluster(monkeypatch: pytest.MonkeyPatch):
    """In the cluster a proxy for downloads must not be used for the API server."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")

    async def fine(request: web.Request) -> web.Response:
        return web.json_response({})

    async with serving(fine) as url:
        async with Kube.using(Configuration(host=url), 2.0) as kube:
            assert await kube.request("GET", "/version") == b"{}"
        async with Kube.using(Configuration(host=url), 2.0, proxies=True) as kube:
            with pytest.raises(ApiError, match="no answer"):
                await kube.request("GET", "/version")


def test_names_are_quoted_in_paths():
    path = object_path("/apis/apps/v1", "ns", "deployments", "../../secrets?x=1", "scale")
    assert path == "/apis/apps/v1/namespaces/ns/deployments/..%2F..%2Fsecrets%3Fx%3D1/scale"


async def test_error_names_the_places_without_a_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(Unavailable, match=r"no cluster: the kubeconfig .*/missing cannot be used"):
        async with Kube.connect(KubeSettings()):
            pass


ENTRIES = "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
CLUSTER = "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
SECURE = CLUSTER.replace("http:", "https:")
TRUSTING = SECURE.replace("}}]", ", certificate-authority-data: eA==}}]")  # an "x" is no certificate


@pytest.mark.parametrize(
    "text",
    [
        ": : [",
        "- a",
        "just text",
        "clusters: 3",
        f"{ENTRIES}clusters: [{{name: c}}]\nusers: []",
        f"{ENTRIES}{CLUSTER}users: [{{name: u, token: hunter2}}]",
        f"{ENTRIES}{TRUSTING}users: [{{name: u, user: {{token: hunter2}}}}]",
        f"{ENTRIES}{SECURE}users: [{{name: u, user: {{client-certificate-data: eA==, client-key-data: eA==}}}}]",
    ],
)
async def test_invalid_kubeconfig_is_named_without_its_content(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(Unavailable, match=rf"no cluster: the kubeconfig {path} cannot be used: .") as refused:
        async with Kube.connect(KubeSettings()):
            pass
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_hanging_plug_in_ends_at_the_time_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    plugin, path = tmp_path / "plugin", tmp_path / "kubeconfig"
    begin, end = tmp_path / "begin", tmp_path / "end"
    os.mkfifo(end)
    plugin.write_text(f"#!/bin/sh\necho $$ > {begin}\nread line < {end}\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IEXEC)
    execute = f"{{apiVersion: client.authentication.k8s.io/v1, command: {plugin}, interactiveMode: Never}}"
    path.write_text(f"{ENTRIES}{CLUSTER}users: [{{name: u, user: {{exec: {execute}}}}}]")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(Unavailable, match="its plug-in took too long"):
        async with Kube.connect(KubeSettings(timeout_s=0.1)):
            pass
    end.write_text("now\n")  # waits until it reads
    pid = int(begin.read_text())

    async def is_over() -> bool:
        """Say whether the event loop knows of its end, too, so that nothing of it outlives the test."""
        started = [each for each in gc.get_objects() if issubclass(type(each), asyncio.SubprocessTransport)]
        return all(each.is_closing() for each in started if each.get_pid() == pid)

    await eventually(is_over, "the plug-in is over")


async def test_error_names_the_path_without_a_service_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(Unavailable, match=rf"no cluster: this pod's service account in {tmp_path} cannot be used: .+"):
        async with Kube.connect(KubeSettings(), account=tmp_path):
            pass


async def test_unreadable_kubeconfig_is_logged_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "kubeconfig"
    good = f"{ENTRIES}{CLUSTER}users: [{{name: u, user: {{token: hunter2}}}}]"
    path.write_text(good)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with capture_logs() as lines:
        async with Kube.connect(KubeSettings(), credentials_age_s=0.0) as kube:
            for text in (f"{ENTRIES}{CLUSTER}users: [{{name: u, token: hunter2}}]", "just text", good):
                path.write_text(text)
                with pytest.raises(ApiError, match="no answer"):
                    await kube.request("GET", "/version")
    failing, recovered = lines
    assert failing["event"] == "credentials cannot be read again; the old ones are used"
    assert recovered["event"] == "credentials are read again"
    assert failing["error"].startswith("Invalid kube-config file. Expected key user")
    assert failing["place"] == recovered["place"] == f"the kubeconfig {path}"
    assert "hunter2" not in str(lines)


@pytest.mark.integration
async def test_unknown_context_is_named_with_the_known_ones(kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KUBECONFIG", str(kube_api.kubeconfig()))
    async with Kube.connect(KubeSettings(context="test")) as kube:
        assert b"gitVersion" in await kube.request("GET", "/version")
    has = r"\(context nowhere\) cannot be used: it has no such context; it has test$"
    with pytest.raises(Unavailable, match=has):
        async with Kube.connect(KubeSettings(context="nowhere")):
            pass


@pytest.mark.integration
async def test_service_account_is_used_in_a_pod(
    kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch, namespace: str, tmp_path: Path
):
    user = await kube_api.service_account(namespace, "daemon")
    (tmp_path / "token").write_text(user.token)
    (tmp_path / "ca.crt").write_bytes(kube_api.ca.read_bytes())
    host, port = kube_api.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    async with Kube.connect(KubeSettings(), account=tmp_path) as kube:
        assert b"gitVersion" in await kube.request("GET", "/version")


@asynccontextmanager
async def in_a_pod(monkeypatch: pytest.MonkeyPatch, account: Path, port: int) -> AsyncIterator[Kube]:
    """Connect as in a pod, and read the mounted files again before each request."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    async with Kube.connect(KubeSettings(timeout_s=PATIENCE_S), account=account, credentials_age_s=0.0) as kube:
        yield kube


@asynccontextmanager
async def api_server(port: int, certificates: Certificates) -> AsyncIterator[list[str]]:
    """Serve TLS with a certificate of this authority; yield the received tokens in order."""
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        tokens.append(request.headers["Authorization"])
        return web.Response(text="{}")

    pair = certificates.issue("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)
    async with serving(answer, port, context):
        yield tokens


async def test_new_authority_is_trusted_after_it_was_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The kubelet writes the new authority into the mounted file, and restarts no pod."""
    port = free_port()
    old, new = (Certificates(tmp_path / name) for name in ("old", "new"))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "ca.crt").write_bytes(old.ca.read_bytes())
    async with in_a_pod(monkeypatch, tmp_path, port) as kube:
        async with api_server(port, old):
            await kube.request("GET", "/version")
        async with api_server(port, new):
            with pytest.raises(ApiError, match="certificate verify failed"):
                await kube.request("GET", "/version")
            (tmp_path / "ca.crt").write_text("half of a cert")
            with pytest.raises(ApiError, match="certificate verify failed"):
                await kube.request("GET", "/version")
            (tmp_path / "ca.crt").write_bytes(new.ca.read_bytes())
            await kube.request("GET", "/version")
        async with api_server(port, old):
            with pytest.raises(ApiError, match="certificate verify failed"):
                await kube.request("GET", "/version")


async def test_replaced_token_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    port = free_port()
    certificates, token = Certificates(tmp_path / "ca"), tmp_path / "token"
    token.write_text("first")
    (tmp_path / "ca.crt").write_bytes(certificates.ca.read_bytes())
    with capture_logs() as lines:
        async with api_server(port, certificates) as tokens, in_a_pod(monkeypatch, tmp_path, port) as kube:
            await kube.request("GET", "/version")
            token.unlink()
            await kube.request("GET", "/version")
            token.write_text("second")
            await kube.request("GET", "/version")
    assert tokens == ["Bearer first", "Bearer first", "Bearer second"]
    assert [line["event"] for line in lines] == [
        "credentials cannot be read again; the old ones are used",
        "credentials are read again",
    ]
    assert lines[0]["error"] == "Service token file does not exist."


@pytest.mark.integration
async def test_token_of_a_plug_in_is_read_again(kube_api: KubeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    plugin, renewed = tmp_path / "plugin", tmp_path / "renewed"
    plugin.write_text(
        f"#!{sys.executable}\nimport json, pathlib\nrenewed = pathlib.Path({str(renewed)!r}).exists()\n"
        f"token = {kube_api.admin.token!r} if renewed else 'worthless'\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential', "
        "'status': {'token': token}}))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IEXEC)
    config = yaml.safe_load(kube_api.kubeconfig().read_text())
    execute = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": execute}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(path))
    async with Kube.connect(KubeSettings(timeout_s=PATIENCE_S), credentials_age_s=0.2) as kube:
        with pytest.raises(ApiError, match="401"):
            await kube.request("GET", "/version")
        renewed.touch()
        await asyncio.sleep(0.2)
        assert b"gitVersion" in await kube.request("GET", "/version")


@pytest.mark.parametrize(("installation", "name"), [("", "vllm-autoscaler"), ("ns/lease", "vllm-autoscaler/ns/lease")])
def test_field_manager_names_the_installation(installation: str, name: str):
    assert field_manager(installation) == name


def test_field_managers_of_long_names_differ():
    names = {field_manager(f"ns/{'x' * 240}{end}") for end in "ab"}
    assert len(names) == 2
    assert all(len(name) == MANAGER_LIMIT for name in names)
