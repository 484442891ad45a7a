//! A registry in memory with one repository, `acme/guard`, which answers what a fetch asks.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The `Authorization` header of the user `acme` with the password `hunter2`.
pub const BASIC: &str = "Basic YWNtZTpodW50ZXIy";

pub fn sha256(bytes: &[u8]) -> String {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

/// A request that a test registry received.
pub struct Asked {
    pub method: String,
    pub path: String,
    /// The lines of the head, in lower case but for the values.
    head: Vec<String>,
}

impl Asked {
    /// Reads a request; `None` if the connection ends earlier.
    fn read(stream: &TcpStream) -> Option<Asked> {
        let mut stream = BufReader::new(stream);
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            match stream.read_line(&mut line) {
                Ok(length) if length > 0 => {}
                _ => return None,
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        let mut words = lines.first()?.split(' ').map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        Some(Asked { method, path, head: lines })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.iter().filter_map(|line| line.split_once(": "));
        headers.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// An answer: a status line, headers and a body.
pub struct Answer(pub &'static str, pub Vec<(&'static str, String)>, pub Vec<u8>);

impl Answer {
    pub fn refusal(status: &'static str, message: &str) -> Answer {
        let body = format!(r#"{{"errors": [{{"code": "REFUSED", "message": "{message}"}}]}}"#);
        Answer(status, Vec::new(), body.into_bytes())
    }

    fn write(&self, mut stream: &TcpStream) {
        let Answer(status, headers, body) = self;
        let mut text =
            format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
        headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        text += "\r\n";
        // A client that has given up is no error.
        let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(body));
    }
}

/// A test registry. Its thread ends with the test's process.
pub struct Registry {
    pub host: String,
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    pub fn start() -> Registry {
        Registry::that(|_| None)
    }

    /// A registry that asks for the user and the password of [`BASIC`].
    #[allow(dead_code, reason = "one of the two test programs uses it")]
    pub fn with_a_login() -> Registry {
        Registry::that(|asked| {
            let is_known = asked.header("authorization") == Some(BASIC);
            (!is_known).then(|| {
                // The words of a careless registry.
                let got = asked.header("authorization").unwrap_or_default();
                let mut refusal =
                    Answer::refusal("401 Unauthorized", &format!("wrong login, hunter3 in {got}"));
                refusal.1.push(("www-authenticate", "Basic realm=\"acme\"".to_owned()));
                refusal
            })
        })
    }

    /// A registry that answers a request with the result of `answer`, if there is one.
    pub fn that(answer: impl Fn(&Asked) -> Option<Answer> + Send + 'static) -> Registry {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let registry = Registry { host, files: Arc::default(), asked: Arc::default() };
        let (files, all_asked) = (Arc::clone(&registry.files), Arc::clone(&registry.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                let Some(asked) = Asked::read(&stream) else { continue };
                all_asked.lock().unwrap().push(format!("{} {}", asked.method, asked.path));
                let answer = answer(&asked).unwrap_or_else(|| stored(&files.lock().unwrap(), &asked));
                answer.write(&stream);
            }
        });
        registry
    }

    /// Stores these bytes under the digest. Returns the reference.
    pub fn has(&self, what: &str, of: &str, bytes: &[u8]) -> String {
        self.files.lock().unwrap().insert(format!("/v2/acme/guard/{what}/{of}"), bytes.to_vec());
        format!("oci://{}/acme/guard@{of}", self.host)
    }

    /// The requests so far, as `GET /v2/…`.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

/// The answer of a registry with these files.
fn stored(files: &BTreeMap<String, Vec<u8>>, asked: &Asked) -> Answer {
    match files.get(&asked.path) {
        Some(file) => Answer("200 OK", Vec::new(), file.clone()),
        None => Answer::refusal("404 Not Found", "no such manifest"),
    }
}
