"""Tests the connector with the installed SGLang, in processes of its own Python. Skipped if there is none.

Each process imports SGLang again, which takes seconds. Tests therefore share processes if they can.
"""
import json
import pathlib
import re

import pytest

from conftest import PACKAGE

LAYOUTS = PACKAGE.parent / "path/wire/layouts"

# Loads plugins like SGLang and returns the number of hooks on each function of a loaded module.
HOOKED = """
import json, multiprocessing, os, pkgutil, sys
TARGETS = ["managers.scheduler.Scheduler.init_ipc_channels", "managers.tokenizer_manager.TokenizerManager._handle_batch_output",
           "managers.tokenizer_manager.TokenizerManager.__init__", "managers.multi_tokenizer_mixin.MultiTokenizerRouter._distribute_result_to_workers",
           "managers.detokenizer_manager.DetokenizerManager.event_loop", "function_call.function_call_parser.FunctionCallParser.parse_stream_chunk"]
def hooked():
    from sglang.srt.plugins import load_plugins
    load_plugins(); load_plugins()
    found = {}
    for target in TARGETS:
        name = "sglang.srt." + target
        if ".".join(name.split(".")[:4]) in sys.modules:
            function, depth = pkgutil.resolve_name(name), 0
            while hasattr(function, "__wrapped__"):
                function, depth = function.__wrapped__, depth + 1
            found[target.split(".", 2)[2]] = depth
    return found
"""

# Makes several starts in one process, and resets the state between them.
STARTS = HOOKED + """
import sglang.srt.plugins as plugins
import sglang.srt.function_call.function_call_parser, sglang.srt.managers.detokenizer_manager, sglang.srt.managers.scheduler
found = []
for start in json.loads(os.environ["STARTS"]):
    plugins._plugins_loaded = False
    plugins.HookRegistry.reset()
    if "afterbay_sglang" in sys.modules: sys.modules["afterbay_sglang"]._registered = False
    os.environ.update(start)
    found.append(hooked())
    for name in start: del os.environ[name]
print(json.dumps(found))
"""


@pytest.mark.parametrize("switch, told", [({}, "pickle"), ({"SGLANG_USE_PICKLE_IPC": "0"}, "msgpack")], ids=["default", "SGLANG_USE_PICKLE_IPC=0"])
def test_format_and_layout_match_the_installed_version(real_sglang, switch, told):
    code = """
import json
from afterbay_sglang import rendezvous, wire
from sglang.srt.managers import io_struct
class Socket:
    def send(self, data, flags=0): self.sent = "msgpack"
    def send_pyobj(self, obj, flags=0, protocol=None): self.sent = "pickle"
socket = Socket()
io_struct.sock_send(socket, io_struct.FreezeGCReq())
from afterbay_connector import introduction
content = introduction.describe("sglang", rendezvous.sglang_version(), wire.classes())
print(json.dumps([wire.ipc_format(), socket.sent, content]))
"""
    says, sends, content = real_sglang.answer(code, path=[PACKAGE], **switch)
    assert says == sends == told
    version = content["version"]
    on_record = LAYOUTS / f"{version}.json"
    if not on_record.exists():
        pytest.skip(f"no layout on record for SGLang {version} in {LAYOUTS}")
    names = {name: [field[0] for field in fields] for name, fields in content["classes"].items()}
    recorded = json.loads(on_record.read_text())
    assert names == {name: recorded[name] for name in names} and len(names) == 3


def test_a_sample_and_a_tenant_are_in_the_rids_of_the_installed_version(real_sglang, on_path):
    code = """
import asyncio, copy, json, types
from sglang.srt.plugins import load_plugins
from sglang.srt.managers import io_struct, tokenizer_manager
load_plugins()
class Tokenizer(tokenizer_manager.TokenizerManager):
    def __init__(self): self.auto_create_handle_loop = lambda: 1 / 0
async def first(generator):
    async for _ in generator: break
request = types.SimpleNamespace(headers={"x-tenant": "acme"}, state=types.SimpleNamespace())
obj = io_struct.GenerateReqInput(text="a", rid="gw-7", sampling_params={"n": 2})
try: asyncio.run(first(Tokenizer().generate_request(obj, request)))
except ZeroDivisionError: pass
obj.normalize_batch_and_arguments()
samples = [copy.copy(obj[0]) for _ in range(2)]
print(json.dumps([obj.rid[0]] + [sample.regenerate_rid() for sample in samples] + [sample.rid for sample in samples]))
"""
    first, *samples = real_sglang.answer(code, path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_TENANT="header:x-tenant")
    assert first == "acme~gw-7_0"
    assert samples[:2] == samples[2:] and len(set(samples)) == 2
    assert all(re.fullmatch("acme~gw-7_0-n[0-9a-f]{12}", sample) for sample in samples)


