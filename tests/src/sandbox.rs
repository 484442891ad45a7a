//! A directory of one test with the names of its sockets, and the configuration that a test starts from.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use afterbay_sockets::credit::{CreditWriter, ReaderKind};

use crate::frames::{ReaderRow, rows};
use crate::peers::Reader;

/// The stream's name in a test's configuration.
pub const STREAM: &str = "test";
/// The sink's name.
pub const SINK: &str = "reader";

/// A test's directory and credit page. Dropping it removes both.
pub struct Sandbox {
    dir: tempfile::TempDir,
}

/// A configuration with one stream, one sink and the test's additions. Each field is TOML text.
#[derive(Clone, Debug)]
pub struct Config {
    stream: String,
    abort: String,
    sink: String,
    sinks: String,
    plugins: String,
    legs: String,
    calls: String,
    journal: String,
    admin: String,
    listen: String,
    connect: String,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Most tests have no credit page.
        let _ = std::fs::remove_file(self.credit());
    }
}

impl Sandbox {
    /// Makes an empty directory.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Sandbox {
        // In /tmp for every TMPDIR: a Unix socket's path has at most 107 bytes.
        Sandbox { dir: tempfile::Builder::new().prefix("ab-").tempdir_in("/tmp").unwrap() }
    }

    /// The path of a file or directory in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The path as text, for a command line.
    pub fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// The path as an ipc:// endpoint.
    pub fn ipc(&self, name: &str) -> String {
        format!("ipc://{}", self.text(name))
    }

    /// The endpoint on which Afterbay listens for schedulers.
    pub fn scheduler_side(&self) -> String {
        self.ipc("in")
    }

    /// The endpoint on which the reader listens for Afterbay.
    pub fn reader_side(&self) -> String {
        self.ipc("out")
    }

    /// The reader's credit page. It is in memory, because on a disk a write can wait for seconds behind the journal's sync.
    pub fn credit(&self) -> PathBuf {
        Path::new("/dev/shm").join(self.dir.path().file_name().unwrap())
    }

    /// A tokenizer with a credit page, and a configuration that names both.
    pub fn counting_tokenizer(&self) -> (Reader, CreditWriter, Config) {
        let reader = Reader::bind(&self.reader_side());
        let config = self.config().credit(self).sink("reader = \"tokenizer\"\ntool_calls = \"joined\"");
        (reader, CreditWriter::open(&self.credit(), ReaderKind::Tokenizer).unwrap(), config)
    }

    /// Reads, and counts frames for its credit, on a thread until `is_over` is set and nothing arrives. `add` takes the rows of each
    /// frame.
    pub fn read_rows<T: Default + Send + 'static>(
        &self,
        is_over: &Arc<AtomicBool>,
        add: impl Fn(&mut T, Vec<ReaderRow>) + Send + 'static,
    ) -> JoinHandle<T> {
        let mut reader = Reader::bind(&self.reader_side());
        let mut credit = CreditWriter::open(&self.credit(), ReaderKind::Detokenizer).unwrap();
        let is_over = is_over.clone();
        std::thread::spawn(move || {
            let mut read = T::default();
            loop {
                if let Some(frame) = reader.next_within(Duration::from_millis(20)) {
                    add(&mut read, rows(&frame));
                    credit.finished().unwrap();
                } else if is_over.load(Ordering::SeqCst) {
                    return read;
                }
            }
        })
    }

    /// As [`Sandbox::read_rows`]. Returns the number of tokens that arrived.
    pub fn count_tokens(&self, is_over: &Arc<AtomicBool>) -> JoinHandle<u64> {
        self.read_rows(is_over, |tokens, rows| {
            *tokens += rows.iter().map(|row| row.ids.len() as u64).sum::<u64>();
        })
    }

    /// The endpoint on which Afterbay listens for the scheduler's abort input.
    pub fn abort_side(&self) -> String {
        self.ipc("abort")
    }

    /// The journal's directory.
    pub fn journal(&self) -> PathBuf {
        self.path("journal")
    }

    /// A configuration that connects [`Sandbox::scheduler_side`] with [`Sandbox::reader_side`].
    pub fn config(&self) -> Config {
        Config {
            stream: String::new(),
            abort: String::new(),
            sink: String::new(),
            sinks: String::new(),
            plugins: String::new(),
            legs: String::new(),
            calls: String::new(),
            journal: format!("dir = {:?}\n", self.journal()),
            admin: String::new(),
            listen: self.scheduler_side(),
            connect: self.reader_side(),
        }
    }

    /// Writes a configuration to `afterbay.toml` and returns its path.
    pub fn write(&self, config: &Config) -> String {
        self.replace("afterbay.toml", config.to_toml())
    }

    /// Replaces or creates a file atomically and returns its path.
    pub fn replace(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let whole = self.path(&format!("{name}~"));
        std::fs::write(&whole, contents).unwrap();
        std::fs::rename(whole, self.path(name)).unwrap();
        self.text(name)
    }
}

