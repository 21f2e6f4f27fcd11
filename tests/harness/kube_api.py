"""A real kube-apiserver on a real etcd: RBAC on, every request audited. There is no controller and no kubelet.

So no pod of a Deployment is created, no status is set, no namespace emptied, and `default` ServiceAccounts are absent.
A test that needs this does it itself, with `apply` and `set_status`.
"""

import asyncio
import io
import json
import secrets
import shutil
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from autoscaler.adapters.kubernetes.api.library import ApiClient, Configuration
from autoscaler.catalog.scale_targets import BY_KIND
from tests.harness.certificates import Certificates
from tests.harness.etcd import etcd
from tests.harness.process import PATIENCE_S, Process, answers, eventually, free_port, require_binary, where

CRDS = Path(__file__).parents[1] / "data" / "crds"
WORKLOADS = {"deployments", "statefulsets", "pods", *(row.plural for row in BY_KIND.values())}  # and their pods
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
Manifest = Mapping[str, Any]


class ApiError(Exception):
    """The API server refused a request of a test; `status` is the HTTP status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class User(NamedTuple):
    """A user of the API server; `name` is its name in RBAC and in the audit log."""

    name: str
    token: str


class Permission(NamedTuple):
    """One verb on one resource. A subresource is written `deployments/scale`; the core group is ''."""

    group: str
    resource: str
    verb: str


@dataclass(frozen=True)
class AuditEvent:
    user: str
    permission: Permission
    namespace: str
    name: str
    code: int
    user_agent: str


def granted(*roles: Manifest) -> set[Permission]:
    """Return every permission that Role and ClusterRole manifests grant; other kinds are ignored."""
    return {
        Permission(group, resource, verb)
        for role in roles
        if role["kind"] in {"Role", "ClusterRole"}
        for rule in role.get("rules") or ()
        for group in rule.get("apiGroups", ())
        for resource in rule.get("resources", ())
        for verb in rule["verbs"]
    }


def logged(log: bytes) -> list[dict[str, Any]]:
    """Return the events of an audit log; a last line that the server is still writing is none yet.

    The server answers a request after its event is written, so what the caller itself was answered is never missed.
    """
    return [json.loads(line) for line in log.split(b"\n")[:-1]]


def load_manifests(*paths: Path) -> list[dict[str, Any]]:
    """Return the documents of YAML files, empty ones left out."""
    return [document for path in paths for document in yaml.safe_load_all(path.read_text()) if document]


class KubeApi:
    """One API server. `running` starts and stops one; all tests share the fixture `kube_api`."""

    def __init__(self, directory: Path, runtime_config: str = "") -> None:
        """runtime_config: API versions to serve in addition to the usual ones, or not to serve."""
        certificates = Certificates(directory)
        serving = certificates.issue("127.0.0.1", "localhost")
        service_accounts = certificates.issue("service-accounts").key
        front_proxy = certificates.issue("front-proxy")
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        self.ca = certificates.ca
        self.admin = User("admin", secrets.token_hex(16))
        self.audit_log = directory / "audit.log"
        self._directory = directory
        self._ssl = ssl.create_default_context(cafile=self.ca)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}
        self._installed: set[str] = set()  # CRDs of `install_crds`
        self._namespaces: set[str] = set()  # of `namespace`
        self.written: list[str] = []  # paths to which the requests of this test wrote
        self._applied: set[tuple[str, str]] = set()  # namespaces, and paths of workloads that were applied there
        self._kept: tuple[asyncio.AbstractEventLoop, aiohttp.ClientSession] | None = None  # connections of one test
        self._audited: list[AuditEvent] = []  # what was read of the audit log,
        self._audited_bytes = 0  # and up to where
        store_url, self._etcd = etcd(directory)

        tokens = directory / "tokens.csv"
        tokens.write_text(f"{self.admin.token},{self.admin.name},{self.admin.name},system:masters\n")
        policy = directory / "audit-policy.yaml"
        policy.write_text(yaml.safe_dump(AUDIT_POLICY))
        flags = {
            "etcd-servers": store_url,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": port,
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "cert-dir": directory,
            "token-auth-file": tokens,
            # The authorizer of nodes waits for the newest version of each group that it reads.
            "authorization-mode": "RBAC" if "=false" in runtime_config else "Node,RBAC",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": service_accounts,
            "service-account-signing-key-file": service_accounts,
            "service-cluster-ip-range": "10.96.0.0/24",
            # Its client certificate for aggregated API servers, which an APIService names.
            "requestheader-client-ca-file": self.ca,
            "requestheader-allowed-names": "front-proxy",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": front_proxy.certificate,
            "proxy-client-key-file": front_proxy.key,
            # It would wait for a `default` ServiceAccount in every namespace, which only a controller creates.
            "disable-admission-plugins": "ServiceAccount",
            "audit-policy-file": policy,
            "audit-log-path": self.audit_log,
            "runtime-config": runtime_config,
        }
        self._server = Process(
            "kube-apiserver",
            [_binary(), *(f"--{name}={value}" for name, value in flags.items())],
            directory,
            ready=lambda: answers(f"{self.url}/readyz", self._ssl, self._headers(self.admin)),
        )

    @classmethod
    @asynccontextmanager
    async def running(cls, directory: Path, runtime_config: str = "") -> AsyncIterator["KubeApi"]:
        """Start etcd and the API server in `directory`; end both afterwards."""
        api = cls(directory, runtime_config)
        try:
            await api._etcd.start()
            await api.start()
            yield api
        finally:
            await api.stop()
            await api._etcd.stop()

    # Outages.

    async def start(self) -> None:
        """Start the server again with the same port and data, and wait until it is ready."""
        await self._server.start()
        if self._kept is not None and self._kept[0] is asyncio.get_running_loop():
            await self._kept[1].close()  # its connections are those to the server that has ended
            self._kept = self._kept[0], _session()

    async def stop(self) -> None:
        """Stop the server gracefully: it ends its watches, then refuses connections."""
        await self._server.stop()

    @asynccontextmanager
    async def outage(self, *, crash: bool = False) -> AsyncIterator[None]:
        """Stop the API server within the block. crash: kill it, so that open watches break."""
        if crash:
            self._server.kill()
        else:
            await self.stop()
        try:
            yield
        finally:
            await self.start()

    @asynccontextmanager
    async def forgotten(self) -> AsyncIterator[None]:
        """Restore etcd after the block, as from a backup: what was written within it is gone, and versions go back."""
        data, backup = self._directory / "etcd", self._directory / "backup"
        async with self.outage():
            await self._etcd.stop()
            shutil.copytree(data, backup)
            await self._etcd.start()
        yield
        async with self.outage():
            await self._etcd.stop()
            shutil.rmtree(data)
            backup.rename(data)
            await self._etcd.start()

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Freeze the API server within the block: it accepts connections and never answers."""
        self._server.freeze()
        try:
            yield
        finally:
            self._server.thaw()

    # Users and clients.

    def configuration(self, user: User | None = None) -> Configuration:
        """Return the client configuration of a user, by default of the admin."""
        configuration = Configuration(host=self.url, ssl_ca_cert=str(self.ca))
        configuration.api_key["BearerToken"] = f"Bearer {(user or self.admin).token}"
        return configuration

    def client(self, user: User | None = None) -> ApiClient:
        """Return a client to be used in `async with`."""
        return ApiClient(self.configuration(user))

    def kubeconfig(self, user: User | None = None, namespace: str = "default") -> Path:
        """Write a kubeconfig file for a user, for programs that read one."""
        user = user or self.admin
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": user.name, "user": {"token": user.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user.name, "namespace": namespace}}],
        }
        path = self._directory / f"kubeconfig-{user.name.replace(':', '-')}-{namespace}.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    async def service_account(self, namespace: str, name: str, *roles: Manifest) -> User:
        """Create a ServiceAccount if it does not exist, bind it to Roles and ClusterRoles, and return its user.

        Roles that come with their own bindings are applied with `apply` instead.
        """
        await self.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace=namespace
        )
        subject = {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        for role in roles:
            scope = {} if role["kind"] == "ClusterRole" else {"namespace": role["metadata"].get("namespace", namespace)}
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": f"{role['kind']}Binding",
                "metadata": {"name": f"{namespace}-{name}-{role['metadata']['name']}", **scope},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": role["kind"],
                    "name": role["metadata"]["name"],
                },
                "subjects": [subject],
            }
            await self.apply(role, binding, namespace=namespace)
        token = await self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}},
        )
        user = User(f"system:serviceaccount:{namespace}:{name}", token["status"]["token"])
        await self.knows_rights(user, namespace, *{role["kind"]: role for role in roles}.values())  # each kind in order
        return user

    async def knows_rights(self, user: User, namespace: str, *roles: Manifest) -> None:
        """Wait until the server grants a user these Roles and ClusterRoles."""
        for role in roles:
            what = f"{user.name} has the rights of {role['metadata']['name']}"
            await eventually(lambda role=role: self._may(user, namespace, role), what, every_s=0.01)

    async def _may(self, user: User, namespace: str, role: Manifest) -> bool:
        """Say whether the server grants the first rule of a role already: it learns of bindings by a watch."""
        rule = next((rule for rule in role.get("rules") or () if rule.get("resources")), None)
        if rule is None:
            return True
        resource, _, subresource = rule["resources"][0].partition("/")
        names = rule.get("resourceNames", [""])
        asked = {"verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "name": names[0]}
        asked |= {"subresource": subresource}
        if role["kind"] == "Role":
            asked |= {"namespace": role["metadata"].get("namespace", namespace)}
        spec = {"user": user.name, "resourceAttributes": asked}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool((await self.request("POST", path, review))["status"]["allowed"])

    # Objects: requests of a test, by default as the admin.

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: User | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        **parameters: str,
    ) -> Any:
        """Send one request and return the decoded answer. Raises ApiError for any status from 400 on."""
        if method != "GET":
            self.written.append(path)
        headers = {**self._headers(user or self.admin), "Content-Type": content_type, "Accept": accept}
        data = None if body is None else io.BytesIO(json.dumps(body).encode())  # bytes as they are: a warning if many
        kept = self._kept[1] if self._kept is not None and self._kept[0] is asyncio.get_running_loop() else None
        async with (
            _session() if kept is None else nullcontext(kept) as session,
            session.request(
                method, self.url + path, data=data, params=parameters, headers=headers, ssl=self._ssl
            ) as response,
        ):
            text = await response.text()
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise ApiError(response.status, text)
            return json.loads(text)

    async def apply(
        self, *manifests: Manifest, namespace: str | None = None, user: User | None = None, dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Apply manifests on the server with strict validation; `namespace` is for those that name none."""
        parameters = {"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"}
        if dry_run:
            parameters["dryRun"] = "All"
        applied = []
        for manifest in manifests:
            metadata = manifest["metadata"]
            path = await self.path(
                manifest["apiVersion"], manifest["kind"], metadata.get("namespace", namespace), metadata["name"]
            )
            collection = path.rpartition("/")[0]
            if collection.rpartition("/")[2] in WORKLOADS and not dry_run:
                self._applied.add((metadata.get("namespace", namespace), collection))
            applied.append(
                await self.request(
                    "PATCH", path, manifest, user=user, content_type="application/apply-patch+yaml", **parameters
                )
            )
        return applied

    async def get(self, api_version: str, kind: str, namespace: str | None, name: str, subresource: str = "") -> Any:
        return await self.request("GET", await self.path(api_version, kind, namespace, name, subresource))

    async def delete(self, api_version: str, kind: str, namespace: str | None, name: str) -> None:
        """Delete an object at once, without its grace period."""
        path = await self.path(api_version, kind, namespace, name)
        await self.request("DELETE", path, gracePeriodSeconds="0")

    async def set_status(
        self, api_version: str, kind: str, namespace: str | None, name: str, status: Mapping[str, Any]
    ) -> Any:
        """Merge `status` into an object's status, as its controller or the kubelet would."""
        path = await self.path(api_version, kind, namespace, name, "status")
        return await self.request("PATCH", path, {"status": status}, content_type="application/merge-patch+json")

    async def path(self, api_version: str, kind: str, namespace: str | None, name: str, subresource: str = "") -> str:
        """Return the URL path of an object, as the server's discovery describes its kind."""
        root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        if (api_version, kind) not in self._plurals:
            for found in (await self.request("GET", root))["resources"]:
                if "/" not in found["name"]:
                    self._plurals[api_version, found["kind"]] = found["name"], found["namespaced"]
        plural, namespaced = self._plurals[api_version, kind]
        if namespaced:
            root += f"/namespaces/{namespace}"
        return f"{root}/{plural}/{name}" + (f"/{subresource}" if subresource else "")

    async def namespace(self, prefix: str = "test", labels: Mapping[str, str] | None = None) -> str:
        """Create a unique namespace and return its name."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        metadata = {"name": name, "labels": dict(labels or {})}
        await self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        self._namespaces.add(name)
        return name

    async def install_crds(self, *names: str) -> None:
        """Install CRDs of `tests/data/crds` by file name without its ending (all, if none is named) and await them."""
        names = names or tuple(path.stem for path in CRDS.glob("*.yaml"))
        for crd in await self.apply(*_definitions(set(names) - self._installed)):
            spec = crd["spec"]
            served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            await eventually(lambda served=served: self._is_served(served), f"{served} is served")
        self._installed.update(names)

    async def remove_crds(self, *names: str) -> None:
        """Remove CRDs and their objects, as if the product were not installed."""
        self._installed.difference_update(names)
        for crd in _definitions(names):
            name = crd["metadata"]["name"]
            await self.delete(crd["apiVersion"], crd["kind"], None, name)
            await eventually(lambda name=name: self._is_gone(name), f"{name} is gone")

    @asynccontextmanager
    async def one_test(self) -> AsyncIterator[None]:
        """Keep connections within the block, and remove after it what it made and daemons of later tests would see.

        These are nodes, each of which would be one more GPU pool; workloads in namespaces of its own, whose models
        would take their shares of nodes; and CRDs of subfolders. CRDs of the folder itself stay: a test that expects
        one of them not to be there removes it first.
        """
        crds, namespaces = set(self._installed), set(self._namespaces)
        self._applied.clear()
        self.written.clear()
        self._kept = asyncio.get_running_loop(), _session()
        try:
            yield
            own = self._namespaces - namespaces
            for path in sorted(path for namespace, path in self._applied if namespace in own):
                with suppress(ApiError):  # its kind is gone
                    await self.request("DELETE", path, gracePeriodSeconds="0")
            await self.remove_crds(*(name for name in self._installed - crds if "/" in name))
            await self.request("DELETE", "/api/v1/nodes", gracePeriodSeconds="0")
        finally:
            (_, session), self._kept = self._kept, None
            await session.close()

    # Audit log.

    def audit(self, user: User | None = None) -> list[AuditEvent]:
        """Return the answered requests so far for resources, oldest first; with `user`, only its own.

        An unauthenticated request (401) has no user.
        """
        with self.audit_log.open("rb") as log:
            log.seek(self._audited_bytes)
            new = log.read()
        self._audited += [_audit_event(event) for event in logged(new) if "objectRef" in event]
        self._audited_bytes += new.rfind(b"\n") + 1
        return [event for event in self._audited if user is None or event.user == user.name]

    def used(self, user: User) -> set[Permission]:
        """Return the permissions that a user has used, for comparison with `granted`; a 404 or 409 counts too.

        Questions about the own permissions are left out: every account may ask them.
        """
        used = {event.permission for event in self.audit(user) if event.code != HTTPStatus.FORBIDDEN}
        return {permission for permission in used if permission.resource != "selfsubjectaccessreviews"}

    def refused(self, user: User) -> set[Permission]:
        """Return the permissions that a user lacked."""
        return {event.permission for event in self.audit(user) if event.code == HTTPStatus.FORBIDDEN}

    def _headers(self, user: User) -> dict[str, str]:
        return {"Authorization": f"Bearer {user.token}"}

    async def _is_served(self, path: str) -> bool:
        try:
            await self.request("GET", path, limit="1")
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    async def _is_gone(self, crd: str) -> bool:
        return not await self._is_served(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}")


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE_S))


def _audit_event(event: Mapping[str, Any]) -> AuditEvent:
    about = event["objectRef"]
    return AuditEvent(
        user=event["user"].get("username", ""),
        permission=_permission(event["verb"], about),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=event["responseStatus"]["code"],
        user_agent=event.get("userAgent", ""),
    )


def _binary() -> Path:
    return require_binary("kube-apiserver", "make envtest", where("envtest.sh"))


def _definitions(names: Iterable[str]) -> list[dict[str, Any]]:
    return load_manifests(*(CRDS / f"{name}.yaml" for name in sorted(names)))


def _permission(verb: str, reference: Mapping[str, str]) -> Permission:
    resource = "/".join(filter(None, [reference["resource"], reference.get("subresource")]))
    return Permission(reference.get("apiGroup", ""), resource, verb)
