//! `afterbay abort RID`: asks a running Afterbay to end a request, over its admin address.

use crate::commands::asking::Asks;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;

/// End a request in the scheduler, and for its reader
///
/// Tells the scheduler to abort the request. Its next row then leaves as its last: what came so far is the answer, with finish
/// reason stop; what still comes is swallowed, and `afterbay journal show RID` tells it. Exits 1 where it was refused: a rid that
/// is not live, one that another live request's rid begins with (SGLang would end both), a scheduler that is not connected.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  afterbay journal ls --since 1m\n  afterbay abort 5b0c1f0a9e3779b97f4a7c1500000000\n  afterbay abort my-request --reason abort --admin 127.0.0.1:9465 --json"
)]
pub(crate) struct Args {
    /// The request, by its whole rid
    #[arg(value_parser = parse_rid)]
    rid: String,
    /// How the reader learns of it
    #[arg(long, value_enum, default_value_t = Reason::Stop)]
    reason: Reason,
    #[command(flatten)]
    asks: Asks,
}

/// How the reader learns of the end.
#[derive(Clone, Copy, Debug, Default, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Reason {
    /// As of a request that has stopped: what came so far is the answer
    #[default]
    Stop,
    /// By the scheduler's own row for the abort, which clients take for an error
    Abort,
}

fn parse_rid(text: &str) -> Result<String, &'static str> {
    match text {
        "" => Err("the rid is empty, which to SGLang means every request"),
        rid => Ok(rid.to_owned()),
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { rid, reason, asks } = args;
    let path = format!("/v1/requests/{}/abort", percent_encoded(&rid));
    let (is_done, said) = asks.post(&path, &json!({"reason": reason}))?;
    let text = |name: &str| said.get(name).and_then(Value::as_str).unwrap_or_default();
    if asks.json {
        println!("{said}");
    } else if is_done {
        let then = match (text("matched"), text("ended_by")) {
            ("", "") => "the scheduler's own row for it ends it".to_owned(),
            ("", by) => format!("its reader has its end already, by {by}"),
            (matched, _) => format!("its next row is its last: stop, {matched:?}"),
        };
        println!("{}: abort sent to {}, stream {}; {then}", text("rid"), text("to"), text("stream"));
    } else {
        eprintln!("afterbay: {}", text("error"));
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// As a part of a path.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => encoded.push(char::from(byte)),
            // A dot too: a client or a server may take `..` for another path.
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::percent_encoded;

    #[test]
    fn a_rid_is_one_part_of_a_path_whatever_is_in_it() {
        assert_eq!(percent_encoded("a-Z_0~"), "a-Z_0~");
        assert_eq!(percent_encoded("../a b?%日"), "%2E%2E%2Fa%20b%3F%25%E6%97%A5");
    }
}
