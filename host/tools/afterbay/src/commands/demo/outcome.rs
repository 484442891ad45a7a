//! The demo's result: both sides next to each other, and the figures of the journal.

use std::time::Duration;

use afterbay_journal::VerifyReport;
use afterbay_sim::compare::Percentiles;
use afterbay_sim::record::Record;

use super::act::{Both, Ends};
use crate::commands::sim::output::{fault_lines, line, table, verdict};
use afterbay_terminal as screen;
use afterbay_terminal::{bytes, count, seconds};

/// The results of both acts.
pub(super) struct Outcome {
    /// The act with readers that handle every chunk.
    pub(super) every: Both<Ends>,
    /// The act with readers that handle the last chunk that they find. vLLM has none.
    pub(super) last: Option<Both<Ends>>,
    /// The journal's reports on the streams, one for each act.
    pub(super) kept: Vec<VerifyReport>,
    /// Whether Afterbay ended without an error.
    pub(super) drained: bool,
}

/// The direction of a ratio, so that it is above 1 if Afterbay is better.
enum Better {
    Lower,
    Higher,
}

impl Outcome {
    /// Whether nothing was lost, repeated or changed through Afterbay.
    pub(super) fn is_good(&self) -> bool {
        let exact = self.every.afterbay.is_exact() && self.last().is_none_or(Ends::is_exact);
        exact && self.kept.iter().all(|kept| kept.problems.is_empty()) && self.drained
    }

    /// The second act through Afterbay.
    fn last(&self) -> Option<&Ends> {
        self.last.as_ref().map(|last| &last.afterbay)
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        self.print_sides()?;
        println!(
            "\nThe scheduler's frames (in), the frames in the journal (kept), and the frames sent to the reader (out):\n"
        );
        self.print_kept()?;
        let Ends { received, comparison, .. } = &self.every.afterbay;
        let mut lines = fault_lines(&received.faults);
        if let Some(last) = self.last().filter(|last| !last.is_exact()) {
            lines.extend(fault_lines(&last.received.faults));
        }
        let whole = format!("{} of {}", count(comparison.whole), count(comparison.requests));
        lines.push(line("requests whole", whole));
        let problems = || self.kept.iter().flat_map(|kept| &kept.problems);
        let journal = match problems().next() {
            None => {
                let frames = self.kept.iter().map(|kept| kept.frames).sum();
                format!("clean: checksums and token counts of {} frames are correct", count(frames))
            }
            Some(first) => format!("{} problems, the first: {}", problems().count(), first.what),
        };
        lines.push(line("journal verify", journal));
        if !self.drained {
            lines.push(line("afterbay run", "did not exit 0 in time after SIGTERM"));
        }
        lines.push(line("result", verdict(self.is_good())));
        println!("\n{}", table(&lines));
        Ok(())
    }

