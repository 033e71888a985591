# Our engine as somebody else would ship it: neither our directories, entrypoint nor environment.
ARG ENGINE
FROM ${ENGINE} AS ours

FROM scratch
COPY --from=ours / /
RUN ["/usr/bin/python3.11", "-I", "-c", "import os; os.rmdir('/cache'); os.rmdir('/run/engine')"]
ENV PATH=/opt/engine/bin:/usr/bin:/bin
USER 65534:65534
