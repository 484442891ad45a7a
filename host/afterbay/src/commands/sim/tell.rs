//! How the simulator's commands tell things: progress on a terminal or a pipe, results in columns or lines, figures as
//! people read them.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use afterbay_sim::Progress;
use afterbay_sim::check::Faults;
use indicatif::{ProgressBar, ProgressStyle};

use crate::screen;

/// How often progress is told where it does not go to a terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Progress: a bar on a terminal, a line now and then elsewhere. On standard error, so that the result stands alone.
pub(crate) struct Bar {
    bar: Option<ProgressBar>,
    what: &'static str,
    last_line: Instant,
}

impl Bar {
    pub(crate) fn new(what: &'static str, requests: Option<u64>) -> Bar {
        let bar = std::io::stderr().is_terminal().then(|| match requests {
            Some(requests) => ProgressBar::new(requests).with_style(style("{bar:8} {pos}/{len}  {msg}")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {pos}  {msg}")),
        });
        Bar { bar, what, last_line: Instant::now() }
    }

    pub(crate) fn show(&mut self, progress: &Progress) {
        let seconds = progress.elapsed.as_secs_f64();
        let message = format!(
            "{} frames, {} tokens {} in {seconds:.1} s, {} /s, {} open",
            count(progress.frames),
            count(progress.tokens),
            self.what,
            count((progress.tokens as f64 / seconds.max(1e-3)) as u64),
            count(progress.open),
        );
        if let Some(bar) = &self.bar {
            bar.set_position(progress.ended);
            bar.set_message(message);
        } else if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{} requests ended, {message}", count(progress.ended));
        }
    }

    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Names and values: in columns on a terminal, `name: value` elsewhere.
pub(crate) fn table(lines: &[(String, String)]) -> String {
    let terminal = std::io::stdout().is_terminal();
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines = lines.iter().map(|(name, value)| match name.as_str() {
        _ if terminal => format!("  {name:<width$}  {}\n", screen::wrapped(value, width + 4)),
        "" => format!("  {value}\n"),
        name => format!("{name}: {value}\n"),
    });
    lines.collect()
}

pub(crate) fn verdict(good: bool) -> String {
    if good { screen::good("good".to_owned()) } else { screen::bad("not good".to_owned()) }
}

/// Lost and repeated always, the others where there are any, and the first few in words.
pub(crate) fn fault_lines(faults: &Faults) -> Vec<(String, String)> {
    let always = [("tokens lost", faults.lost_tokens), ("tokens repeated", faults.repeated_tokens)];
    let sometimes = [
        ("rows late", faults.late_rows),
        ("ids changed", faults.wrong_ids),
        ("texts changed", faults.wrong_texts),
        ("counts wrong", faults.wrong_counts),
        ("rows after the end", faults.rows_after_end),
        ("ended again", faults.ended_again),
        ("frames not understood", faults.not_understood),
    ];
    let shown = always.into_iter().chain(sometimes.into_iter().filter(|(_, amount)| *amount > 0));
    let lines = shown.map(|(name, amount)| {
        let amount = (count(amount), amount);
        line(name, if amount.1 == 0 { amount.0 } else { screen::bad(amount.0) })
    });
    lines.chain(faults.samples.iter().map(|sample| line("", sample))).collect()
}

pub(crate) fn line(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

/// `12,345,678`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

pub(crate) fn bytes(number: u64) -> String {
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = number as f64;
    let mut at = 0;
    while value >= 1024.0 && at + 1 < unit.len() {
        value /= 1024.0;
        at += 1;
    }
    if at == 0 { format!("{number} B") } else { format!("{value:.1} {}", unit[at]) }
}

pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_people_read_them() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 5 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]);
        assert_eq!(
            [20, 1_500, 2_500_000].map(Duration::from_micros).map(seconds),
            ["20 us", "1.5 ms", "2.5 s"]
        );
    }
}
