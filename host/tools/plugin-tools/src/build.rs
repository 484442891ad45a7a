//! `afterbay plugin build`: builds a project with the tool of its language.

use crate::plugin_args::UsageError;
use afterbay_plugin_loader::project::{Output, Project, ProjectError};
use afterbay_terminal as screen;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Build a project's component with the tool of its language
///
/// cargo for Rust; a wasi-sdk (WASI_SDK_PATH) or zig for C; componentize-qjs for JavaScript; componentize-py for Python.
/// If a tool is missing, the error says how to install it.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  afterbay plugin build\n  afterbay plugin build examples/stop-on-loop")]
pub(crate) struct Args {
    /// The project's directory
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let project = Project::of_dir(&args.dir).map_err(|error| UsageError(error.to_string()))?;
    let begun = Instant::now();
    screen::complain(format!("building {} with {}", args.dir.display(), project.tool()));
    let made = match project.build(Output::Shown) {
        Ok(made) => made,
        Err(error) => {
            screen::complain(format!("afterbay: {error}"));
            if let ProjectError::Failed { output, .. } = &error {
                screen::complain(output.trim_end());
            }
            return Ok(ExitCode::FAILURE);
        }
    };
    let bytes = made.metadata().map_or(0, |file| file.len());
    screen::say(made.display().to_string());
    screen::complain(format!("{} KiB, in {:.1} s", bytes.div_ceil(1024), begun.elapsed().as_secs_f64()));
    Ok(ExitCode::SUCCESS)
}
