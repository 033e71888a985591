"""Numbers of the planner that are measured or taken over, each with where it comes from.

Everything that can be computed (weights, KV cache, slots) is computed elsewhere; these are what is
left. `benchmarks/planner.py` shows how well they reproduce what people measured.
"""

from __future__ import annotations

from dsctl.planning.units import gib, mib

#: A CUDA context with the libraries of vLLM: 0.5-0.7 GiB in reports (0.70 with NCCL).
CUDA_CONTEXT_BYTES = gib(0.6)
#: Communicators of a tensor-parallel rank, on top: the 0.70 GiB of a two-card report less 0.6.
COMMUNICATOR_BYTES = gib(0.1)

#: MoE workspace on one card by batched tokens: what stays, and what comes and goes at a step
#: (reference runtime; frozen at the first capture). Interpolated, and extended linearly.
MOE_WORKSPACE = (
    (256, mib(173), mib(192)),
    (1024, mib(325), mib(408)),
    (2048, mib(526), mib(696)),
    (4096, mib(929), mib(1272)),
)
#: Of that, what every rank of a pair needs: 704 of 929 MiB at 4,096 tokens in the same report.
MOE_WORKSPACE_SHARE_OF_PAIR = 704 / 929

#: Activations besides the MoE workspace (attention, hyper-connections, sampling): what 0.988 of
#: 94.97 GiB leaves in the report of 3.89 GiB KV after weights, pool, context and workspace.
ACTIVATION_BYTES = gib(0.97)

#: CUDA graphs: 0.1-0.6 GiB in reports; the engine's estimate in one of them 0.58. Grows with the
#: rows captured.
CUDA_GRAPH_BYTES = gib(0.34)
CUDA_GRAPH_BYTES_PER_ROW = mib(4)

#: Kernel autotuning after the KV cache is there, in no budget of the engine: 0.5 GiB at 1,024
#: batched tokens, 1.54 GiB at 8,192.
AUTOTUNE_AT_1024_BYTES = gib(0.5)
AUTOTUNE_BYTES_PER_TOKEN = (gib(1.54) - gib(0.5)) / (8192 - 1024)

#: Room a start must leave: 86 MiB failed with 72 free at the first long prefill, 128 with 109 free.
RESERVE_BYTES = mib(192)
#: Less than this beyond the reserve is called tight.
COMFORT_BYTES = mib(512)

#: One batch of pack rows on its way to the card.
ROW_BATCH_BYTES = mib(256)
#: Look-up temporaries of a quantizer that works on the card, a layer at a time.
LAYERWISE_TABLES_BYTES = gib(0.3)

#: Host memory of the engine's processes (API server, core) and per worker; CUDA brings more.
HOST_PROCESSES_BYTES = gib(1.0)
HOST_WORKER_CUDA_BYTES = gib(5.0)
#: The canary on a CPU: 1.84 GB in all with 0.27 GB of KV cache.
HOST_WORKER_CPU_BYTES = gib(0.6)
#: Around a pack with an arena: 26-33 GiB resident with a 20 GiB arena.
ARENA_OVERHEAD_BYTES = gib(9.5)
#: Building a pack streams one tensor at a time; promised as at most this.
PACK_BUILD_BYTES = gib(1.0)
#: Shared memory of the engine: message queues of vLLM, and NCCL's buffers between two ranks.
SHM_BASE_BYTES = mib(256)
SHM_PER_RANK_BYTES = gib(1.0)

#: Caches of compilers and kernels; the engine's environment or image beside them.
JIT_CACHE_BYTES = gib(8)
ENGINE_DISK_BYTES = {"cpu": gib(3.2), "cuda": gib(22)}
#: Four kibibyte rows: a pack pads every expert to a page.
PACK_PAGE_BYTES = 4096

#: One all-reduce of a decode step between two PCIe cards (small message, peer to peer): 15 us.
ALL_REDUCE_S = 15e-6
#: Without peer access the message takes the way through host memory: some 14 us instead of 0.4 us
#: of latency between two RTX PRO 6000 (local-inference-lab/rtx6kpro).
THROUGH_HOST_S = 14e-6
#: Reference loads: 252 s for 87.4 GiB; that is the slow end, the disk's bandwidth the fast one.
SLOW_LOAD_BYTES_PER_S = 87.41 * (1 << 30) / 252.26
#: Quantizing on two host cores; the pack benchmark measures it on a given machine.
QUANTIZE_BYTES_PER_S = 0.8e9
#: From loaded to serving: autotune, capture, warm-up; from warm caches to a first start.
WARM_S = (45.0, 240.0)
#: Imports of three processes one after another.
IMPORT_S = 25.0

#: Share of the roofline that real decoding reaches: wall clock of a reasoning suite at 39.8 tok/s
#: on the low side, the fastest report of the same tiering (161 tok/s) on the high side.
DECODE_EFFICIENCY = (0.20, 0.85)
#: Dense 8-bit tensor throughput of the card as its data sheet gives it, and what prefill reaches of
#: the roofline: 6,000 tok/s reported at the low end.
PREFILL_FLOPS = 1.0e15
PREFILL_EFFICIENCY = (0.15, 0.5)

#: Probability that a drafted token is accepted, by draft position count, from reports: 608 of 1,251
#: at three tokens; 34.7 % and 31 % at five.
ACCEPTANCE = {1: 0.65, 2: 0.56, 3: 608 / 1251, 4: 0.40, 5: 0.347}
#: A draft step costs three of 43 layers plus its own head, per token drafted in sequence.
DRAFT_STEP_SHARE = 0.12

#: Pinned memory under WSL2: allocations above some 500 MB to 1 GB fail.
WSL_PINNED_BYTES = gib(0.5)
#: Highest gpu_memory_utilization reported to start beside Windows (noonghunna/club-3090#102).
#: Beyond it WDDM spills into host memory, 2-6 times slower and without a word.
WSL_UTILIZATION = 0.944
