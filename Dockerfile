# The images of dsctl: engine-cpu, engine-cuda, gateway. Build them with `dsctl image build`: it makes
# the context (wheels, Debian packages, runtime, all checked against the locks) and runs this with
# `--network none`. Nothing here reaches for a network.
#
# BASE only unpacks: any Debian-like image with dpkg-deb and tar, your own by digest if you like. What
# ends up in the images comes from the locked packages alone, so that another base, or the same one a
# year later, gives the same files; and the images have no apt, no dpkg, no pip, no package cache.

ARG BASE
FROM ${BASE} AS unpack
RUN --mount=type=bind,source=system,target=/mnt ["/bin/sh", "-eu", "/mnt/unpack.sh", "/mnt/debs"]

# The locked Python assembles what the images have of Debian.
FROM scratch AS system
COPY --from=unpack /build-root/ /
ARG SOURCE_DATE_EPOCH
ARG TARGET
RUN --mount=type=bind,source=system,target=/mnt --mount=type=bind,from=unpack,source=/image-root,target=/srv \
    ["/usr/bin/python3.11", "-I", "-B", "/mnt/assemble.py", "system", "/mnt", "/srv", "/out"]

# Arguments of an engine container are those of `vllm serve`. The wheels are installed in place, by the
# image's own Python: copied from another stage they would take their gigabytes twice. What a RUN
# needs is mounted where the system has a place for it (/mnt, /tmp), so that it leaves nothing else;
# each gets only what it is made of, so that a new runtime does not install the wheels again.
FROM scratch AS engine
COPY --from=system /out/ /
ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,source=packages,target=/mnt --mount=type=tmpfs,target=/tmp \
    ["/usr/bin/python3.11", "-I", "-B", "/mnt/assemble.py", "packages", "/mnt", "/opt/engine"]
RUN --mount=type=tmpfs,target=/tmp --mount=type=bind,source=runtime,target=/tmp/context \
    ["/usr/bin/python3.11", "-I", "-B", "/tmp/context/assemble.py", "runtime", "/tmp/context", "/opt/dsruntime"]
# The mount left its time on /mnt.
RUN ["/usr/bin/python3.11", "-I", "-B", "-c", \
     "import os; when = int(os.environ['SOURCE_DATE_EPOCH']); os.utime('/mnt', (when, when))"]
ARG INPUTS
ENV DSCTL_IMAGE=${INPUTS} \
    PATH=/opt/engine/bin:/usr/bin \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HF_HUB_OFFLINE=1 \
    TRANSFORMERS_OFFLINE=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    VLLM_NO_USAGE_STATS=1 \
    DO_NOT_TRACK=1
WORKDIR /
USER 10001:10001
ENTRYPOINT ["/opt/engine/bin/python", "-I", "/usr/lib/dsctl/serve.py"]
CMD ["--help"]

# No compiler: a CPU engine runs eagerly, and what vLLM would compile in passing it then interprets.
FROM engine AS engine-cpu
ENV TORCHDYNAMO_DISABLE=1

# The compilers stay: kernels are made for the card that is found, at the first start.
FROM engine AS engine-cuda
ENV CUDA_HOME=/opt/engine/lib/python3.11/site-packages/nvidia/cu13 \
    PATH=/opt/engine/bin:/opt/engine/lib/python3.11/site-packages/nvidia/cu13/bin:/usr/bin \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM scratch AS gateway
COPY --from=system /out/ /
WORKDIR /
USER 10002:10001
EXPOSE 8000 8001
STOPSIGNAL SIGQUIT
ENTRYPOINT ["/usr/sbin/nginx", "-e", "/dev/stderr", "-c"]
CMD ["/etc/gateway/http.conf"]
