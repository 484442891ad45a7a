//! `afterbay journal neighbours RID`: lists the requests whose rows travelled in the same frames as the rows of one request.

use crate::LoadConfig;
use crate::legs::{self, Known, Leg};
use crate::ls;
use crate::not_found::not_found;
use crate::place::{Place, json_time, local_time};
use crate::wording::counted;
use afterbay_journal::reader::{JournalRecord, ReadFrom, RequestFilter, RequestInfo, StreamReader, Tail};
use afterbay_journal::{Outcome, RequestNo};
use afterbay_terminal::{self as screen, Busy, Table};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// The journal writes an outcome at most about this many frames after its frame. The reader looks no further.
const OUTCOME_AFTER_FRAMES: u64 = 1024;
/// Most requests that the summary counts. A frame still lists all of its requests.
const NEIGHBOURS_MAX: usize = 65_536;
/// Most other requests in a line on a terminal. A pipe and JSON have all.
const OTHERS_SHOWN: usize = 4;
/// Most requests of the summary on a terminal. A pipe and JSON have all.
const SUMMARY_SHOWN: usize = 20;
/// Lines that share a table, so that memory stays bounded.
const LINES_PER_TABLE: usize = 1000;

/// List the requests whose rows shared a frame with a request's rows
///
/// A frame of the scheduler is one batch. Consecutive frames with the same requests in the same rows share a line: time, frames,
/// number of frames, the row of this request, rows in the batch, and the other requests, each with its row. Below: the batch
/// sizes, and the other requests by the number of shared frames. If several requests used the rid, each is listed. If the
/// request is on two streams (the scheduler's output and the detokenizer's), the scheduler's stream is shown; --stream selects
/// the other. The scheduler leaves requests out of a frame that have nothing to send, for example with --stream-interval above 1.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal neighbours 5b0c1f0a --config afterbay.toml\n  afterbay journal neighbours 5b0c1f0a --json | jq .summary\n\n\
JSON: an object for each frame has stream, rid, request, time, frame, rows (the rows of this request), batch (rows in the frame) \
and others (rid, request, row). The last object of a request has stream, rid, request and summary: rows, rows_missing, frames, \
batch (least, median, most), neighbours (rid, request, frames; most frames first) and not_counted (rows of requests past 65536)."
)]
pub(crate) struct Args {
    /// The rid of the request, or the beginning of it
    rid: String,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object for each frame, and one with the summary of the request
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let selected = args.place.select(load)?;
    let busy = Busy::new(format!("looking for {:?}", args.rid));
    let mut known: Known<RequestInfo> = Vec::new();
    for stream in &selected.streams {
        let Some(rid) = stream.whole_rid(&args.rid)? else { continue };
        let after = legs::after(stream, &selected.streams)?;
        let filter = RequestFilter { rid_prefix: Some(rid.clone()), ..RequestFilter::default() };
        let found: Vec<RequestInfo> = stream.requests(filter)?.collect::<Result<_, _>>()?;
        let lives = found.into_iter().filter(|info| info.rid == rid).collect();
        known.push((stream.name().to_owned(), after, lives));
    }
    let requests = legs::join(known);
    drop(busy);
    if requests.is_empty() {
        return Err(not_found(&selected, &args.rid));
    }
    for request in &requests {
        let Leg { stream: name, of: info } = request.first();
        let Some(stream) = selected.streams.iter().find(|stream| stream.name() == name) else { continue };
        match args.json {
            true => print_json(stream, info)?,
            false => print(stream, info)?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A frame with a row of the request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SharedFrame {
    pub(crate) frame: u64,
    pub(crate) received_unix_ns: u64,
    /// The rows of the request in the frame, mostly one.
    pub(crate) rows: Vec<u32>,
    /// Rows of the frame.
    pub(crate) batch: usize,
    /// The other rows: request and row.
    pub(crate) others: Vec<(RequestNo, u32)>,
}

/// Reads the frames of one request in order. Keeps one record and the rids of requests that were live lately.
pub(crate) struct SharedFrames {
    tail: Tail,
    request: RequestNo,
    /// Rows of the request that were not read yet.
    rows_left: u64,
    last_frame: u64,
    /// The last frames read: a record may be in the journal twice.
    seen: VecDeque<u64>,
    /// Release markers whose outcome was not read yet. A marker is Afterbay's own frame and no batch.
    markers: VecDeque<u64>,
}

impl SharedFrames {
    pub(crate) fn of(stream: &StreamReader, info: &RequestInfo) -> anyhow::Result<SharedFrames> {
        Ok(SharedFrames {
            tail: stream.tail(ReadFrom::Frame(info.first_frame))?,
            request: info.number,
            rows_left: info.rows,
            last_frame: info.last_frame.0,
            seen: VecDeque::new(),
            markers: VecDeque::new(),
        })
    }

    pub(crate) fn next(&mut self) -> anyhow::Result<Option<SharedFrame>> {
        while self.rows_left > 0 {
            match self.tail.next()? {
                Some(JournalRecord::Frame(frame)) => {
                    let number = frame.position.frame.0;
                    if number > self.last_frame.saturating_add(OUTCOME_AFTER_FRAMES) {
                        return Ok(None);
                    }
                    if frame.is_release_marker() {
                        remember(&mut self.markers, number);
                    }
                }
                Some(JournalRecord::Outcome(outcome)) => {
                    if let Some(shared) = self.shared(&outcome) {
                        return Ok(Some(shared));
                    }
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    fn shared(&mut self, outcome: &Outcome<'_>) -> Option<SharedFrame> {
        let frame = outcome.frame.0;
        if !outcome.requests.contains(&self.request) || self.seen.contains(&frame) {
            return None;
        }
        remember(&mut self.seen, frame);
        let all = (0..).zip(outcome.requests.iter().copied());
        let (own, others): (Vec<_>, Vec<_>) = all.partition(|(_, request)| *request == self.request);
        self.rows_left = self.rows_left.saturating_sub(own.len() as u64);
        if self.markers.contains(&frame) {
            return None;
        }
        Some(SharedFrame {
            frame,
            received_unix_ns: outcome.received_unix_ns,
            rows: own.into_iter().map(|(row, _)| row).collect(),
            batch: outcome.requests.len(),
            others: others.into_iter().map(|(row, request)| (request, row)).collect(),
        })
    }

    /// The rid of a request; its number if the journal no longer says.
    pub(crate) fn rid(&self, request: RequestNo) -> String {
        self.tail.rid(request).map_or_else(|| format!("(request {request})"), str::to_owned)
    }
}

/// Adds to a queue of [`OUTCOME_AFTER_FRAMES`] numbers.
fn remember(numbers: &mut VecDeque<u64>, number: u64) {
    if numbers.len() as u64 >= OUTCOME_AFTER_FRAMES {
        numbers.pop_front();
    }
    numbers.push_back(number);
}

/// A request that shared frames.
struct Neighbour {
    rid: String,
    frames: u64,
    /// A frame with two rows of a request is one shared frame.
    last_frame: u64,
}

/// The sums over the frames of one request.
#[derive(Default)]
pub(crate) struct Sums {
    pub(crate) frames: u64,
    rows: u64,
    /// Number of frames by batch size.
    sizes: BTreeMap<usize, u64>,
    /// By number of the request.
    neighbours: HashMap<u64, Neighbour>,
    /// Rows of requests past [`NEIGHBOURS_MAX`].
    not_counted: u64,
}

impl Sums {
    pub(crate) fn add(&mut self, shared: &SharedFrame, rid: impl Fn(RequestNo) -> String) {
        self.frames += 1;
        self.rows += shared.rows.len() as u64;
        *self.sizes.entry(shared.batch).or_default() += 1;
        for (request, _) in &shared.others {
            let has_room = self.neighbours.len() < NEIGHBOURS_MAX;
            match self.neighbours.get_mut(&request.0) {
                Some(known) => {
                    known.frames += u64::from(known.last_frame != shared.frame);
                    known.last_frame = shared.frame;
                }
                None if has_room => {
                    let known = Neighbour { rid: rid(*request), frames: 1, last_frame: shared.frame };
                    self.neighbours.insert(request.0, known);
                }
                None => self.not_counted += 1,
            }
        }
    }

    /// The least, the median and the largest batch. The median of an even number of batches is the smaller one in the middle.
    pub(crate) fn batches(&self) -> Option<(usize, usize, usize)> {
        let (least, most) = (*self.sizes.keys().next()?, *self.sizes.keys().next_back()?);
        let mut left = self.frames.div_ceil(2);
        let median = self.sizes.iter().find(|(_, frames)| {
            let is_here = left <= **frames;
            left = left.saturating_sub(**frames);
            is_here
        });
        Some((least, median.map_or(least, |(size, _)| *size), most))
    }

    /// The other requests, most shared frames first: request, rid, frames.
    pub(crate) fn neighbours(&self) -> Vec<(u64, &str, u64)> {
        let entries = self.neighbours.iter();
        let mut sorted: Vec<(u64, &str, u64)> =
            entries.map(|(request, known)| (*request, &*known.rid, known.frames)).collect();
        sorted.sort_by_key(|(request, _, frames)| (std::cmp::Reverse(*frames), *request));
        sorted
    }
}

fn print_json(stream: &StreamReader, info: &RequestInfo) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut frames = SharedFrames::of(stream, info)?;
    let mut sums = Sums::default();
    while let Some(shared) = frames.next()? {
        sums.add(&shared, |request| frames.rid(request));
        let others = shared.others.iter().map(|(request, row)| {
            serde_json::json!({"rid": frames.rid(*request), "request": request.0, "row": row})
        });
        let line = serde_json::json!({
            "stream": stream.name(),
            "rid": info.rid,
            "request": info.number.0,
            "time": json_time(shared.received_unix_ns),
            "frame": shared.frame,
            "rows": shared.rows,
            "batch": shared.batch,
            "others": others.collect::<Vec<_>>(),
        });
        writeln!(out, "{line}")?;
    }
    let neighbours = sums
        .neighbours()
        .into_iter()
        .map(|(request, rid, frames)| serde_json::json!({"rid": rid, "request": request, "frames": frames}));
    let batch = sums
        .batches()
        .map(|(least, median, most)| serde_json::json!({"least": least, "median": median, "most": most}));
    let summary = serde_json::json!({
        "stream": stream.name(),
        "rid": info.rid,
        "request": info.number.0,
        "summary": {
            "rows": info.rows,
            "rows_missing": frames.rows_left,
            "frames": sums.frames,
            "batch": batch,
            "neighbours": neighbours.collect::<Vec<_>>(),
            "not_counted": sums.not_counted,
        },
    });
    writeln!(out, "{summary}")?;
    Ok(out.flush()?)
}

/// Consecutive frames of the request in which the same requests have the same rows.
struct Run {
    first: SharedFrame,
    last_frame: u64,
    frames: u64,
    others: String,
}

impl Run {
    fn new(first: SharedFrame, frames: &SharedFrames) -> Run {
        let shown = if std::io::stdout().is_terminal() { OTHERS_SHOWN } else { usize::MAX };
        let others = first.others.iter().take(shown);
        let mut others: Vec<String> =
            others.map(|(request, row)| format!("{row}:{}", frames.rid(*request))).collect();
        let more = first.others.len().saturating_sub(shown);
        others.extend((more > 0).then(|| format!("… {more} more")));
        Run { last_frame: first.frame, frames: 1, others: others.join(" "), first }
    }

    fn takes(&self, next: &SharedFrame) -> bool {
        (&self.first.rows, &self.first.others) == (&next.rows, &next.others)
    }

    fn cells(self, begun: u64) -> Vec<String> {
        let Run { first, last_frame, frames, others } = self;
        let numbers = match first.frame == last_frame {
            true => last_frame.to_string(),
            false => format!("{}-{last_frame}", first.frame),
        };
        let rows: Vec<String> = first.rows.iter().map(u32::to_string).collect();
        let when = match first.received_unix_ns.checked_sub(begun) {
            Some(0) | None => local_time(first.received_unix_ns),
            Some(after) => format!("+{:.3} s", after as f64 / 1e9),
        };
        vec![when, numbers, frames.to_string(), rows.join(" "), first.batch.to_string(), others]
    }
}

fn print(stream: &StreamReader, info: &RequestInfo) -> anyhow::Result<()> {
    let line = format!(
        "{}  request {} of stream {}, {}, {}",
        info.rid,
        info.number.0,
        stream.name(),
        screen::state(ls::state(info.state)),
        counted(info.rows, "row"),
    );
    println!("{}", screen::wrapped(&line, 2));
    let mut frames = SharedFrames::of(stream, info)?;
    let mut sums = Sums::default();
    let mut begun = None;
    let mut run: Option<Run> = None;
    loop {
        let mut table = Table::new(&["WHEN", "FRAMES", "COUNT", "ROW", "BATCH", "OTHERS (ROW:RID)"]);
        let busy = Busy::new(format!("reading the frames of {:?}", info.rid));
        let mut lines = 0;
        let mut is_end = false;
        while lines < LINES_PER_TABLE && !is_end {
            let next = frames.next()?;
            is_end = next.is_none();
            if let Some(shared) = &next {
                sums.add(shared, |request| frames.rid(request));
            }
            match (&mut run, next) {
                (Some(run), Some(shared)) if run.takes(&shared) => {
                    (run.last_frame, run.frames) = (shared.frame, run.frames + 1);
                }
                (_, next) => {
                    let next = next.map(|shared| Run::new(shared, &frames));
                    if let Some(done) = std::mem::replace(&mut run, next) {
                        let begun = *begun.get_or_insert(done.first.received_unix_ns);
                        table.row(done.cells(begun));
                        lines += 1;
                    }
                }
            }
        }
        drop(busy);
        if lines > 0 {
            table.print()?;
        }
        if is_end {
            break;
        }
    }
    println!();
    print_sums(&sums, frames.rows_left, info)?;
    println!();
    Ok(())
}

fn print_sums(sums: &Sums, rows_left: u64, info: &RequestInfo) -> std::io::Result<()> {
    if let Some((least, median, most)) = sums.batches() {
        let line = format!(
            "{} in {}. Batch sizes: least {least}, median {median}, most {most}.",
            counted(sums.rows, "row"),
            counted(sums.frames, "frame")
        );
        println!("{}", screen::wrapped(&line, 2));
    }
    if rows_left > 0 {
        let line = format!(
            "{rows_left} of {} are not shown: retention removed them, or the journal is damaged (`afterbay journal verify` \
             says which).",
            counted(info.rows, "row")
        );
        println!("{}", screen::wrapped(&screen::warn_if(line, true), 2));
    }
    let neighbours = sums.neighbours();
    if neighbours.is_empty() {
        println!("No other request shared a frame.");
        return Ok(());
    }
    let shown = if std::io::stdout().is_terminal() { SUMMARY_SHOWN } else { usize::MAX };
    println!("{} shared a frame:", counted(neighbours.len() as u64, "other request"));
    let mut table = Table::new(&["SHARED FRAMES", "SHARE", "RID"]);
    for (_, rid, frames) in neighbours.iter().take(shown) {
        let share = format!("{:.0}%", *frames as f64 * 100.0 / sums.frames as f64);
        table.row(vec![frames.to_string(), share, (*rid).to_owned()]);
    }
    table.print()?;
    let more = neighbours.len().saturating_sub(shown);
    if more > 0 {
        println!("and {more} more (a pipe and --json have all)");
    }
    if sums.not_counted > 0 {
        println!("{} of requests past {NEIGHBOURS_MAX} are not counted", counted(sums.not_counted, "row"));
    }
    Ok(())
}
