"""Why each line of a Compose file is there: the comments, by role and key."""

from __future__ import annotations

HEADER = """\
# {profile}: the engine without a way out, and the gateway that is the only door to it.
# Printed by `dsctl compose --profile {profile}`; `dsctl up --engine docker` starts the same.
# Without dsctl, from the directory of this file:
#   docker compose -f {profile}.yaml up     (or docker-compose, 1.28 and later)
# Variables come from the environment or from an .env file beside this one:
{variables}
# How to make a key without dsctl, and everything else: docs/containers.md.
"""

#: What the variables mean, in the order in which they are listed.
VARIABLES = {
    "MODEL_DIR": "directory of the checkpoint",
    "PACK_DIR": "directory of the prepared experts (`dsctl pack build`)",
    "GPU_0": "UUID of the first card (`nvidia-smi -L` lists them)",
    "GPU_1": "UUID of the second card",
    "KEYS_DIR": "directory with the file `keys`: who may ask",
    "BIND": "address the API is offered on; 127.0.0.1 keeps it on this machine",
    "PORT": "port of the API",
    "MONITOR_PORT": "port of /health and /metrics, on this machine only",
    "ENGINE_IMAGE": "image of the engine (`dsctl image build`)",
    "GATEWAY_IMAGE": "image of the gateway (`dsctl image build --target gateway`)",
    "HARDENING_DIR": "directory of the system call filters",
}

ENGINE = {
    "image": "Made by `dsctl image build` without a network; never pulled while starting.",
    "pull_policy": "",
    "entrypoint": "",
    "command": "The exact arguments of `vllm serve`, from the profile.",
    "environment": "The profile's environment; nothing is fetched, nothing is reported, "
    "ranks meet on loopback.",
    "network_mode": "No network at all, loopback only: the promise everything else backs up.",
    "hostname": "A number here would be taken for an address by the collectives.",
    "user": "A numbered user without rights on the host.",
    "read_only": "Nothing in the image can be changed from inside.",
    "cap_drop": "No capability at all; serving needs none, collectives of two ranks neither.",
    "security_opt": "A setuid program gives nothing, and only the system calls serving needs pass "
    "(default deny).",
    "ipc": "Its own shared memory instead of the host's.",
    "shm_size": "What the plan says: message queues, and the ranks' buffers.",
    "mem_limit": "Twice the need: the page cache of the weights counts toward it, and a tight "
    "limit would make the kernel read them again and again.",
    "memswap_limit": "The same number: no swap. Swapped weights are slower than none.",
    "pids_limit": "Some hundred threads are normal; this stops a fork bomb.",
    "oom_score_adj": "If the host runs out of memory the engine goes first, not your shell.",
    "ulimits": "No core files (they hold prompts); compilers recurse; with cards, pinned memory "
    "counts as locked memory.",
    "tmpfs": "Scratch in memory; what compilers make and run goes to the cache volume instead.",
    "volumes": "The model and packs cannot be written; the socket's and the caches' volumes are "
    "the only writable places.",
    "deploy": "These cards by UUID, never all: numbers change when a card is added.",
    "stop_grace_period": "Requests in flight may end.",
    "restart": "A wrong start must not repeat itself for ever; `dsctl` supervises restarts.",
    "logging": "Bounded: a chatty engine must not fill the disk.",
    "labels": "How dsctl finds what is its own.",
}

#: What is different where the image is somebody else's.
FOREIGN_ENGINE = {
    "image": "Somebody else's: vet it first (`dsctl image vet`); never pulled while starting.",
    "entrypoint": "The image's own start scripts stay out of it; the umask lets the gateway open "
    "the socket; variables the image bakes in are unset.",
    "environment": "The profile's environment; caches go to /cache, nothing is fetched, nothing is "
    "reported, ranks meet on loopback.",
    "tmpfs": "Scratch in memory, and caches in memory, from which compiled kernels can be loaded: "
    "a volume would belong to root, for the image has no /cache with an owner.",
    "volumes": "The model and packs cannot be written; the socket's volume is the only writable "
    "one.",
}

GATEWAY = {
    "image": "nginx alone, unprivileged.",
    "command": "https.conf instead, with a certificate mounted at /etc/gateway/tls, speaks TLS.",
    "networks": "A bridge of its own: the only container with one.",
    "hostname": "",
    "ports": "The API, and beside it /health and /metrics for this machine only.",
    "user": "Its own user in the engine's group, which is what may open the socket.",
    "read_only": "As the engine.",
    "cap_drop": "Ports above 1023 need none.",
    "security_opt": "As the engine, with the few system calls of nginx.",
    "ipc": "As the engine.",
    "mem_limit": "nginx with its buffers.",
    "memswap_limit": "",
    "pids_limit": "A master and its workers.",
    "oom_score_adj": "Soon after the engine.",
    "ulimits": "",
    "tmpfs": "Its pid file and request bodies on their way.",
    "volumes": "The socket to connect to, and who may ask: digests of keys, never keys.",
    "depends_on": "The engine makes the socket. Whether all is well is asked from the host, "
    "through the port: a check in here would stay green when nobody outside gets in.",
    "stop_grace_period": "",
    "restart": "As the engine.",
    "logging": "Requests without prompts or keys.",
    "labels": "",
}

NETWORK = "No way to other containers, and none out: without masquerading no answer finds back."
RUN_VOLUME = "The socket between the two."
FOREIGN_RUN_VOLUME = (
    "The socket between the two; owned by the engine's user from the start, for the image has no "
    "such directory to take an owner from."
)
CACHE_VOLUME = "What compilers and kernels made; worth keeping between starts."