def test_it_hooks_once_if_it_is_enabled(real_sglang, on_path, tmp_path):
    """The connector is only on the path, with a second copy behind it, as if it were also installed by pip."""
    second = tmp_path / "second"
    second.mkdir()
    for entry in on_path.iterdir():
        (second / entry.name).symlink_to(entry.resolve())
    asked = {"AFTERBAY_INGRESS": "ipc:///a", "AFTERBAY_CREDIT": str(tmp_path / "credit")}
    starts = [{}, {"SGLANG_PLUGINS": "none", **asked}, {"SGLANG_PLUGINS": "other,afterbay", **asked}]
    nothing, filtered, let_through = real_sglang.answer(STARTS, path=[on_path, second], STARTS=json.dumps(starts))
    once = {
        "Scheduler.init_ipc_channels": 1,
        "TokenizerManager._handle_batch_output": 1,
        "TokenizerManager.__init__": 1,
        "MultiTokenizerRouter._distribute_result_to_workers": 1,
        "DetokenizerManager.event_loop": 1,
        "FunctionCallParser.parse_stream_chunk": 1,
    }
    assert nothing == filtered == dict.fromkeys(once, 0)
    assert let_through == once
    assert not (tmp_path / "credit").exists(), "a reader makes a page, not the loading of the plugin"


def test_a_spawned_detokenizer_does_not_import_the_scheduler(real_sglang, on_path, tmp_path):
    script = tmp_path / "spawns.py"
    script.write_text(
        HOOKED
        + """
def child(queue):
    import sglang.srt.managers.detokenizer_manager
    queue.put([hooked(), "sglang.srt.managers.scheduler" in sys.modules])
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start(); print(json.dumps(queue.get(timeout=120))); process.join()
"""
    )
    found, scheduler_imported = real_sglang.answer(
        f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CREDIT=tmp_path / "credit"
    )
    assert found["DetokenizerManager.event_loop"] == 1
    assert not scheduler_imported


def test_an_older_detokenizer_starts_with_the_hooks_in_place(real_sglang, on_path, tmp_path):
    """The Engine's start is replaced by one that only spawns the detokenizer's process."""
    old = pathlib.Path.home() / ".cache/afterbay-dynamo/sglang-0.5.21"
    if not old.exists():
        pytest.skip(f"no SGLang 0.5.21 in {old}: run shared/dynamo/install 1.6.1 0.5.21")
    script = tmp_path / "starts.py"
    script.write_text(
        HOOKED
        + """
def detokenizer(queue):
    found = hooked()
    queue.put([found, "sglang.srt.managers.scheduler" in sys.modules])
def start(cls, server_args, init_tokenizer_manager_func, run_scheduler_process_func, run_detokenizer_process_func, port_args=None, placement_group=None):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=run_detokenizer_process_func, args=(queue,))
    process.start(); answer = queue.get(timeout=120); process.join()
    return answer
if __name__ == "__main__":
    from sglang.srt.entrypoints.engine import Engine
    Engine._launch_subprocesses = classmethod(start)
    hooked()
    print(json.dumps(Engine._launch_subprocesses(None, init_tokenizer_manager_func=None, run_scheduler_process_func=None, run_detokenizer_process_func=detokenizer)))
"""
    )
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    asked = dict(AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CREDIT=tmp_path / "credit")
    found, scheduler_imported = real_sglang.answer(code, path=[on_path, old], **asked)
    assert found["DetokenizerManager.event_loop"] == 1
    assert not scheduler_imported


def test_a_process_that_joins_an_engine_has_the_hooks_before_its_tokenizer(real_sglang, on_path, tmp_path):
    code = (
        HOOKED
        + """
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers import multi_tokenizer_mixin, tokenizer_manager
before = hasattr(tokenizer_manager.TokenizerManager.__init__, "__wrapped__")
class Args:
    def get_tokenizer_worker_class(self): return multi_tokenizer_mixin.TokenizerWorker
from sglang.srt.entrypoints import engine
made = engine.get_tokenizer_worker_class(Args())
print(json.dumps([before, made is multi_tokenizer_mixin.TokenizerWorker, hooked()]))
"""
    )
    asked = dict(AFTERBAY_INGRESS="ipc:///a", AFTERBAY_RENDEZVOUS=tmp_path / "r.json", AFTERBAY_CREDIT=tmp_path / "credit")
    before, is_sglangs, hooks = real_sglang.answer(code, path=[on_path, PACKAGE / "afterbay_sglang/attached_path"], **asked)
    assert (before, is_sglangs) == (False, True)
    assert (hooks["TokenizerManager.__init__"], hooks["TokenizerManager._handle_batch_output"]) == (1, 1)


