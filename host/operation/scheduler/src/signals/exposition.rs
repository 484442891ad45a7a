//! Parses the gauges of SGLang that are needed from Prometheus' text format (names and labels: sglang 0.5.23,
//! `srt/observability/metrics_collector.py`).
//!
//! If a metric has several series:
//! - a `dp_rank` label: only series of the configured rank count;
//! - a `priority` label: only the total counts, which SGLang labels with an empty priority;
//! - `pp_rank`, `tp_rank`, `moe_ep_rank`: only series of the lowest ranks count (with
//!   `--enable-metrics-for-all-schedulers` each rank of a group counts the same requests);
//! - of the remaining series (other models, other processes), counts and rates are summed and ratios
//!   averaged.

use crate::signals::bounds::SERIES_MAX;
use crate::signals::hub::ReadFailure;
use crate::signals::values::{LoadValues, count, ratio};

/// The metrics, with the field that each fills.
const METRICS: [(&str, Fill); 10] = [
    ("sglang:num_running_reqs", |values, series| values.num_running_reqs = count(sum(series))),
    ("sglang:num_queue_reqs", |values, series| values.num_waiting_reqs = count(sum(series))),
    ("sglang:num_used_tokens", |values, series| values.num_used_tokens = count(sum(series))),
    ("sglang:max_total_num_tokens", |values, series| {
        values.max_total_num_tokens = count(sum(series)).filter(|value| *value > 0);
    }),
    ("sglang:token_usage", |values, series| values.token_usage = ratio(mean(series))),
    ("sglang:gen_throughput", |values, series| values.gen_throughput = ratio(sum(series))),
    ("sglang:cache_hit_rate", |values, series| values.cache_hit_rate = ratio(mean(series))),
    ("sglang:utilization", |values, series| values.utilization = ratio(mean(series))),
    ("sglang:num_retracted_reqs", |values, series| values.num_retracted_reqs = count(sum(series))),
    ("sglang:num_retracted_requests_total", |values, series| {
        values.num_retracted_requests_total = count(sum(series));
    }),
];

type Fill = fn(&mut LoadValues, &[f64]);

fn sum(series: &[f64]) -> f64 {
    series.iter().sum()
}

fn mean(series: &[f64]) -> f64 {
    sum(series) / series.len() as f64
}

/// The relevant parts of a line.
#[derive(Clone, Copy)]
struct Series {
    value: f64,
    dp_rank: Option<u32>,
    /// The pipeline, tensor and expert ranks.
    ranks: [u32; 3],
}

/// Parses the body of a scrape.
pub(crate) fn parse(body: &[u8], dp_rank: u32) -> Result<LoadValues, ReadFailure> {
    let mut found: [Vec<Series>; METRICS.len()] = Default::default();
    for line in body.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"sglang:")) {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let end = line.find(['{', ' ', '\t']).unwrap_or(line.len());
        let Some(at) = METRICS.iter().position(|(name, _)| *name == &line[..end]) else { continue };
        let Some(series) = series(&line[end..]) else {
            let shown: String = line.chars().take(120).collect();
            return Err(ReadFailure::Invalid(format!("the line {shown:?} is not a sample")));
        };
        if let Some(series) = series.filter(|_| found[at].len() < SERIES_MAX) {
            found[at].push(series);
        }
    }
    if found.iter().all(Vec::is_empty) {
        let why = "it has none of the metrics of a scheduler, expected sglang:num_running_reqs and others";
        return Err(ReadFailure::Invalid(why.to_owned()));
    }
    let mut values = LoadValues::default();
    let mut ranks = std::collections::BTreeSet::new();
    let mut filled = false;
    for ((_, fill), series) in METRICS.iter().zip(found) {
        ranks.extend(series.iter().filter_map(|series| series.dp_rank));
        let labelled = series.iter().any(|series| series.dp_rank.is_some());
        let ours = || series.iter().filter(|series| !labelled || series.dp_rank == Some(dp_rank));
        let lowest = ours().map(|series| series.ranks).min();
        let chosen: Vec<f64> =
            ours().filter(|series| Some(series.ranks) == lowest).map(|series| series.value).collect();
        if !chosen.is_empty() {
            fill(&mut values, &chosen);
            filled = true;
        }
    }
    if !filled {
        let ranks = ranks.iter().take(16).map(u32::to_string).collect::<Vec<_>>().join(", ");
        return Err(ReadFailure::Invalid(format!("it has the dp ranks {ranks}, expected {dp_rank}")));
    }
    Ok(values)
}

