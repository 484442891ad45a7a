//! A directory for each test, with short names for sockets in it, and the configuration that a test starts from.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use afterbay_sockets::credit::CreditWriter;

use crate::peers::Reader;

/// The stream of a test's configuration.
pub const STREAM: &str = "test";
/// Its sink.
pub const SINK: &str = "reader";

/// A directory of the test's own, and a credit page; removed at its end.
pub struct Stage {
    dir: tempfile::TempDir,
}

/// A configuration: one stream, one sink, and what a test adds. Each part is TOML of its table, line by line.
#[derive(Clone, Debug)]
pub struct Config {
    stream: String,
    abort: String,
    sink: String,
    sinks: String,
    plugins: String,
    legs: String,
    journal: String,
    admin: String,
    listen: String,
    connect: String,
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Most tests have none.
        let _ = std::fs::remove_file(self.credit());
    }
}

impl Stage {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Stage {
        // Directly in /tmp, whatever TMPDIR is: a socket's name has 107 bytes.
        Stage { dir: tempfile::Builder::new().prefix("ab-").tempdir_in("/tmp").unwrap() }
    }

    /// A file or directory in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The same as text, for a command line.
    pub fn text(&self, name: &str) -> String {
        self.path(name).into_os_string().into_string().unwrap()
    }

    /// The same as the name of a socket.
    pub fn ipc(&self, name: &str) -> String {
        format!("ipc://{}", self.text(name))
    }

    /// Where Afterbay listens for schedulers.
    pub fn scheduler_side(&self) -> String {
        self.ipc("in")
    }

    /// Where the reader listens for Afterbay.
    pub fn reader_side(&self) -> String {
        self.ipc("out")
    }

    /// The reader's credit page: in memory, as a user has it. On a disk a count can wait for seconds behind the journal's sync.
    pub fn credit(&self) -> PathBuf {
        Path::new("/dev/shm").join(self.dir.path().file_name().unwrap())
    }

    /// A tokenizer that counts, and the configuration that says so.
    pub fn counting_tokenizer(&self) -> (Reader, CreditWriter, Config) {
        let reader = Reader::bind(&self.reader_side());
        let config = self.config().credit(self).sink("reader = \"tokenizer\"");
        (reader, CreditWriter::open(&self.credit()).unwrap(), config)
    }

    /// Where Afterbay listens for the scheduler that takes aborts.
    pub fn abort_side(&self) -> String {
        self.ipc("abort")
    }

    /// The journal.
    pub fn journal(&self) -> PathBuf {
        self.path("journal")
    }

    /// The configuration between [`Stage::scheduler_side`] and [`Stage::reader_side`].
    pub fn config(&self) -> Config {
        Config {
            stream: String::new(),
            abort: String::new(),
            sink: String::new(),
            sinks: String::new(),
            plugins: String::new(),
            legs: String::new(),
            journal: format!("dir = {:?}\n", self.journal()),
            admin: String::new(),
            listen: self.scheduler_side(),
            connect: self.reader_side(),
        }
    }

    /// Writes a configuration to its file, whose path this is.
    pub fn write(&self, config: &Config) -> String {
        self.replace("afterbay.toml", config.to_toml())
    }

    /// Puts a file in the place of one that may be there, whole at once: nobody sees a half of it. Its path.
    pub fn replace(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let whole = self.path(&format!("{name}~"));
        std::fs::write(&whole, contents).unwrap();
        std::fs::rename(whole, self.path(name)).unwrap();
        self.text(name)
    }
}

impl Config {
    /// Where Afterbay listens, in place of the stage's.
    pub fn listen(mut self, endpoint: &str) -> Config {
        self.listen = endpoint.to_owned();
        self
    }

    /// Where the reader is, in place of the stage's.
    pub fn connect(mut self, endpoint: &str) -> Config {
        self.connect = endpoint.to_owned();
        self
    }

    /// A line of `[[stream]]`.
    pub fn stream(mut self, line: &str) -> Config {
        self.stream += line;
        self.stream += "\n";
        self
    }

    /// A line of `[[stream.sink]]`.
    pub fn sink(mut self, line: &str) -> Config {
        self.sink += line;
        self.sink += "\n";
        self
    }