def test_an_abort_arrives_on_the_schedulers_own_socket_in_both_encodings(real_sglang, tmp_path):
    code = f"""
import json, types
import zmq
from afterbay_sglang import abort
from afterbay_sglang.settings import Settings
from sglang.srt.managers import io_struct
from sglang.srt.managers.scheduler_components.ipc_channels import SchedulerIpcChannels
at = lambda name: "ipc://{tmp_path}/" + name
ports = types.SimpleNamespace(**{{name + "_ipc_name": at(name) for name in ("tokenizer", "detokenizer", "scheduler_input", "rpc", "metrics")}})
channels = SchedulerIpcChannels.create(port_args=ports, is_rank_zero=True, skip_tokenizer_init=False, metrics_enabled=False, enable_scripted_runtime=False)
tokenizer, afterbay = [zmq.Context.instance().socket(zmq.PUSH) for _ in range(2)]
tokenizer.bind(at("scheduler_input")); afterbay.bind(at("abort"))
told = abort.of_scheduler(Settings("ipc:///a", None, None, abort=at("abort")), types.SimpleNamespace(ipc_channels=channels), 0, 1)
channels.recv_from_tokenizer.setsockopt(zmq.RCVTIMEO, 20000)
received = []
# The bytes of afterbay-wire: the mark, the rid, and the default of every other field.
for is_pickle, message in ((False, b"\\x93\\xa8AbortReq\\xa9\\0afterbay\\xa2r0"), (True, b"\\x80\\x05cmsgspec._utils\\nrebuild\\n(csglang.srt.managers.io_struct\\nAbortReq\\n}}(\\x8c\\x03rid\\x8c\\x09\\0afterbay\\x8c\\x0fhttp_worker_ipc\\x8c\\x02r0\\x8c\\tabort_all\\x89utR.")):
    io_struct._USE_PICKLE_IPC = is_pickle
    afterbay.send(message)
    received.append(io_struct.sock_recv(channels.recv_from_tokenizer) == io_struct.AbortReq(rid=abort.EXACT, http_worker_ipc="r0"))
io_struct.sock_send(tokenizer, io_struct.FreezeGCReq())
received.append(type(io_struct.sock_recv(channels.recv_from_tokenizer)).__name__)
print(json.dumps([told, received, abort.request()]))
"""
    told, received, request = real_sglang.answer(code, path=[PACKAGE])
    assert told == [f"ipc://{tmp_path}/abort", None]
    assert received == [True, True, "FreezeGCReq"]
    assert (request["fields"][:2], request["struct"]) == (["rid", "http_worker_ipc"], True)


def test_the_real_rust_server_is_hooked_and_takes_the_rows_that_return(real_sglang, on_path, tmp_path):
    """Without a model: SGLang's own push_generation and messages, and a stub of the extension's ring."""
    code = (
        HOOKED
        + """
import threading, types, msgspec, zmq
from array import array
loaded = hooked()
from afterbay_sglang.rust_server import rows
from afterbay_sglang.rust_server.detour import Detour
from sglang.srt.managers import io_struct
from sglang.srt.rust_server.server import RustServer

pushed, arrived = [], threading.Semaphore(0)
class Ring:
    def push_decode_result_batch(self, header, columns):
        pushed.append(msgspec.msgpack.decode(header)[:4]); arrived.release(); return True
    def push_health_ack(self): pushed.append("health"); arrived.release()
context = zmq.Context.instance()
def socket(kind, name, bind):
    made = context.socket(kind); (made.bind if bind else made.connect)("ipc://" + os.environ["AFTERBAY_RENDEZVOUS"] + name); return made
server = RustServer(Ring(), 0)
afterbay_in, afterbay_out = socket(zmq.PULL, "in", True), socket(zmq.PUSH, "back", False)
server._afterbay_detour = Detour(server, types.SimpleNamespace(socket=socket(zmq.PUSH, "in", False)), None, socket(zmq.PULL, "back", True), None)
server._afterbay_detour.start()
request = types.SimpleNamespace(origin_input_ids=[1, 2], output_ids=array("q", [5]), send_token_offset=1, cached_tokens=0, reasoning_tokens=0)
batch = rows.of_abort(io_struct.AbortReq(rid="a"), request)
batch.finished_reasons, batch.output_ids = [None], [array("q", [5])]
server.push_generation(batch, {}); server.push_health_ack(); server.push_abort(io_struct.AbortReq(rid="a"), request)
for _ in range(3): afterbay_out.send(afterbay_in.recv()); assert arrived.acquire(timeout=30)
print(json.dumps([sum(loaded.values()), pushed])); sys.stdout.flush(); os._exit(0)
"""
    )
    asked = dict(AFTERBAY_INGRESS="ipc:///a", AFTERBAY_RENDEZVOUS=tmp_path / "r.json", SGLANG_RUST_SERVER="1")
    hooks, pushed = real_sglang.answer(code, path=[on_path], **asked)
    assert hooks == 1, "the scheduler's sockets, and no reader"
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    assert pushed == [[["a"], [None], [2], [1]], "health", [["a"], [reason], [2], [0]]]


