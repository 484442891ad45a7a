//! `afterbay plugin new`: writes a new project.

use crate::plugin_args::UsageError;
use afterbay_kit::Language;
use afterbay_plugin_loader::project;
use afterbay_terminal as screen;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Create a project that builds, with a test that passes
///
/// The project contains the contract (WIT), a scenario for `afterbay plugin test`, a configuration for `afterbay run`, and the
/// SDK's sources for Rust or the contract as a header for C.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay plugin new stop-early --lang rust\n  cd stop-early && afterbay plugin build && afterbay plugin test"
)]
pub(crate) struct Args {
    /// The plugin's name: a-z, 0-9 and -
    name: String,
    /// The programming language
    #[arg(long, value_name = "LANGUAGE", value_parser = parse_language)]
    lang: Language,
    /// The directory to write to [default: NAME in the current directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn parse_language(text: &str) -> Result<Language, String> {
    let names = Language::ALL.map(Language::name).join(", ");
    Language::ALL.into_iter().find(|it| it.name() == text).ok_or_else(|| format!("must be one of {names}"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = afterbay_kit::project(args.lang, &args.name, afterbay_bundled::c_bindings())
        .map_err(|error| UsageError(error.to_string()))?;
    let dir = args.dir.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let wrong = |path: &Path, error: std::io::Error| anyhow::anyhow!("{}: {error}", path.display());
    let is_empty = match std::fs::read_dir(&dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
        Err(error) => return Err(wrong(&dir, error)),
    };
    if !is_empty {
        return Err(UsageError(format!("{}: exists and is not empty", dir.display())).into());
    }
    for file in &files {
        let path = dir.join(&file.path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|error| wrong(parent, error))?;
        }
        std::fs::write(&path, &file.contents).map_err(|error| wrong(&path, error))?;
    }
    screen::say(format!("{}: {} files, in {}", dir.display(), files.len(), args.lang.name()));
    screen::say(format!("next: cd {}", dir.display()));
    if let Some(first) = project::setup(args.lang) {
        screen::say(format!("      {first}"));
    }
    screen::say("      afterbay plugin build && afterbay plugin test");
    screen::say(screen::faint(format!("{} explains more", dir.join("README.md").display())));
    Ok(ExitCode::SUCCESS)
}
