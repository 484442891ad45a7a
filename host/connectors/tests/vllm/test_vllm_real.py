"""Tests the connector with the installed vLLM, in processes of its own Python. Skipped if there is none."""
import json

import tiny_model

LOADED = """
import json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
def wrapped():
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    from vllm.v1.engine import core_client
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import AsyncMPClient
    from vllm.parser.parser_manager import ParserManager
    functions = [ParserManager.get_parser, EngineCoreProc.process_input_sockets, EngineCoreProc.process_output_sockets, Scheduler.__init__, AsyncMPClient.__init__, AsyncMPClient.get_output_async, AsyncLLM.check_health, core_client.make_zmq_socket, EngineCore.preprocess_add_request, EngineCoreProc.preprocess_add_request, Scheduler._update_request_as_session]
    return [getattr(function, "__module__", "") and "afterbay_vllm" in function.__code__.co_filename for function in functions]
"""


def test_the_functions_of_the_installed_version_are_wrapped_when_they_load(real_vllm, on_path, tmp_path):
    code = LOADED + "early = 'vllm.v1.engine.core_client' in sys.modules\nprint(json.dumps([early, wrapped()]))"
    done = real_vllm.run(code, path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CREDIT=tmp_path / "credit")
    assert done.returncode == 0, done.stderr[-2000:]
    early, wrapped = json.loads(done.stdout.strip().splitlines()[-1])
    assert not early, "a worker would load the engine's modules"
    assert wrapped == [True] * 11


def test_the_tenant_is_in_the_id_that_the_installed_version_makes(real_vllm, on_path):
    code = """
import json, inspect
from vllm.plugins import load_general_plugins
load_general_plugins()
from starlette.requests import Request
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from afterbay_connector.request_id import IdParts, TenantSource
from afterbay_vllm.ids import put_parts
wrapped = [hasattr(function, "__wrapped__") for function in (OpenAIServingChat.create_chat_completion, OpenAIServingCompletion.create_completion)]
async def receive(): ...
raw = Request({"type": "http", "headers": [(b"x-request-id", b"gw-7"), (b"x-tenant", b"acme")]}, receive)
raw.headers
body = CompletionRequest(model="m", prompt="a")
passed = put_parts(IdParts(TenantSource("X-Tenant")), body, raw)
passed.state.metadata = 1
print(json.dumps([wrapped, OpenAIServingCompletion._base_request_id(passed, body.request_id), raw.state.metadata]))
"""
    done = real_vllm.run(code, path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_TENANT="header:x-tenant")
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.strip().splitlines()[-1]) == [[True, True], "acme~gw-7", 1]


def test_the_installed_version_is_told_where_a_stream_is_read_and_migrates_a_request(real_vllm, on_path, clients_key):
    code = f"""
import asyncio, json, time, types
from vllm.plugins import load_general_plugins
load_general_plugins()
from fastapi import FastAPI, HTTPException, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import StreamingResponse
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.v1.engine.input_processor import InputProcessor
from afterbay_connector import capability
inner = OpenAIServingCompletion._create_completion
async def create(self, request, raw_request):
    made = types.SimpleNamespace(request_id="cmpl-" + self._base_request_id(raw_request, request.request_id) + "-0", external_req_id=None)
    InputProcessor.assign_request_id(made)
    async def chunks():
        yield made.request_id
    return chunks()
OpenAIServingCompletion._create_completion = create
async def passed(self, answer, request, raw_request): return await answer
OpenAIServingCompletion._with_kv_transfer_rejection_cleanup = passed
serving = object.__new__(OpenAIServingCompletion)
app = FastAPI()
@app.post("/v1/completions")
async def completions(request: CompletionRequest, raw_request: Request):
    return StreamingResponse(await serving.create_completion(request, raw_request))
app.add_middleware(CORSMiddleware, allow_origins=["*"])
def ask(body, **headers):
    sent, body = [], json.dumps(dict(prompt=[1, 2], stream=True, **body)).encode()
    async def receive():
        return receive.messages.pop(0) if receive.messages else await asyncio.Event().wait()
    receive.messages = [dict(type="http.request", body=body, more_body=False)]
    async def send(message): sent.append(message)
    headers = [(b"content-type", b"application/json"), *((name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items())]
    scope = dict(type="http", http_version="1.1", method="POST", path="/v1/completions", raw_path=b"", query_string=b"", root_path="", scheme="http", server=("a", 1), client=("b", 2), headers=headers)
    asyncio.run(app(scope, receive, send))
    added = {{name.decode(): value.decode() for name, value in sent[0]["headers"] if b"afterbay" in name or b"expose" in name}}
    return [sent[0]["status"], added, b"".join(message.get("body", b"") for message in sent[1:]).decode()]
rid = "0_cmpl-~lease-60s~7-0-1a2b3c4d"
token = capability.mint(open({clients_key!r}, "rb").read(), capability.MIGRATE, rid, int(time.time()) + 60)
valid = dict(X_Request_Id=rid, X_Afterbay_Migration=token, Origin="http://x")
print(json.dumps([ask(dict(), X_Request_Id="gw-7", Origin="http://x"), ask(dict(), **valid), ask(dict(n=2), **valid), ask(dict(), **dict(valid, X_Request_Id="8"))]))
"""
    done = real_vllm.run(code, path=[on_path], AFTERBAY_INGRESS="ipc:///a", AFTERBAY_CLIENTS_KEY=clients_key)
    assert done.returncode == 0, done.stderr[-2000:]
    named, migrated, several, refused = json.loads(done.stdout.strip().splitlines()[-1])
    assert named[0] == 200 and named[2].startswith("cmpl-gw-7-0-")
    assert named[1].pop("x-afterbay-stream").startswith("/v1/streams/cmpl-gw-7?token=")
    assert named[1] == {"access-control-expose-headers": "x-afterbay-stream"}
    rid = "0_cmpl-~lease-60s~7-0-1a2b3c4d"
    assert migrated == [200, {"x-afterbay-migration": rid}, rid]
    assert several[0] == 400 and "must be one prompt and n = 1" in several[2]
    assert refused[0] == 403 and "the token is not for this request" in refused[2]


