//! `afterbay journal pack RID`: writes what is known of a request to one file.

use crate::LoadConfig;
use crate::not_found::not_found;
use crate::pack_file::{self, CONFIGURATION, JOURNAL, MANIFEST, PackWriter};
use crate::place::{Configuration, Place, Selected};
use crate::redact::without_secrets;
use crate::source::temporary;
use afterbay_config::{Component, Config};
use afterbay_journal::reader::{ErasedBy, Erasure, StreamReader};
use afterbay_journal::{
    EraseRows, Excerpt, FORMAT_VERSION, OtherRows, PluginComponent, RewrittenFrame, is_release_marker,
    write_excerpt,
};
use afterbay_journal_view::json_time;
use afterbay_journal_view::wording::counted;
use afterbay_terminal::{self as screen, Busy};
use afterbay_wire::{DecodedFrame, Decoder, Layouts};
use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Pack a request into a file, to look at it on another machine
///
/// Every command that reads a journal takes the file: `--from NAME.tar.zst`. It has the frames with a row of the request, of every
/// stream, with their numbers, times, verdicts and deliveries; the other requests in these frames; the configuration without
/// secrets; the plugins that saw the frames, with their versions and digests. The tokens and texts of the other requests are overwritten. manifest.json in the file
/// says what was left out. At most 1 GiB, unpacked. Afterbay may run meanwhile.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal pack 5b0c1f0a --config afterbay.toml > 5b0c1f0a.tar.zst\n  afterbay journal show 5b0c1f0a --from 5b0c1f0a.tar.zst"
)]
pub(crate) struct Args {
    /// The rid of the request, or the beginning of it
    rid: String,
    #[command(flatten)]
    place: Place,
    /// Write to this new file instead of the standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep the tokens and texts of the other requests in the same frames
    #[arg(long)]
    neighbour_tokens: bool,
    /// The msgpack layout of the frames: `auto`, a version, or a file
    #[arg(long, value_name = "LAYOUT", default_value = "auto")]
    layout: String,
}

pub(crate) fn run(args: &Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    ensure!(
        args.output.is_some() || !std::io::stdout().is_terminal(),
        "a pack is no text for a terminal: give --output FILE, or redirect the output"
    );
    let layouts = Layouts::load(&args.layout)?;
    let selected = args.place.select(load)?;
    let configuration = args.place.configuration(&selected, load)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let busy = Busy::new(format!("packing {:?}", args.rid));
    let options =
        Options { rid: &args.rid, keeps_others: args.neighbour_tokens, layouts: &layouts, unix_ns: now };
    let packed = pack(&selected, configuration, &options)?;
    let bytes = match &args.output {
        None => packed.write(std::io::stdout().lock())?,
        Some(path) => {
            let named = || path.display().to_string();
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            let written = packed.write(made.with_context(named)?);
            if written.is_err() {
                // The error that matters is the first one.
                let _ = std::fs::remove_file(path);
            }
            written.with_context(named)?
        }
    };
    drop(busy);
    packed.report(bytes);
    Ok(ExitCode::SUCCESS)
}

/// The content of a pack.
pub(crate) struct Options<'a> {
    /// The rid, or the beginning of it.
    pub(crate) rid: &'a str,
    /// Whether the tokens of other requests stay.
    pub(crate) keeps_others: bool,
    pub(crate) layouts: &'a Layouts,
    /// The time of packing.
    pub(crate) unix_ns: u64,
}

/// A request that is ready to be written to a file.
pub(crate) struct Packed {
    /// The excerpts of the streams.
    journal: tempfile::TempDir,
    configuration: Option<String>,
    manifest: Value,
    excerpts: Vec<(String, Excerpt)>,
    rid: String,
    keeps_others: bool,
}

