//! `afterbay clients`: what an operator does for clients that read their requests again.

use crate::commands::follow::become_follower;
use afterbay_config::{Clients, Config, Env, Names};
use afterbay_http::CapabilityKeys;
use afterbay_terminal as screen;
use anyhow::{Context, anyhow};
use clap::Subcommand;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest time for which a token is made.
const FOR_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Give clients access to the tokens of their requests
#[derive(clap::Args)]
#[command(after_help = "Example:\n  afterbay clients token chatcmpl-7 --for 1h")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Token(TokenArgs),
    Serve(ServeArgs),
}

/// Print a token with which one request can be read at the address of `[clients]`
///
/// The token opens this id and no other until its time is over. Afterbay need not run.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay clients token chatcmpl-7 --for 10m\n  curl -N -H 'Accept: text/event-stream' \"http://127.0.0.1:9470/v1/streams/$ID?token=$(afterbay clients token $ID)\""
)]
struct TokenArgs {
    /// The rid of the request, or the id that the client got
    id: String,
    /// The time for which the token holds: 1s to 365d
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = parse_for)]
    lasts: Duration,
    /// The configuration file, which names the secret
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: Option<PathBuf>,
}

/// Serve the clients of a fleet from its copy in NATS, on a machine without an engine
///
/// `[replicate]` of the configuration names NATS, `[clients]` the address and the secret. The copy of the last `clients.keep` lies in a
/// temporary directory. The work is done by the binary `afterbay-follow`, in the directory of this one.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  afterbay clients serve --config /etc/afterbay/afterbay.toml")]
struct ServeArgs {
    /// The configuration file of one of the fleet
    #[arg(long, value_name = "FILE", env = "AFTERBAY_CONFIG")]
    config: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Token(args) => print_token(args),
        Command::Serve(ServeArgs { config }) => become_follower("clients", &named(config)?),
    }
}

fn print_token(TokenArgs { id, lasts, config }: TokenArgs) -> anyhow::Result<ExitCode> {
    let config = named(config)?;
    let variable = |name: &str| std::env::var(name).ok();
    let env = Env { var: &variable, names: Names::FromRendezvous, ..Env::EMPTY };
    // A gateway has no journal, and none of the engine's sockets.
    let loaded = Config::load_follower(&config, &env, &["clients"])?;
    let Clients { key_file, .. } =
        loaded.clients.with_context(|| format!("{}: has no [clients]", config.display()))?;
    let keys = CapabilityKeys::read(&key_file)
        .map_err(|why| anyhow!("clients.key_file: {} {why}", key_file.display()))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    screen::say(keys.mint(&id, (now + lasts).as_secs()));
    Ok(ExitCode::SUCCESS)
}

fn named(config: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    config.context("the configuration is needed: --config FILE or AFTERBAY_CONFIG")
}

fn parse_for(text: &str) -> Result<Duration, String> {
    let parsed = afterbay_config::parse_duration(text);
    let is_in = |time: &Duration| *time >= Duration::from_secs(1) && *time <= FOR_MAX;
    parsed.filter(is_in).ok_or_else(|| format!("{text:?} must be 1s to 365d, like 90s, 10m or 24h"))
}
