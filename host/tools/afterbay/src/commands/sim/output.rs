//! The output of the simulator's commands: progress on a terminal or a pipe, results in columns or lines.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use afterbay_sim::Progress;
use afterbay_sim::check::Faults;
use indicatif::{ProgressBar, ProgressStyle};

use afterbay_terminal as screen;
use afterbay_terminal::count;

/// The interval of progress lines if standard error is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// Progress on standard error: a bar on a terminal, else a line each second.
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

/// Names and values: in columns on a terminal, else as `name: value`.
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

/// Lines for faults: lost and repeated tokens always, other kinds if there are any, and the first few faults in words.
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