impl Config {
    /// Replaces the endpoint on which Afterbay listens.
    pub fn listen(mut self, endpoint: &str) -> Config {
        self.listen = endpoint.to_owned();
        self
    }

    /// Replaces the reader's endpoint.
    pub fn connect(mut self, endpoint: &str) -> Config {
        self.connect = endpoint.to_owned();
        self
    }

    /// Adds a line to `[[stream]]`.
    pub fn stream(mut self, line: &str) -> Config {
        self.stream += line;
        self.stream += "\n";
        self
    }

    /// Adds a line to the first `[[stream.sink]]`.
    pub fn sink(mut self, line: &str) -> Config {
        self.sink += line;
        self.sink += "\n";
        self
    }

    /// Adds another sink with these lines.
    pub fn another_sink(mut self, name: &str, connect: &str, lines: &str) -> Config {
        writeln!(self.sinks, "[[stream.sink]]\nname = {name:?}\nconnect = {connect:?}\n{lines}").unwrap();
        self
    }

    /// Sends aborts to the scheduler that connects to [`Sandbox::abort_side`].
    pub fn abort_by_push(self, sandbox: &Sandbox) -> Config {
        self.abort(&format!("push = {:?}", sandbox.abort_side()))
    }

    /// Adds a line to `[stream.abort]`.
    pub fn abort(mut self, line: &str) -> Config {
        self.abort += line;
        self.abort += "\n";
        self
    }

    /// Sets the first sink's credit page.
    pub fn credit(self, sandbox: &Sandbox) -> Config {
        self.sink(&format!("credit = {:?}", sandbox.credit()))
    }

    /// Allows leases.
    pub fn leases(mut self, max_time: &str, max_count: usize) -> Config {
        writeln!(self.legs, "[leases]\nmax_time = {max_time:?}\nmax_count = {max_count}").unwrap();
        self
    }

    /// Bounds the memory of waiting frames in all streams.
    pub fn memory(mut self, waiting: &str) -> Config {
        writeln!(self.legs, "[memory]\nwaiting = {waiting:?}").unwrap();
        self
    }

    /// Allows only components with these digests.
    pub fn allow(mut self, digests: &[&str]) -> Config {
        let digests: Vec<String> = digests.iter().map(|digest| format!("sha256:{digest}")).collect();
        writeln!(self.legs, "[plugins]\nallow = {digests:?}").unwrap();
        self
    }

    /// Adds a line to `[journal]`.
    pub fn journal(mut self, line: &str) -> Config {
        self.journal += line;
        self.journal += "\n";
        self
    }

    /// Adds a line to `[admin]`.
    pub fn admin(mut self, line: &str) -> Config {
        self.admin += line;
        self.admin += "\n";
        self
    }

    /// Adds a plugin from a component file, with a deadline that is long enough for a busy machine.
    pub fn plugin(self, name: &str, component: &Path, settings: &str) -> Config {
        self.plugin_with(name, &component.display().to_string(), settings, "deadline = \"10s\"")
    }

