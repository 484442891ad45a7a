//! `afterbay journal ls`: prints a line for each request.

use crate::LoadConfig;
use crate::place::Place;
use afterbay_journal::reader::{RequestFilter, RequestInfo, RequestState};
use afterbay_journal_view::json::{state, whole};
use afterbay_journal_view::legs;
use afterbay_journal_view::{local_time, parse_time};
use afterbay_terminal::{self as screen, Table};
use clap::ValueEnum;
use std::process::ExitCode;

/// Most requests of a table without --last.
const TABLE_ROWS: usize = 1000;

/// List requests
///
/// Requests are in the order in which they ended, live ones last. A request on two streams (the scheduler's output and the
/// detokenizer's) is one line: TEXT ROWS, TEXT TOKENS and TEXT LAST are of the second stream, the other figures of the first,
/// and it has ended when both legs have. A narrow terminal shows fewer columns, a pipe all. A table has the last 1,000 requests unless --last gives another number. Reads the
/// summaries of segments, not the frames; with --last or --since only those of the newest segments.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  afterbay journal ls --since 10m --state finished\n  afterbay journal ls --rid chatcmpl- --json\n  afterbay journal ls --finish abort --since 1h"
)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only requests whose rid begins with PREFIX
    #[arg(long, value_name = "PREFIX")]
    rid: Option<String>,
    /// Only requests in this state
    #[arg(long)]
    state: Option<StateArg>,
    /// Only requests with this finish reason of the sender, such as `length` or `abort`
    #[arg(long, value_name = "REASON")]
    finish: Option<String>,
    /// Only requests with a row that this plugin acted on. Reads all records, not the summaries alone
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// Only requests with a row at or after this time (RFC 3339, "2026-11-20 14:00:00", or an age such as 10m)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<u64>,
    /// Only requests whose first row is before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<u64>,
    /// Only requests of this model: the attribute `model`
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only requests with this LoRA adapter
    #[arg(long, value_name = "NAME")]
    lora: Option<String>,
    /// Only requests of this session of the engine
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only requests of this tenant: the attribute `tenant`
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only the last N requests [default: 1000 in a table, all with --json]
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum StateArg {
    /// More rows may follow
    Live,
    /// A row with a finish reason was received
    Finished,
    /// No finish reason was received, and none is expected
    Abandoned,
}

pub(crate) fn run(args: Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let attributes =
        [("model", args.model), ("lora", args.lora), ("session", args.session), ("tenant", args.tenant)];
    let given = |(name, value): (&str, Option<String>)| Some((name.to_owned(), value?));
    let filter = RequestFilter {
        attributes: attributes.into_iter().filter_map(given).collect(),
        rid_prefix: args.rid,
        state: args.state.map(|state| match state {
            StateArg::Live => RequestState::Live,
            StateArg::Finished => RequestState::Finished,
            StateArg::Abandoned => RequestState::Abandoned,
        }),
        finish: args.finish,
        since_unix_ns: args.since,
        until_unix_ns: args.until,
        ..RequestFilter::default()
    };
    let selected = args.place.select_since(load, args.since)?;
    // One more than shown tells whether there are more.
    let last = args.last.or((!args.json).then_some(TABLE_ROWS + 1));
    let mut listed = match (last, &args.plugin) {
        (Some(last), None) => legs::newest(&selected.streams, &filter, last)?,
        (last, Some(plugin)) => {
            let acted = legs::acted_on_by(&selected.streams, plugin)?;
            let mut all = legs::requests(&selected.streams, &filter)?;
            all.retain(|request| {
                request.0.iter().any(|leg| acted.contains(&(leg.stream.clone(), leg.of.number.0)))
            });
            all.drain(..all.len().saturating_sub(last.unwrap_or(usize::MAX)));
            all
        }
        (None, None) => legs::requests(&selected.streams, &filter)?,
    };
    let is_cut = args.last.is_none() && !args.json && listed.len() > TABLE_ROWS;
    if is_cut {
        listed.remove(0);
    }
    if args.json {
        let mut out = screen::Output::new();
        for request in &listed {
            out.json(&whole(request))?;
        }
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let several = listed.windows(2).any(|pair| streams(&pair[0]) != streams(&pair[1]))
        || listed.iter().any(|request| request.by_instance().count() > 1);
    let has_text = listed.iter().any(|request| request.next().is_some());
    let mut heads = vec!["RID", "STATE", "ROWS", "TOKENS", "SENT", "FIRST", "LAST", "FINISH"];
    if several {
        heads.insert(0, "STREAM");
    }
    if has_text {
        heads.extend(["TEXT ROWS", "TEXT TOKENS", "TEXT LAST"]);
    }
    let tenant = |request: &legs::Request<RequestInfo>| {
        let mut attributes = request.0.iter().flat_map(|leg| &leg.of.attributes);
        attributes.find(|(name, _)| name == "tenant").map(|(_, value)| value.clone())
    };
    let has_tenant = listed.iter().any(|request| tenant(request).is_some());
    if has_tenant {
        heads.push("TENANT");
    }
    let is_any_erased = listed.iter().any(|request| request.erased().is_some());
    if is_any_erased {
        heads.push("ERASED");
    }
    let mut table = Table::new(&heads);
    // A rid of SGLang fits into 80 columns beside the first, a rid of vLLM beside the second.
    table.narrower(&["STREAM", "RID", "STATE", "TOKENS", "SENT", "LAST", "FINISH", "TENANT"]);
    table.narrower(&["STREAM", "RID", "STATE", "TOKENS", "LAST", "FINISH", "TENANT"]);
    table.narrower(&["RID", "STATE", "TOKENS", "FINISH", "TENANT"]);
    for listed in &listed {
        let first_unix_ns = listed.first().of.first_unix_ns;
        // On several instances, the last one has the outcome.
        let Some(request) = listed.by_instance().next_back().and_then(|legs| legs.first()) else { continue };
        let request = &request.of;
        let mut row = vec![
            request.rid.clone(),
            screen::state(state(listed.state())),
            request.rows.to_string(),
            tokens(request),
            request.forwarded.to_string(),
            local_time(first_unix_ns),
            local_time(request.last_unix_ns),
            request.finish.clone(),
        ];
        if several {
            row.insert(0, streams(listed));
        }
        if let Some(next) = listed.next() {
            row.extend([next.of.rows.to_string(), tokens(&next.of), local_time(next.of.last_unix_ns)]);
        } else if has_text {
            row.extend([const { String::new() }; 3]);
        }
        if has_tenant {
            row.push(tenant(listed).unwrap_or_default());
        }
        if is_any_erased {
            row.push(listed.erased().map_or_else(String::new, |erased| local_time(erased.unix_ns)));
        }
        table.row(row);
    }
    table.print()?;
    if is_cut {
        screen::complain(format!("the last {TABLE_ROWS} requests; --last N shows more, and --json all"));
    }
    Ok(ExitCode::SUCCESS)
}

/// The stream on which the request began, on each instance.
fn streams(request: &legs::Request<RequestInfo>) -> String {
    let firsts = request.by_instance().filter_map(|legs| legs.first());
    firsts.map(|leg| leg.stream.as_str()).collect::<Vec<_>>().join(", ")
}

fn tokens(request: &RequestInfo) -> String {
    screen::warn_if(request.received.to_string(), request.gaps > 0)
}
