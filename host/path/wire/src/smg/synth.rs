//! Synthetic frames of SMG's wire for the simulator, the tests and the benches.

use bytes::Bytes;

use super::columns::{
    COMPLETION_TOKENS, Join, MATCHED, MESSAGES, OUTPUT_IDS, PROMPT_TOKENS, REASONS, RIDS, tokens,
};
use crate::pack;

/// A synthetic row.
pub(crate) struct SlimRow<'a> {
    pub(crate) rid: &'a str,
    pub(crate) ids: &'a [i64],
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) end: Option<SlimEnd<'a>>,
}

/// The end of a synthetic row's request.
pub(crate) enum SlimEnd<'a> {
    Length,
    StopToken(i64),
    StopText(&'a str),
    Abort(&'a str),
}

/// The tokens of the KV cache.
const KV_TOKENS: i64 = 65_536;

/// Writes rows as a frame.
pub(crate) fn encode(rows: &[SlimRow<'_>]) -> Bytes {
    let (class, columns) = tokens();
    let mut out = Vec::with_capacity(256 + 96 * rows.len());
    pack::write::array(&mut out, columns.len() + 1);
    pack::write::str(&mut out, class);
    for column in columns {
        if column.join == Join::Frame {
            let value = match column.name {
                "num_running" => rows.len() as i64,
                "kv_used_tokens" => KV_TOKENS / 4,
                "kv_total_tokens" => KV_TOKENS,
                _ => 0,
            };
            pack::write::int(&mut out, value);
            continue;
        }
        pack::write::array(&mut out, rows.len());
        rows.iter().for_each(|row| cell(&mut out, row, column.name, column.absent));
    }
    out.into()
}

pub(super) fn cell(out: &mut Vec<u8>, row: &SlimRow<'_>, name: &str, absent: u8) {
    match (name, &row.end) {
        (RIDS, _) => pack::write::str(out, row.rid),
        (OUTPUT_IDS, _) => {
            pack::write::array(out, row.ids.len());
            row.ids.iter().for_each(|id| pack::write::int(out, *id));
        }
        (PROMPT_TOKENS, _) => pack::write::int(out, row.prompt_tokens as i64),
        (COMPLETION_TOKENS, _) => pack::write::int(out, row.completion_tokens as i64),
        (REASONS, Some(end)) => pack::write::str(
            out,
            match end {
                SlimEnd::Length => "length",
                SlimEnd::StopToken(_) | SlimEnd::StopText(_) => "stop",
                SlimEnd::Abort(_) => "abort",
            },
        ),
        (MESSAGES, Some(SlimEnd::Abort(text))) | (MATCHED, Some(SlimEnd::StopText(text))) => {
            pack::write::str(out, text);
        }
        (MATCHED, Some(SlimEnd::StopToken(token))) => pack::write::int(out, *token),
        _ => out.push(absent),
    }
}
