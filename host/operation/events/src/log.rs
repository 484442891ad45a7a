//! Afterbay's own log on standard error: coloured on a terminal, plain on a pipe, or JSON.

mod queue;

use std::fmt;
use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Level, Subscriber};
use tracing_log::NormalizeEvent;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{ChronoLocal, ChronoUtc, FormatTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

use crate::event::TARGET;

pub use queue::{LogQueue, QUEUE_BYTES_MAX};

/// Time that the end of the process gives to lines that wait.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// The queue of the process's log.
static QUEUE: OnceLock<LogQueue> = OnceLock::new();

/// The format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// [`Pretty`](Format::Pretty) if standard error is a terminal and `NO_COLOR` is unset, otherwise
    /// [`Plain`](Format::Plain).
    Auto,
    /// Coloured, with the local time of day.
    Pretty,
    /// One line per event, with date and time in UTC.
    Plain,
    /// One JSON object per line, with every field of the event.
    Json,
}

/// The reason why the log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The text is not a filter.
    #[error("log filter {filter:?}: {error}")]
    Filter {
        /// The filter's text.
        filter: String,
        /// The reason.
        error: tracing_subscriber::filter::ParseError,
    },
    /// A log is already set up.
    #[error("log: {0}")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
    /// The thread that writes cannot start.
    #[error("log: no thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Dropped at the end of `main`, also by a panic, it waits a second at most for lines that are not written yet.
#[derive(Debug)]
pub struct FlushAtEnd;

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        if let Some(queue) = queue() {
            queue.flush(FLUSH_MAX);
        }
    }
}

/// Sets up the log of the process, once. `filter` is a level, or levels by target: `info,wasmtime=warn`.
pub fn init(filter: &str, format: Format) -> Result<(), LogError> {
    let is_pretty = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let format = match format {
        Format::Auto if is_pretty => Format::Pretty,
        Format::Auto => Format::Plain,
        chosen => chosen,
    };
    init_to(filter, format, std::io::stderr())
}

/// [`init`] with another writer than standard error.
pub fn init_to(filter: &str, format: Format, writer: impl Write + Send + 'static) -> Result<(), LogError> {
    let queue = LogQueue::start(writer)?;
    subscriber(filter, format, queue.clone())?.try_init()?;
    QUEUE.get_or_init(|| queue);
    Ok(())
}

/// Prints a line to standard error as it is: through the log's queue once that is set up, because printing to a full pipe
/// would keep the process from ending.
pub fn print_line(line: &str) {
    match QUEUE.get() {
        // The queue counts a line that it drops.
        Some(mut queue) => _ = queue.write(format!("{line}\n").as_bytes()),
        None => eprintln!("{line}"),
    }
}

/// The queue of the process's log, once it is set up.
pub(crate) fn queue() -> Option<&'static LogQueue> {
    QUEUE.get()
}

/// The log of [`init`] for any writer.
pub fn subscriber<W>(
    filter: &str,
    format: Format,
    writer: W,
) -> Result<impl Subscriber + Send + Sync, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    // notify warns of directories that are removed while they are watched: nothing is wrong then. object_store names each repetition of
    // a request, and the archive reports an outage once. A directive of the filter's own comes after.
    let directives = format!("notify=error,object_store=warn,{filter}");
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| LogError::Filter { filter: filter.to_owned(), error })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        Format::Json => Box::new(
            lines.json().flatten_event(true).with_timer(ChronoUtc::new("%Y-%m-%dT%H:%M:%S%.6fZ".to_owned())),
        ),
        Format::Pretty => Box::new(lines.with_ansi(true).event_format(Line)),
        Format::Plain | Format::Auto => Box::new(lines.with_ansi(false).event_format(Line)),
    };
    Ok(tracing_subscriber::registry().with(layer.with_filter(filter)))
}

/// Writes time, level and sentence. The fields of Afterbay's own events are in their sentences already.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let of_log = event.normalized_metadata();
        let target = of_log.as_ref().unwrap_or_else(|| event.metadata()).target();
        let is_ours = target == TARGET;
        let mut words = Words { fields: (!is_ours).then(String::new), message: String::new() };
        event.record(&mut words);
        let level = *event.metadata().level();
        if out.has_ansi_escapes() {
            write!(out, "\x1b[2m")?;
            ChronoLocal::new("%H:%M:%S%.3f".to_owned()).format_time(&mut out)?;
            write!(out, "\x1b[0m {}{level:>5}\x1b[0m ", colour(level))?;
        } else {
            ChronoUtc::new("%Y-%m-%dT%H:%M:%S%.3fZ".to_owned()).format_time(&mut out)?;
            write!(out, " {level:>5} ")?;
        }
        if !is_ours {
            write!(out, "{target}: ")?;
        }
        write_plain(&mut out, &words.message)?;
        write_plain(&mut out, words.fields.as_deref().unwrap_or_default())?;
        writeln!(out)
    }
}

fn colour(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[1;31m",
        Level::WARN => "\x1b[33m",
        Level::INFO => "\x1b[32m",
        _ => "\x1b[34m",
    }
}

/// Escapes control characters, so that a plugin's text or a request's id cannot add lines or colours.
fn write_plain(out: &mut Writer<'_>, text: &str) -> fmt::Result {
    for part in text.split_inclusive(char::is_control) {
        let mut rest = part.chars();
        match rest.next_back() {
            Some(control) if control.is_control() => {
                write!(out, "{}{}", rest.as_str(), control.escape_default())?
            }
            _ => out.write_str(part)?,
        }
    }
    Ok(())
}

/// The message of an event, and its fields if they are wanted.
struct Words {
    message: String,
    fields: Option<String>,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String cannot fail.
        let _ = match (field.name(), &mut self.fields) {
            // A library that writes by `log` names the place in its sources, which no operator needs.
            (name, _) if name.starts_with("log.") => Ok(()),
            ("message", _) => fmt::Write::write_fmt(&mut self.message, format_args!("{value:?}")),
            (name, Some(fields)) => fmt::Write::write_fmt(fields, format_args!(" {name}={value:?}")),
            _ => Ok(()),
        };
    }
}
