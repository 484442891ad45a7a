//! Calls the admin address of a running Afterbay.

use crate::commands::launcher;
use afterbay_config::{Admin, AdminAddress, Config, user_dirs};
use afterbay_http::{Call, ServerAddress};
use anyhow::{Context, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of an answer, which may list every plugin of every stream, or 10,000 rows of a request.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Time for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Time for an answer that waits until plugins are compiled, or segments are written again.
const SLOW_MAX: Duration = Duration::from_secs(120);
/// The admin address if the configuration names none.
const DEFAULT_TCP: &str = "127.0.0.1:9464";

/// The options of a command that calls a running Afterbay.
#[derive(clap::Args)]
pub(crate) struct AdminCall {
    /// The configuration of the running Afterbay, which names its admin addresses. Without --config and --admin, the command
    /// calls the Afterbay that `afterbay sglang` runs by default
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: Option<PathBuf>,
    /// The admin address of the running Afterbay: HOST:PORT, or unix:/PATH of its socket. Then --config is not read
    #[arg(long, value_name = "ADDRESS", value_parser = parse_admin)]
    admin: Option<String>,
    /// The file with the admin token, if the configuration does not name it
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// POSTs JSON to the Afterbay that has the journal in this directory open, over its Unix socket.
pub(crate) fn call_of_journal(
    dir: &Path,
    config: Option<&Config>,
    path: &str,
    body: &Value,
) -> anyhow::Result<(bool, Value)> {
    let socket = match config {
        Some(config) => config.admin.unix_socket().map(|path| AdminAddress::Unix(path.to_owned())),
        // An address has no relative path.
        None => Some(AdminAddress::of_journal(&std::path::absolute(dir)?)),
    };
    let Some(address) = socket else {
        bail!(
            "an Afterbay runs on the journal, and admin.listen is \"none\" in its configuration: stop it first"
        );
    };
    let call = AdminCall {
        config: None,
        admin: Some(address.to_string()),
        token_file: config.and_then(|config| config.admin.token_file.clone()),
        json: true,
    };
    call.post_slow(path, body)
}

fn parse_admin(text: &str) -> Result<String, String> {
    if text.starts_with("unix:") {
        return text.parse().map(|address: AdminAddress| address.to_string());
    }
    match text.rsplit_once(':').map(|(host, port)| (host, port.parse())) {
        Some((host, Ok(1_u16..))) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("must be HOST:PORT, like 127.0.0.1:9464, or unix:/PATH".to_owned()),
    }
}

impl AdminCall {
    /// POSTs JSON. Returns whether the call succeeded, and the answer.
    pub(crate) fn post(&self, path: &str, body: &Value) -> anyhow::Result<(bool, Value)> {
        self.ask(true, path, Some(body), ANSWER_MAX)
    }

    /// POSTs JSON, with time for compiling plugins.
    pub(crate) fn post_slow(&self, path: &str, body: &Value) -> anyhow::Result<(bool, Value)> {
        self.ask(true, path, Some(body), SLOW_MAX)
    }

    /// GETs JSON. Only requests over TCP need a token to be read, and a configuration leads to the Unix socket: a token that is
    /// not given by --token-file is not sent.
    pub(crate) fn get(&self, path: &str) -> anyhow::Result<(bool, Value)> {
        self.ask(self.token_file.is_some(), path, None, ANSWER_MAX)
    }

    /// The admin address that is called, in the form of --admin.
    pub(crate) fn address_text(&self) -> anyhow::Result<String> {
        self.address(self.admin_of_config()?.as_ref())
    }

    /// The `admin` table of the configuration. The token in it is not sent to another Afterbay that --admin names.
    fn admin_of_config(&self) -> anyhow::Result<Option<Admin>> {
        self.config.as_deref().filter(|_| self.admin.is_none()).map(of_config).transpose()
    }

    /// Calls the admin address. The token is sent only `with_token`.
    fn ask(
        &self,
        with_token: bool,
        path: &str,
        body: Option<&Value>,
        within: Duration,
    ) -> anyhow::Result<(bool, Value)> {
        let config = self.admin_of_config()?;
        let address = self.address(config.as_ref())?;
        let server = match address.parse() {
            Ok(AdminAddress::Unix(path)) => ServerAddress::Unix(path),
            _ => ServerAddress::Tcp(address.clone()),
        };
        let of_config = config.as_ref().and_then(|admin| admin.token_file.clone());
        let file = self.token_file.clone().or(of_config).or_else(|| beside(&address));
        let token = file.filter(|_| with_token).map(|file| {
            let token = afterbay_server::token(&file);
            token.map_err(|why| anyhow::anyhow!("token file {}: {why}", file.display()))
        });
        let (token, json) = (token.transpose()?, body.map(Value::to_string));
        let (token, json) = (token.as_deref(), json.as_deref());
        let bytes_max = ANSWER_BYTES_MAX;
        let call = Call { path, token, json, headers: &[], within, bytes_max, drops_rest_with: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let answer = runtime.block_on(afterbay_http::call(&server, call));
        let is_guessed = self.admin.is_none() && self.config.is_none();
        let hint = if is_guessed { " (name another with --config or --admin)" } else { "" };
        let (status, body) = answer.with_context(|| format!("admin {address}{hint}"))?;
        let said = serde_json::from_slice(&body).with_context(|| {
            format!("admin {address} answers {status}, and no JSON: another program may listen there")
        })?;
        Ok((status == 200, said))
    }

    fn address(&self, config: Option<&Admin>) -> anyhow::Result<String> {
        match (&self.admin, config) {
            (Some(address), _) => Ok(address.clone()),
            (None, Some(admin)) => match admin.unix_socket() {
                Some(path) => Ok(AdminAddress::Unix(path.to_owned()).to_string()),
                None => bail!(
                    "admin.listen is \"none\" in the configuration, so there is no admin address to call"
                ),
            },
            (None, None) => Ok(default_address()),
        }
    }
}

/// The token that a launcher has made beside the Unix socket of its journal.
fn beside(address: &str) -> Option<PathBuf> {
    let Ok(AdminAddress::Unix(socket)) = address.parse() else { return None };
    Some(socket.with_file_name(launcher::TOKEN)).filter(|file| file.exists())
}

/// The Unix socket in the default journal if it exists, else the default TCP address.
fn default_address() -> String {
    let socket = user_dirs::journal().map(|dir| AdminAddress::of_journal(&dir));
    let is_there = |address: &AdminAddress| matches!(address, AdminAddress::Unix(path) if path.exists());
    socket.filter(is_there).map_or_else(|| DEFAULT_TCP.to_owned(), |socket| socket.to_string())
}

fn of_config(file: &Path) -> anyhow::Result<Admin> {
    afterbay_server::load_admin(file).map_err(|problems| anyhow::anyhow!("{}", problems.join("\n")))
}
