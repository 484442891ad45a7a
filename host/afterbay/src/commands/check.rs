//! `afterbay check`: validates a configuration like a start does. Binds nothing, and writes only the cache of compiled plugins.

use afterbay_config::user_dirs;
use afterbay_plugin_loader::{Tokenizers, plugin_host};
use afterbay_terminal::{self as screen, Busy, EXIT_USAGE};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check a configuration like `run` does before it binds anything
///
/// Prints every problem with file, line and key, and exits 64 if there is one. Compiles plugins (`run` then finds them in the
/// cache), tries their settings, and reads tokenizers. Prints on stderr the warnings that `run` would log at its start.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay check --config afterbay.toml\n  afterbay check --reference > afterbay.toml"
)]
pub(crate) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG", required_unless_present = "reference")]
    config: Option<PathBuf>,
    /// Allow sinks without `connect`, because a rendezvous file will name the sockets
    #[arg(long, value_name = "FILE")]
    rendezvous: Option<PathBuf>,
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
    let checked = afterbay_server::load_config(&file, args.rendezvous.is_some()).and_then(|config| {
        let host = plugin_host().map_err(|error| vec![error.to_string()])?;
        let tokenizers = Tokenizers::default();
        let lines = afterbay_server::check_files(&config, &host, &tokenizers, false, Busy::new)?;
        let warnings = afterbay_server::warnings(&config, &tokenizers);
        Ok((config, lines, warnings))
    });
    match checked {
        Ok((config, lines, warnings)) => {
            for stream in &config.streams {
                screen::say(format!("stream {}: {}", stream.name, stream.listen));
            }
            for line in lines {
                screen::say(line);
            }
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
