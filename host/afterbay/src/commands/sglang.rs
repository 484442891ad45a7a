//! `afterbay sglang -- COMMAND`: runs SGLang with Afterbay on its scheduler's output, without any setup.
//!
//! Afterbay starts first, outside SGLang's process tree, because SGLang kills its children when it ends, and Afterbay still has to
//! send what it received. Then this process becomes the command, so that pid, signals and exit code are SGLang's own. The
//! connector is in this binary, and is put on PYTHONPATH: the command may run in any environment, and gets the connector of this
//! version also where a wheel of another version is installed.

use afterbay_config::{Abort, AdminAddress, Stream, user_dirs};
use afterbay_terminal::EXIT_USAGE;
use anyhow::{Context, bail, ensure};
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The plugin that needs a sink past the detokenizer.
const SKIP: &str = "builtin:skip-detokenization";
/// Time for Afterbay to open its journal and compile its plugins.
const START_MAX: Duration = Duration::from_secs(60);

/// The files of the connector, a package that Python finds on PYTHONPATH without an installation.
pub(super) const CONNECTOR: &[(&str, &str)] = &[
    ("afterbay_sglang/__init__.py", include_str!("../../../connectors/afterbay_sglang/__init__.py")),
    ("afterbay_sglang/abort.py", include_str!("../../../connectors/afterbay_sglang/abort.py")),
    ("afterbay_sglang/attached.py", include_str!("../../../connectors/afterbay_sglang/attached.py")),
    (
        "afterbay_sglang/attached_path/afterbay_sglang_attached-0.1.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: afterbay-sglang-attached\nVersion: 0.1.0\n",
    ),
    (
        "afterbay_sglang/attached_path/afterbay_sglang_attached-0.1.0.dist-info/entry_points.txt",
        "[sglang.srt.platforms]\nafterbay = afterbay_sglang.attached:activate\n",
    ),
    ("afterbay_sglang/credit.py", include_str!("../../../connectors/afterbay_sglang/credit.py")),
    ("afterbay_sglang/detokenizer.py", include_str!("../../../connectors/afterbay_sglang/detokenizer.py")),
    ("afterbay_sglang/http_app.py", include_str!("../../../connectors/afterbay_sglang/http_app.py")),
    ("afterbay_sglang/ingress.py", include_str!("../../../connectors/afterbay_sglang/ingress.py")),
    ("afterbay_sglang/readers.py", include_str!("../../../connectors/afterbay_sglang/readers.py")),
    ("afterbay_sglang/rendezvous.py", include_str!("../../../connectors/afterbay_sglang/rendezvous.py")),
    ("afterbay_sglang/settings.py", include_str!("../../../connectors/afterbay_sglang/settings.py")),
    ("afterbay_sglang/text.py", include_str!("../../../connectors/afterbay_sglang/text.py")),
    ("afterbay_sglang/wire.py", include_str!("../../../connectors/afterbay_sglang/wire.py")),
    ("afterbay_sglang/workers.py", include_str!("../../../connectors/afterbay_sglang/workers.py")),
    // The name of the wheel: Python takes a distribution only from the first place of its path, so that an installed wheel's connector
    // is not loaded a second time.
    (
        concat!("afterbay-", env!("CARGO_PKG_VERSION"), ".dist-info/METADATA"),
        concat!("Metadata-Version: 2.1\nName: afterbay\nVersion: ", env!("CARGO_PKG_VERSION"), "\n"),
    ),
    (
        concat!("afterbay-", env!("CARGO_PKG_VERSION"), ".dist-info/entry_points.txt"),
        "[sglang.srt.plugins]\nafterbay = afterbay_sglang:register\n",
    ),
];

