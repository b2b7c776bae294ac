"""FastAPI in front of FastStream's RPC: the reply comes over RabbitMQ, by direct reply-to.

``uvicorn loadtest.servers.with_faststream:app`` serves it; ``python -m
loadtest.servers.with_faststream`` runs the subscriber, and says when it is ready.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from faststream import FastStream
from faststream.rabbit import RabbitBroker

QUEUE = "faststream"
TIMEOUT = 60  # seconds

broker = RabbitBroker(os.environ["GATEWAY_BROKER_URL"], logger=None)


@asynccontextmanager
async def _connected(_: FastAPI) -> AsyncIterator[None]:
    await broker.connect()
    yield
    await broker.stop()


app = FastAPI(lifespan=_connected)


@app.post("/")
async def relay(request: Request) -> Response:
    body = (await request.body()).decode()
    call = {"query": dict(request.query_params), "headers": dict(request.headers), "body": body}
    reply = await broker.request(call, QUEUE, timeout=TIMEOUT)
    return Response(reply.body, media_type="text/plain")


def main() -> None:
    @broker.subscriber(QUEUE)
    async def echo(query: dict[str, str], headers: dict[str, Any], body: str) -> str:
        return body

    worker = FastStream(broker, logger=None)

    @worker.after_startup
    async def announce() -> None:
        print("ready", flush=True)

    asyncio.run(worker.run())


if __name__ == "__main__":
    main()
