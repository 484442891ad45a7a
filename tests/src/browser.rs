//! Headless Chromium, driven over a pipe by the DevTools protocol.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::{PATIENCE, wait_for};

/// The names under which distributions install Chromium.
const NAMES: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// One page of a browser of its own. Dropping it ends the browser.
pub struct Browser {
    child: Child,
    requests: ChildStdin,
    messages: Receiver<Value>,
    last_id: u64,
    session: Option<String>,
    /// Exceptions, console errors and refusals of the browser, such as those by the content security policy.
    problems: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The browser: `AFTERBAY_TEST_CHROMIUM`, or the first of [`NAMES`] in `PATH`.
fn program() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("AFTERBAY_TEST_CHROMIUM").filter(|given| !given.is_empty()) {
        return Some(given.into());
    }
    let path = std::env::var_os("PATH")?;
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    NAMES.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name))).find(|file| file.is_file())
}

impl Browser {
    /// Starts a browser with an empty page, 1280 by 900 pixels. Without Chromium, prints that the test is skipped, and returns
    /// `None`.
    pub fn start() -> Option<Browser> {
        let Some(program) = program() else {
            eprintln!("skipped: no Chromium (`make chromium` installs it, AFTERBAY_TEST_CHROMIUM names it)");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // Chromium reads the protocol from descriptor 3 and writes it to 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"]).arg(program);
        command.args(["--remote-debugging-pipe", "--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let requests = child.stdin.take().unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while from.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                let parsed = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message)).unwrap();
                message.clear();
                if sender.send(parsed).is_err() {
                    return;
                }
            }
        });
        let (session, problems) = Default::default();
        let mut browser =
            Browser { child, requests, messages, last_id: 0, session, problems, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.resize(1280, 900);
        Some(browser)
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let mut request = json!({"id": self.last_id, "method": method, "params": params});
        if let Some(session) = &self.session {
            request["sessionId"] = session.as_str().into();
        }
        write!(self.requests, "{request}\0").unwrap();
        self.requests.flush().unwrap();
        loop {
            let message =
                self.messages.recv_timeout(PATIENCE).unwrap_or_else(|why| panic!("{method}: {why}"));
            if message["id"] == self.last_id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let is_bad = match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => true,
            Some("Runtime.consoleAPICalled") => matches!(params["type"].as_str(), Some("error" | "warning")),
            _ => false,
        };
        if is_bad {
            self.problems.push(params.to_string());
        }
    }

    /// Takes what went wrong in the page so far.
    pub fn problems(&mut self) -> Vec<String> {
        // Events come before the answer to a later call.
        self.eval("0");
        std::mem::take(&mut self.problems)
    }

    /// Opens an address. Its scripts may still run.
    pub fn go(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
    }

    /// The value of an expression in the page; a promise is awaited.
    #[track_caller]
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// The text of an expression's value.
    #[track_caller]
    pub fn text(&mut self, expression: &str) -> String {
        let value = self.eval(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is {value}")).to_owned()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn until(&mut self, expression: &str) {
        wait_for(expression, || {
            // A page that is being opened has no elements.
            let guarded =
                format!("(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()");
            (self.eval(&guarded) == true).then_some(())
        });
    }

    /// Waits until the page shows a text.
    #[track_caller]
    pub fn until_shown(&mut self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Presses and releases a key such as `Tab`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            other => panic!("unknown key {other:?}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Types a text into the element that has the focus.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Sets the size of the window in CSS pixels; one of at most 600 is a phone's.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Sets what the reader of the page prefers, such as `prefers-color-scheme: dark`.
    pub fn prefer(&mut self, feature: &str, value: &str) {
        self.call("Emulation.setEmulatedMedia", json!({"features": [{"name": feature, "value": value}]}));
    }
}
