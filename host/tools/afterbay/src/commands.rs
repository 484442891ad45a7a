//! One file per command.

pub(crate) mod abort;
mod admin_call;

pub(crate) use admin_call::call_of_journal;

pub(crate) mod check;
pub(crate) mod clients;
pub(crate) mod command_line;
pub(crate) mod connector;
pub(crate) mod demo;
pub(crate) mod follow;
mod launcher;
pub(crate) mod plugins;
pub(crate) mod reload;
pub(crate) mod run;
pub(crate) mod sglang;
pub(crate) mod sim;
pub(crate) mod smg;
pub(crate) mod top;
pub(crate) mod upgrade;
pub(crate) mod vllm;

/// The parts of the server that `afterbay plugin run --config` needs.
pub(crate) fn trials() -> afterbay_plugin_tools::StartTrials {
    afterbay_plugin_tools::StartTrials {
        load: |file| afterbay_server::load_config(file, true),
        prepare: |config, host| {
            let trials = afterbay_server::Trials::new(config, host)?;
            Ok(Box::new(move |stream, begins_unix_ns| trials.start(stream, begins_unix_ns)))
        },
    }
}
