# One image for both roles:
#     docker run IMAGE                                     a gateway
#     docker run IMAGE celery -A appserver worker          a worker

# The version that the tests run on. A tag may later name another image. To build on an image that you
# have examined, name it by its digest, which `docker images --digests` shows:
#     docker build --build-arg BASE=python@sha256:... .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
COPY README.md LICENSE setup.cfg pyproject.toml constraints-image.txt ./
COPY gateway gateway
COPY appserver appserver
RUN python -m venv /opt/gateway \
    && /opt/gateway/bin/pip install --no-cache-dir \
        --require-hashes --only-binary :all: --requirement constraints-image.txt \
    && /opt/gateway/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM ${BASE}
# A fixed number, so that volumes and security policies can name it.
RUN useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin gateway \
    && install --directory --owner gateway /var/lib/gateway
COPY --from=build /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER gateway
# Celery imports from its working directory, and only root can write to this one.
WORKDIR /opt/gateway
EXPOSE 8000
# This checks liveness, not readiness: if the broker is down, that is no reason to replace a gateway. A
# container in another role has no admin port, and must disable this check.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:9464/healthz', timeout=2)"]
CMD ["gateway", "serve", "--host", "0.0.0.0"]
