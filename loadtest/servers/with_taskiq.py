"""FastAPI in front of Taskiq, which publishes to RabbitMQ and stores results in Redis.

``uvicorn loadtest.servers.with_taskiq:app`` serves it; ``taskiq worker
loadtest.servers.with_taskiq:broker`` runs the task.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from taskiq_aio_pika import AioPikaBroker
from taskiq_redis import RedisAsyncResultBackend

#: Seconds. Taskiq's own interval of 0.2 s would limit 64 connections to 320 requests a second.
CHECK_INTERVAL, TIMEOUT, EXPIRES = 0.005, 60, 300

# The line that says that a worker is ready: since Python 3.14 its processes are no forks, and
# Taskiq prepares the log of forks only.
if multiprocessing.parent_process() is not None:
    logging.basicConfig(level=logging.INFO)

broker = AioPikaBroker(os.environ["GATEWAY_BROKER_URL"], qos=100).with_result_backend(
    RedisAsyncResultBackend(os.environ["GATEWAY_RESULT_BACKEND"], result_ex_time=EXPIRES)
)


@broker.task
async def echo(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    return body


@asynccontextmanager
async def _connected(_: FastAPI) -> AsyncIterator[None]:
    await broker.startup()
    yield
    await broker.shutdown()


app = FastAPI(lifespan=_connected)


@app.post("/")
async def relay(request: Request) -> Response:
    body = (await request.body()).decode()
    task = await echo.kiq(dict(request.query_params), dict(request.headers), body)
    result = await task.wait_result(CHECK_INTERVAL, TIMEOUT)
    return Response(result.return_value, media_type="text/plain")
