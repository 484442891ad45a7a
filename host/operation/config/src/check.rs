//! Makes the checked configuration from the written one: bounds, keys against each other, the disk. A problem does not stop
//! the checks. The checked configuration exists only if there was no problem.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use crate::bounds;
use crate::checked::{
    Admin, Archive, Call, Clients, Config, Journal, Leases, Log, LogFormat, Memory, Plugin, Replicate,
    Retain, Stream, Tap, Traces, Usage,
};
pub(crate) use crate::location::value;
use crate::location::{Located, Location, line_and_column};
use crate::reader::{Reader, Source};
use crate::units::{Size, Time};
use crate::written::Table as _;
use crate::{Endpoint, Env, FollowerConfig, Name, Problem, Problems, disk, keys, written};

impl Config {
    /// Reads and checks the file at `path`. This creates nothing on disk and binds no socket.
    pub fn load(path: &Path, env: &Env<'_>) -> Result<Config, Problems> {
        Self::parse(&text(path)?, path, env)
    }

    /// Reads the admin addresses from the file at `path`, for a command that calls a running Afterbay. Only errors in these
    /// addresses count: the rest of the file may be in the middle of an edit, or name files that only the service can read.
    pub fn load_admin(path: &Path, env: &Env<'_>) -> Result<Admin, Problems> {
        let (checked, problems) = check(&text(path)?, path, env)?;
        let is_admin = |problem: &Problem| problem.key.starts_with("admin") || problem.key == "journal.dir";
        let of_admin: Vec<Problem> = problems.iter().filter(|problem| is_admin(problem)).cloned().collect();
        match checked.admin {
            Some(admin) if of_admin.is_empty() => Ok(admin),
            // Without a journal, no admin address can be derived.
            _ if of_admin.is_empty() => Err(Problems::new(problems)),
            _ => Err(Problems::new(of_admin)),
        }
    }

    /// Reads the parts for a follower of the journal from the file at `path`. Only errors in `tables` count.
    ///
    /// # Errors
    /// The file cannot be read, or one of these tables is wrong.
    pub fn load_follower(path: &Path, env: &Env<'_>, tables: &[&str]) -> Result<FollowerConfig, Problems> {
        let (checked, problems) = check(&text(path)?, path, env)?;
        let is_of_follower =
            |problem: &Problem| tables.contains(&problem.key.split('.').next().unwrap_or_default());
        let of_follower: Vec<Problem> =
            problems.iter().filter(|problem| is_of_follower(problem)).cloned().collect();
        let Checked { drafts: streams, log, traces, replicate, archive, clients, tap, .. } = checked;
        match (checked.journal, checked.usage) {
            (Some(journal), Some(usage)) if of_follower.is_empty() => {
                Ok(FollowerConfig { streams, journal, log, traces, replicate, archive, usage, clients, tap })
            }
            _ if of_follower.is_empty() => Err(Problems::new(problems)),
            _ => Err(Problems::new(of_follower)),
        }
    }

    /// Checks `text` as the content of the file at `path`. Relative paths in the text start at the directory of `path`.
    pub fn parse(text: &str, path: &Path, env: &Env<'_>) -> Result<Config, Problems> {
        let (checked, problems) = check(text, path, env)?;
        if !problems.is_empty() {
            let mut problems = Problems::new(problems);
            problems.drafts = checked.drafts;
            return Err(problems);
        }
        checked.config().ok_or_else(|| Problems::new(problems))
    }
}

fn text(path: &Path) -> Result<String, Problems> {
    let unreadable = |message: String| {
        let file = path.to_owned();
        Problems::new(vec![Problem { file, line: 0, column: 0, key: String::new(), message }])
    };
    disk::readable_file(path).map_err(unreadable)?;
    let bytes = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if bytes > bounds::FILE_BYTES_MAX {
        let (bytes, most) = (Size(bytes), Size(bounds::FILE_BYTES_MAX));
        return Err(unreadable(format!("config file has {bytes}, the limit is {most}")));
    }
    std::fs::read_to_string(path).map_err(|error| unreadable(format!("cannot be read: {error}")))
}

/// Returns every part of the file that could be made, and every problem. The error: the text is not TOML.
fn check(text: &str, path: &Path, env: &Env<'_>) -> Result<(Checked, Vec<Problem>), Problems> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let problems = errors.iter().map(|error| {
            let (line, column) = line_and_column(text, error.span().map_or(0, |span| span.start));
            let (file, message) = (path.to_owned(), error.message().replace('\n', ", "));
            Problem { file, line, column, key: String::new(), message }
        });
        return Err(Problems::new(problems.collect()));
    }
    let source = Source { file: path, text, env, problems: RefCell::default() };
    let top = Location { line: 1, column: 1, key: String::new() };
    let written = written::Config::read(&Reader::open(&source, table.get_ref(), top, &keys::ROOT));
    let dir =
        std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    let checked = Check { source: &source, dir }.config(&written);
    Ok((checked, source.problems.into_inner()))
}

