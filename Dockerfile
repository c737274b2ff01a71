# The Python that the tests run on.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
WORKDIR /build
RUN python -m venv --without-pip /opt/conductor
COPY requirements/ requirements/
RUN pip install --no-cache-dir --no-deps --require-hashes -r requirements/build.lock \
    && pip --python /opt/conductor/bin/python install --no-cache-dir --no-deps --require-hashes \
        -r requirements/extras.lock
COPY pyproject.toml README.md LICENSE ./
COPY conductor/ conductor/
# conductor/web has links to them.
COPY clients/js/conductor.js clients/js/conductor-elements.js clients/js/openai-live.js clients/js/utterances.js \
    clients/js/
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && pip --python /opt/conductor/bin/python install --no-cache-dir --no-deps --no-index dist/*.whl

FROM python:${PYTHON_VERSION}-slim
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin conductor \
    && install --directory --mode=0700 --owner=conductor --group=conductor /data
COPY --from=build /opt/conductor /opt/conductor
# 0.0.0.0 is for the container's own network; the server starts on it only with AUTH_TOKENS.
ENV PATH=/opt/conductor/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOST=0.0.0.0 \
    PORT=8080 \
    LOG_FORMAT=json \
    DATA_DIR=/data
# By number, so that Kubernetes can see that it is not root.
USER 10001
# Sessions are kept here, files named in settings are looked up here, and a .env is read from here; nothing
# else is writable.
WORKDIR /data
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['PORT']), timeout=3); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
# The exec form, so that SIGTERM reaches the server itself: it lets running turns end, in 30 s at most.
ENTRYPOINT ["conductor"]
