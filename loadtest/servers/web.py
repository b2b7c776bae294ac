"""FastAPI in front of Celery, as its own documentation has blocking calls: in the thread pool.

``uvicorn loadtest.servers.web:app`` serves it.
"""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from loadtest.servers.stock import echo

TIMEOUT = 60  # seconds

app = FastAPI()


def call(query: dict[str, str], headers: dict[str, str], body: str) -> str:
    """Publish the task and wait for its result, both in this thread."""
    result: str = echo.delay(query, headers, body).get(timeout=TIMEOUT)
    return result


@app.post("/")
async def relay(request: Request) -> Response:
    body = (await request.body()).decode()
    result = await run_in_threadpool(call, dict(request.query_params), dict(request.headers), body)
    return Response(result, media_type="text/plain")
