//! `afterbay journal trajectories`: the turns of sessions, for training.

use crate::LoadConfig;
use crate::ended_requests::{ArrivedArgs, each_arrived};
use crate::place::{Place, Selected};
use afterbay_journal_view::ended::{EndedRequest, FrameUse};
use afterbay_journal_view::follower::follow_binary;
use afterbay_journal_view::trajectory::{Trajectory, Turn};
use afterbay_journal_view::wording::counted;
use afterbay_terminal as screen;
use anyhow::{Context, ensure};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::str::FromStr;

/// Most sessions.
const SESSIONS_MAX: usize = 1 << 20;
/// Most bytes of the turns of sessions that have further turns: 2 GiB.
const OPEN_BYTES_MAX: usize = 2 << 30;

/// Write the turns of sessions for training: the ids of prompts and answers, logprobs, versions of weights
///
/// One JSON object a session, with its turns in the order in which their requests arrived. A turn has the ids of the prompt, the sampled
/// ids, their logprobs, the versions of the weights, sampling masks and routed experts where the engine sends them, the finish reason, and
/// the changes of plugins. `prefix` says whether the prompt begins with the ids of the turn before, and at which id it does not: text that
/// was tokenised a second time. `missing` says what the journal does not have. Only requests that have ended. Afterbay may run meanwhile.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal trajectories --since 1d > sessions.jsonl\n  afterbay journal trajectories --by request --parquet requests.parquet"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// The value that the turns of a session share: `session` (the engine's session, or the attribute `session`), `routing-key`, `trace`
    /// (the trace's id), `request` (each request is alone), or the name of an attribute
    #[arg(long, value_name = "VALUE", default_value = "session")]
    by: SessionKey,
    /// Only the session with this value
    #[arg(long, value_name = "VALUE")]
    only: Option<String>,
    #[command(flatten)]
    arrived: ArrivedArgs,
    /// Write a Parquet file in place of JSON lines
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
}

/// The value that the turns of a session share.
#[derive(Clone, Debug)]
pub(crate) enum SessionKey {
    Session,
    RoutingKey,
    Trace,
    Request,
    Attribute(String),
}

impl FromStr for SessionKey {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<SessionKey, Infallible> {
        Ok(match text {
            "session" => SessionKey::Session,
            "routing-key" => SessionKey::RoutingKey,
            "trace" => SessionKey::Trace,
            "request" => SessionKey::Request,
            name => SessionKey::Attribute(name.to_owned()),
        })
    }
}

impl SessionKey {
    fn of(&self, ended: &EndedRequest) -> Option<String> {
        let record = ended.record.as_ref();
        let attribute = |name: &str| ended.info.attribute(name).map(str::to_owned);
        match self {
            SessionKey::Session => record.and_then(|it| it.session.clone()).or_else(|| attribute("session")),
            SessionKey::RoutingKey => record?.routing_key.clone(),
            // Version, id of the trace, id of the span, flags.
            SessionKey::Trace => {
                record?.trace.as_ref()?.traceparent.as_ref()?.split('-').nth(1).map(str::to_owned)
            }
            SessionKey::Request => None,
            SessionKey::Attribute(name) => attribute(name),
        }
    }
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let selected = args.place.select_since(load, args.arrived.since)?;
    let mut out = match &args.parquet {
        None => Out::Lines(screen::Output::new()),
        Some(file) => Out::Parquet(ParquetFile::create(file)?),
    };
    let mut turns = 0_u64;
    let times = (args.arrived.since, args.arrived.until);
    let live = trajectories(&selected, &args.by, args.only.as_deref(), times, &mut |trajectory| {
        turns += trajectory.turns.len() as u64;
        out.write(&trajectory)
    })?;
    out.finish()?;
    if live > 0 {
        screen::complain(format!("left out: {} not ended", counted(live as u64, "request that has")));
    }
    if turns == 0 {
        screen::complain("no request that has ended was found");
    }
    Ok(ExitCode::SUCCESS)
}

/// A session of which not all turns were read.
struct OpenSession {
    /// The turns that are still to come.
    left: u32,
    turns: Vec<Turn>,
}

