//! Requests as OpenTelemetry traces, over real sockets and HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use crate::attributes::set_attributes;
use afterbay_tests::frames::{SynthRequest, batch};
use afterbay_tests::{Afterbay, Reader, Sandbox, Sender, until};
use afterbay_wire::synth::SynthWire::Msgpack;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// The head and the body of a message.
type Message = (String, Vec<u8>);

/// A collector that takes everything.
struct Collector {
    endpoint: String,
    received: Arc<Mutex<Vec<Message>>>,
}

impl Collector {
    fn new() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/otlp", listener.local_addr().unwrap());
        let received = Arc::<Mutex<Vec<_>>>::default();
        let taken = received.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let taken = taken.clone();
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(&connection);
                    loop {
                        let mut head = String::new();
                        while !head.ends_with("\r\n\r\n") {
                            if reader.read_line(&mut head).unwrap_or(0) == 0 {
                                return;
                            }
                        }
                        let length = head.lines().find_map(|line| {
                            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                        });
                        let mut body = vec![0; length.unwrap_or(0)];
                        reader.read_exact(&mut body).unwrap();
                        taken.lock().unwrap().push((head, body));
                        (&connection).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                    }
                });
            }
        });
        Collector { endpoint, received }
    }

    fn has(&self, part: &[u8]) -> bool {
        let received = self.received.lock().unwrap();
        received.iter().any(|(_, body)| body.windows(part.len()).any(|window| window == part))
    }
}

#[test]
fn a_request_is_exported_below_the_engines_span_and_a_reload_changes_the_share() {
    let collector = Collector::new();
    let sandbox = Sandbox::new();
    let mut reader = Reader::bind(&sandbox.reader_side());
    let config = |sample: &str| sandbox.config().traces(&collector.endpoint, sample);
    let headers = [("OTEL_EXPORTER_OTLP_HEADERS", "api-key=from-the-environment")];
    let afterbay = Afterbay::run_in(&sandbox, &config("0"), &headers);
    // Only what ends after the follower's start is traced.
    until("the follower has begun", || afterbay.get("/metrics").body.contains("{follower=\"traces\"}"));
    let mut sender = Sender::connect(&sandbox.scheduler_side());
    let mut request = |rid: &str| {
        sender.send(&batch(Msgpack, vec![SynthRequest::new(rid).last(&[1, 2])]));
        reader.frame();
    };
    let traceparent = format!(r#"{{"traceparent": "00-{TRACE}-b7ad6b7169203331-01"}}"#);
    set_attributes(&afterbay, "with-parent", &traceparent);
    set_attributes(&afterbay, "bad-parent", r#"{"traceparent": 7}"#);
    ["with-parent", "bad-parent", "not-sampled"].into_iter().for_each(&mut request);
    let metrics =
        afterbay.until_metrics("spans arrive", |metrics| metrics.process("traces_spans_exported_total") > 0);
    assert_eq!(metrics.process("traces_traceparents_refused_total"), 1);
    assert_eq!(metrics.process("traces_requests_exported_total"), 1);
    let trace: Vec<u8> =
        (0..16).map(|at| u8::from_str_radix(&TRACE[2 * at..2 * at + 2], 16).unwrap()).collect();
    assert!(collector.has(&trace) && collector.has(b"with-parent"));
    assert!(collector.received.lock().unwrap().iter().all(|(head, _)| {
        head.starts_with("POST /otlp/v1/traces ") && head.contains("api-key: from-the-environment")
    }));

    sandbox.write(&config("1"));
    assert_eq!(afterbay.event("ConfigReloaded")["changed"], "traces changed");
    // The process that follows is started anew with the share.
    let pid = afterbay.event("FollowerStarted")["pid"].clone();
    afterbay.event_where("FollowerStarted", |event| event["pid"] != pid);
    request("sampled");
    // A stop exports what has ended.
    assert_eq!(afterbay.stop(), 0);
    assert!(collector.has(b"sampled"));
    assert!(!collector.has(b"not-sampled") && !collector.has(b"bad-parent"));
}
