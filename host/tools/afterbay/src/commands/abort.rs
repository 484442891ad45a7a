//! `afterbay abort RID`: aborts a request of a running Afterbay.

use crate::commands::admin_call::AdminCall;
use afterbay_terminal as screen;
use clap::ValueEnum;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Abort a request in the scheduler, and end it for its reader
///
/// Sends an abort to the scheduler. The request's next row then is its last: the output so far is the answer, with finish reason
/// stop. Later rows are dropped; `afterbay journal show RID` shows them. Exits 1 if the abort is refused: the rid is not live, the
/// rid of another live request begins with it (SGLang would abort both), or the scheduler is not connected.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  afterbay journal ls --since 1m\n  afterbay abort 5b0c1f0a9e3779b97f4a7c1500000000\n  afterbay abort my-request --reason abort --admin 127.0.0.1:9465 --json"
)]
pub(crate) struct Args {
    /// The whole rid of the request, or the client's whole id, for every live request that has it
    #[arg(value_parser = parse_rid)]
    rid: String,
    /// How the reader learns of the abort
    #[arg(long, value_enum, default_value_t = Reason::Stop)]
    reason: Reason,
    #[command(flatten)]
    call: AdminCall,
}

/// How the reader learns of the abort.
#[derive(Clone, Copy, Debug, Default, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Reason {
    /// The request stops: the output so far is the answer
    #[default]
    Stop,
    /// The reader gets the scheduler's own row for the abort, which clients take for an error
    Abort,
}

fn parse_rid(text: &str) -> Result<String, &'static str> {
    match text {
        "" => Err("the rid is empty, which to an engine may mean every request"),
        rid => Ok(rid.to_owned()),
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { rid, reason, call } = args;
    let path = format!("/v1/requests/{}/abort", percent_encoded(&rid));
    let (is_done, said) = call.post(&path, &json!({"reason": reason}))?;
    if call.json {
        screen::say_json(&said);
    } else if is_done {
        let list = |name: &str| said.get(name).and_then(Value::as_array);
        match list("aborted") {
            Some(aborted) => aborted.iter().for_each(|aborted| screen::say(sentence(aborted))),
            None => screen::say(sentence(&said)),
        }
        let refused = list("refused").into_iter().flatten().filter_map(Value::as_str);
        refused.for_each(|why| screen::complain(format!("afterbay: {why}")));
    } else {
        screen::complain(format!("afterbay: {}", text(&said, "error")));
    }
    let is_done = is_done && said["refused"].as_array().is_none_or(Vec::is_empty);
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text<'a>(said: &'a Value, name: &str) -> &'a str {
    said.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn sentence(aborted: &Value) -> String {
    let text = |name: &str| text(aborted, name);
    let then = match (text("matched"), text("ended_by")) {
        ("", "") => "the scheduler's own row for the abort ends it".to_owned(),
        ("", by) => format!("{by} had already ended it for its reader"),
        (matched, _) => format!("its next row is its last: stop, {matched:?}"),
    };
    format!("{}: abort sent to {}, stream {}; {then}", text("rid"), text("to"), text("stream"))
}

/// Dots are encoded, too, because `..` may be taken for the parent path.
const PATH_PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Encodes a text as one part of a URL's path.
pub(crate) fn percent_encoded(text: &str) -> String {
    utf8_percent_encode(text, PATH_PART).to_string()
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