/// Parses the rest of a line after the metric's name. `Some(None)` is a sample that does not count, `None` is
/// no sample.
fn series(rest: &str) -> Option<Option<Series>> {
    let mut series = Series { value: 0.0, dp_rank: None, ranks: [0; 3] };
    let (mut rest, mut counts) = (rest, true);
    if let Some(labels) = rest.strip_prefix('{') {
        rest = labels;
        loop {
            rest = rest.trim_start_matches([' ', ',']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (name, after) = rest.split_once('=')?;
            let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
            match name.trim() {
                "dp_rank" => series.dp_rank = Some(value.parse().ok()?),
                "pp_rank" => series.ranks[0] = value.parse().ok()?,
                "tp_rank" => series.ranks[1] = value.parse().ok()?,
                "moe_ep_rank" => series.ranks[2] = value.parse().ok()?,
                "priority" => counts &= value.is_empty(),
                _ => {}
            }
            rest = after;
        }
    }
    // A timestamp may follow the value.
    series.value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(counts.then_some(series))
}

/// Splits a label's value, up to its quote and with its escapes, from the rest.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(text: &str, dp_rank: u32) -> Result<Option<u64>, ReadFailure> {
        parse(text.as_bytes(), dp_rank).map(|values| values.num_running_reqs)
    }

    #[test]
    fn only_series_of_the_rank_and_of_the_total_count() {
        let text = r#"
# HELP sglang:num_running_reqs sglang:num_running_reqs{dp_rank="0"} 99
sglang:num_running_reqs{dp_rank="0",priority="",tp_rank="0"} 5.0
sglang:num_running_reqs{dp_rank="0",priority="1",tp_rank="0"} 3.0
sglang:num_running_reqs{dp_rank="0",priority="",tp_rank="1"} 5.0
sglang:num_running_reqs{dp_rank="1",model_name="a\"},x=\\",priority=""} 7e0 1700000000
sglang:num_running_reqs_more{dp_rank="1"} 1.0
"#;
        assert_eq!([running(text, 0), running(text, 1)], [Ok(Some(5)), Ok(Some(7))]);
        let Err(ReadFailure::Invalid(why)) = running(text, 2) else { panic!("taken") };
        assert_eq!(why, "it has the dp ranks 0, 1, expected 2");
    }

    #[test]
    fn of_other_series_counts_are_summed_and_ratios_averaged() {
        let text = "sglang:num_running_reqs{model_name=\"a\"} 2\nsglang:num_running_reqs{model_name=\"b\"} 3\n\
                    sglang:token_usage{model_name=\"a\"} 0.25\nsglang:token_usage{model_name=\"b\"} 0.75\n\
                    sglang:utilization -1\nsglang:cache_hit_rate NaN\nsglang:gen_throughput 5\n";
        let values = parse(text.as_bytes(), 3).unwrap();
        assert_eq!((values.num_running_reqs, values.token_usage), (Some(5), Some(0.5)));
        assert_eq!((values.utilization, values.cache_hit_rate), (None, None));
        assert_eq!((values.gen_throughput, values.num_waiting_reqs), (Some(5.0), None));
    }

    #[test]
    fn a_body_without_the_metrics_of_a_scheduler_is_refused() {
        for garbage in ["", "<html>", "python_info 1\n", "sglang:prompt_tokens_total 5\n", "\u{0}\u{1}"] {
            let Err(ReadFailure::Invalid(why)) = running(garbage, 0) else { panic!("{garbage:?}") };
            assert!(why.starts_with("it has none of the metrics of a scheduler"), "{why}");
        }
        for line in [
            "sglang:num_running_reqs",
            "sglang:num_running_reqs many",
            "sglang:num_running_reqs{a=\"b",
            "sglang:num_running_reqs{a} 1",
            "sglang:num_running_reqs{dp_rank=\"x\"} 1",
            "sglang:num_running_reqs{dp_rank=\"-1\"} 1",
        ] {
            let Err(ReadFailure::Invalid(why)) = running(line, 0) else { panic!("{line:?}") };
            assert!(why.ends_with("is not a sample"), "{why}");
        }
    }
}
