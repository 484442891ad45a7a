//! Reads rows to show to a plugin: from a journal, from files with frames, or from a scenario.

use crate::plugin_args::UsageError;
use crate::row::{Batch, Row};
use crate::scenario::Scenario;
use crate::updates::Updates;
use afterbay_journal::reader::{JournalReader, ReadFrom, RequestFilter, StoredFrame, StreamReader};
use afterbay_journal::stored_rid;
use afterbay_journal_tools::{OpenSource, Source};
use afterbay_journal_view::legs;
use afterbay_runtime::signals::Snapshot;
use afterbay_runtime::{AskedRequest, ColumnSet, PlainValues};
use afterbay_stream::{asked_request, finish_kind, recorded_signals, row_counts, row_facts};
use afterbay_wire::{Barrier, BarrierKind, DecodedFrame, Decoder, Layouts};
use anyhow::{Context, bail};
use bytes::Bytes;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// The extensions of files with a frame.
const FRAMES: [&str; 3] = ["bin", "msgpack", "pickle"];

/// The options that select rows.
#[derive(clap::Args)]
pub(crate) struct RowArgs {
    /// The rows: a journal's directory, a request that `journal pack` packed (*.tar.zst), a file with a frame, a directory of such
    /// files (*.bin, *.msgpack, *.pickle, in order of their names), or a scenario (*.toml)
    #[arg(long, value_name = "SOURCE")]
    from: PathBuf,
    /// Only this request's rows
    #[arg(long, value_name = "RID")]
    rid: Option<String>,
    /// The stream, if the journal has several that are not `after` another
    #[arg(long, value_name = "NAME")]
    stream: Option<String>,
    /// The sink that the plugin sees for each request that names none; frames never name one
    #[arg(long, value_name = "NAME")]
    sink: Option<String>,
}

impl RowArgs {
    /// The scenario that the rows are from; `None` if they are from elsewhere.
    pub(crate) fn scenario(&self) -> Result<Option<Scenario>, UsageError> {
        let is_scenario = self.from.extension().is_some_and(|it| it == "toml") && !self.from.is_dir();
        is_scenario.then(|| Scenario::read(&self.from)).transpose()
    }

    /// The journal and the stream that are named.
    pub(crate) fn journal(&self) -> (Source, Option<&str>) {
        (Source::of(self.from.clone()), self.stream.as_deref())
    }
}

/// The number of frames without rows, by kind. Plugins never see such frames.
pub(crate) type Barriers = BTreeMap<String, u64>;

impl RowArgs {
    /// Reads every batch that has rows and passes it to `take`, one after another.
    pub(crate) fn each(&self, take: &mut dyn FnMut(Batch) -> anyhow::Result<()>) -> anyhow::Result<Barriers> {
        let (source, _) = self.journal();
        // The files with frames, none of a journal. `None`: a single file.
        let files = match &source {
            Source::Directory(path) if path.is_dir() => Some(files(path)?),
            Source::Directory(path) => {
                path.metadata().map_err(|error| UsageError(format!("{}: {error}", path.display())))?;
                None
            }
            Source::Pack(_) | Source::Nats(_) => Some(Vec::new()),
        };
        let mut frames = Frames::new(self, files.is_none(), take)?;
        match files {
            Some(none) if none.is_empty() => {
                frames.of_journal(self, &source.open_part(self.stream.as_deref(), None)?)?
            }
            Some(files) => frames.of_files(&files)?,
            None if self.from.extension().is_some_and(|it| it == "toml") => {
                let scenario = Scenario::read(&self.from)?;
                for (mut batch, _) in scenario.batches {
                    batch.rows.retain(|row| self.rid.as_ref().is_none_or(|rid| *rid == row.rid));
                    frames.give(batch)?;
                }
            }
            None => frames.of_files(std::slice::from_ref(&self.from))?,
        }
        let Frames { barriers, known, .. } = frames;
        match &self.rid {
            Some(rid) if !known => bail!("rid {rid:?}: no row of {} is its", self.from.display()),
            _ => Ok(barriers),
        }
    }
}