/// Collects what is known of a request.
pub(crate) fn pack(
    selected: &Selected,
    configuration: Option<Configuration>,
    options: &Options<'_>,
) -> anyhow::Result<Packed> {
    let rid = whole_rid(selected, options.rid)?;
    let journal = temporary()?;
    let (mut excerpts, mut streams) = (Vec::new(), Vec::new());
    let mut room = pack_file::UNPACKED_BYTES_MAX;
    let erasure = Erasure { unix_ns: options.unix_ns, by: ErasedBy::this_user() };
    for stream in &selected.streams {
        let mut frames = PackedFrames { decoder: Decoder::new(options.layouts.clone()) };
        let others = match options.keeps_others {
            true => OtherRows::Kept,
            false => OtherRows::Erased(erasure, &mut frames),
        };
        let Some(excerpt) = write_excerpt(stream, &rid, journal.path(), others, room)? else { continue };
        room = room.saturating_sub(excerpt.bytes);
        streams.push(stream_json(stream, &rid, &excerpt, options.layouts)?);
        excerpts.push((stream.name().to_owned(), excerpt));
    }
    ensure!(!excerpts.is_empty(), "rid {rid:?}: the journal has no row of this request");
    let config = configuration.as_ref().map(|it| &it.config);
    let plugins = excerpts.iter().flat_map(|(stream, excerpt)| plugins_json(stream, excerpt, config));
    let plugins: Vec<Value> = plugins.collect();
    let mut left_out = vec![
        "frames without a row of the request, with them all messages without rows".to_owned(),
        "the code of plugins, the files that settings name, tokenizers, values that plugins stored"
            .to_owned(),
    ];
    let others: u64 = excerpts.iter().map(|(_, excerpt)| excerpt.others).sum();
    if !options.keeps_others && others > 0 {
        left_out.push(format!(
            "tokens, texts and notes of {} (--neighbour-tokens)",
            counted(others, "other request")
        ));
    }
    for (stream, excerpt) in excerpts.iter().filter(|(_, excerpt)| excerpt.left_count > 0) {
        left_out.push(format!(
            "{} of stream {stream} in which the rows of others cannot be overwritten",
            counted(excerpt.left_count, "frame")
        ));
    }
    let (redacted, about) = match configuration {
        None => (None, Value::Null),
        Some(it) => {
            let redacted = without_secrets(&it.text).with_context(|| it.file.display().to_string())?;
            let about = json!({"file": CONFIGURATION, "left_out": redacted.left_out});
            (Some(redacted.text), about)
        }
    };
    if redacted.is_none() {
        left_out.push("the configuration: no --config names this journal".to_owned());
    }
    let manifest = json!({
        "pack": pack_file::VERSION,
        "afterbay": env!("CARGO_PKG_VERSION"),
        "journal_format": FORMAT_VERSION,
        "packed": json_time(options.unix_ns),
        "instance": selected.journal.instance()?,
        "rid": rid,
        "streams": streams,
        "neighbours": {"requests": others, "tokens": if options.keeps_others { "kept" } else { "overwritten" }},
        "plugins": plugins,
        "configuration": about,
        "left_out": left_out,
    });
    let keeps_others = options.keeps_others;
    Ok(Packed { journal, configuration: redacted, manifest, excerpts, rid, keeps_others })
}

/// The only rid in the journal that equals this one or begins with it.
fn whole_rid(selected: &Selected, rid: &str) -> anyhow::Result<String> {
    let mut found: Vec<String> = Vec::new();
    for stream in &selected.streams {
        let Some(whole) = stream.whole_rid(rid)? else { continue };
        if whole == rid {
            return Ok(whole);
        }
        if !found.contains(&whole) {
            found.push(whole);
        }
    }
    match found.len() {
        0 => Err(not_found(selected, rid)),
        1 => Ok(found.remove(0)),
        _ => bail!("rid {rid:?} begins several: {found:?}"),
    }
}

/// Overwrites the rows of other requests. Refuses a frame unless it finds every row's rid in it.
struct PackedFrames {
    decoder: Decoder,
}

impl EraseRows for PackedFrames {
    fn erase(
        &mut self,
        _: &str,
        frame: &Bytes,
        is_erased: &dyn Fn(&[u8]) -> bool,
    ) -> Result<RewrittenFrame, String> {
        match self.decoder.decode(frame.clone()) {
            DecodedFrame::Batch(batch) => {
                if let Some(row) = (0..batch.rows()).find(|row| batch.rid_of(*row).is_none()) {
                    return Err(format!("row {row} has a rid that is no text"));
                }
            }
            DecodedFrame::Barrier(barrier) => return Err(barrier.kind.to_string()),
        }
        let erased = self.decoder.erase(frame, is_erased).map_err(|error| error.to_string())?;
        Ok(RewrittenFrame { bytes: erased.bytes, left: erased.left })
    }
}

