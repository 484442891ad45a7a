//! Asks a running Afterbay over its admin address, for the commands that do.

use afterbay_upstream::{get as http_get, post as http_post, post_within as http_post_within, server};
use anyhow::Context;
use serde_json::Value;
use std::time::Duration;

/// What an answer may have, in bytes: every plugin of every stream.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Compiling a plugin that brings an interpreter takes some seconds.
const SLOW_MAX: Duration = Duration::from_secs(120);

/// Whom a command asks, and how it shows the answer.
#[derive(clap::Args)]
pub(crate) struct Asks {
    /// The admin address of the running Afterbay
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9464", value_parser = parse_admin)]
    admin: String,
    /// Print the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_admin(text: &str) -> Result<String, String> {
    match text.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(1_u16..))) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("not ADDRESS:PORT, such as 127.0.0.1:9464".to_owned()),
    }
}

impl Asks {
    /// POSTs JSON: whether it was done, and what was said of it.
    pub(crate) fn post(&self, path: &str, body: &Value) -> anyhow::Result<(bool, Value)> {
        ask(&self.admin, |target, runtime| runtime.block_on(http_post(target, path, None, body)))
    }

    /// POSTs JSON where the answer may take as long as compiling plugins does.
    pub(crate) fn post_slow(&self, path: &str, body: &Value) -> anyhow::Result<(bool, Value)> {
        ask(&self.admin, |target, runtime| runtime.block_on(http_post_within(target, path, body, SLOW_MAX)))
    }

    /// GETs JSON.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<(bool, Value)> {
        ask(&self.admin, |target, runtime| runtime.block_on(http_get(target, path, ANSWER_BYTES_MAX)))
    }
}

fn ask(
    admin: &str,
    exchange: impl FnOnce(
        &afterbay_upstream::Target,
        &tokio::runtime::Runtime,
    ) -> Result<afterbay_upstream::Answer, afterbay_upstream::HttpError>,
) -> anyhow::Result<(bool, Value)> {
    let target = server(&format!("http://{admin}")).with_context(|| format!("admin {admin:?}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = exchange(&target, &runtime).with_context(|| format!("admin {admin}"))?;
    let said = serde_json::from_slice(&answer.body).with_context(|| {
        format!("admin {admin} answers {}, and no JSON: another program may listen there", answer.status)
    })?;
    Ok((answer.status == 200, said))
}