def test_nothing_is_wrapped_without_a_variable_or_by_a_filter(real_vllm, on_path):
    for env in ({}, {"AFTERBAY_INGRESS": "ipc:///a", "VLLM_PLUGINS": "other"}):
        done = real_vllm.run(LOADED + "print(json.dumps(wrapped()))", path=[on_path], **env)
        assert json.loads(done.stdout.strip().splitlines()[-1]) == [False] * 11, done.stderr[-2000:]


def test_refused_settings_end_the_process(real_vllm, on_path):
    done = real_vllm.run(LOADED, path=[on_path], AFTERBAY_ABORT="ipc:///a")
    assert done.returncode == 1 and 'afterbay_vllm: AFTERBAY_ABORT "ipc:///a" needs AFTERBAY_INGRESS' in done.stderr


CALLS = """
import json, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser.parser_manager import ParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.deepseekv3_tool_parser import DeepSeekV3ToolParser

@ToolParserManager.register_module("own")
class Own(DeepSeekV3ToolParser):
    pass

begin, call, sep, end, close = (f"<｜tool▁{name}｜>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end"))
tokenizer = PreTrainedTokenizerFast.from_pretrained(sys.argv[1])
tokenizer.add_tokens([begin, call, sep, end, close, "<think>", "</think>"])
written = [["get_weather", {"city": "東京"}], ["get_time", {"city": "São Paulo"}]]
native = begin + "\\n".join(f"{call}function{sep}{name}\\n```json\\n{json.dumps(given, ensure_ascii=False)}\\n```{end}" for name, given in written) + close
required = json.dumps([{"name": name, "parameters": given} for name, given in written])

functions = [{"name": name, "parameters": {"type": "object", "properties": {}}} for name, _ in written]

def chat(choice):
    tools = [{"type": "function", "function": function} for function in functions]
    return ChatCompletionRequest(model="m", messages=[], tools=tools, tool_choice=choice, skip_special_tokens=False)

responses = ResponsesRequest(model="m", input="hi", tools=[{"type": "function", **function} for function in functions], skip_special_tokens=False)

def read(parser, reasoning, request, text):
    "The reasoning and the calls that a client reads in one chunk."
    made = ParserManager.get_parser(tool_parser_name=parser, reasoning_parser_name=reasoning, enable_auto_tools=True)(tokenizer, request.tools)
    ids = tokenizer.encode(text, add_special_tokens=False)
    message = made.parse_delta(text, ids, request, prompt_token_ids=tokenizer.encode("hi"), finished=True)
    return [message.reasoning, [[delta.function.name, json.loads(delta.function.arguments)] for delta in message.tool_calls]]

cases = [("deepseek_v3", None, chat("auto"), native), ("own", None, responses, native)]
cases += [("deepseek_v3", "deepseek_r1", chat("auto"), "why</think>" + native), ("pythonic", None, chat("required"), required)]
print(json.dumps([written, [read(*case) for case in cases]]))
"""


def test_two_calls_in_one_chunk_are_read_by_parsers_of_vllm_and_of_plugins(real_vllm, on_path, tmp_path):
    model = tiny_model.write(tmp_path / "model")
    done = real_vllm.run(f"import sys; sys.argv = ['', {str(model)!r}]\n" + CALLS, path=[on_path], AFTERBAY_CREDIT=tmp_path / "credit")
    assert done.returncode == 0, done.stderr[-2000:]
    written, read = json.loads(done.stdout.strip().splitlines()[-1])
    assert read == [[None, written], [None, written], ["why", written], [None, written]]
