//! Runs an engine with Afterbay on its output, without any setup: what `afterbay sglang` and `afterbay vllm` share.
//!
//! Afterbay starts first, under its keeper and outside the engine's process tree, because an engine kills its children when it ends,
//! and Afterbay still has to send what it received. Then this process becomes the command, so that pid, signals and exit code are the engine's own. The
//! connectors are in this binary, and are put on PYTHONPATH: the command may run in any environment, and gets the connector of this
//! version also where a wheel of another version is installed.

pub(super) mod connectors;

use afterbay_config::{AdminAddress, Config, user_dirs};
use afterbay_plugin_loader::{Tokenizers, plugin_host};
use afterbay_terminal::{self as screen, Busy};
use anyhow::{Context, bail, ensure};
use connectors::CONNECTORS;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The name of the token's file in the journal's directory. No stream can have this name, because it has capital letters.
pub(super) const TOKEN: &str = "ADMIN.token";
/// The tenant in an id, as the connector writes it (`afterbay_connector/request_id.py`).
const TENANT: &str = "^(?<tenant>[0-9A-Za-z_.@:-]*[0-9A-Za-z_])~";
/// The variable with the longest lease, which the connector reads, too.
const LEASE_MAX: &str = "AFTERBAY_LEASE_MAX";
/// The variable with the file of the secret that signs capabilities, which the connector reads, too.
const CLIENTS_KEY: &str = "AFTERBAY_CLIENTS_KEY";
/// Time for Afterbay to open its journal and compile its plugins.
const START_MAX: Duration = Duration::from_secs(60);

/// The options that every launcher has.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Use this configuration instead of the options below. Its sinks have no `connect`
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// The journal's directory [default: $XDG_STATE_HOME/afterbay/journal]
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    journal: Option<PathBuf>,
    /// A plugin for the scheduler's output, `builtin:NAME` or a component file. Repeat the option for several plugins, in the order
    /// of calls
    #[arg(long, value_name = "COMPONENT", conflicts_with = "config")]
    plugin: Vec<String>,
    /// The TCP admin address, or `none` to have only the Unix socket in the journal's directory
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464", conflicts_with = "config")]
    admin: String,
    /// Write Afterbay's log to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

impl Options {
    /// Whether the user asked for this plugin.
    pub(super) fn has_plugin(&self, wanted: &str) -> bool {
        self.plugin.iter().any(|plugin| plugin == wanted)
    }

    /// The tables of the plugins, for a stream that stands last in a configuration.
    pub(super) fn plugins(&self) -> anyhow::Result<String> {
        let mut text = String::new();
        for (index, component) in self.plugin.iter().enumerate() {
            let (name, component) = match component.strip_prefix("builtin:") {
                Some(name) => (name.to_owned(), component.clone()),
                None => {
                    let file = std::path::absolute(component)?;
                    (format!("plugin-{}", index + 1), file.display().to_string())
                }
            };
            text += &format!("\n[[stream.plugin]]\nname = {}\n", quoted(&name));
            text += &format!("component = {}\n", quoted(&component));
        }
        Ok(text)
    }

    /// The configuration of these streams, with the journal and the admin address of the options.
    fn built_in(&self, streams: &str) -> anyhow::Result<String> {
        let journal = match &self.journal {
            Some(dir) => std::path::absolute(dir)?,
            None => user_dirs::journal().context("journal: neither --journal nor HOME is set")?,
        };
        private_dir(&journal).context("--journal")?;
        let admin = match self.admin.as_str() {
            "none" => AdminAddress::of_journal(&journal).to_string(),
            address => address.to_owned(),
        };
        let token = token_file(&journal).context("--journal")?;
        let [journal, admin, token] =
            [journal.display().to_string(), admin, token.display().to_string()].map(|text| quoted(&text));
        let leases = match std::env::var(LEASE_MAX) {
            Ok(longest) if !longest.is_empty() => format!("\n[leases]\nmax_time = {}\n", quoted(&longest)),
            _ => String::new(),
        };
        Ok(format!(
            "{streams}\n[journal]\ndir = {journal}\n\n[admin]\nlisten = {admin}\ntoken_file = {token}\n{leases}"
        ))
    }

    /// A problem of the configuration of these options, with the option in the place of the key.
    fn in_options(&self, file: &Path, problem: &str) -> String {
        let found = problem.strip_prefix(&format!("{}:", file.display()));
        // The line, the column and the key are followed by the message.
        let key_and_message = found.and_then(|rest| rest.split_once(": "));
        let Some((key, message)) = key_and_message.and_then(|(_, rest)| rest.split_once(": ")) else {
            return problem.to_owned();
        };
        let plugin = key.split_once(".plugin[").and_then(|(_, index)| index.split_once(']'));
        let plugin = plugin.and_then(|(index, _)| self.plugin.get(index.parse::<usize>().ok()?));
        match (plugin, key.split('.').next()) {
            (Some(plugin), _) => format!("--plugin {plugin}: {message}"),
            (None, Some("journal")) => format!("--journal: {message}"),
            (None, Some("admin")) => {
                let message = message
                    .replace("set allow_remote = true", "only a configuration (--config) may allow that");
                format!("--admin {}: {message}", self.admin)
            }
            _ => format!("{key}: {message}"),
        }
    }
}

