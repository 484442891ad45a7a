//! `afterbay check`: the whole validation of a start, with nothing bound, and nothing made but the cache of compiled plugins.

use afterbay_config::user_dirs;
use afterbay_plugin_loader::{Tokenizers, plugin_host};
use afterbay_terminal::{Busy, EXIT_USAGE};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check a configuration: everything `run` would check before it binds anything
///
/// Prints every problem at once, each with file, line and key, and exits 64 where there is one. Plugins are compiled
/// (`run` finds them in the cache then) and their settings tried, and tokenizers are read. Prints on stderr what `run` would
/// warn of at its start.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay check --config afterbay.toml\n  afterbay check --reference > afterbay.toml"
)]
pub(crate) struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG", required_unless_present = "reference")]
    config: Option<PathBuf>,
    /// The names of the sockets come from a rendezvous file, so they may be absent in the configuration
    #[arg(long, value_name = "FILE")]
    rendezvous: Option<PathBuf>,
    /// Print a configuration with every key, its meaning and its default, and check nothing. Its sockets are in
    /// $XDG_RUNTIME_DIR/afterbay, its journal in $XDG_STATE_HOME/afterbay
    #[arg(long)]
    reference: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.reference {
        let runtime = user_dirs::runtime().unwrap_or_else(|| "/run/afterbay".into());
        let state = user_dirs::state().unwrap_or_else(|| "/var/lib/afterbay".into());
        print!("{}", afterbay_config::reference(&runtime, &state));
        return Ok(ExitCode::SUCCESS);
    }
    let Some(file) = args.config else { return Ok(ExitCode::from(EXIT_USAGE)) };
    let checked = afterbay_server::load_config(&file, args.rendezvous.is_some()).and_then(|config| {
        let host = plugin_host().map_err(|error| vec![error.to_string()])?;
        let tokenizers = Tokenizers::default();
        let lines = afterbay_server::check_files(&config, &host, &tokenizers, Busy::new)?;
        let warnings = afterbay_server::warnings(&config, &tokenizers);
        Ok((config, lines, warnings))
    });
    match checked {
        Ok((config, lines, warnings)) => {
            for stream in &config.streams {
                println!("stream {}: {}", stream.name, stream.listen);
            }
            for line in lines {
                println!("{line}");
            }
            warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
            println!("{}: ok", file.display());
            Ok(ExitCode::SUCCESS)
        }
        Err(problems) => {
            problems.iter().for_each(|problem| eprintln!("{problem}"));
            let plural = if problems.len() == 1 { "" } else { "s" };
            eprintln!("{}: {} problem{plural}", file.display(), problems.len());
            Ok(ExitCode::from(EXIT_USAGE))
        }
    }
}
