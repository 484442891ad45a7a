"""Tests the count of an API server, with a fake client of vLLM."""
import asyncio
import types

import pytest

import afterbay_vllm


def outputs(rows=0, stats=None, utility=None):
    return types.SimpleNamespace(outputs=["row"] * rows, scheduler_stats=stats, utility_output=utility)


def count(directory, client=0):
    return int.from_bytes((directory / f"api-server-{client}").read_bytes()[24:32], "little")


@pytest.fixture
def client(fake_vllm, monkeypatch, tmp_path):
    monkeypatch.setenv("AFTERBAY_CREDIT", str(tmp_path))
    afterbay_vllm.register()

    def make(*args, **kwargs):
        made = fake_vllm.AsyncMPClient("config", *args, **kwargs)

        def receive(message):
            """As vLLM's task does: it decodes each message, and queues some of them."""
            message = made.decoder.decode(message)
            if not message.utility_output and (message.outputs or message.scheduler_stats):
                made.queue.append(message)

        made.receive = receive
        return made

    return make


def test_a_queued_frame_is_finished_when_the_next_one_is_asked_for(client, tmp_path):
    one = client()
    for number in range(3):
        one.receive(outputs(rows=number + 1))
    assert count(tmp_path) == 0

    async def read():
        counts = []
        for _ in range(3):
            await one.get_output_async()
            counts.append(count(tmp_path))
        return counts

    assert asyncio.run(read()) == [0, 1, 2]


def test_a_frame_that_is_not_queued_is_finished_when_it_is_decoded(client, tmp_path):
    one = client()
    one.receive(outputs(utility="answer"))
    one.receive(outputs(rows=1, utility="answer"))
    one.receive(outputs())
    assert count(tmp_path) == 3
    one.receive(outputs(stats="stats"))
    assert count(tmp_path) == 3


def test_a_cancelled_wait_counts_no_frame_twice(client, tmp_path):
    one = client()
    one.receive(outputs(rows=1))

    async def read():
        await one.get_output_async()
        for _ in range(2):
            with pytest.raises(IndexError):  # the fake's empty queue
                await one.get_output_async()

    asyncio.run(read())
    assert count(tmp_path) == 1


def test_each_api_server_has_a_page(client, tmp_path):
    client(2, 1).receive(outputs())
    client(client_index=0, client_count=2)
    assert (count(tmp_path, 0), count(tmp_path, 1)) == (0, 1)


def test_a_client_without_a_page_works_and_counts_nothing(client, tmp_path, caplog):
    (tmp_path / "api-server-0").write_text("not a page")
    one = client()
    one.receive(outputs(rows=1))
    assert asyncio.run(one.get_output_async()).outputs == ["row"]
    assert "API server 0 counts no finished frames" in caplog.text and "the file is not a credit page" in caplog.text