/// The parts of a configuration that could be made.
struct Checked {
    /// The streams. Parts that could not be made have stand-ins.
    drafts: Vec<Stream>,
    has_all_streams: bool,
    calls: Option<Vec<Call>>,
    memory: Memory,
    leases: Leases,
    journal: Option<Journal>,
    admin: Option<Admin>,
    log: Log,
    traces: Option<Traces>,
    replicate: Option<Replicate>,
    archive: Option<Archive>,
    usage: Option<Usage>,
    clients: Option<Clients>,
    tap: Option<Tap>,
}

impl Checked {
    fn config(self) -> Option<Config> {
        let Checked {
            drafts,
            calls,
            memory,
            leases,
            journal,
            admin,
            log,
            traces,
            replicate,
            archive,
            usage,
            clients,
            tap,
            ..
        } = self;
        let streams = self.has_all_streams.then_some(drafts)?;
        let (calls, journal, admin, usage) = (calls?, journal?, admin?, usage?);
        Some(Config {
            streams,
            calls,
            memory,
            leases,
            journal,
            admin,
            log,
            traces,
            replicate,
            archive,
            usage,
            clients,
            tap,
        })
    }
}

pub(crate) struct Check<'s> {
    pub(crate) source: &'s Source<'s>,
    /// The directory of the config file. Relative paths start here.
    pub(crate) dir: PathBuf,
}