fn files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
    files.retain(|file| is_frame(file));
    files.sort();
    Ok(files)
}

fn is_frame(file: &Path) -> bool {
    let extension = file.extension().and_then(|it| it.to_str()).unwrap_or_default();
    FRAMES.contains(&extension) && file.is_file()
}

/// Decodes frames and passes their rows on.
struct Frames<'t> {
    decoder: Decoder,
    take: &'t mut dyn FnMut(Batch) -> anyhow::Result<()>,
    barriers: Barriers,
    /// Whether --from names a single file. Then a file that is no frame is a usage error.
    is_named: bool,
    /// The whole rid of the wanted request.
    rid: Option<String>,
    /// Rids whose rows were erased. Plugins do not see them.
    erased: HashSet<String>,
    /// The records of requests that have had no row yet, by rid.
    asked: BTreeMap<String, AskedRequest>,
    /// The last signals that no batch has.
    signals: Option<Snapshot>,
    /// The sink for rows that name none.
    sink: String,
    /// Whether a row was found.
    known: bool,
}

impl<'t> Frames<'t> {
    fn new(
        args: &RowArgs,
        is_named: bool,
        take: &'t mut dyn FnMut(Batch) -> anyhow::Result<()>,
    ) -> anyhow::Result<Frames<'t>> {
        let (decoder, rid) = (Decoder::new(Layouts::builtin()), args.rid.clone());
        let (sink, asked) = (args.sink.clone().unwrap_or_default(), BTreeMap::new());
        let (barriers, erased) = (Barriers::new(), HashSet::new());
        Ok(Frames {
            decoder,
            take,
            barriers,
            is_named,
            rid,
            erased,
            asked,
            signals: None,
            sink,
            known: false,
        })
    }

    fn of_files(&mut self, files: &[PathBuf]) -> anyhow::Result<()> {
        for file in files {
            let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
            self.frame(name, 0, bytes)?;
        }
        Ok(())
    }

    fn of_journal(&mut self, args: &RowArgs, source: &OpenSource) -> anyhow::Result<()> {
        let stream = stream(&source.journal()?, source.name(), args.stream.as_deref())?;
        if let Some(rid) = &args.rid {
            let Some(whole) = stream.whole_rid(rid)? else { return Ok(()) };
            let lives = stream.lives(&whole)?;
            self.rid = Some(whole);
            for life in &lives {
                let rows = life.rows.iter().filter_map(|row| row.position.as_ref());
                for position in life.record.iter().chain(rows) {
                    self.journaled(stream.frame(position)?)?;
                }
            }
            return Ok(());
        }
        self.erased = erased(&stream)?;
        for frame in stream.frames(ReadFrom::Start)? {
            self.journaled(frame?.0)?;
        }
        Ok(())
    }

    fn journaled(&mut self, frame: StoredFrame) -> anyhow::Result<()> {
        // The rows that a release marker released are in the frames that they were received in.
        if frame.is_release_marker() {
            return Ok(());
        }
        self.frame(
            format!("frame {}", frame.position.frame.0),
            frame.received_unix_ns / 1_000_000,
            frame.bytes,
        )
    }

    fn frame(&mut self, from: String, time_ms: u64, bytes: Vec<u8>) -> anyhow::Result<()> {
        let bytes = Bytes::from(bytes);
        match self.decoder.decode(bytes.clone()) {
            DecodedFrame::Barrier(Barrier { kind: BarrierKind::NotUnderstood { error }, .. })
                if self.is_named =>
            {
                Err(UsageError(format!("{from}: {error}")).into())
            }
            DecodedFrame::Barrier(Barrier { kind: BarrierKind::Request { record: Ok(record) }, .. }) => {
                let rid = stored_rid(record.rid.as_bytes());
                if self.is_wanted(&rid) {
                    self.asked.insert(rid.into_owned(), asked_request(&record));
                }
                Ok(())
            }
            DecodedFrame::Barrier(Barrier { kind: BarrierKind::Signals, .. }) => {
                self.signals = recorded_signals(&bytes).or(self.signals.take());
                Ok(())
            }
            DecodedFrame::Barrier(barrier) => {
                *self.barriers.entry(barrier.kind.to_string()).or_default() += 1;
                Ok(())
            }
            DecodedFrame::Batch(batch) => {
                let wanted = |row: &u32| self.is_wanted(&stored_rid(batch.rid_of(*row).unwrap_or_default()));
                // Plugins do not see health checks.
                let rows = (0..batch.rows()).filter(|row| !batch.is_health_check(*row)).filter(wanted);
                let rows = rows.map(|index| row(&batch, index)).collect();
                self.give(Batch { from, time_ms, rows, updates: Updates::default() })
            }
        }
    }

    fn is_wanted(&self, rid: &str) -> bool {
        self.rid.as_ref().is_none_or(|wanted| rid == wanted.as_str()) && !self.erased.contains(rid)
    }

    fn give(&mut self, mut batch: Batch) -> anyhow::Result<()> {
        if batch.rows.is_empty() {
            return Ok(());
        }
        let without = batch.rows.iter_mut().filter(|row| row.sink.is_empty());
        without.for_each(|row| row.sink.clone_from(&self.sink));
        batch.updates.asked.append(&mut self.asked);
        batch.updates.signals = batch.updates.signals.take().or(self.signals.take());
        self.known = true;
        (self.take)(batch)
    }
}