/// A launcher with a checked configuration.
pub(super) struct Launcher<'a> {
    options: &'a Options,
    pub(super) rundir: Rundir,
    config_file: PathBuf,
    pub(super) config: Config,
}

impl<'a> Launcher<'a> {
    /// Checks the configuration: the user's own, or one with the streams that `streams` writes. `None` if it is wrong: the problems
    /// are printed.
    pub(super) fn new(
        options: &'a Options,
        streams: impl FnOnce(&Rundir) -> anyhow::Result<String>,
    ) -> anyhow::Result<Option<Launcher<'a>>> {
        let rundir = Rundir::new()?;
        let config_file = match &options.config {
            Some(file) => std::path::absolute(file)?,
            None => rundir.write("afterbay.toml", &options.built_in(&streams(&rundir)?)?)?,
        };
        // Afterbay itself checks the plugins of a configuration of the user.
        let checked = match options.plugin.is_empty() {
            true => afterbay_server::load_config(&config_file, true),
            false => {
                let (host, tokenizers) = (plugin_host()?, Tokenizers::default());
                afterbay_server::load_and_check(&config_file, true, &host, &tokenizers, false, Busy::new)
                    .map(|(config, _)| config)
            }
        };
        match checked {
            Ok(config) => Ok(Some(Launcher { options, rundir, config_file, config })),
            Err(problems) => {
                for problem in problems {
                    match options.config {
                        Some(_) => screen::complain(problem),
                        None => screen::complain(options.in_options(&config_file, &problem)),
                    }
                }
                Ok(None)
            }
        }
    }

    /// Starts Afterbay and becomes the command, with the connector on its path and in its environment. `rendezvous` is the name of
    /// the file, `variables` are those of the engine's connector.
    ///
    /// # Errors
    /// Afterbay has not started, or the command cannot be run. Afterbay then notices the end of this process, and ends.
    pub(super) fn run(
        self,
        rendezvous: &str,
        variables: impl IntoIterator<Item = (&'static str, String)>,
        command: &[OsString],
    ) -> anyhow::Result<ExitCode> {
        for (file, text) in CONNECTORS {
            self.rundir.write(file, text)?;
        }
        let rendezvous = self.rundir.path(rendezvous);
        let started = self.start_afterbay(&rendezvous);
        match self.options.config {
            Some(_) => started?,
            // Afterbay's own log names the keys of a configuration that the user does not know.
            None => {
                started.context("beside another Afterbay, give this one its own --journal and --admin")?
            }
        }
        self.print_link();
        let longest = self.config.leases.max_time;
        let is_named = std::env::var_os(LEASE_MAX).is_some_and(|longest| !longest.is_empty());
        let lease =
            (!longest.is_zero() && !is_named).then(|| (LEASE_MAX, format!("{}s", longest.as_secs().max(1))));
        // The connector signs with it only for requests that outlive their clients.
        let key = self.config.clients.as_ref().filter(|_| !longest.is_zero());
        let key = key.map(|clients| (CLIENTS_KEY, &clients.key_file));
        let Some((program, arguments)) = command.split_first() else { bail!("no command") };
        let error = Command::new(program)
            .args(arguments)
            .env_remove("AFTERBAY_TEXT_INGRESS")
            .env_remove("AFTERBAY_ABORT")
            .env("AFTERBAY_RENDEZVOUS", &rendezvous)
            .env("AFTERBAY_CREDIT", self.rundir.path("credit"))
            .env("PYTHONPATH", self.python_path())
            .envs(variables)
            .envs(lease)
            .envs(key)
            .exec();
        bail!("{}: {error}", Path::new(program).display())
    }

    /// Starts Afterbay's keeper through a shell that ends at once, so that it is no child of the engine, and waits until the start can
    /// no longer be refused.
    fn start_afterbay(&self, rendezvous: &Path) -> anyhow::Result<()> {
        let announce = self.rundir.path("started");
        let pid = std::process::id().to_string();
        let mut words: Vec<OsString> = vec![std::env::current_exe()?.into(), "run".into(), "--keep".into()];
        let options: [(&str, &OsStr); 5] = [
            ("--config", self.config_file.as_os_str()),
            ("--rendezvous", rendezvous.as_os_str()),
            ("--announce", announce.as_os_str()),
            ("--until-pid", pid.as_ref()),
            ("--scratch", self.rundir.0.path().as_os_str()),
        ];
        words.extend(options.into_iter().flat_map(|(name, value)| [name.into(), value.to_owned()]));
        self.rundir.write("start", &start_script(&words)?)?;
        let mut run = Command::new("/bin/sh");
        // The shell starts it in the background and leaves; `$@` is passed on as it is.
        run.args(["-c", "\"$@\" & echo $!", "afterbay"]).args(&words);
        // Its own process group: Ctrl-C goes to the engine only, and Afterbay ends after the engine.
        run.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(file) = &self.options.log_file {
            let log = std::fs::File::options().create(true).append(true).open(file);
            run.stderr(log.with_context(|| file.display().to_string())?);
        }
        let mut shell = run.spawn()?;
        let mut pid = String::new();
        if let Some(stdout) = shell.stdout.take() {
            std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut pid)?;
        }
        ensure!(shell.wait()?.success(), "afterbay run could not be started");
        let (begun, pid) = (Instant::now(), pid.trim().parse().context("the keeper's process id")?);
        while !announce.exists() {
            // As process 1 of a container, this process inherits the keeper and does not reap it.
            ensure!(afterbay_server::is_alive(pid), "afterbay run has ended, see its log");
            ensure!(begun.elapsed() < START_MAX, "afterbay run has not started after {START_MAX:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Prints where the dashboard is. A terminal gets the token, which must not be in a log.
    fn print_link(&self) {
        let tcp = |address: &AdminAddress| match address {
            AdminAddress::Tcp(address) => Some(address.to_string()),
            AdminAddress::Unix(_) => None,
        };
        let Some(address) = self.config.admin.listen.iter().find_map(tcp) else { return };
        let file = self.config.admin.token_file.as_deref();
        let token = file.filter(|_| std::io::stderr().is_terminal());
        let more = match (token.and_then(|file| std::fs::read_to_string(file).ok()), file) {
            (Some(token), _) => format!("#token={}", token.trim()),
            (None, Some(file)) => format!(", its token is in {}", file.display()),
            (None, None) => String::new(),
        };
        screen::complain(format!("dashboard: http://{address}/{more}"));
    }

    /// PYTHONPATH with the connectors first.
    fn python_path(&self) -> OsString {
        let mut path = self.rundir.0.path().as_os_str().to_owned();
        if let Some(before) = std::env::var_os("PYTHONPATH").filter(|before| !before.is_empty()) {
            path.push(":");
            path.push(before);
        }
        path
    }
}

/// A script that starts Afterbay again after its keeper and its worker have ended.
fn start_script(words: &[OsString]) -> anyhow::Result<String> {
    let mut quoted = String::new();
    for word in words {
        let word = word.to_str().with_context(|| format!("{word:?} is no UTF-8"))?;
        quoted += &format!(" '{}'", word.replace('\'', "'\\''"));
    }
    Ok(format!("#!/bin/sh\nexec{quoted}\n"))
}

/// The token for the dashboard and for changes, in the journal's directory. A later run keeps it, so that a link stays good.
fn token_file(journal: &Path) -> anyhow::Result<PathBuf> {
    let path = journal.join(TOKEN);
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            let mut random = [0; 16];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
            writeln!(file, "{:032x}", u128::from_ne_bytes(random))?;
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    }
    Ok(path)
}

/// The rule that takes the tenant out of the ids into which the connector puts it, if AFTERBAY_TENANT says so.
pub(super) fn tenants() -> String {
    match std::env::var_os("AFTERBAY_TENANT").is_some_and(|source| !source.is_empty()) {
        true => format!("\n[[stream.attribute]]\npattern = '{TENANT}'\n"),
        false => String::new(),
    }
}

/// The value of an engine's filter of plugins with the connector added. An engine without a filter loads all plugins.
pub(super) fn with_connector(filter: &str) -> String {
    let named = filter.split(',').any(|name| name == "afterbay");
    match filter {
        _ if named => filter.to_owned(),
        "" => "afterbay".to_owned(),
        _ => format!("{filter},afterbay"),
    }
}

/// A directory for the sockets and files of one run. `afterbay run` removes it after the engine's end; if the engine is not started,
/// dropping this removes it.
pub(super) struct Rundir(tempfile::TempDir);

impl Rundir {
    fn new() -> anyhow::Result<Rundir> {
        // The name of a socket has at most 107 bytes, so TMPDIR may be too long.
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base } else { Path::new("/tmp") };
        Ok(Rundir(tempfile::Builder::new().prefix("afterbay-").tempdir_in(base)?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The endpoint of a socket of this name.
    pub(super) fn ipc(&self, name: &str) -> String {
        format!("ipc://{}", self.path(name).display())
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.path(name);
        if let Some(dir) = path.parent() {
            private_dir(dir)?;
        }
        let made = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let written = made.and_then(|mut made| made.write_all(text.as_bytes()));
        written.with_context(|| path.display().to_string())?;
        Ok(path)
    }
}

/// Makes a directory and missing parents, for this user only.
fn private_dir(dir: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| dir.display().to_string())
}

/// A TOML string. `$` would be taken for a variable.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::String(text.replace("${", "$${")).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_passes_each_word_as_it_is() {
        let words = ["printf", "<%s>", "a b", "it's", "$HOME", ""].map(OsString::from);
        let script = start_script(&words).unwrap();
        let ran = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "<a b><it's><$HOME><>");
    }

    #[test]
    fn a_filter_of_plugins_gets_the_connector_once() {
        let filters = [("", "afterbay"), ("other", "other,afterbay"), ("afterbay,other", "afterbay,other")];
        for (filter, expected) in filters {
            assert_eq!(with_connector(filter), expected, "{filter:?}");
        }
    }
}
