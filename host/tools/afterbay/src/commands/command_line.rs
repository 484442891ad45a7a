//! `afterbay completions SHELL` and `afterbay man-pages DIR`: files about the command line, made from its own declaration.

use anyhow::Context;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the completions of a shell: bash, elvish, fish, powershell or zsh
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    shell: clap_complete::Shell,
}

pub(crate) fn completions(args: CompletionsArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    // clap_complete completes hidden commands, too.
    let shown = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let mut shown = clap::Command::new("afterbay")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments())
        .subcommands(shown);
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown, "afterbay", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// Write a man page for each command into a directory
#[derive(clap::Args)]
pub(crate) struct ManPagesArgs {
    dir: PathBuf,
}

pub(crate) fn man_pages(args: ManPagesArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    let written =
        std::fs::create_dir_all(&args.dir).and_then(|()| clap_mangen::generate_to(command, &args.dir));
    written.with_context(|| args.dir.display().to_string())?;
    Ok(ExitCode::SUCCESS)
}
