//! Calls to real servers on the loopback interface: servers that answer, fail, are slow, and never end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterbay_config::{Breaker, Call, CallHeader, Secret};
use afterbay_events::event::{CallsResumed, CallsStopped};
use afterbay_events::{CallResult, Events, Health, Metrics, Recorder};
use afterbay_plugin_services::calls::{CallError, CallOutcome, Calls, ServiceAnswer};

/// The longest wait of a test before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that gives each request to a function with its connection.
struct Server {
    url: String,
    /// The number of each request's connection, and the request.
    requests: Receiver<(usize, String)>,
}

impl Server {
    fn start(answer: impl FnMut(usize, &str, &mut TcpStream) + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/check", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        let answer = Arc::new(Mutex::new(answer));
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (mut stream, sender, answer) = (stream.unwrap(), sender.clone(), answer.clone());
                std::thread::spawn(move || {
                    while let Some(request) = read_request(&mut stream) {
                        let _received = sender.send((connection, request.clone()));
                        (answer.lock().unwrap())(connection, &request, &mut stream);
                    }
                });
            }
        });
        Server { url, requests }
    }

    fn answering(text: &'static str) -> Server {
        Server::start(move |_, _, stream| _ = stream.write_all(text.as_bytes()))
    }
}

/// Reads a request with its body. `None` once the client has closed.
fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        (stream.read(&mut byte).ok()? == 1).then(|| text.push(byte[0]))?;
    }
    let head = String::from_utf8(text.clone()).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    text.extend(body);
    Some(String::from_utf8(text).unwrap())
}

struct Fixture {
    calls: Calls,
    metrics: Metrics,
    health: Health,
    recorder: Recorder,
    sender: Sender<CallOutcome>,
    outcomes: Receiver<CallOutcome>,
}

impl Fixture {
    fn new(endpoints: &[Call]) -> Fixture {
        let (events, recorder) = Events::recorded();
        let health = Health::default();
        let metrics = Metrics::new(events.clone(), health.clone());
        let calls = Calls::new(events, metrics.clone(), health.clone());
        calls.set_endpoints(endpoints).unwrap();
        let (sender, outcomes) = channel();
        Fixture { calls, metrics, health, recorder, sender, outcomes }
    }

    /// Starts a call that is not cancelled.
    fn send(&self, body: &str) {
        let sender = self.sender.clone();
        let body = body.to_owned().into();
        std::mem::forget(self.calls.send("s", body, move |outcome| _ = sender.send(outcome)));
    }

    fn outcome(&self) -> CallOutcome {
        self.outcomes.recv_timeout(PATIENCE).unwrap()
    }

    fn call(&self) -> Result<ServiceAnswer, CallError> {
        self.send("{}");
        self.outcome().result
    }

    fn results(&self, result: CallResult) -> u64 {
        self.metrics.call("s").results.get(result)
    }
}

fn endpoint(url: &str) -> Call {
    Call { timeout: PATIENCE, ..Call::new("s".parse().unwrap(), url) }
}

