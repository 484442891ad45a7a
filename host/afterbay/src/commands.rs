//! One file per command.

pub(crate) mod abort;
mod asking;
pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod journal;
pub(crate) mod plugin;
pub(crate) mod plugins;
pub(crate) mod reload;
pub(crate) mod run;
pub(crate) mod sglang;
pub(crate) mod sim;

/// A duration on the command line, written as in the configuration.
pub(crate) fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    afterbay_config::parse_duration(text)
        .ok_or_else(|| format!("{text:?} is no duration; 10s, 500ms and 1h30m are"))
}

/// A size on the command line, written as in the configuration.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    afterbay_config::parse_size(text).ok_or_else(|| format!("{text:?} is no size; 64MiB and 65536 are"))
}
