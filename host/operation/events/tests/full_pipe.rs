//! A pipe at standard error that nobody reads. The log of the process is set up once, so this file has one test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Read;
use std::time::Instant;

use afterbay_events::event::LogLinesDropped;
use afterbay_events::log::{FlushAtEnd, Format, QUEUE_BYTES_MAX, init_to};
use afterbay_events::{Events, Health, Metrics, WINDOW};

#[test]
fn a_pipe_that_nobody_reads_delays_no_event_and_says_later_how_many_lines_it_lost() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    init_to("info", Format::Plain, writer).unwrap();
    let (events, recorder) = Events::recorded();
    let metrics = Metrics::new(events.clone(), Health::default());
    // More than the pipe and the queue hold. With a blocking writer, this thread would not come past them.
    let line = "x".repeat(1 << 10);
    let sent = 2 * QUEUE_BYTES_MAX / line.len();
    for _ in 0..sent {
        tracing::info!(target: "afterbay", "{line}");
    }
    events.tick(Instant::now());
    assert_eq!(recorder.of::<LogLinesDropped>(), [], "the pipe takes no line yet");
    let reads = std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        // The writer lives as long as the process, so the last line is the end.
        while !String::from_utf8_lossy(&text[text.len().saturating_sub(100)..]).contains("took none") {
            let read = reader.read(&mut buffer).unwrap();
            text.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8(text).unwrap()
    });
    drop(FlushAtEnd);
    events.tick(Instant::now() + WINDOW);
    let text = reads.join().unwrap();
    let lost = recorder.of::<LogLinesDropped>()[0].lines;
    assert_eq!(text.lines().count() as u64 - 1 + lost, sent as u64);
    assert!(lost > 0 && text.contains(&format!("log: {lost} lines were dropped")));
    let lost = format!("\nafterbay_log_lines_dropped_total {lost}\n");
    assert!(metrics.encode().contains(&lost));
}
