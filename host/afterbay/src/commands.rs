//! One file per command.

pub(crate) mod abort;
mod admin_call;
pub(crate) mod check;
pub(crate) mod demo;
pub(crate) mod plugins;
pub(crate) mod reload;
pub(crate) mod run;
pub(crate) mod sglang;
pub(crate) mod sim;
