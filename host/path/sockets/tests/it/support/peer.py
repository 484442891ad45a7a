"""A libzmq peer for the tests: obeys one command a line, answers each with one line.

    push NAME bind|connect ENDPOINT [OPTION=VALUE ...]     pull NAME ...     sub NAME ...
    subscribe NAME [TOPIC]                                 in hex; all, without     unsubscribe NAME [TOPIC]
    send NAME ID FIRST COUNT SIZE [SIZE ...]               messages FIRST.., of the sizes in turn
    parts NAME ID FIRST COUNT SIZE [SIZE ...]              as send, in 1 to 3 parts as `in_parts` of mod.rs makes them
    recv NAME COUNT TIMEOUT_MS                             ok ID:SEQUENCE:SIZE ... (as many as came)
    count_parts NAME COUNT TIMEOUT_MS                      the same: ID:SEQUENCE:PARTS ...
    bytes NAME COUNT TIMEOUT_MS                            the same: =HEX ..., the parts of a sub's message with commas
    credit PATH                                            opens the page as the connector does; every recv counts from now on
    count N                                                N more frames are finished
    close NAME [LINGER_MS]
    sleep MS
    pid
"""
import struct
import sys
import time

import zmq

BASE = bytes(range(251)) * (2 + (64 << 10) // 251)


def payload(sender, sequence, size):
    if size < 16:
        return bytes([sequence % 251]) * size
    fill = BASE
    while len(fill) < size + 251:
        fill += fill
    start = sequence % 251
    return struct.pack("<QQ", sender, sequence) + fill[start : start + size - 16]


def describe(frame):
    if len(frame) < 16:
        sequence = frame[0] if frame else 0
        assert frame == payload(0, sequence, len(frame)), "damaged"
        return f"0:{sequence}:{len(frame)}"
    sender, sequence = struct.unpack_from("<QQ", frame)
    assert frame == payload(sender, sequence, len(frame)), "damaged"
    return f"{sender}:{sequence}:{len(frame)}"


def in_parts(sequence, whole):
    half = min(sequence * 97 % 1000, len(whole))
    return [[whole], [whole[:half], whole[half:]], [whole[:half], b"", whole[half:]]][sequence % 3]


context = zmq.Context()
sockets = {}
page = None


def obey(words):
    global page
    command, *rest = words
    if command in ("push", "pull", "sub"):
        name, how, endpoint, *options = rest
        socket = context.socket(getattr(zmq, command.upper()))
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, 0)
        for option in options:
            key, value = option.split("=")
            socket.set(getattr(zmq, key), int(value))
        getattr(socket, how)(endpoint)
        sockets[name] = socket
    elif command in ("subscribe", "unsubscribe"):
        sockets[rest[0]].set(getattr(zmq, command.upper()), bytes.fromhex("".join(rest[1:])))
    elif command == "send":
        name, sender, first, count, *sizes = rest
        for i in range(int(count)):
            sockets[name].send(payload(int(sender), int(first) + i, int(sizes[i % len(sizes)])))
    elif command == "parts":
        name, sender, first, count, *sizes = rest
        for i in range(int(count)):
            sockets[name].send_multipart(in_parts(int(first) + i, payload(int(sender), int(first) + i, int(sizes[i % len(sizes)]))))
    elif command in ("recv", "bytes", "count_parts"):
        name, count, timeout = rest
        got = []
        end = time.monotonic() + int(timeout) / 1000
        while len(got) < int(count):
            if not sockets[name].poll(max(0, (end - time.monotonic()) * 1000)):
                break
            parts = sockets[name].recv_multipart()
            if command == "count_parts":
                sequence = int(describe(b"".join(parts)).split(":")[1])
                assert parts == in_parts(sequence, b"".join(parts)), "other parts"
                got.append(":".join(describe(b"".join(parts)).split(":")[:2] + [str(len(parts))]))
            else:
                assert len(parts) == 1 or sockets[name].type == zmq.SUB, "multipart"
                got.append(describe(parts[-1]) if command == "recv" else "=" + ",".join(part.hex() for part in parts))
            if page is not None:
                page.finished()
        return " ".join(got)
    elif command == "credit":
        import os
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../../connectors"))
        from afterbay_connector.credit import CreditPage
        page = CreditPage(*os.path.split(rest[0]))
    elif command == "count":
        for _ in range(int(rest[0])):
            page.finished()
    elif command == "close":
        sockets.pop(rest[0]).close(int(rest[1]) if len(rest) > 1 else 0)
    elif command == "sleep":
        time.sleep(int(rest[0]) / 1000)
    elif command == "pid":
        import os
        return str(os.getpid())
    else:
        raise ValueError(command)
    return ""


for line in sys.stdin:
    try:
        answer = "ok " + obey(line.split())
    except BaseException as error:
        answer = f"failed {type(error).__name__}: {error}"
    print(answer, flush=True)
