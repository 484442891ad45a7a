"""moto's S3 server with faults: prints its URL, makes the bucket, and fails by the mode in the file FAULTS.

A mode is a word: `none`, `errors` (each second call fails with 500, 503 SlowDown or a closed connection, with and without its
effect) or `away` (503 to every call).
"""

import itertools
import os
import sys
import threading

import boto3
from botocore.config import Config
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

FAULTS = sys.argv[1]
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"

moto = DomainDispatcherApplication(create_backend_app)
calls = itertools.count()


def mode():
    with open(FAULTS) as file:
        return file.read().strip()


def faulty(environ, start_response):
    if "tests" in environ.get("HTTP_USER_AGENT", ""):
        return moto(environ, start_response)
    kind = mode()
    number = next(calls)
    if kind == "away" or kind == "errors" and number % 6 == 1:
        start_response("503 Slow Down", [("content-type", "application/xml")])
        return [SLOW_DOWN]
    if kind == "errors" and number % 6 == 3:
        # Done, and the answer is lost.
        for _ in moto(environ, lambda status, headers, exc_info=None: None):
            pass
        start_response("500 Internal Server Error", [("content-type", "application/xml")])
        return [INTERNAL]
    if kind == "errors" and number % 6 == 5:
        raise ConnectionAbortedError
    return moto(environ, start_response)


server = make_server("127.0.0.1", 0, faulty, threaded=True)
url = f"http://127.0.0.1:{server.server_port}"
os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1")
threading.Thread(target=server.serve_forever, daemon=True).start()

s3 = boto3.client("s3", endpoint_url=url, config=Config(user_agent="tests"))
s3.create_bucket(Bucket="tokens")
print(url, flush=True)
# Each line is a directory to which all objects are copied. The test closes the input.
for directory in sys.stdin:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket="tokens"):
        for found in page.get("Contents", []):
            path = os.path.join(directory.strip(), found["Key"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            s3.download_file("tokens", found["Key"], path)
    print("done", flush=True)
