"""Plain HTTP with aiohttp: a client gets the model and posts its update, each as one body.

Documentation: docs.aiohttp.org. A ``client_max_size`` of 0 means no limit. A session keeps its connection open.
"""

from __future__ import annotations

import asyncio
import time

import aiohttp
import numpy as np
from aiohttp import web
from contract import Job, job, train


class Server:
    """The state of the current round."""

    def __init__(self, job: Job) -> None:
        self.job, self.number, self.arrived = job, 0, 0
        self.model = self.sum = np.empty(0, np.float32)
        self.changed = asyncio.Condition()

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        async with self.changed:
            await self.changed.wait_for(lambda: self.number == int(request.match_info["number"]))
        return web.Response(body=memoryview(self.model).cast("B"))

    async def submit(self, request: web.Request) -> web.Response:
        update = np.frombuffer(await request.read(), np.float32)
        async with self.changed:
            self.sum += update
            self.arrived += 1
            self.changed.notify_all()
        return web.Response()

    async def round(self, number: int) -> np.ndarray:
        async with self.changed:
            self.number, self.arrived = number, 0
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.arrived == self.job.clients)
        self.sum /= self.job.clients
        return self.sum


async def serve(job: Job) -> None:
    state = Server(job)
    app = web.Application(client_max_size=0)
    app.add_routes([web.get("/model/{number}", state.fetch), web.post("/update", state.submit)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, job.addresses[0], job.port).start()
    job.ready()
    for number in range(1, job.rounds + 1):
        state.model, state.sum = job.model(number), np.zeros(job.size // 4, np.float32)
        begin = time.perf_counter()
        mean = await state.round(number)
        job.done(number, begin, time.perf_counter(), mean)
    await runner.cleanup()


async def take_part(job: Job) -> None:
    unlimited = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(f"http://{job.server}", timeout=unlimited) as session:
        for number in range(1, job.rounds + 1):
            async with session.get(f"/model/{number}") as response:
                model = np.frombuffer(await response.read(), np.float32).copy()
            train(model, job.index)
            async with session.post("/update", data=model.tobytes()) as response:
                await response.read()


if __name__ == "__main__":
    one = job()
    asyncio.run(serve(one) if one.index == 0 else take_part(one))
