//! Tests scrapes: SGLang's own exposition, and servers that hang, send garbage, refuse and flood.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use afterbay_scheduler::signals::{Freshness, LoadConfig, LoadReader, SourceChange, SourceKind};

use crate::stage::{fixture, until, until_invalid, until_notice};

/// Answers every connection with `answer`, until the test ends.
fn serve(answer: impl Fn(&mut TcpStream, &str) + Send + 'static) -> LoadConfig {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap_or(0);
            answer(&mut stream, &String::from_utf8_lossy(&request[..read]));
        }
    });
    LoadConfig {
        metrics: Some(format!("http://{address}/metrics")),
        metrics_every: Duration::from_millis(20),
        ..LoadConfig::default()
    }
}

fn ok(stream: &mut TcpStream, body: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(body);
}

#[test]
fn sglangs_metrics_have_the_values_that_it_was_given_for_each_rank() {
    for rank in [0, 1] {
        let body = fixture("metrics.txt");
        let mut config = serve(move |stream, request| {
            assert!(request.starts_with("GET /metrics HTTP/1.1\r\n"), "{request}");
            ok(stream, &body);
        });
        config.dp_rank = rank;
        let reader = LoadReader::start(config).unwrap();
        let read = until(&reader.handle(), "a scrape", |load| load.freshness == Freshness::Fresh);
        assert_eq!(read.source, Some(SourceKind::Metrics));
        let values = read.values;
        assert_eq!(
            (values.num_running_reqs, values.num_waiting_reqs),
            (Some(100 + u64::from(rank)), Some(7))
        );
        assert_eq!((values.num_used_tokens, values.max_total_num_tokens), (Some(40_000), Some(100_000)));
        assert_eq!((values.token_usage, values.cache_hit_rate), (Some(0.4), Some(0.25)));
        assert_eq!(values.gen_throughput, Some(1234.56));
        assert_eq!(values.utilization, if rank == 0 { Some(0.5) } else { None });
        assert_eq!(values.num_retracted_reqs, Some(3));
        assert_eq!(values.num_retracted_requests_total, Some(11 + u64::from(rank)));
        assert_eq!((values.num_total_tokens, values.max_running_requests), (None, None));
    }
}

#[test]
fn a_server_that_hangs_times_out_and_does_not_delay_the_end() {
    let mut config = serve(|stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nsglang:num");
        std::thread::sleep(Duration::from_secs(3600));
    });
    config.metrics_timeout = Duration::from_millis(100);
    let reader = LoadReader::start(config).unwrap();
    let notices = until_notice(&reader, "lost", |change| matches!(change, SourceChange::Lost { .. }));
    assert_eq!(notices[0].change, SourceChange::Lost { why: "no answer within 0.1 s".to_owned() });
    let start = Instant::now();
    drop(reader);
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn an_endless_body_is_cut_off_at_the_bound() {
    let mut config = serve(|stream, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'\n'; 65536]).is_ok() {}
    });
    config.metrics_timeout = Duration::from_secs(20);
    until_invalid(&LoadReader::start(config).unwrap(), "the body has more than 4194304 bytes");
}

#[test]
fn a_bad_answer_is_refused_with_a_reason() {
    let of = |answer: &'static [u8]| {
        LoadReader::start(serve(move |stream, _| {
            let _ = stream.write_all(answer);
        }))
        .unwrap()
    };
    until_invalid(&of(b"\x00\x01\x02 SSH-2.0-nothing\r\n\r\n"), "the answer is no HTTP: ");
    let moved = b"HTTP/1.1 301 Moved Permanently\r\ncontent-length: 0\r\n\r\n";
    until_invalid(&of(moved), "the answer is 301 Moved Permanently, expected 200 OK");
    let empty = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n<html>hi\n";
    until_invalid(&of(empty), "it has none of the metrics of a scheduler");
    let cut = of(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nsglang:num_running_reqs 1\n");
    let lost = |change: &SourceChange| matches!(change, SourceChange::Lost { why } if why.starts_with("the body broke off: "));
    until_notice(&cut, "broke off", lost);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = LoadConfig { metrics: Some(format!("http://{nobody}/metrics")), ..LoadConfig::default() };
    let lost = |change: &SourceChange| matches!(change, SourceChange::Lost { why } if why.starts_with("cannot be connected to: "));
    until_notice(&LoadReader::start(config).unwrap(), "refused", lost);
}
