"""A real Kubernetes control plane on loopback, with kwok in place of kubelets.

RBAC is on and every identity is a real one: the parts of the control plane have a static token each, the
product's roles are ServiceAccounts whose tokens the API server mints.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gpu_runbooks.activities.kubernetes.client import Kubernetes, Object
from testbed.api_proxy import ApiProxy
from testbed.background import beside
from testbed.build import path_of
from testbed.kubeconfig import write_kubeconfig, write_redirected
from testbed.kwok_stages import write_stages
from testbed.ports import free_port
from testbed.processes import PartFailedError, Processes
from testbed.readiness import answers
from testbed.test_pod_outcomes import decide_test_pods

NAMESPACE = "gpu-runbooks"
"""Where the product's ServiceAccounts are."""

TEST_NAMESPACE = "gpu-runbooks-tests"
"""Where its test pods run."""

STATIC_IDENTITIES = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "kwok": ("kwok", "system:masters"),
    "karpenter": ("karpenter", "system:masters"),
}
"""User and group of each static token. kwok plays every kubelet and Karpenter a cloud besides its own part,
so they may do what they like."""

LEASE_SECONDS = 40
"""How long a node's lease holds, as the kubelet has it. It is renewed four times as often."""

HEARTBEAT_SECONDS = 20
"""How often a node reports a status that has not changed. Kubelets do every 5 minutes; tests wait for it."""

TOKEN_SECONDS = 24 * 3600
"""Life of a role's token. Longer than any testbed, since nothing renews it in the kubeconfig file."""