/// The rids of which every row was erased.
fn erased(stream: &StreamReader) -> anyhow::Result<HashSet<String>> {
    let (mut erased, mut kept) = (HashSet::new(), HashSet::new());
    for request in stream.requests(RequestFilter::default())? {
        let request = request?;
        if request.erased.is_some() { &mut erased } else { &mut kept }.insert(request.rid);
    }
    erased.retain(|rid| !kept.contains(rid));
    Ok(erased)
}

fn stream(journal: &JournalReader, dir: &str, name: Option<&str>) -> anyhow::Result<StreamReader> {
    let names = journal.streams()?;
    match (name, names.as_slice()) {
        (Some(name), _) if names.iter().any(|known| known == name) => Ok(journal.stream(name)?),
        (Some(name), _) => {
            Err(UsageError(format!("--stream {name:?}: not in {dir}, which has {names:?}")).into())
        }
        (None, [only]) => Ok(journal.stream(only)?),
        (None, []) => bail!("{dir}: a journal without a stream"),
        (None, _) => {
            let streams: Vec<StreamReader> =
                names.iter().map(|name| journal.stream(name)).collect::<Result<_, _>>()?;
            // A stream after another has the same requests.
            let mut first = Vec::new();
            for stream in &streams {
                if legs::after(stream, &streams)?.is_empty() {
                    first.push(stream.name());
                }
            }
            match first[..] {
                [only] => Ok(journal.stream(only)?),
                _ => {
                    Err(UsageError(format!("{dir} has the streams {names:?}: say which with --stream"))
                        .into())
                }
            }
        }
    }
}

fn row(batch: &afterbay_wire::Batch, index: u32) -> Row {
    let mut ids = Vec::new();
    batch.row_ids(index, &mut ids);
    Row {
        rid: batch.rid(index).to_owned(),
        ids,
        text: batch.text(index).map(str::to_owned),
        values: PlainValues {
            completion_tokens: batch.completion_tokens(index).unwrap_or(0),
            finished: finish_kind(batch.finish(index).kind()),
            ..row_counts(batch, index)
        },
        facts: row_facts(batch, index, ColumnSet::all()),
        prompt_tokens: batch.prompt_tokens(index).unwrap_or(0),
        front_end: batch.front_end(index).unwrap_or_default().to_owned(),
        sink: String::new(),
    }
}
