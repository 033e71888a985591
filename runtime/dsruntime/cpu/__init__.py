"""DeepSeek-V4 on x86-64 CPUs that vLLM's own CPU kernels leave out (no AMX)."""
