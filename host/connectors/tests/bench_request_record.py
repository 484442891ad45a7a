"""Measures what the records of requests add to a scheduler's step.

Run it with the engine's Python, and the connectors on PYTHONPATH:

    PYTHONPATH=host/connectors ~/.cache/afterbay-vllm/venv/bin/python host/connectors/tests/bench_request_record.py vllm
    PYTHONPATH=host/connectors:SGLANG ~/.cache/afterbay-sglang/venv/bin/python host/connectors/tests/bench_request_record.py sglang

For each number of requests in a step and of ids in a prompt, it prints the milliseconds of the engine's own first work on these requests
(decode the messages, make the scheduler's objects), and of their records: made and put on a PUSH, which another process reads.
"""
import subprocess
import sys
import time
import types
from array import array

READER = "import sys, zmq\npull = zmq.Context().socket(zmq.PULL)\npull.set_hwm(0)\npull.bind(sys.argv[1])\nwhile True: pull.recv()"
ENDPOINT = "ipc:///tmp/afterbay-bench-request-record"
REPEATS = 7


def sglang(socket):
    """Return the functions that make a step's messages, handle them as SGLang does, and send their records."""
    from sglang.srt.managers import io_struct
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from afterbay_sglang import request_record

    sender = type("SenderWrapper", (), {"__module__": "sglang", "socket": socket})()
    scheduler = types.SimpleNamespace(send_to_detokenizer=sender, server_args=types.SimpleNamespace(served_model_name="Qwen/Qwen3-8B", dp_size=1))

    def encoded(number, ids):
        params = SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=512, stop=["</answer>"])
        params.stop_strs, params.is_normalized = ["</answer>"], True
        fixed = dict(input_text=None, mm_inputs=None, token_type_ids=None, sampling_params=params, input_embeds=None, stream=True)
        logprobs = dict(return_logprob=False, logprob_start_len=-1, top_logprobs_num=0, token_ids_logprob=None)
        return io_struct.msgpack_encode(io_struct.TokenizedGenerateReqInput(rid=f"{number:032x}", input_ids=array("q", range(ids)), **fixed, **logprobs))

    def handle(message):
        request = io_struct.msgpack_decode(message)
        Req(request.rid, None, request.input_ids, request.sampling_params, vocab_size=1 << 17)
        return request

    return encoded, handle, lambda request: request_record.announce(lambda *_: None, scheduler, request)


def vllm(socket):
    """The same for vLLM. The thread of the output sockets sends; here it is part of the time."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.request import Request
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    from afterbay_vllm import request_record

    queue = types.SimpleNamespace(put_nowait=lambda message: socket.send(message.content))
    config = types.SimpleNamespace(model_config=types.SimpleNamespace(served_model_name="Qwen/Qwen3-8B"), parallel_config=types.SimpleNamespace())
    engine = types.SimpleNamespace(output_queue=queue, vllm_config=config)
    encoder, decoder = MsgpackEncoder(), MsgpackDecoder(EngineCoreRequest)

    def encoded(number, ids):
        params = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=512, stop=["</answer>"])
        none = dict.fromkeys(("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank"))
        return encoder.encode(EngineCoreRequest(request_id=f"chatcmpl-{number:032x}", prompt_token_ids=list(range(ids)), sampling_params=params, arrival_time=time.time(), **none))

    def handle(message):
        request = decoder.decode(message)
        Request.from_engine_core_request(request, None)
        return request

    return encoded, handle, lambda request: request_record.announce(lambda *_: None, engine, request)


def main(engine):
    import zmq

    reader = subprocess.Popen([sys.executable, "-c", READER, ENDPOINT])
    try:
        socket = zmq.Context().socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.connect(ENDPOINT)
        encoded, handle, record = {"sglang": sglang, "vllm": vllm}[engine](socket)
        print("requests      ids   own ms   record ms")
        for ids in (32, 32_000):
            for requests in (1, 64, 1024):
                messages = [encoded(number, ids) for number in range(requests)]
                own, added = [], []
                for _ in range(REPEATS):
                    begin = time.perf_counter()
                    handled = [handle(message) for message in messages]
                    own.append(time.perf_counter() - begin)
                    begin = time.perf_counter()
                    for request in handled:
                        record(request)
                    added.append(time.perf_counter() - begin)
                    time.sleep(0.2)
                print(f"{requests:8} {ids:8} {min(own) * 1e3:8.3f} {min(added) * 1e3:11.3f}", flush=True)
        socket.close(linger=0)
    finally:
        reader.kill()


main(sys.argv[1])