@pytest.mark.parametrize("leg", ["direct", "through AFTERBAY_TEXT_INGRESS", "through it to two tokenizers"])
def test_the_real_detokenizer_counts_the_frames_that_it_has_sent_on(real_sglang, on_path, tmp_path, leg):
    """Uses SGLang's own loop, dispatcher, sockets and encoder. Only the constructor is replaced, to avoid a model."""
    asked = {"AFTERBAY_CREDIT": tmp_path / "credit"}
    reader, tokenizers, loop = "tok", 1, "event_loop"
    if leg != "direct":
        reader = "text"
        asked.update(AFTERBAY_INGRESS=f"ipc://{tmp_path}/in", AFTERBAY_TEXT_INGRESS=f"ipc://{tmp_path}/text", AFTERBAY_RENDEZVOUS=tmp_path / "r.json")
    if leg == "through it to two tokenizers":
        tokenizers, loop = 2, "multi_http_worker_event_loop"
    code = f"""
import json, threading, time, types
import zmq
from sglang.srt.managers import io_struct
from sglang.srt.managers.detokenizer_manager import DetokenizerManager
from sglang.srt.plugins import load_plugins
from sglang.srt.utils.network import get_zmq_socket
from sglang.srt.utils.watchdog import Watchdog
def construct(self, server_args, port_args):
    context = zmq.Context()
    self.recv_from_scheduler = get_zmq_socket(context, zmq.PULL, "ipc://{tmp_path}/down", True)
    if server_args.tokenizer_worker_num == 1: self.send_to_tokenizer = get_zmq_socket(context, zmq.PUSH, "ipc://{tmp_path}/tok", False)
    self.soft_watchdog = Watchdog.create(debug_name="test", watchdog_timeout=None, soft=True)
    self.init_request_dispatcher()
DetokenizerManager.__init__ = construct
load_plugins()
server_args = types.SimpleNamespace(detokenizer_worker_num=1, tokenizer_worker_num={tokenizers}, model_path="/m", tokenizer_path=None)
manager = DetokenizerManager(server_args, types.SimpleNamespace(tokenizer_ipc_name="ipc://{tmp_path}/tok", detokenizer_ipc_name="ipc://{tmp_path}/down"))
threading.Thread(target=manager.{loop}, daemon=True).start()
context = zmq.Context()
push = get_zmq_socket(context, zmq.PUSH, "ipc://{tmp_path}/down", False)
pull = get_zmq_socket(context, zmq.PULL, "ipc://{tmp_path}/{reader}", True)
pull.setsockopt(zmq.RCVTIMEO, 20000)
idle = {{name: [] for name in io_struct.BatchTokenIDOutput.__struct_fields__}}
idle.update(routed_experts=None, indexer_topk=None, beam_search_output=None, time_stats=None, customized_info=None)
for message in (io_struct.BatchTokenIDOutput(**idle), io_struct.FreezeGCReq(), io_struct.BatchTokenIDOutput(**idle)):
    io_struct.sock_send(push, message)
if {leg != "direct"}: assert b"introduction" in pull.recv()
received = [type(io_struct.sock_recv(pull)).__name__ for _ in range(2)]
def count(): return int.from_bytes(open("{tmp_path}/credit/detokenizer", "rb").read()[24:32], "little")
deadline = time.monotonic() + 10
while count() < 2 and time.monotonic() < deadline: time.sleep(0.01)
time.sleep(0.2)
print(json.dumps([received, count()]))
"""
    received, count = real_sglang.answer(code, path=[on_path], **asked)
    assert received == ["BatchStrOutput", "BatchStrOutput"]
    assert count == 2, "two idle batches count, the FreezeGCReq does not"
    if leg == "direct":
        return
    written = json.loads((tmp_path / "r.json.text").read_text())
    assert (written["leg"], written["down"], written["credit"]) == ("text", f"ipc://{tmp_path}/tok", f"{tmp_path}/credit/tokenizer")
    assert [worker["ipc"] for worker in written["workers"]] == [f"ipc://{tmp_path}/r.json.worker-{number}" for number in range(tokenizers) if tokenizers > 1]


