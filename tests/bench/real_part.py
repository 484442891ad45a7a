"""One process of `real.py`: a part of the real SGLang, or the fake scheduler, for a topology that SHARED has no script for.

    python real_part.py SHARED PART [arguments of the part]

Run by SGLang's own Python. SHARED is the directory with run_bench.py; its scripts do the work, and this file only gives them the
classes that SGLang itself uses with several detokenizers or tokenizers.
"""

import os
import runpy
import sys
import time

SHARED, PART = sys.argv[1:3]
sys.argv = [f"{PART}.py", *sys.argv[3:]]
sys.path.insert(0, SHARED)
os.chdir(SHARED)
import common  # noqa: E402


def option(name):
    """Takes an option with a value out of the command line."""
    at = sys.argv.index(name)
    value = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return value


def server(directory):
    """What SGLang gives to each of its processes, and the sockets in this directory."""
    from sglang.srt.runtime_context import publish

    arguments = common.make_server_args(skip_tokenizer_init=False)
    publish(arguments, role="tokenizer")
    return arguments, common.make_port_args(directory)


def with_workers():
    """Makes the next process part of a server with several tokenizers."""
    arguments = common.make_server_args
    common.make_server_args = lambda **fields: arguments(**{"tokenizer_worker_num": 2, **fields})


def scheduler():
    """The fake scheduler. Each row names the tokenizer that sent its request, as the real scheduler's rows do."""
    from sglang.srt.managers import io_struct

    receive, output, tokenizers = io_struct.sock_recv, io_struct.BatchTokenIDOutput, {}

    def sock_recv(socket):
        request = receive(socket)
        tokenizers[request.rid] = request.http_worker_ipc
        return request

    def batch(**columns):
        columns["http_worker_ipcs"] = [tokenizers[rid] for rid in columns["rids"]]
        return output(**columns)

    io_struct.sock_recv, io_struct.BatchTokenIDOutput = sock_recv, batch
    runpy.run_path(f"{SHARED}/fake_scheduler.py", run_name="__main__")


def tokenizer_worker():
    """One of several tokenizers: SGLang's TokenizerWorker. Its rids begin with its number."""
    number = option("--number")
    from sglang.srt.managers import io_struct, multi_tokenizer_mixin, tokenizer_manager

    ports = common.make_port_args

    def make_port_args(directory):
        mine = ports(directory)
        mine.scheduler_input_ipc_name = f"ipc://{directory}/router"
        mine.tokenizer_worker_ipc_name = f"ipc://{directory}/router"
        mine.tokenizer_ipc_name = f"ipc://{directory}/tok{number}"
        return mine

    class Request(io_struct.GenerateReqInput):
        def __init__(self, *args, rid=None, **fields):
            super().__init__(*args, rid=rid and f"w{number}-{rid}", **fields)

    common.make_port_args = make_port_args
    with_workers()
    io_struct.GenerateReqInput = Request
    tokenizer_manager.TokenizerManager = multi_tokenizer_mixin.TokenizerWorker
    runpy.run_path(f"{SHARED}/real_tokenizer.py", run_name="__main__")


def tokenizer_router():
    """SGLang's router between several tokenizers and the scheduler."""
    directory = option("--dir")
    arguments, ports = server(directory)
    ports.tokenizer_worker_ipc_name = f"ipc://{directory}/router"
    from sglang.srt.managers.multi_tokenizer_mixin import MultiTokenizerRouter

    router = MultiTokenizerRouter(arguments, ports)
    open(f"{directory}/router.ready", "w").close()
    while router:
        time.sleep(60)


def detokenizer_of_workers():
    """The detokenizer that sends each row to its own tokenizer."""
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager

    with_workers()
    DetokenizerManager.event_loop = DetokenizerManager.multi_http_worker_event_loop
    runpy.run_path(f"{SHARED}/real_detokenizer.py", run_name="__main__")


def detokenizer_router():
    """SGLang's router before several detokenizers."""
    directory, number = option("--dir"), int(option("--number"))
    arguments, ports = server(directory)
    from sglang.srt.managers.multi_tokenizer_mixin import MultiDetokenizerRouter

    router = MultiDetokenizerRouter([f"ipc://{directory}/{at}/detok" for at in range(number)], ports)
    open(f"{directory}/router.ready", "w").close()
    router.event_loop()


PARTS = [scheduler, tokenizer_worker, tokenizer_router, detokenizer_of_workers, detokenizer_router]
{part.__name__: part for part in PARTS}[PART]()
