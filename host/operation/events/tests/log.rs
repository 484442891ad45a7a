//! The format of the log: plain, coloured, JSON. Text from plugins and requests cannot imitate a line.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::sync::{Arc, Mutex};

use afterbay_events::Events;
use afterbay_events::event::{PluginLog, SenderClosed, StreamStarted};
use afterbay_events::log::{Format, LogError, subscriber};
use tracing::Level;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn logged(filter: &str, format: Format, emit: impl FnOnce(&Events)) -> String {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = subscriber(filter, format, move || writer.clone()).unwrap();
    tracing::subscriber::with_default(subscriber, || emit(&Events::new()));
    String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
}

fn started() -> StreamStarted {
    StreamStarted { stream: "decode-0".into(), listen: "ipc:///a".into() }
}

fn closed(reason: &'static str) -> SenderClosed {
    SenderClosed { stream: "decode-0".into(), peer: 3, reason, why: "left".into(), frames: 7 }
}

fn plugin_line(severity: Level, line: &str) -> PluginLog {
    let (stream, plugin) = ("decode-0".into(), "upper".into());
    PluginLog { stream, plugin, severity, rid: Some("r\n1".into()), line: line.into() }
}

#[test]
fn a_plain_line_is_time_level_and_sentence() {
    let text = logged("info", Format::Plain, |events| events.publish(started()));
    let (time, rest) = text.split_at("2026-11-20T15:07:17.123Z".len());
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    assert_eq!(rest, "  INFO stream \"decode-0\": started, receives on ipc:///a\n");
}

#[test]
fn a_coloured_line_has_colours_and_a_plain_one_none() {
    let pretty = logged("info", Format::Pretty, |events| events.publish(closed("cut")));
    assert!(
        pretty.contains("\x1b[33m WARN\x1b[0m stream \"decode-0\": sender 3 closed after 7 frames: left"),
        "{pretty:?}"
    );
    assert!(!logged("info", Format::Plain, |events| events.publish(closed("cut"))).contains('\x1b'));
}

#[test]
fn a_json_line_has_every_field_with_its_type() {
    let text =
        logged("info", Format::Json, |events| events.publish(plugin_line(Level::WARN, "odd \"token\"")));
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["target"], "afterbay");
    assert_eq!(line["event"], "PluginLog");
    assert_eq!(line["stream"], "decode-0");
    assert_eq!(line["rid"], "r\n1");
    assert_eq!(line["line"], "odd \"token\"");
    assert_eq!(line["message"], "plugin \"upper\" of \"decode-0\": request \"r\\n1\": odd \"token\"");
    let text = logged("info", Format::Json, |events| events.publish(closed("clean")));
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&line["peer"], &line["frames"]), (&3.into(), &7.into()));
    assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn an_events_level_may_depend_on_its_fields() {
    let text = logged("warn", Format::Plain, |events| {
        events.publish(closed("clean"));
        events.publish(closed("cut"));
        events.publish(plugin_line(Level::INFO, "quiet"));
        events.publish(plugin_line(Level::ERROR, "loud"));
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains(" WARN ")
            && lines[1].contains("ERROR plugin \"upper\" of \"decode-0\": request \"r\\n1\": loud")
    );
}

#[test]
fn a_plugins_line_cannot_make_lines_or_colours_of_its_own() {
    let text = logged("info", Format::Plain, |events| {
        events.publish(plugin_line(Level::INFO, "one\n2026 ERROR forged \x1b[31mred\r\u{9b}31m"));
    });
    assert_eq!(text.lines().count(), 1, "{text:?}");
    assert!(text.ends_with("one\\n2026 ERROR forged \\u{1b}[31mred\\r\\u{9b}31m\n"), "{text:?}");
}

#[test]
fn a_storm_makes_five_lines_and_one_that_counts() {
    let text = logged("info", Format::Plain, |events| {
        let now = std::time::Instant::now();
        for _ in 0..1000 {
            events.publish_at(closed("cut"), now);
        }
        events.tick(now + afterbay_events::WINDOW);
    });
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 6);
    assert!(
        lines[5].ends_with("sender 3 closed after 7 frames: left (995 like it since the last line)"),
        "{}",
        lines[5]
    );
}

#[test]
fn a_line_of_a_library_names_it_and_keeps_its_fields() {
    let text = logged("info", Format::Plain, |_| tracing::info!(target: "hyper", port = 80, "listening"));
    assert!(text.ends_with("  INFO hyper: listening port=80\n"), "{text}");
}

/// Logs as a library does that uses `log`, not tracing.
fn by_log(target: &str, level: tracing_log::log::Level, text: &str) {
    let mut record = tracing_log::log::Record::builder();
    let record = record.target(target).level(level).file(Some("/root/.cargo/registry/a.rs"));
    tracing_log::format_trace(&record.args(format_args!("{text}")).build()).unwrap();
}

#[test]
fn a_line_of_a_library_that_does_not_trace_names_it_and_not_its_sources() {
    use tracing_log::log::Level::{Error, Info, Warn};
    let text = logged("info", Format::Plain, |_| by_log("hyper::proto", Info, "listening"));
    assert!(text.ends_with("  INFO hyper::proto: listening\n"), "{text}");
    let watches = || {
        by_log("notify", Warn, "a watched directory was removed");
        by_log("notify", Error, "no watch is left");
    };
    let text = logged("info", Format::Plain, |_| watches());
    assert!(text.ends_with(" ERROR notify: no watch is left\n"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(logged("off,notify=warn", Format::Plain, |_| watches()).lines().count(), 2);
}

#[test]
fn a_filter_chooses_by_target_and_a_broken_one_is_refused() {
    let text = logged("off,afterbay=info", Format::Plain, |events| {
        tracing::error!(target: "hyper", "not wanted");
        events.publish(started());
    });
    assert_eq!(text.lines().count(), 1, "{text}");
    let error = subscriber("info,=", Format::Plain, std::io::sink).err().unwrap();
    assert!(matches!(&error, LogError::Filter { filter, .. } if filter == "info,="));
    assert!(error.to_string().starts_with("log filter \"info,=\": "), "{error}");
}
