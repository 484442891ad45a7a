//! `afterbay check`: validates a configuration like a start does. Binds nothing, and writes only the cache of compiled plugins.

use afterbay_config::user_dirs;
use afterbay_plugin_loader::{Tokenizers, plugin_host};
use afterbay_terminal::{self as screen, Busy, EXIT_USAGE};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Check a configuration like `run` does before it binds anything
///
/// Prints every problem with file, line and key, and exits 64 if there is one. Compiles plugins (`run` then finds them in the
/// cache), tries their settings, reads tokenizers, and tries to write where the journal will be. A sink without `connect` is
/// correct if `run` gets --rendezvous. Prints on stderr the warnings that `run` would log at its start.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay check --config afterbay.toml\n  afterbay check --reference > afterbay.toml"
)]
pub(crate) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG", required_unless_present = "reference")]
    config: Option<PathBuf>,
    /// Print a configuration with every key, its meaning and its default, and check nothing. The sockets are in
    /// $XDG_RUNTIME_DIR/afterbay, the journal is in $XDG_STATE_HOME/afterbay
    #[arg(long)]
    reference: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.reference {
        let runtime = user_dirs::runtime().unwrap_or_else(|| "/run/afterbay".into());
        let state = user_dirs::state().unwrap_or_else(|| "/var/lib/afterbay".into());
        afterbay_config::reference(&runtime, &state).lines().for_each(screen::say);
        return Ok(ExitCode::SUCCESS);
    }
    let Some(file) = args.config else { return Ok(ExitCode::from(EXIT_USAGE)) };
    let (host, tokenizers) = (plugin_host()?, Tokenizers::default());
    let checked = afterbay_server::load_and_check(&file, true, &host, &tokenizers, false, Busy::new);
    let checked = checked.and_then(|(config, lines)| {
        writable(&config.journal.dir)?;
        Ok((config, lines))
    });
    match checked {
        Ok((config, lines)) => {
            for stream in &config.streams {
                screen::say(format!("stream {}: {}", stream.name, stream.listen));
            }
            for line in lines {
                screen::say(line);
            }
            for sink in config.streams.iter().flat_map(|stream| &stream.sinks) {
                if sink.connect.is_none() {
                    let name = &sink.name;
                    screen::say(format!(
                        "sink {name}: has no connect, so `afterbay run` needs --rendezvous FILE"
                    ));
                }
            }
            let warnings = afterbay_server::warnings(&config, &tokenizers);
            warnings.iter().for_each(|warning| screen::complain(format!("warning: {warning}")));
            screen::say(format!("{}: ok", file.display()));
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            problems.iter().for_each(screen::complain);
            let plural = if problems.len() == 1 { "" } else { "s" };
            screen::complain(format!("{}: {} problem{plural}", file.display(), problems.len()));
            Ok(ExitCode::from(EXIT_USAGE))
        }
    }
}

/// Tries to make a file in a directory, or where the directory would be made. The file has no name and leaves nothing behind.
fn writable(dir: &Path) -> Result<(), Vec<String>> {
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    let made = tempfile::tempfile_in(existing).and_then(|mut file| file.write_all(b"afterbay"));
    made.map_err(|error| {
        vec![format!("journal.dir: no file can be written in {}: {error}", existing.display())]
    })
}
