"""What every container of ours is held to, whoever starts it. `dsctl audit` checks these promises.

Numbers carry their reason; nothing here depends on the machine.
"""

from __future__ import annotations

from dsctl.compose.spec import Tmpfs, Ulimit
from dsctl.image.inside.serve import CACHES, UMASK

#: Users of the two images, numbers so that no passwd entry of the host matters.
ENGINE_USER = "10001:10001"
#: The gateway's group is the engine's, which is what lets it connect to the socket.
GATEWAY_USER = "10002:10001"

MODEL = "/model"
PACKS = "/packs"
CACHE = "/cache"
RUN = "/run/engine"
SOCKET = f"{RUN}/engine.sock"
KEYS = "/etc/gateway/keys"
TLS = "/etc/gateway/tls"

#: Ports inside the gateway's container: the API, and `/health` with `/metrics`.
API_PORT = 8000
MONITOR_PORT = 8001

#: No capability at all. Collectives of two ranks work without (IPC_LOCK, which NCCL's manual names,
#: stands for locked memory: the memlock limit below is what it is needed for).
DROPPED = ("ALL",)

#: Processes and threads: a worker has a few hundred (OpenMP, tokenizers, NCCL); this stops a bomb.
ENGINE_PIDS = 4096
GATEWAY_PIDS = 64

#: What the kernel kills first when the host runs out: the engine, before anybody's shell.
ENGINE_OOM_SCORE = 500
GATEWAY_OOM_SCORE = 100

GATEWAY_MEMORY_BYTES = 256 << 20
SCRATCH_BYTES = 1 << 30
GATEWAY_SCRATCH_BYTES = 256 << 20

#: A core file would hold prompts; compilers recurse deeply. Nothing above what any daemon may set:
#: one without CAP_SYS_RESOURCE (rootless, nested) cannot raise a limit and would refuse to start.
ENGINE_ULIMITS = (Ulimit("core", 0), Ulimit("stack", 8 << 20))
#: With cards: pinned host memory counts as locked, and compilers of kernels recurse further.
CUDA_ULIMITS = (Ulimit("core", 0), Ulimit("memlock", -1), Ulimit("stack", 64 << 20))
GATEWAY_ULIMITS = (Ulimit("core", 0),)

#: Seconds a container may take to end after SIGTERM.
ENGINE_GRACE_S = 20
GATEWAY_GRACE_S = 5

#: Container logs in the Docker engine: so many bytes a file, so many files.
LOG_MAX = "64m"
LOG_FILES = "4"

#: Set in every engine container beside the profile's own environment, which never loses them.
ENGINE_ENV = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

#: Somebody else's image has neither our directories with their owners nor our entrypoint. So the
#: socket's volume lies in memory, owned by the engine's user, open to the group (the gateway's);
FOREIGN_RUN_OPTIONS = {
    "type": "tmpfs",
    "device": "tmpfs",
    "o": "noexec,nosuid,nodev,uid=10001,gid=10001,mode=0750,size=1m",
}
#: so do the caches: they count toward the memory limit, and compiled kernels load from there;
FOREIGN_CACHE = Tmpfs(CACHE, 8 << 30, executable=True)
#: variables lead to them (HOME is the one that programs expect to exist);
FOREIGN_ENV = {name: f"{CACHE}/{place}" for name, place in CACHES.items()} | {"HOME": CACHE}
#: and the umask is the one with which the gateway may open the socket.
FOREIGN_SHELL = ("/bin/sh", "-c", f'umask {UMASK:04o}; exec "$@"', "engine")

#: Options of the gateway's bridge: no way from it to other containers, and none to the world
#: (without masquerading an answer never finds back); published ports work all the same.
NETWORK_OPTIONS = {
    "com.docker.network.bridge.enable_icc": "false",
    "com.docker.network.bridge.enable_ip_masquerade": "false",
}


def memory_limit(host_memory_bytes: int) -> int:
    """Bytes the engine's container may use, page cache included.

    Twice what the profile needs of a host: a limit near the resident size would make the kernel
    throw out and read again the very weights that are being loaded.
    """
    return 2 * max(host_memory_bytes, 2 << 30)