    /// One more sink, with lines of its table.
    pub fn more_sink(mut self, name: &str, connect: &str, lines: &str) -> Config {
        writeln!(self.sinks, "[[stream.sink]]\nname = {name:?}\nconnect = {connect:?}\n{lines}").unwrap();
        self
    }

    /// One more tap, that publishes, with lines of its table.
    pub fn publisher(mut self, name: &str, listen: &str, lines: &str) -> Config {
        writeln!(self.sinks, "[[stream.sink]]\nname = {name:?}\nkind = \"tap\"\nsocket = \"pub\"").unwrap();
        writeln!(self.sinks, "listen = {listen:?}\n{lines}").unwrap();
        self
    }

    /// Aborts go to the scheduler that connects to [`Stage::abort_side`].
    pub fn abort_by_push(self, stage: &Stage) -> Config {
        self.abort(&format!("push = {:?}", stage.abort_side()))
    }

    /// A line of `[stream.abort]`.
    pub fn abort(mut self, line: &str) -> Config {
        self.abort += line;
        self.abort += "\n";
        self
    }

    /// The sink's credit page.
    pub fn credit(self, stage: &Stage) -> Config {
        self.sink(&format!("credit = {:?}", stage.credit()))
    }

    /// What may wait in memory, of all streams.
    pub fn memory(mut self, waiting: &str) -> Config {
        writeln!(self.legs, "[memory]\nwaiting = {waiting:?}").unwrap();
        self
    }

    /// A line of `[journal]`.
    pub fn journal(mut self, line: &str) -> Config {
        self.journal += line;
        self.journal += "\n";
        self
    }

    /// A line of `[admin]`.
    pub fn admin(mut self, line: &str) -> Config {
        self.admin += line;
        self.admin += "\n";
        self
    }

    /// One more plugin, from a component file. A deadline that a busy machine does not break.
    pub fn plugin(self, name: &str, component: &Path, settings: &str) -> Config {
        self.plugin_with(name, &component.display().to_string(), settings, "deadline = \"10s\"")
    }

    /// One more plugin, with limits.
    pub fn plugin_with(mut self, name: &str, component: &str, settings: &str, limits: &str) -> Config {
        writeln!(self.plugins, "[[stream.plugin]]\nname = {name:?}\ncomponent = {component:?}").unwrap();
        writeln!(self.plugins, "settings = {{ {settings} }}\nlimits = {{ {limits} }}").unwrap();
        self
    }

    /// A line of the last plugin's table.
    pub fn of_plugin(mut self, line: &str) -> Config {
        writeln!(self.plugins, "{line}").unwrap();
        self
    }

    /// The last plugin is granted this instead of the default.
    pub fn granted(self, grant: &str) -> Config {
        self.of_plugin(&format!("grant = {grant}"))
    }

    /// A stream after this one, with lines of its sink's table; without a name to connect to where it is from a rendezvous.
    pub fn next_leg(mut self, name: &str, listen: &str, connect: Option<&str>, sink: &str) -> Config {
        writeln!(self.legs, "[[stream]]\nname = {name:?}\nafter = {STREAM:?}\nlisten = {listen:?}").unwrap();
        let connect = connect.map_or_else(String::new, |connect| format!("connect = {connect:?}"));
        writeln!(self.legs, "[[stream.sink]]\nname = {SINK:?}\n{connect}\n{sink}\n").unwrap();
        self
    }

    /// As the file has it.
    pub fn to_toml(&self) -> String {
        let Config { stream, abort, sink, sinks, plugins, legs, journal, admin, listen, connect } = self;
        let tcp = if admin.contains("listen") { "" } else { "listen = \"127.0.0.1:0\"\n" };
        let abort = if abort.is_empty() { String::new() } else { format!("[stream.abort]\n{abort}") };
        format!(
            "[[stream]]\nname = {STREAM:?}\nlisten = {listen:?}\n{stream}\n\
             [[stream.sink]]\nname = {SINK:?}\nconnect = {connect:?}\n{sink}\n{sinks}\n{abort}\n{plugins}\n{legs}\n\
             [journal]\n{journal}\n[admin]\n{tcp}{admin}"
        )
    }
}