/// Run SGLang with Afterbay on its scheduler's output, and on its detokenizer's
///
/// Starts Afterbay, connects SGLang's scheduler and detokenizer to it, and becomes the command. Nothing has to be installed into
/// SGLang's environment. `afterbay journal ls` and `afterbay journal show` show the requests. If SGLang has no detokenizer
/// (--skip-tokenizer-init), or its detokenizer does not load plugins, only the scheduler's output passes Afterbay, and the log
/// says so. With --tokenizer-worker-num, each tokenizer worker has its own sink.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay sglang -- python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n  afterbay sglang --plugin builtin:delta-to-cumulative -- python -m sglang.launch_server …"
)]
pub(crate) struct Args {
    /// Use this configuration instead of the options below. It has one stream, and perhaps one `after` it, and its sinks have no
    /// `connect`
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: Option<PathBuf>,
    /// The journal's directory [default: $XDG_STATE_HOME/afterbay/journal]
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    journal: Option<PathBuf>,
    /// Let only the scheduler's output pass Afterbay, not the detokenizer's
    #[arg(long, conflicts_with = "config")]
    one_leg: bool,
    /// A plugin for the scheduler's output, `builtin:NAME` or a component file. Repeat the option for several plugins, in the order
    /// of calls. A plugin that writes cumulative ids needs --one-leg, which `builtin:delta-to-cumulative` implies
    #[arg(long, value_name = "COMPONENT", conflicts_with = "config")]
    plugin: Vec<String>,
    /// The TCP admin address, or `none` to have only the Unix socket in the journal's directory
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464", conflicts_with = "config")]
    admin: String,
    /// Write Afterbay's log to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// The usual SGLang command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if truthy(std::env::var("SGLANG_RUST_SERVER").ok().as_deref()) {
        eprintln!(
            "afterbay: SGLANG_RUST_SERVER is set: SGLang's Rust server has no scheduler output socket to stand on; unset it"
        );
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    let rundir = Rundir::new()?;
    let config = match &args.config {
        Some(file) => std::path::absolute(file)?,
        None => rundir.write("afterbay.toml", &built_in(&args, &rundir)?)?,
    };
    let checked = match afterbay_server::load_config(&config, true) {
        Ok(checked) => checked,
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            return Ok(ExitCode::from(EXIT_USAGE));
        }
    };
    let (next, first): (Vec<_>, Vec<_>) = checked.streams.iter().partition(|stream| !stream.after.is_empty());
    let [stream] = first[..] else {
        bail!("config has {} streams that are not after another, `afterbay sglang` serves 1", first.len());
    };
    let ingress = stream.listen.to_string();
    // One stream has one that follows.
    let text_ingress = next.first().map(|stream| ("AFTERBAY_TEXT_INGRESS", stream.listen.to_string()));
    for (file, text) in CONNECTOR {
        rundir.write(file, text)?;
    }
    let rendezvous = rundir.path("rendezvous.json");
    start_afterbay(&args, &config, &rendezvous, &rundir)?;
    let Some((program, arguments)) = args.command.split_first() else { bail!("no command") };
    let error = Command::new(program)
        .args(arguments)
        .env("AFTERBAY_INGRESS", ingress)
        .env_remove("AFTERBAY_TEXT_INGRESS")
        .envs(text_ingress)
        .env("AFTERBAY_RENDEZVOUS", &rendezvous)
        .env_remove("AFTERBAY_ABORT")
        .envs(abort(stream, &rundir))
        .env("AFTERBAY_CREDIT", rundir.path("credit"))
        .env("PYTHONPATH", python_path(&rundir))
        .envs(plugin_filter())
        .exec();
    // The command could not be run. Afterbay notices the end of this process, and ends.
    bail!("{}: {error}", Path::new(program).display())
}

/// The endpoint where the scheduler takes aborts; `None` if aborts go to its HTTP server.
fn abort(stream: &Stream, rundir: &Rundir) -> Option<(&'static str, String)> {
    let endpoint = match &stream.abort {
        None => format!("ipc://{}", rundir.path("abort").display()),
        Some(Abort::Push(endpoint)) => endpoint.to_string(),
        Some(Abort::Http { .. }) => return None,
    };
    Some(("AFTERBAY_ABORT", endpoint))
}

/// Whether SGLang takes this value of an environment variable for true.
fn truthy(value: Option<&str>) -> bool {
    value.is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "y"))
}

/// A directory for the sockets and files of one run. `afterbay run` removes it at its end; if SGLang is not started, dropping this
/// removes it.
struct Rundir(tempfile::TempDir);

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

