"""An S3-compatible store at the server's host: the model is an object, and each update is one. Parties poll the store.

Documentation: boto3 ("upload_fileobj" and "download_fileobj" split large objects by themselves). The store is moto's
server, which is made for tests. A store does not notify anybody of new objects, so a party asks every 10 ms.
"""

from __future__ import annotations

import io
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import boto3
import numpy as np
from botocore.config import Config
from botocore.exceptions import ClientError
from contract import Job, job, train

BUCKET = "bench"


def store(job: Job):
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=32, read_timeout=600)
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    return boto3.client("s3", endpoint_url=f"http://{job.server}", region_name="us-east-1", config=config, **keys)


def put(client, key: str, array: np.ndarray) -> None:
    client.upload_fileobj(io.BytesIO(array), BUCKET, key)


def get(client, key: str) -> np.ndarray:
    """Wait until an object exists, and return its values."""
    while True:
        into = io.BytesIO()
        try:
            client.download_fileobj(BUCKET, key, into)
        except ClientError as error:
            if error.response["Error"]["Code"] != "404":
                raise
            time.sleep(0.01)
        else:
            return np.frombuffer(into.getbuffer(), np.float32)


def serve(job: Job) -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=job.addresses[0], port=job.port, verbose=False)
    server.start()
    client = store(job)
    client.create_bucket(Bucket=BUCKET)
    job.ready()
    with ThreadPoolExecutor(job.clients) as pool:
        for number in range(1, job.rounds + 1):
            model, mean = job.model(number), np.zeros(job.size // 4, np.float32)
            begin = time.perf_counter()
            put(client, f"model-{number}", model)
            keys = [f"update-{number}-{n}" for n in range(1, job.clients + 1)]
            for update in pool.map(lambda key: get(client, key), keys):
                mean += update
            mean /= job.clients
            job.done(number, begin, time.perf_counter(), mean)
            for key in [*keys, f"model-{number}"]:
                client.delete_object(Bucket=BUCKET, Key=key)
    server.stop()


def take_part(job: Job) -> None:
    client = store(job)
    for number in range(1, job.rounds + 1):
        model = get(client, f"model-{number}").copy()
        train(model, job.index)
        put(client, f"update-{number}-{job.index}", model)


if __name__ == "__main__":
    one = job()
    serve(one) if one.index == 0 else take_part(one)
    sys.exit(0)