/// A stream in the manifest.
fn stream_json(
    stream: &StreamReader,
    rid: &str,
    excerpt: &Excerpt,
    layouts: &Layouts,
) -> anyhow::Result<Value> {
    let lives = stream.lives(rid)?;
    let positions = lives.iter().flat_map(|life| &life.rows).filter_map(|row| row.position);
    let frames = positions.filter_map(|position| stream.frame(&position).ok());
    let mut frames = frames.filter(|frame| !is_release_marker(&frame.bytes));
    let batch = frames.find_map(|frame| match afterbay_wire::decode(frame.bytes.into(), layouts) {
        DecodedFrame::Batch(batch) => Some(batch),
        DecodedFrame::Barrier(_) => None,
    });
    let left = excerpt.left.iter().map(|left| json!({"frame": left.frame.0, "why": left.why}));
    Ok(json!({
        "stream": stream.name(),
        "after": stream.after()?,
        "engine": batch.as_ref().map(|batch| batch.engine()),
        "wire": batch.as_ref().map(|batch| batch.wire().to_string()),
        "requests": excerpt.requests.iter().map(|request| request.0).collect::<Vec<_>>(),
        "rows": excerpt.rows,
        "frames": excerpt.frames,
        "neighbours": excerpt.others,
        "frames_left_out": left.collect::<Vec<_>>(),
    }))
}

/// The plugins that saw the frames of a stream in the manifest, as the journal has them. `config`: their components in the
/// configuration now.
fn plugins_json(stream: &str, excerpt: &Excerpt, config: Option<&Config>) -> Vec<Value> {
    let streams = config.into_iter().flat_map(|config| &config.streams);
    let configured: Vec<_> = streams.filter(|it| *it.name == *stream).flat_map(|it| &it.plugins).collect();
    let json = |of: &PluginComponent| {
        let plugin = configured.iter().find(|plugin| *plugin.name == *of.plugin);
        let component = plugin.map(|plugin| match &plugin.component {
            Component::Builtin(name) => format!("builtin:{name}"),
            Component::Registry(reference) => reference.clone(),
            Component::File(path) | Component::Project(path) => path.display().to_string(),
        });
        json!({
            "stream": stream,
            "plugin": of.plugin,
            "version": of.version,
            "sha256": of.sha256_text(),
            "component": component,
        })
    };
    excerpt.plugins.iter().map(json).collect()
}

impl Packed {
    /// Writes the pack. Returns its bytes.
    pub(crate) fn write(&self, out: impl Write) -> anyhow::Result<u64> {
        let mut pack = PackWriter::new(Counted { out, bytes: 0 })?;
        let text = |pack: &mut PackWriter<_>, name: &str, text: &str| {
            pack.add(name, text.len() as u64, text.as_bytes())
        };
        text(&mut pack, MANIFEST, &format!("{:#}\n", self.manifest))?;
        if let Some(configuration) = &self.configuration {
            text(&mut pack, CONFIGURATION, configuration)?;
        }
        for (stream, _) in &self.excerpts {
            let files = std::fs::read_dir(self.journal.path().join(stream))?;
            let mut files = files.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
            files.sort();
            for path in files {
                let file = File::open(&path)?;
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                pack.add(&format!("{JOURNAL}/{stream}/{name}"), file.metadata()?.len(), file)?;
            }
        }
        let mut counted = pack.finish()?;
        counted.flush()?;
        Ok(counted.bytes)
    }

    fn report(&self, bytes: u64) {
        let sum = |of: fn(&Excerpt) -> u64| self.excerpts.iter().map(|(_, excerpt)| of(excerpt)).sum::<u64>();
        let others = match self.keeps_others {
            true => "whose tokens are in the pack",
            false => "whose tokens are overwritten",
        };
        let line = format!(
            "{:?}: {} in {}, {} {others}, {}",
            self.rid,
            counted(sum(|it| it.rows), "row"),
            counted(sum(|it| it.frames), "frame"),
            counted(sum(|it| it.others), "other request"),
            counted(bytes, "byte"),
        );
        screen::complain(screen::wrapped(&line, 2));
        for left in self.excerpts.iter().filter(|(_, excerpt)| excerpt.left_count > 0) {
            let (stream, Excerpt { left, left_count, .. }) = left;
            let first = left.first().map(|left| format!(", the first is frame {}: {}", left.frame, left.why));
            let line =
                format!("{stream}: {} left out{}", counted(*left_count, "frame"), first.unwrap_or_default());
            screen::complain(screen::bad(screen::wrapped(&line, 2)));
        }
        if self.configuration.is_none() {
            screen::complain("without the configuration: no --config names this journal");
        }
    }
}

/// Counts the bytes that are written.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