impl Check<'_> {
    fn config(&self, written: &written::Config) -> Checked {
        let mut names = SeenNames::default();
        let streams: Option<Vec<(Stream, bool)>> =
            written.streams.iter().map(|stream| self.stream(stream, &mut names)).collect();
        let has_all_streams = streams.is_some() && streams.iter().flatten().all(|(_, is_whole)| *is_whole);
        let mut drafts: Vec<Stream> = streams.into_iter().flatten().map(|(stream, _)| stream).collect();
        self.across(&written.streams, written.tap.as_ref());
        let calls = self.calls(&written.calls);
        let journal = self.journal(&written.journal, written.streams.len());
        let dir = written.journal.dir.as_ref();
        let dir = journal.as_ref().zip(dir).map(|(journal, dir)| (journal.dir.as_path(), &dir.location));
        let admin = self.admin(&written.admin, dir);
        let log = self.log(&written.log);
        let traces = self.traces(written.traces.as_ref());
        let replicate = self.replicate(written.replicate.as_ref());
        let journal_dir = journal.as_ref().map(|journal| journal.dir.as_path());
        let archive = self.archive(written.archive.as_ref(), journal_dir);
        let usage = self.usage(written.usage.as_ref(), journal.as_ref());
        let clients = written.clients.as_ref().and_then(|clients| self.clients(clients));
        let tap = written.tap.as_ref().and_then(|tap| self.tap(tap));
        self.migrations(written);
        self.allow(&written.plugins, &mut drafts);
        if has_all_streams && written.calls.is_empty() {
            self.calls_without_endpoint(&drafts, &written.streams);
        }
        Checked {
            drafts,
            has_all_streams,
            calls,
            memory: written.memory,
            leases: written.leases,
            journal,
            admin,
            log,
            traces,
            replicate,
            archive,
            usage,
            clients,
            tap,
        }
    }

    /// The stream, and whether all of it could be made.
    fn stream(&self, written: &written::Stream, names: &mut SeenNames) -> Option<(Stream, bool)> {
        let name = self.name(&written.name, names);
        let listen = self.listen(&written.listen);
        let engine = value(&written.engine).unwrap_or_default();
        self.engine(engine, written);
        let mut plugin_names = SeenNames::default();
        let sinks = self.sinks(written, listen.as_ref());
        let plugins: Vec<Option<Plugin>> =
            written.plugins.iter().map(|plugin| self.plugin(plugin, engine, &mut plugin_names)).collect();
        self.most(
            written.plugins.len(),
            bounds::PLUGINS_MAX,
            "plugins",
            written.plugins.last().map(|p| &p.location),
        );
        self.shadows(&written.plugins);
        let listen_mode = self.listen_mode(&written.listen_mode);
        let mut is_whole = name.is_some() && listen.is_some() && sinks.is_some();
        let name = name.or_else(|| "unnamed".parse().ok())?;
        let listen = listen.or_else(|| "ipc:///unknown".parse().ok())?;
        // Only the defaults of this stream are used. The sinks of the file replace its one sink.
        let mut stream = Stream::new(name, listen.clone(), listen);
        stream.engine = engine;
        stream.listen_mode = listen_mode.unwrap_or(stream.listen_mode);
        // An invalid name is reported where the named stream is declared.
        stream.after = written.after.iter().filter_map(|name| name.value.parse().ok()).collect();
        stream.max_message_bytes = value(&written.max_message).unwrap_or(stream.max_message_bytes);
        stream.max_peers = value(&written.max_peers).unwrap_or(stream.max_peers);
        stream.join = written.join;
        stream.requests = written.requests;
        stream.signals = self.signals(&written.signals);
        stream.abort = written.abort.as_ref().and_then(|abort| self.listen(&abort.push));
        is_whole &= stream.abort.is_some() == written.abort.is_some();
        stream.migration = written.migration.as_ref().and_then(|migration| self.migration(migration));
        is_whole &= stream.migration.is_some() == written.migration.is_some();
        stream.route = value(&written.route);
        match sinks {
            Some(sinks) => stream.sinks = sinks,
            // Nothing is known of its reader.
            None => stream.sinks.iter_mut().for_each(|sink| sink.connect = None),
        }
        stream.attributes = self.attributes(&written.attributes);
        is_whole &= plugins.iter().all(Option::is_some);
        stream.plugins = plugins.into_iter().flatten().collect();
        Some((stream, is_whole))
    }

    pub(crate) fn listen(&self, written: &Option<Located<String>>) -> Option<Endpoint> {
        let listen = self.endpoint(written)?;
        if let (Endpoint::Ipc(path), Some(Located { location, .. })) = (&listen, written)
            && let Some(Err(message)) = path.parent().map(disk::makeable_dir)
        {
            self.source.report(location, message);
        }
        Some(listen)
    }

    fn clients(&self, written: &written::Clients) -> Option<Clients> {
        let listen = written.listen.as_ref().and_then(|Located { value, location }| {
            let address = value.replacen("localhost:", "127.0.0.1:", 1).parse();
            let wrong = |_| format!("{value:?} must be ADDRESS:PORT, like \"127.0.0.1:9470\"");
            address.map_err(wrong).map_err(|why| self.source.report(location, why)).ok()
        });
        let key_file = self.path(&written.key_file);
        Some(Clients {
            listen: listen?,
            key_file: key_file?,
            keep: value(&written.keep).unwrap_or(Clients::KEEP),
            connections: value(&written.connections).unwrap_or(Clients::CONNECTIONS),
        })
    }

    fn tap(&self, written: &written::Tap) -> Option<Tap> {
        let listen_mode = self.listen_mode(&written.listen_mode).unwrap_or(Tap::LISTEN_MODE);
        Some(Tap { listen: self.listen(&written.listen)?, listen_mode })
    }

    pub(crate) fn listen_mode(&self, written: &Option<Located<String>>) -> Option<u32> {
        let Located { value, location } = written.as_ref()?;
        let mode =
            u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o777 && !value.starts_with('+'));
        if mode.is_none_or(|mode| mode & 0o600 != 0o600) {
            self.source.report(
                location,
                format!(
                    "{value:?} must be an octal mode from 0600 to 0777, readable and writable by its owner"
                ),
            );
        }
        mode
    }

    fn journal(&self, written: &written::Journal, streams: usize) -> Option<Journal> {
        let dir = self.path(&written.dir);
        if let (Some(dir), Some(Located { location, .. })) = (&dir, &written.dir)
            && let Err(message) = disk::makeable_dir(dir)
        {
            self.source.report(location, message);
        }
        let default = Journal::new(PathBuf::new());
        let segment_bytes = value(&written.segment).unwrap_or(default.segment_bytes);
        let retain = self.retain(written, segment_bytes, streams);
        Some(Journal {
            erase: self.erase_rules(&written.erase, retain.age),
            sync: value(&written.sync).unwrap_or(default.sync),
            sync_interval: value(&written.sync_interval).unwrap_or(default.sync_interval),
            retain,
            segment_bytes,
            on_error: value(&written.on_error).unwrap_or(default.on_error),
            abandon_after: value(&written.abandon_after).unwrap_or(default.abandon_after),
            dir: dir?,
        })
    }

    fn retain(&self, written: &written::Journal, segment_bytes: u64, streams: usize) -> Retain {
        let default = Retain::default();
        let bytes = value(&written.retain.bytes).unwrap_or(default.bytes);
        let age = value(&written.retain.age).unwrap_or(default.age);
        let segments = bounds::RETAIN_SEGMENTS_MIN * streams.max(1) as u64;
        let fewest = segments.saturating_mul(segment_bytes);
        let location = written.retain.bytes.as_ref().map(|bytes| &bytes.location);
        let location = location.or(written.segment.as_ref().map(|segment| &segment.location));
        if let (Some(bytes), Some(location)) = (bytes, location) {
            if bytes < fewest {
                let (bytes, fewest, segment) = (Size(bytes), Size(fewest), Size(segment_bytes));
                let why = format!("{segments} segments of {segment}, two for each stream");
                self.source
                    .report(location, format!("{bytes} are retained, must be at least {fewest}: {why}"));
            }
            self.source.bounded(location, &bytes, (0, bounds::RETAIN_BYTES_MAX), |&bytes| Size(bytes));
        }
        if let (Some(age), Some(Located { location, .. })) = (age, &written.retain.age) {
            self.source.bounded(location, &age, bounds::RETAIN_AGE, |&time| Time(time));
        }
        Retain { bytes, age }
    }

    fn log(&self, written: &written::Log) -> Log {
        if let Some(Located { value, location }) = &written.filter
            && !value.split(',').all(is_log_directive)
        {
            self.source.report(
                location,
                format!("{value:?} must be off, error, warn, info, debug or trace, or several like \"info,wasmtime=warn\""),
            );
        }
        Log {
            filter: value(&written.filter).unwrap_or_else(|| Log::default().filter),
            format: value(&written.format).unwrap_or(LogFormat::Auto),
        }
    }

    pub(crate) fn name(&self, written: &Option<Located<String>>, seen: &mut SeenNames) -> Option<Name> {
        let Located { value, location } = written.as_ref()?;
        if let Some((_, line)) = seen.0.iter().find(|(name, _)| name == value) {
            self.source.report(location, format!("{value:?} is taken in line {line}"));
        }
        seen.0.push((value.clone(), location.line));
        value.parse().map_err(|error| self.source.report(location, format!("{value:?}: {error}"))).ok()
    }

    pub(crate) fn endpoint(&self, written: &Option<Located<String>>) -> Option<Endpoint> {
        let Located { value, location } = written.as_ref()?;
        let endpoint = match value.parse::<Endpoint>() {
            Err(error) => Err(error.to_string()),
            Ok(endpoint) if endpoint.is_relative() => Err(format!(
                "endpoint {value:?} has no absolute path, must be like ipc:///run/afterbay/decode-0"
            )),
            Ok(endpoint) => Ok(endpoint),
        };
        endpoint.map_err(|message| self.source.report(location, message)).ok()
    }

    /// An endpoint to which a socket connects.
    pub(crate) fn reachable(&self, written: &Option<Located<String>>) -> Option<Endpoint> {
        let endpoint = self.endpoint(written)?;
        if let (true, Some(Located { value, location })) = (endpoint.is_listen_only(), written) {
            let why = "can only be listened on, must name a host and a port";
            self.source.report(location, format!("{value:?} {why}"));
        }
        Some(endpoint)
    }

    pub(crate) fn path(&self, written: &Option<Located<String>>) -> Option<PathBuf> {
        let Located { value, location } = written.as_ref()?;
        if value.is_empty() {
            self.source.report(location, "empty, must be a path");
            return None;
        }
        Some(self.dir.join(value))
    }

    pub(crate) fn readable(&self, written: &Option<Located<String>>) -> Option<PathBuf> {
        let path = self.path(written)?;
        let location = &written.as_ref()?.location;
        disk::readable_file(&path)
            .map_err(|why| self.source.report(location, format!("{path:?} {why}")))
            .ok()?;
        Some(path)
    }

    pub(crate) fn tokenizer(&self, written: &Option<Located<String>>) -> Option<PathBuf> {
        let path = self.path(written)?;
        let location = &written.as_ref()?.location;
        (self.source.env.tokenizer)(&path)
            .map_err(|why| self.source.report(location, format!("{path:?} {why}")))
            .ok()?;
        Some(path)
    }

    pub(crate) fn most(&self, count: usize, most: usize, what: &str, location: Option<&Location>) {
        if let (Some(location), true) = (location, count > most) {
            self.source.report(location, format!("{count} {what}, must be at most {most}"));
        }
    }
}

/// The names of one kind seen so far, with their lines.
#[derive(Default)]
pub(crate) struct SeenNames(Vec<(String, usize)>);

pub(crate) fn list(words: &[&str]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// `LEVEL` or `TARGET=LEVEL`.
fn is_log_directive(directive: &str) -> bool {
    let (target, level) = directive.split_once('=').unwrap_or(("afterbay", directive));
    let is_target =
        !target.is_empty() && target.chars().all(|c| c.is_ascii_alphanumeric() || "_:-".contains(c));
    is_target && matches!(level, "off" | "error" | "warn" | "info" | "debug" | "trace")
}