    fn print_sides(&self) -> std::io::Result<()> {
        let every = self.every.as_ref();
        let mut sides = screen::Table::new(&["", "direct", "through Afterbay", "ratio"]);
        let mut row = |name: &str, figures: Both<Option<f64>>, show: &dyn Fn(f64) -> String, better| {
            let texts = figures.map(|figure| figure.map_or("none".to_owned(), show));
            let ratio = figures.direct.zip(figures.afterbay).map(|(direct, afterbay)| match better {
                Better::Lower => direct / afterbay,
                Better::Higher => afterbay / direct,
            });
            let ratio = ratio.filter(|ratio| ratio.is_finite()).map(times).unwrap_or_default();
            sides.row(vec![name.to_owned(), texts.direct, texts.afterbay, ratio]);
        };
        let time = |figure: f64| seconds(Duration::from_secs_f64(figure / 1e9));
        let whole = |figure: f64| count(figure as u64);
        type Rank = (&'static str, fn(Percentiles) -> u64);
        let ranks: [Rank; 4] = [
            ("first token, p50", |it| it.p50_ns),
            ("first token, p95", |it| it.p95_ns),
            ("first token, p99", |it| it.p99_ns),
            ("first token, slowest", |it| it.max_ns),
        ];
        for (name, rank) in ranks {
            let figure = |side: &Ends| side.comparison.first_token.map(|it| rank(it) as f64);
            row(name, every.map(figure), &time, Better::Lower);
        }
        let took = |side: &Ends| side.received.elapsed.as_nanos() as f64;
        row("until all is read", every.map(|side| Some(took(side))), &time, Better::Lower);
        let speed = |side: &Ends| Some(side.received.record.tokens as f64 / took(side).max(1.0) * 1e9);
        row("tokens a second", every.map(speed), &whole, Better::Higher);
        let handled = |side: &Ends| Some(side.received.record.rows as f64);
        row("chunks the reader handled", every.map(handled), &whole, Better::Lower);
        let frames = |side: &Ends| Some(side.received.backlog.frames as f64);
        row("most frames in its inbox", every.map(frames), &whole, Better::Lower);
        let rows = |side: &Ends| Some(side.received.backlog.rows as f64);
        row("most rows in its inbox", every.map(rows), &whole, Better::Lower);
        let memory = |side: &Ends| Some(side.received.backlog.bytes as f64);
        row("most memory in its inbox", every.map(memory), &|figure| bytes(figure as u64), Better::Lower);
        let texts = |side: &Ends| match (missing(side), side.sent.record.tokens) {
            (0, _) => screen::good("0".to_owned()),
            (lost, sent) => screen::bad(format!("{} ({:.0} %)", count(lost), percent(lost, sent))),
        };
        let everywhere = every.map(texts);
        sides.row(vec!["tokens lost".to_owned(), everywhere.direct, everywhere.afterbay, String::new()]);
        if let Some(last) = &self.last {
            let last = last.as_ref().map(texts);
            let name = "lost, last-chunk reader".to_owned();
            sides.row(vec![name, last.direct, last.afterbay, String::new()]);
        }
        sides.print()
    }

    fn print_kept(&self) -> std::io::Result<()> {
        let Ends { sent, received, .. } = &self.every.afterbay;
        let (sent, received, kept) = (&sent.record, &received.record, &self.kept[0]);
        // The journal counts a health check as a request with one row and one token.
        let with_health =
            |figure: fn(&Record) -> u64| [sent, received].map(|it| figure(it) + it.health_checks);
        let row = |name: &str, [input, output]: [u64; 2], kept: u64, figure: fn(u64) -> String| {
            [name.to_owned(), figure(input), figure(kept), figure(output)]
        };
        let rows = [
            row("frames", [sent.frames, received.frames], kept.frames, count),
            row("rows", with_health(|it| it.rows), kept.rows, count),
            row("tokens", with_health(|it| it.tokens), kept.tokens, count),
            row("requests", with_health(|it| it.requests), kept.requests, count),
            row("bytes", [sent.bytes, received.bytes], kept.bytes, bytes),
        ];
        let mut figures = screen::Table::new(&["", "in", "kept", "out"]);
        rows.into_iter().for_each(|row| figures.row(row.into()));
        figures.print()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let kept = |kept: &VerifyReport| {
            let problems: Vec<String> =
                kept.problems.iter().map(|problem| problem.what.to_string()).collect();
            serde_json::json!({
                "frames": kept.frames, "rows": kept.rows, "tokens": kept.tokens, "bytes": kept.bytes,
                "requests": kept.requests, "problems": problems,
            })
        };
        let act = |sides: &Both<Ends>, report: Option<&VerifyReport>| {
            serde_json::json!({
                "direct": sides.direct, "afterbay": sides.afterbay, "kept": report.map(kept),
            })
        };
        serde_json::json!({
            "every_chunk": act(&self.every, self.kept.first()),
            "last_chunk": self.last.as_ref().map(|last| act(last, self.kept.get(1))),
            "drained": self.drained,
            "good": self.is_good(),
        })
    }
}

/// Tokens that were sent and that the reader did not get.
fn missing(side: &Ends) -> u64 {
    side.sent.record.tokens.saturating_sub(side.received.record.tokens)
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

fn times(ratio: f64) -> String {
    if ratio >= 10.0 { format!("{ratio:.0} x") } else { format!("{ratio:.1} x") }
}