def test_an_http_worker_serves_sglangs_application_with_the_hooks_in_place(real_sglang, on_path, tmp_path):
    code = (
        HOOKED
        + """
from afterbay_sglang import workers
workers.load_in_http_workers()
app = pkgutil.resolve_name(os.environ["SGLANG_HTTP_SERVER_APP_PATH"])
from sglang.srt.entrypoints import http_server
print(json.dumps([app is http_server.app, hooked()]))
"""
    )
    asked = dict(AFTERBAY_INGRESS="ipc:///a", AFTERBAY_RENDEZVOUS=tmp_path / "r.json", AFTERBAY_CREDIT=tmp_path / "credit")
    is_sglangs, hooks = real_sglang.answer(code, path=[on_path], **asked)
    assert is_sglangs
    assert [hooks[name] for name in ("TokenizerManager.__init__", "TokenizerManager._handle_batch_output", "FunctionCallParser.parse_stream_chunk")] == [1, 1, 1]


def test_clients_are_told_where_their_stream_is_read_and_a_request_is_migrated(real_sglang, on_path, clients_key):
    code = f"""
import asyncio, json, time, types
from sglang.srt.managers.tokenizer_manager import TokenizerManager
async def generate_request(self, obj, request=None):
    yield dict(rid=obj.rid)
TokenizerManager.generate_request = generate_request
from sglang.srt.entrypoints import http_server
from sglang.srt.plugins import load_plugins
load_plugins()
from afterbay_connector import capability
http_server._global_state = types.SimpleNamespace(tokenizer_manager=object.__new__(TokenizerManager))
def ask(body, path="/generate", **headers):
    sent, messages = [], [dict(type="http.request", body=json.dumps(body).encode(), more_body=False)]
    async def receive(): return messages.pop(0) if messages else await asyncio.Event().wait()
    async def send(message): sent.append(message)
    headers = [(b"content-type", b"application/json"), *((name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items())]
    scope = dict(type="http", http_version="1.1", method="POST", path=path, raw_path=b"", query_string=b"", root_path="", scheme="http", server=("a", 1), client=("b", 2), headers=headers)
    async def all_of_it():
        # SGLang works on for 2 s behind a stream's end.
        task = asyncio.ensure_future(http_server.app(scope, receive, send))
        while not sent or not (task.done() or sent[-1].get("more_body") is False): await asyncio.sleep(0.01)
        task.cancel()
    asyncio.run(all_of_it())
    added = {{name.decode(): value.decode() for name, value in sent[0]["headers"] if b"afterbay" in name or b"expose" in name}}
    return [sent[0]["status"], added, b"".join(message.get("body", b"") for message in sent[1:]).decode()]
rid = "acme~lease-60s~\\u00e9"
token = capability.mint(open({clients_key!r}, "rb").read(), capability.MIGRATE, rid, int(time.time()) + 60)
valid = dict(X_Request_Id="acme~lease-60s~%C3%A9", X_Afterbay_Migration=token)
one, two = (dict(input_ids=ids, stream=True) for ids in ([1, 2], [[1], [2]]))
print(json.dumps([ask(dict(text="a", rid="7", stream=True), Origin="http://x"), ask(dict(text="a", rid="7")), ask(one, **valid), ask(dict(one, sampling_params=dict(n=2)), **valid), ask(two, **valid), ask(one, **dict(valid, X_Request_Id="8"))]))
"""
    answers = real_sglang.answer(code, path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CLIENTS_KEY=clients_key, AFTERBAY_TENANT="header:X-Tenant")
    (stream, whole), (migrated, *several, refused) = answers[:2], answers[2:]
    for status, headers, body in (stream, whole):
        assert status == 200 and headers.pop("x-afterbay-stream").startswith("/v1/streams/~7?token=") and '{"rid":"~7"}' in body
    assert (stream[1], whole[1]) == ({"access-control-expose-headers": "x-afterbay-stream"}, {})
    assert migrated[:2] == [200, {"x-afterbay-migration": "acme~lease-60s~%C3%A9"}] and '{"rid":"acme~lease-60s~é"}' in migrated[2]
    for status, _, body in several:
        assert status == 400 and "must be one prompt and n = 1" in body
    assert refused[0] == 403 and "the token is not for this request" in refused[2]