    /// Adds a plugin with these limits.
    pub fn plugin_with(mut self, name: &str, component: &str, settings: &str, limits: &str) -> Config {
        writeln!(self.plugins, "[[stream.plugin]]\nname = {name:?}\ncomponent = {component:?}").unwrap();
        writeln!(self.plugins, "settings = {{ {settings} }}\nlimits = {{ {limits} }}").unwrap();
        self
    }

    /// Adds a line to the last plugin's table.
    pub fn plugin_line(mut self, line: &str) -> Config {
        writeln!(self.plugins, "{line}").unwrap();
        self
    }

    /// Sets the grants of the last plugin.
    pub fn granted(self, grant: &str) -> Config {
        self.plugin_line(&format!("grant = {grant}"))
    }

    /// Adds an endpoint that plugins may call, with these lines.
    pub fn call(mut self, name: &str, url: &str, lines: &str) -> Config {
        writeln!(self.calls, "[[call]]\nname = {name:?}\nurl = {url:?}\n{lines}").unwrap();
        self
    }

    /// Exports traces of this share of the requests.
    pub fn traces(mut self, endpoint: &str, sample: &str) -> Config {
        writeln!(self.legs, "[traces]\nendpoint = {endpoint:?}\nsample = {sample}").unwrap();
        self
    }

    /// Copies the journal to a NATS server.
    pub fn replicate(mut self, url: &str) -> Config {
        writeln!(self.legs, "[replicate]\nnats = {url:?}").unwrap();
        self
    }

    /// The credentials file for the copy of [`Config::replicate`], which comes before.
    pub fn credentials(mut self, path: &str) -> Config {
        writeln!(self.legs, "credentials = {path:?}").unwrap();
        self
    }

    /// Archives requests at this URL.
    pub fn archive(mut self, url: &str) -> Config {
        writeln!(self.legs, "[archive]\nurl = {url:?}").unwrap();
        self
    }

    /// Lets clients read their requests at this address.
    pub fn clients(mut self, listen: &str, key_file: &str) -> Config {
        writeln!(self.legs, "[clients]\nlisten = {listen:?}\nkey_file = {key_file:?}").unwrap();
        self
    }

    /// Publishes the received frames at this endpoint, with these lines.
    pub fn tap(mut self, listen: &str, lines: &str) -> Config {
        writeln!(self.legs, "[tap]\nlisten = {listen:?}\n{lines}").unwrap();
        self
    }

    /// Records the usage of each request.
    pub fn usage(mut self) -> Config {
        self.legs += "[usage]\n";
        self
    }

    /// Adds a stream after the first one, with these lines for its sink. `None` leaves the sink's endpoint to a rendezvous.
    pub fn next_leg(mut self, name: &str, listen: &str, connect: Option<&str>, sink: &str) -> Config {
        writeln!(self.legs, "[[stream]]\nname = {name:?}\nafter = {STREAM:?}\nlisten = {listen:?}").unwrap();
        let connect = connect.map_or_else(String::new, |connect| format!("connect = {connect:?}"));
        writeln!(self.legs, "[[stream.sink]]\nname = {SINK:?}\n{connect}\n{sink}\n").unwrap();
        self
    }

    /// The configuration as TOML.
    pub fn to_toml(&self) -> String {
        let Config { stream, abort, sink, sinks, plugins, legs, calls, journal, admin, listen, connect } =
            self;
        let tcp = if admin.contains("listen") { "" } else { "listen = \"127.0.0.1:0\"\n" };
        let abort = if abort.is_empty() { String::new() } else { format!("[stream.abort]\n{abort}") };
        format!(
            "[[stream]]\nname = {STREAM:?}\nlisten = {listen:?}\n{stream}\n\
             [[stream.sink]]\nname = {SINK:?}\nconnect = {connect:?}\n{sink}\n{sinks}\n{abort}\n{plugins}\n{legs}\n{calls}\n\
             [journal]\n{journal}\n[admin]\n{tcp}{admin}"
        )
    }
}
