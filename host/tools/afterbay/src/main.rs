//! The afterbay binary: parses the command line and runs the command.
//!
//! Exit codes: 0 success; 1 the command failed or found a problem; 64 the configuration or the command line is wrong; 70 a
//! stream failed.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod commands;
mod version;

use afterbay_events::log;
use afterbay_terminal as screen;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// A proxy on the output socket of an LLM scheduler.
///
/// Afterbay receives every batch that the scheduler of SGLang or vLLM sends, writes it to a per-request journal, runs WebAssembly plugins
/// on it, and sends it to the reader, which needs no change.
#[derive(Parser)]
#[command(name = "afterbay", version, long_version = version::LONG.as_str(), propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Args),
    Check(commands::check::Args),
    Follow(commands::follow::Args),
    Journal(afterbay_journal_tools::Args),
    Usage(afterbay_journal_tools::UsageArgs),
    Plugin(afterbay_plugin_tools::Args),
    Sglang(commands::sglang::Args),
    Vllm(commands::vllm::Args),
    Smg(commands::smg::Args),
    Abort(commands::abort::Args),
    Clients(commands::clients::Args),
    Plugins(commands::plugins::Args),
    Top(commands::top::Args),
    Reload(commands::reload::Args),
    Upgrade(commands::upgrade::Args),
    Connector(commands::connector::Args),
    Sim(commands::sim::Args),
    Demo(commands::demo::Args),
    #[command(hide = true)]
    Completions(commands::command_line::CompletionsArgs),
    #[command(hide = true)]
    ManPages(commands::command_line::ManPagesArgs),
    #[command(name = commands::run::WORKER, hide = true)]
    Worker(commands::run::WorkerArgs),
}

fn main() -> ExitCode {
    let _flush = log::FlushAtEnd;
    screen::end_where_nobody_reads();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, and are no mistakes.
            let mistake = error.use_stderr();
            // There is no other place to print to.
            let _printed = error.print();
            return if mistake { ExitCode::from(screen::EXIT_USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Run(args) => commands::run::run(args),
        Command::Check(args) => commands::check::run(args),
        Command::Follow(args) => commands::follow::run(args),
        Command::Journal(args) => {
            let load = |file: &std::path::Path| afterbay_server::load_config(file, true);
            afterbay_journal_tools::run(args, load, commands::call_of_journal)
        }
        Command::Usage(args) => {
            afterbay_journal_tools::usage(args, |file| afterbay_server::load_config(file, true))
        }
        Command::Plugin(args) => afterbay_plugin_tools::run(args, &commands::trials()),
        Command::Sglang(args) => commands::sglang::run(args),
        Command::Vllm(args) => commands::vllm::run(args),
        Command::Smg(args) => commands::smg::run(args),
        Command::Abort(args) => commands::abort::run(args),
        Command::Clients(args) => commands::clients::run(args),
        Command::Plugins(args) => commands::plugins::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Reload(args) => commands::reload::run(args),
        Command::Upgrade(args) => commands::upgrade::run(args),
        Command::Connector(args) => commands::connector::run(args),
        Command::Sim(args) => commands::sim::run(args),
        Command::Demo(args) => commands::demo::run(args),
        Command::Completions(args) => commands::command_line::completions(args, Cli::command()),
        Command::ManPages(args) => commands::command_line::man_pages(args, Cli::command()),
        Command::Worker(args) => commands::run::become_worker(args),
    };
    done.unwrap_or_else(|error| {
        if error.downcast_ref::<std::io::Error>().is_some_and(screen::is_unread) {
            return ExitCode::from(screen::EXIT_UNREAD);
        }
        print_error(&format!("afterbay: {}", message(&error)));
        ExitCode::FAILURE
    })
}

/// The message of an error and of its causes. A cause that the message already ends with is left out.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.ends_with(&cause) {
            let between = if text.is_empty() { "" } else { ": " };
            text = text + between + &cause;
        }
    }
    text
}

/// Prints an error on standard error as [`screen::complain`] does, through the queue of the log once that is set up.
fn print_error(text: &str) {
    text.split('\n').for_each(|line| log::print_line(&screen::escaped(line)));
}