/// The configuration of a run without --config.
fn built_in(args: &Args, rundir: &Rundir) -> anyhow::Result<String> {
    let journal = match &args.journal {
        Some(dir) => std::path::absolute(dir)?,
        None => user_dirs::journal().context("journal: neither --journal nor HOME is set")?,
    };
    private_dir(&journal)?;
    let mut text = format!(
        "[[stream]]\nname = \"sglang\"\nlisten = {listen}\n\n[[stream.sink]]\nname = \"reader\"\n",
        listen = quoted(&format!("ipc://{}", rundir.path("ingress").display())),
    );
    let text_ingress = format!("ipc://{}", rundir.path("text-ingress").display());
    if args.plugin.iter().any(|plugin| plugin == SKIP) {
        text += "\n[[stream.sink]]\nname = \"ids-only\"\nkind = \"skipped\"\n";
        text += &format!("connect = {}\n", quoted(&text_ingress));
    }
    for (index, component) in args.plugin.iter().enumerate() {
        let (name, component) = match component.strip_prefix("builtin:") {
            Some(name) => (name.to_owned(), component.clone()),
            None => {
                let file = std::path::absolute(component)?;
                (format!("plugin-{}", index + 1), file.display().to_string())
            }
        };
        text +=
            &format!("\n[[stream.plugin]]\nname = {}\ncomponent = {}\n", quoted(&name), quoted(&component));
    }
    let has = |wanted: &str| args.plugin.iter().any(|plugin| plugin == wanted);
    let one_leg = args.one_leg || has("builtin:delta-to-cumulative");
    ensure!(
        !(one_leg && has(SKIP)),
        "{SKIP} needs the second leg, which --one-leg and delta-to-cumulative leave out"
    );
    if !one_leg {
        text += &format!(
            "\n[[stream]]\nname = \"sglang-text\"\nafter = \"sglang\"\nlisten = {listen}\n\n[[stream.sink]]\nname = \"reader\"\n",
            listen = quoted(&text_ingress),
        );
    }
    text += &format!("\n[journal]\ndir = {}\n", quoted(&journal.display().to_string()));
    let admin = match args.admin.as_str() {
        "none" => AdminAddress::of_journal(&journal).to_string(),
        address => address.to_owned(),
    };
    text += &format!("\n[admin]\nlisten = {}\n", quoted(&admin));
    Ok(text)
}

/// A TOML string. `$` would be taken for a variable.
fn quoted(text: &str) -> String {
    serde_json::Value::String(text.replace("${", "$${")).to_string()
}

/// Starts Afterbay through a shell that ends at once, so that it is no child of SGLang, and waits until its start can no longer be
/// refused.
fn start_afterbay(args: &Args, config: &Path, rendezvous: &Path, rundir: &Rundir) -> anyhow::Result<()> {
    let announce = rundir.path("started");
    let mut run = Command::new("/bin/sh");
    // The shell starts it in the background and leaves; `$@` is passed on as it is.
    run.args(["-c", "\"$@\" & echo $!", "afterbay"]);
    run.arg(std::env::current_exe()?).arg("run").arg("--config").arg(config);
    run.arg("--rendezvous").arg(rendezvous).arg("--announce").arg(&announce);
    run.arg("--until-pid").arg(std::process::id().to_string()).arg("--scratch").arg(rundir.0.path());
    // Its own process group: Ctrl-C goes to SGLang only, and Afterbay ends after SGLang.
    run.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(file) = &args.log_file {
        let log = std::fs::File::options().create(true).append(true).open(file);
        run.stderr(log.with_context(|| file.display().to_string())?);
    }
    let mut shell = run.spawn()?;
    let mut pid = String::new();
    if let Some(stdout) = shell.stdout.take() {
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut pid)?;
    }
    ensure!(shell.wait()?.success(), "afterbay run could not be started");
    let begun = Instant::now();
    while !announce.exists() {
        ensure!(Path::new("/proc").join(pid.trim()).exists(), "afterbay run has ended, see its log");
        ensure!(begun.elapsed() < START_MAX, "afterbay run has not started after {START_MAX:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// PYTHONPATH with the connector first.
fn python_path(rundir: &Rundir) -> OsString {
    let mut path = rundir.0.path().as_os_str().to_owned();
    if let Some(before) = std::env::var_os("PYTHONPATH").filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

/// SGLANG_PLUGINS with the connector added, if the variable is set. If it is not set, SGLang loads all plugins.
fn plugin_filter() -> Option<(&'static str, String)> {
    let filter = std::env::var("SGLANG_PLUGINS").ok().filter(|filter| !filter.trim().is_empty())?;
    let named = filter.split(',').any(|name| name.trim() == "afterbay");
    Some(("SGLANG_PLUGINS", if named { filter } else { format!("{filter},afterbay") }))
}