fn failed(result: Result<ServiceAnswer, CallError>) -> String {
    match result {
        Err(CallError::Failed(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_call_sends_the_body_and_the_headers_and_connections_are_kept() {
    let server = Server::answering(OK);
    let value = Secret("Bearer secret-token".to_owned());
    let headers = vec![CallHeader { name: "authorization".to_owned(), value }];
    let endpoint = Call { headers, ..endpoint(&server.url) };
    assert!(!format!("{endpoint:?}").contains("secret"));
    let fixture = Fixture::new(&[endpoint]);
    for number in 0..3 {
        let body = format!("{{\"n\":{number}}}");
        fixture.send(&body);
        let answer = ServiceAnswer { status: 200, body: b"ok".to_vec() };
        assert_eq!(fixture.outcome().result, Ok(answer));
        let (connection, request) = server.requests.recv().unwrap();
        assert_eq!(connection, 0, "the connection is used again");
        assert!(request.starts_with("POST /check HTTP/1.1\r\n") && request.ends_with(&body), "{request}");
        for header in ["authorization: Bearer secret-token", "content-type: application/json"] {
            assert!(request.lines().any(|line| line == header), "{request}");
        }
    }
    assert_eq!(fixture.results(CallResult::Answered), 3);
    let text = fixture.metrics.encode();
    assert!(text.contains("afterbay_call_results_total{endpoint=\"s\",result=\"answered\"} 3"), "{text}");
    assert!(text.contains("afterbay_call_seconds_count{endpoint=\"s\"} 3"), "{text}");
}

#[test]
fn a_status_of_4xx_or_a_redirect_is_an_answer_and_5xx_is_a_failure() {
    for (status, text) in [
        (404, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"),
        (
            307,
            "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n",
        ),
    ] {
        let server = Server::answering(text);
        let fixture = Fixture::new(&[endpoint(&server.url)]);
        assert_eq!(fixture.call(), Ok(ServiceAnswer { status, body: Vec::new() }));
        assert_eq!(server.requests.try_iter().count(), 1, "no redirect is followed");
    }
    let server = Server::answering("HTTP/1.1 503 Busy\r\ncontent-length: 6\r\n\r\nsecret");
    let fixture = Fixture::new(&[endpoint(&server.url)]);
    assert_eq!(failed(fixture.call()), "the status is 503");
}

#[test]
fn a_refused_connection_and_an_answer_that_is_no_http_are_failures_without_the_url() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/check?key=secret", unused.local_addr().unwrap());
    drop(unused);
    let why = failed(Fixture::new(&[endpoint(&url)]).call());
    assert!(why.contains("refused") && !why.contains("secret"), "{why}");
    let server = Server::answering("SSH-2.0-OpenSSH\r\n\r\n");
    failed(Fixture::new(&[endpoint(&server.url)]).call());
    let server = Server::start(|_, _, stream| _ = stream.shutdown(std::net::Shutdown::Both));
    failed(Fixture::new(&[endpoint(&server.url)]).call());
}

#[test]
fn an_endless_body_is_given_up_at_its_bound_and_an_endless_head_at_the_clients() {
    let server = Server::start(|_, _, stream| {
        let _sent = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while stream.write_all(b"4\r\nmore\r\n").is_ok() {}
    });
    let fixture = Fixture::new(&[Call { max_body_bytes: 5000, ..endpoint(&server.url) }]);
    assert_eq!(failed(fixture.call()), "the answer has more than 5000 bytes, the limit");
    let server = Server::start(|_, _, stream| {
        let _sent = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        while stream.write_all(b"x: y\r\n").is_ok() {}
    });
    failed(Fixture::new(&[endpoint(&server.url)]).call());
}

#[test]
fn the_time_limit_holds_for_the_connection_the_head_and_the_body() {
    for sent in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"] {
        let server = Server::answering(sent);
        let fixture = Fixture::new(&[Call { timeout: Duration::from_millis(50), ..endpoint(&server.url) }]);
        assert_eq!(fixture.call(), Err(CallError::TimedOut), "{sent:?}");
        assert_eq!(fixture.results(CallResult::TimedOut), 1);
    }
}

#[test]
fn calls_at_once_are_bounded_and_an_answer_counts_until_it_is_dropped() {
    let server = Server::answering(OK);
    let fixture = Fixture::new(&[Call { max_in_flight: 2, ..endpoint(&server.url) }]);
    fixture.send("1");
    fixture.send("2");
    let (first, second) = (fixture.outcome(), fixture.outcome());
    assert!(first.result.is_ok() && second.result.is_ok());
    assert_eq!(fixture.metrics.call("s").in_flight.get(), 2);
    assert_eq!(fixture.call(), Err(CallError::Overloaded));
    assert_eq!(fixture.results(CallResult::Full), 1);
    drop(first);
    assert!(fixture.call().is_ok());
    drop(second);
    assert_eq!(fixture.metrics.call("s").in_flight.get(), 0);
}

#[test]
fn the_breaker_opens_after_failures_in_a_row_and_closes_when_one_call_succeeds() {
    let (go, gate) = channel::<()>();
    let (asks, asked) = channel::<()>();
    let mut served = 0;
    let server = Server::start(move |_, _, stream| {
        served += 1;
        if served <= 4 {
            let _sent = stream.write_all(b"HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n");
            return;
        }
        let _asked = asks.send(());
        gate.recv_timeout(PATIENCE).unwrap();
        let _sent = stream.write_all(OK.as_bytes());
    });
    let breaker = Breaker { failures: 3, within: PATIENCE, open: Duration::from_millis(100) };
    let fixture = Fixture::new(&[Call { breaker, ..endpoint(&server.url) }]);
    for _ in 0..3 {
        failed(fixture.call());
    }
    assert_eq!(fixture.metrics.call("s").breaker_open.get(), 1);
    assert_eq!(fixture.health.conditions().len(), 1);
    let stopped = fixture.recorder.of::<CallsStopped>();
    assert_eq!((stopped.len(), stopped[0].failures, &*stopped[0].why), (1, 3, "the status is 500"));
    // The first trial fails, the second one succeeds. A call during the trial is refused.
    until("a trial fails", || matches!(fixture.call(), Err(CallError::Failed(_))));
    fixture.send("trial");
    until("the server has the second trial", || {
        if let Ok(outcome) = fixture.outcomes.try_recv() {
            assert_eq!(outcome.result, Err(CallError::Overloaded));
            fixture.send("trial");
        }
        asked.try_recv().is_ok()
    });
    assert_eq!(fixture.call(), Err(CallError::Overloaded));
    go.send(()).unwrap();
    assert!(fixture.outcome().result.is_ok());
    assert_eq!(fixture.recorder.of::<CallsResumed>().len(), 1);
    assert_eq!(fixture.recorder.of::<CallsStopped>().len(), 1, "one event, however many calls are refused");
    assert_eq!((fixture.metrics.call("s").breaker_open.get(), fixture.health.conditions().len()), (0, 0));
    go.send(()).unwrap();
    assert!(fixture.call().is_ok());
}

#[test]
fn a_call_under_way_ends_by_its_old_terms_and_later_calls_have_the_new_ones() {
    let (go, gate) = channel::<()>();
    let before = Server::start(move |_, _, stream| {
        gate.recv_timeout(PATIENCE).unwrap();
        let _sent = stream.write_all(OK.as_bytes());
    });
    let after = Server::answering("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nnew");
    let fixture = Fixture::new(&[endpoint(&before.url)]);
    fixture.send("old");
    before.requests.recv_timeout(PATIENCE).unwrap();
    fixture.calls.set_endpoints(&[endpoint(&after.url)]).unwrap();
    assert_eq!(fixture.call().unwrap().body, b"new");
    go.send(()).unwrap();
    assert_eq!(fixture.outcome().result.unwrap().body, b"ok");
    fixture.calls.set_endpoints(&[]).unwrap();
    let Err(CallError::Refused(why)) = fixture.call() else { panic!() };
    assert_eq!(why, "the configuration has no endpoint \"s\"");
    assert!(!fixture.metrics.encode().contains("endpoint=\"s\""));
}

#[test]
fn a_call_whose_handle_is_dropped_is_cancelled_and_gives_its_place_back() {
    let server = Server::answering("");
    let fixture = Fixture::new(&[endpoint(&server.url)]);
    let sender = fixture.sender.clone();
    let call = fixture.calls.send("s", "{}".into(), move |outcome| _ = sender.send(outcome));
    server.requests.recv_timeout(PATIENCE).unwrap();
    drop(call);
    until("the place is free", || fixture.metrics.call("s").in_flight.get() == 0);
    assert_eq!(fixture.results(CallResult::Cancelled), 1);
    assert!(fixture.outcomes.try_recv().is_err());
}

#[test]
fn a_body_past_the_bound_is_refused() {
    let fixture = Fixture::new(&[endpoint("http://127.0.0.1:9")]);
    fixture.send(&"x".repeat(afterbay_plugin_services::calls::REQUEST_BYTES_MAX + 1));
    let Err(CallError::Refused(why)) = fixture.outcome().result else { panic!() };
    assert_eq!(why, "the body has 1048577 bytes, the limit is 1048576");
}