/// Gives each trajectory as soon as its last turn was read. Returns the number of requests that have not ended.
pub(crate) fn trajectories(
    selected: &Selected,
    by: &SessionKey,
    only: Option<&str>,
    times: (Option<u64>, Option<u64>),
    each: &mut dyn FnMut(Trajectory) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    let mut open: HashMap<String, OpenSession> = HashMap::new();
    let is_wanted = |key: Option<&str>| only.is_none_or(|only| key == Some(only));
    // A first look counts the turns of each session.
    if !matches!(by, SessionKey::Request) {
        each_arrived(selected, times, FrameUse::Facts, &mut |ended| {
            if let Some(key) = by.of(&ended).filter(|key| is_wanted(Some(key))) {
                open.entry(key).or_insert(OpenSession { left: 0, turns: Vec::new() }).left += 1;
                ensure!(
                    open.len() <= SESSIONS_MAX,
                    "over {SESSIONS_MAX} sessions: select fewer with --since and --until"
                );
            }
            Ok(())
        })?;
    }
    let mut bytes = 0;
    let live = each_arrived(selected, times, FrameUse::Contents, &mut |ended| {
        let key = by.of(&ended);
        if !is_wanted(key.as_deref()) {
            return Ok(());
        }
        let Some(key) = key else { return each(Trajectory::new(None, vec![Turn::new(ended)])) };
        // A request that has ended since the first look is in no session.
        let Some(session) = open.get_mut(&key) else { return Ok(()) };
        let turn = Turn::new(ended);
        bytes += turn.bytes();
        session.turns.push(turn);
        session.left -= 1;
        if session.left > 0 {
            ensure!(
                bytes <= OPEN_BYTES_MAX,
                "the turns of {} need over {OPEN_BYTES_MAX} bytes: select fewer with --since, --until or --only",
                counted(open.len() as u64, "session")
            );
            return Ok(());
        }
        let turns = open.remove(&key).map(|session| session.turns).unwrap_or_default();
        bytes -= turns.iter().map(Turn::bytes).sum::<usize>();
        each(Trajectory::new(Some(key), turns))
    })?;
    // Retention removed turns between the two looks.
    let mut rest: Vec<_> = open.into_iter().filter(|(_, session)| !session.turns.is_empty()).collect();
    rest.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (key, session) in rest {
        each(Trajectory::new(Some(key), session.turns))?;
    }
    Ok(live)
}

enum Out {
    Lines(screen::Output),
    Parquet(ParquetFile),
}

impl Out {
    fn write(&mut self, trajectory: &Trajectory) -> anyhow::Result<()> {
        match self {
            Out::Lines(out) => Ok(out.json(&serde_json::to_string(trajectory)?)?),
            Out::Parquet(file) => file.write(trajectory),
        }
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Out::Lines(mut out) => Ok(out.flush()?),
            Out::Parquet(file) => file.finish(),
        }
    }
}

/// The process that writes a Parquet file: `afterbay-follow` alone has the code for that.
struct ParquetFile {
    child: Child,
    lines: BufWriter<ChildStdin>,
}

impl ParquetFile {
    fn create(file: &Path) -> anyhow::Result<ParquetFile> {
        let binary = follow_binary().map_err(anyhow::Error::msg)?;
        let spawned = Command::new(&binary).arg("trajectories").arg(file).stdin(Stdio::piped()).spawn();
        let mut child = spawned.with_context(|| binary.display().to_string())?;
        let lines = BufWriter::new(child.stdin.take().context("no input")?);
        Ok(ParquetFile { child, lines })
    }

    fn write(&mut self, trajectory: &Trajectory) -> anyhow::Result<()> {
        serde_json::to_writer(&mut self.lines, trajectory)?;
        self.lines.write_all(b"\n").context("afterbay-follow has ended")
    }

    fn finish(self) -> anyhow::Result<()> {
        let ParquetFile { mut child, lines } = self;
        drop(lines.into_inner().context("afterbay-follow has ended")?);
        ensure!(child.wait()?.success(), "afterbay-follow could not write the file");
        Ok(())
    }
}
