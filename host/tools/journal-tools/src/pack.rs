//! `afterbay journal pack RID`: writes what the journal has about a request to one file.

use crate::LoadConfig;
use crate::pack_file::{self, JOURNAL, MANIFEST, PackWriter};
use crate::place::{Place, Selected};
use crate::source::temporary;
use afterbay_journal::reader::{ErasedBy, Erasure};
use afterbay_journal::{EraseRows, Excerpt, FORMAT_VERSION, RewrittenFrame, write_excerpt};
use afterbay_journal_view::json_time;
use afterbay_journal_view::wording::counted;
use afterbay_terminal::{self as screen, Busy};
use afterbay_wire::{Barrier, BarrierKind, DecodedFrame, Decoder, Layouts};
use anyhow::{bail, ensure};
use bytes::Bytes;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Pack a request into a file, to look at it on another machine
///
/// Every command that reads a journal takes the file: `--from NAME.tar.zst`. It is a small journal: the segments with the request, of
/// every stream, with the frames that have a row of it. The tokens and texts of all other requests are overwritten. manifest.json in the
/// file says which frames were left out because that was not possible. At most 1 GiB, unpacked. Afterbay may run meanwhile.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal pack 5b0c1f0a --config afterbay.toml > 5b0c1f0a.tar.zst"
)]
pub(crate) struct Args {
    /// The rid of the request, or the beginning of it
    rid: String,
    #[command(flatten)]
    place: Place,
}

pub(crate) fn run(args: &Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    ensure!(!std::io::stdout().is_terminal(), "a pack is no text for a terminal: redirect the output");
    let selected = args.place.select(load)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let busy = Busy::new(format!("packing {:?}", args.rid));
    let excerpts = pack(&selected, &args.rid, now, std::io::stdout().lock())?;
    drop(busy);
    for (stream, Excerpt { rows, frames, left, .. }) in &excerpts {
        let line = format!("{stream}: {} in {}", counted(*rows, "row"), counted(*frames, "frame"));
        screen::complain(screen::wrapped(&line, 2));
        if let Some(first) = left.first.first() {
            let line = format!(
                "{stream}: {} left out, the first is frame {}: {}",
                counted(left.count, "frame"),
                first.frame,
                first.why
            );
            screen::complain(screen::bad(screen::wrapped(&line, 2)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the pack of a request at this time, Unix nanoseconds. Returns the excerpt of each stream.
pub(crate) fn pack(
    selected: &Selected,
    rid: &str,
    unix_ns: u64,
    out: impl Write,
) -> anyhow::Result<Vec<(String, Excerpt)>> {
    let rid = whole_rid(selected, rid)?;
    let journal = temporary()?;
    let mut excerpts = Vec::new();
    let mut room = pack_file::UNPACKED_BYTES_MAX;
    let erasure = Erasure { unix_ns, by: ErasedBy::this_user() };
    for stream in &selected.streams {
        let mut rows = PackedFrames { decoder: Decoder::new(Layouts::of_text(&stream.layout()?)) };
        let excerpt = write_excerpt(stream, &rid, journal.path(), erasure, &mut rows, room)?;
        let Some(excerpt) = excerpt else { continue };
        room = room.saturating_sub(excerpt.bytes);
        excerpts.push((stream.name().to_owned(), excerpt));
    }
    ensure!(!excerpts.is_empty(), "rid {rid:?}: the journal has no row of this request");
    let manifest = json!({
        "pack": pack_file::VERSION,
        "afterbay": env!("CARGO_PKG_VERSION"),
        "journal_format": FORMAT_VERSION,
        "packed": json_time(unix_ns),
        "instance": selected.journal.instance()?,
        "rid": rid,
        "streams": excerpts.iter().map(stream_json).collect::<Vec<_>>(),
    });
    let manifest = format!("{manifest:#}\n");
    let mut pack = PackWriter::new(out)?;
    pack.add(MANIFEST, manifest.len() as u64, manifest.as_bytes())?;
    for (stream, _) in &excerpts {
        let files = std::fs::read_dir(journal.path().join(stream))?;
        let mut files = files.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<PathBuf>>>()?;
        files.sort();
        for path in files {
            let file = File::open(&path)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            pack.add(&format!("{JOURNAL}/{stream}/{name}"), file.metadata()?.len(), file)?;
        }
    }
    pack.finish()?.flush()?;
    Ok(excerpts)
}

/// The only rid in the journal that equals this one or begins with it.
fn whole_rid(selected: &Selected, rid: &str) -> anyhow::Result<String> {
    let found: BTreeSet<String> = selected.with_rid(rid)?.into_iter().map(|(_, whole)| whole).collect();
    match found.len() {
        _ if found.contains(rid) => Ok(rid.to_owned()),
        1 => Ok(found.into_iter().collect()),
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
            DecodedFrame::Barrier(Barrier { kind: BarrierKind::Request { record: Ok(_) }, .. }) => {}
            DecodedFrame::Barrier(barrier) => return Err(barrier.kind.to_string()),
        }
        let erased = self.decoder.erase(frame, is_erased).map_err(|error| error.to_string())?;
        Ok(RewrittenFrame { bytes: erased.bytes, left: erased.left })
    }
}

/// A stream in the manifest.
fn stream_json((stream, excerpt): &(String, Excerpt)) -> Value {
    json!({
        "stream": stream,
        "requests": excerpt.requests,
        "rows": excerpt.rows,
        "frames": excerpt.frames,
        "frames_left_out": excerpt.left.first,
    })
}