class ControlPlane:
    """A running control plane. `kubeconfig("admin")` may do everything."""

    def __init__(
        self,
        directory: Path,
        processes: Processes,
        *,
        api_server_flags: Sequence[str] = (),
        controller_manager_flags: Sequence[str] = (),
        lease_seconds: int = LEASE_SECONDS,
        heartbeat_seconds: int = HEARTBEAT_SECONDS,
    ) -> None:
        self.directory = directory
        self._processes = processes
        self._api_server_flags = api_server_flags
        self._controller_manager_flags = controller_manager_flags
        self._lease_seconds = lease_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._tokens = {name: secrets.token_urlsafe(24) for name in STATIC_IDENTITIES}
        self._pki = directory / "pki"
        self.authority = self._pki / "apiserver.crt"
        """Certificate that the API server makes for itself."""
        self.url = ""
        self.roles_through: ApiProxy | None = None
        """Where set, the kubeconfigs of roles that are made from now on lead through this proxy."""

    @classmethod
    @asynccontextmanager
    async def start(cls, directory: Path) -> AsyncIterator["ControlPlane"]:
        """Start it with files and logs in `directory`; it ends with the context.

        Raises `PartFailedError` with the end of a log, and `build.BinaryMissingError` where `make binaries`
        is due.
        """
        async with Processes(directory / "logs") as processes:
            plane = cls(directory, processes)
            await plane.launch()
            async with plane.client() as kubernetes, beside(decide_test_pods(kubernetes)):
                yield plane

    async def launch(self) -> None:
        """Start the parts as children of `processes`, for a testbed that has more parts than these."""
        await self.serve()
        await asyncio.gather(
            self._start_controller_manager(), self._start_controller("scheduler"), self._start_kwok()
        )

    async def serve(self) -> None:
        """Start the API server and its store alone: objects stay as they are written, nobody acts on them."""
        self._pki.mkdir(parents=True, exist_ok=True)
        self._write_keys()
        etcd = await self._start_etcd()
        self.url = await self._start_api_server(etcd)
        for name, token in self._tokens.items():
            self._write_kubeconfig(name, token)

    # --- use ----------------------------------------------------------------------------------------

    def kubeconfig(self, identity: str) -> Path:
        """Kubeconfig file of `admin`, or of a role for which `grant` made one."""
        return self.directory / "kubeconfig" / f"{identity}.yaml"

    def kubeconfig_through(self, proxy: ApiProxy, identity: str = "admin") -> Path:
        """The same identity, reaching the API server by way of a proxy."""
        direct = self.kubeconfig(identity)
        port = proxy.url.rpartition(":")[2]
        return write_redirected(direct, to=direct.with_name(f"{identity}-through-{port}.yaml"), url=proxy.url)

    @asynccontextmanager
    async def proxy(self) -> AsyncIterator[ApiProxy]:
        """A proxy before the API server, to inject faults."""
        async with ApiProxy.start(self.url, self.authority) as proxy:
            yield proxy

    @asynccontextmanager
    async def client(
        self, identity: str = "admin", *, through: ApiProxy | None = None
    ) -> AsyncIterator[Kubernetes]:
        """A connection with the credentials of one identity, by way of a proxy where one is given."""
        kubeconfig = self.kubeconfig_through(through, identity) if through else self.kubeconfig(identity)
        async with Kubernetes.connect(str(kubeconfig)) as kubernetes:
            yield kubernetes

    async def kubectl(self, *arguments: str, stdin: str = "", identity: str = "admin") -> str:
        """Run kubectl and return what it printed. Raises `PartFailedError` with its complaint."""
        process = await asyncio.create_subprocess_exec(
            str(path_of("kubectl")),
            f"--kubeconfig={self.kubeconfig(identity)}",
            f"--cache-dir={self.directory / 'kubectl-cache'}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, complaint = await process.communicate(stdin.encode())
        if process.returncode:
            raise PartFailedError(
                f"kubectl {' '.join(arguments)} as {identity}: {complaint.decode().strip()}"
            )
        return output.decode()

    async def apply_kustomization(self, folder: Path) -> None:
        """Apply manifests as a cluster's administrator would, and wait until their CRDs are served."""
        await self.kubectl("apply", "--server-side", "-k", str(folder))
        await self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")

    async def grant(
        self, service_account: str, *, namespace: str = NAMESPACE, pod: Object | None = None
    ) -> Path:
        """Mint a token of a ServiceAccount into a kubeconfig file and return its path.

        With `pod` the token is bound to that Pod, so it names the Pod's node and dies with the Pod.
        The file is `kubeconfig(service_account)`, for a bound token `kubeconfig("<service account>-<node>")`.
        """
        spec: Object = {"expirationSeconds": TOKEN_SECONDS}
        name = service_account
        if pod:
            metadata = pod["metadata"]
            reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
            spec["boundObjectRef"] = reference
            name = f"{service_account}-{pod['spec']['nodeName']}"
        async with self.client() as kubernetes:
            answer = await kubernetes.request(
                "POST",
                f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token",
                body={"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            )
        written = self._write_kubeconfig(name, answer["status"]["token"])
        if self.roles_through is not None:
            write_redirected(written, to=written, url=self.roles_through.url)
        return written

    # --- start --------------------------------------------------------------------------------------

    async def _start_etcd(self) -> str:
        def command(port: int) -> list[str]:
            url, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
            return [
                str(path_of("etcd")),
                f"--data-dir={self.directory / 'etcd'}",
                "--unsafe-no-fsync",
                f"--listen-client-urls={url}",
                f"--advertise-client-urls={url}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--log-level=warn",
            ]

        port = await self._processes.serve(
            "etcd", command, lambda port: answers(f"http://127.0.0.1:{port}/readyz")
        )
        return f"http://127.0.0.1:{port}"

    async def _start_api_server(self, etcd: str) -> str:
        tokens = self._write_static_tokens()
        admin = {"Authorization": f"Bearer {self._tokens['admin']}"}

        def command(port: int) -> list[str]:
            return [
                str(path_of("kube-apiserver")),
                f"--etcd-servers={etcd}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self._pki}",
                f"--token-auth-file={tokens}",
                "--authorization-mode=RBAC",
                "--allow-privileged=true",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={self._pki / 'service-account.pub'}",
                f"--service-account-signing-key-file={self._pki / 'service-account.key'}",
                "--service-cluster-ip-range=10.96.0.0/16",
                # the endpoint of `kubernetes.default` may not be a loopback address
                "--endpoint-reconciler-type=none",
                *self._api_server_flags,
            ]

        port = await self._processes.serve(
            "kube-apiserver",
            command,
            lambda port: answers(f"https://127.0.0.1:{port}/readyz", headers=admin, authority=self.authority),
        )
        return f"https://127.0.0.1:{port}"

    async def _start_controller_manager(self) -> None:
        await self._start_controller(
            "controller-manager",
            f"--service-account-private-key-file={self._pki / 'service-account.key'}",
            f"--root-ca-file={self.authority}",
            "--use-service-account-credentials",
            *self._controller_manager_flags,
        )

    async def _start_controller(self, name: str, *more: str) -> None:
        """Start the scheduler or the controller-manager: both serve their health on a port of their own."""

        def command(port: int) -> list[str]:
            return [
                str(path_of(f"kube-{name}")),
                f"--kubeconfig={self.kubeconfig(name)}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self._pki / name}",
                "--kube-api-qps=300",
                "--kube-api-burst=600",
                *more,
            ]

        await self._processes.serve(
            f"kube-{name}", command, lambda port: answers(f"https://127.0.0.1:{port}/healthz")
        )

    async def _start_kwok(self) -> None:
        command = [
            str(path_of("kwok")),
            f"--kubeconfig={self.kubeconfig('kwok')}",
            "--manage-all-nodes=true",
            f"--node-lease-duration-seconds={self._lease_seconds}",
            *(
                f"--config={file}"
                for file in write_stages(self.directory / "stages", self._heartbeat_seconds)
            ),
        ]
        # kwok looks for a configuration of its own in its work folder, by default below the home directory
        await self._processes.start("kwok", command, {"KWOK_WORKDIR": str(self.directory / "kwok")})

    def _write_kubeconfig(self, name: str, token: str) -> Path:
        return write_kubeconfig(self.kubeconfig(name), url=self.url, authority=self.authority, token=token)

    def _write_static_tokens(self) -> Path:
        rows = [
            f'{self._tokens[name]},{user},{name},"{group}"'
            for name, (user, group) in STATIC_IDENTITIES.items()
        ]
        file = self._pki / "tokens.csv"
        file.touch(mode=0o600)
        file.write_text("\n".join(rows) + "\n")
        return file

    def _write_keys(self) -> None:
        """Key pair with which the API server signs the ServiceAccounts' tokens."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (self._pki / "service-account.key").touch(mode=0o600)
        (self._pki / "service-account.key").write_bytes(private)
        (self._pki / "service-account.pub").write_bytes(public)
