"""Re-routes the scheduler's output socket to Afterbay.

This module makes the only change to the scheduler: the PUSH of batch outputs connects to Afterbay instead of the reader.
Control messages keep their own socket. It must not know frames. It then writes the rendezvous file.
"""
from __future__ import annotations

import logging
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

from afterbay_connector import __version__, introduction
from afterbay_connector.peer import Peer
from afterbay_connector.rendezvous import write

from . import abort, detokenizer, rendezvous, smg
from .settings import Settings, fill

logger = logging.getLogger("afterbay.sglang")

# The last release that this connector was tried with, and the fields of every message that Afterbay reads.
SGLANG_MAX = (0, 5, 23)
NEEDED = ["rids", "finished_reasons"]
SCHEDULER_SOCKETS = "sglang.srt.managers.scheduler.Scheduler.init_ipc_channels"
SCHEDULER = "sglang.srt.managers.scheduler.Scheduler.__init__"


def hooks(settings: Settings) -> List[Tuple[str, str, Any]]:
    made = {}

    def after_init_ipc_channels(_result: Any, scheduler: Any, port_args: Any) -> None:
        made.update(port_args=port_args, output=reroute(settings, scheduler, port_args))

    def after_init(_result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        sender = check_output(scheduler, made.get("output"))
        if smg.is_sender(sender):
            smg.reroute(settings, scheduler, made["port_args"], sender)

    return [(SCHEDULER_SOCKETS, "AFTER", after_init_ipc_channels), (SCHEDULER, "AFTER", after_init)]


def reroute(settings: Settings, scheduler: Any, port_args: Any) -> Tuple[Any, Any]:
    """Connect the scheduler's output to Afterbay and write the rendezvous file, before the scheduler sends anything. Return the sender
    and its socket, which is None in a TP, PP or CP rank that sends nothing. SMG's sender has its socket later."""
    sender = output_sender(scheduler)
    is_smg = smg.is_sender(sender)
    if is_smg or sender.socket is not None:
        check_engine(settings, smg.ENGINE if is_smg else "sglang")
    if is_smg:
        return sender, None
    facts = rendezvous.Facts.of(scheduler, port_args)
    if sender.socket is None:
        node = facts.get("node_rank", 0)
        if node and settings.rendezvous:
            write(rendezvous.silent_file(settings), rendezvous.silent(node))
        return sender, None
    introduced = rendezvous.introduce(facts)
    check_release(introduced)
    ingress = fill(settings.ingress, facts.dp_rank, "AFTERBAY_INGRESS")
    if facts.dp_size > 1 and facts.dp_rank == 0 and "{dp_rank}" not in settings.ingress:
        logger.warning("afterbay: %d DP ranks share one stream, %s; put {dp_rank} into AFTERBAY_INGRESS to give each rank its own", facts.dp_size, ingress)
    sender.socket = replace_socket(sender.socket, ingress, introduced, lambda socket: watch(settings, scheduler, socket))
    logger.info("afterbay: the output goes to %s, and its reader is %s", ingress, facts.down)
    if facts.down_kind == "detokenizer" and not detokenizer.loads_plugins():
        logger.warning("afterbay: the reader counts no frames, so Afterbay joins no rows: %s", detokenizer.NONE)
    aborts = abort.of_scheduler(settings, scheduler, facts.dp_rank, facts.dp_size)
    if settings.rendezvous:
        path = fill(settings.rendezvous, facts.dp_rank, "AFTERBAY_RENDEZVOUS")
        write(path, rendezvous.describe(facts, ingress, settings, aborts))
    return sender, sender.socket


def check_engine(settings: Settings, engine: str) -> None:
    """Refuse a scheduler whose messages are not those that the launcher has configured Afterbay for. SGLang ends if this raises."""
    if settings.engine not in (None, engine):
        raise RuntimeError(f"afterbay: this scheduler sends messages of {engine}, and Afterbay waits for those of {settings.engine}: start it with `afterbay {engine} -- COMMAND`")


def check_output(scheduler: Any, output: Optional[Tuple[Any, Any]]) -> Any:
    """Return the sender. Refuse a scheduler whose output goes past Afterbay, because something replaced the sender or its socket after this connector. SGLang
    ends if this raises."""
    sender = output_sender(scheduler)
    if output is None or sender is not output[0] or (sender.socket is not output[1] and not smg.is_sender(sender)):
        raise RuntimeError(
            "afterbay: the socket of the scheduler's output was replaced after this connector had connected it to Afterbay: the output would "
            "go past Afterbay. Leave out the plugin that replaces it (SGLANG_PLUGINS), or unset AFTERBAY_* to run without Afterbay"
        )
    return sender


def check_release(introduced: Dict[str, Any]) -> None:
    """Refuse a release whose messages lack a field that Afterbay reads, and warn of one that nobody has tried."""
    introduction.check(introduced, {name: NEEDED for name in introduced["classes"]})
    version = introduced["version"]
    if version and tuple(int(number) for number in re.findall(r"\d+", version)[:3]) > SGLANG_MAX:
        logger.warning(
            "afterbay: SGLang %s is newer than this connector (%s), which was tried up to SGLang %s. It has the functions that the hooks need, "
            "and its classes have the fields that Afterbay reads: %s",
            version,
            __version__,
            ".".join(map(str, SGLANG_MAX)),
            introduction.summary(introduced),
        )


def output_sender(scheduler: Any) -> Any:
    """Return the SenderWrapper of batch outputs: in `ipc_channels` since SGLang 0.5.13, on the scheduler before.

    Refuse another plugin's sender, whose messages this connector does not know. SGLang ends if this raises.
    """
    holder = getattr(scheduler, "ipc_channels", scheduler)
    sender = getattr(holder, "send_to_detokenizer", None)
    if not hasattr(sender, "socket"):
        raise RuntimeError("afterbay: this SGLang's scheduler has no send_to_detokenizer.socket; unset AFTERBAY_INGRESS to run without Afterbay")
    kind = type(sender)
    if kind.__module__.partition(".")[0] != "sglang" and not smg.is_sender(sender):
        raise RuntimeError(
            f"afterbay: the scheduler's output goes through {kind.__module__}.{kind.__qualname__}, which another plugin put in the place of SGLang's "
            "own sender: the output would go past Afterbay. Leave out that plugin (SGLANG_PLUGINS), or unset AFTERBAY_* to run without Afterbay"
        )
    return sender


def watch(settings: Settings, scheduler: Any, socket: Any) -> None:
    """Let a scheduler that has requests answer no health check while Afterbay is away. SGLang's HTTP server waits 20 s for an answer.

    Its answer goes to the tokenizer directly. Without requests, SGLang's health check is a request itself, and passes Afterbay.
    """
    name = "maybe_send_health_check_signal"
    if not hasattr(scheduler, name):
        logger.warning("afterbay: this SGLang's scheduler has no %s: it may stay healthy while Afterbay is away", name)

    def changed(is_here: bool) -> None:
        if is_here:
            # The class's own method is found again.
            vars(scheduler).pop(name, None)
        else:
            setattr(scheduler, name, lambda: None)

    Peer(socket, logger, changed, settings.rendezvous)


def replace_socket(old: Any, endpoint: str, introduced: Dict[str, Any], before_connect: Callable[[Any], None] = lambda socket: None) -> Any:
    """Replace a PUSH by one with the same options (no high-water mark: while Afterbay is away, frames wait in it). It
    carries the introduction first.

    A second `connect` on the old socket would not do: the old peer must get nothing.
    """
    import zmq

    new = old.context.socket(zmq.PUSH)
    for option in (zmq.SNDHWM, zmq.SNDBUF, zmq.LINGER):
        new.setsockopt(option, old.getsockopt(option))
    if endpoint.startswith("tcp://["):
        new.setsockopt(zmq.IPV6, 1)
    before_connect(new)
    new.connect(endpoint)
    new.send(introduction.encode(introduced))
    old.close(linger=0)
    return new
