//! Checks `[[call]]`.

use std::path::PathBuf;

use serde_json::Value as Json;

use crate::check::{Check, SeenNames, value};
use crate::checked::{Call, CallHeader, Grant, Secret, Stream};
use crate::location::Located;
use crate::{bounds, disk, scrape, written};

/// Headers that the HTTP client sets itself.
const OWN_HEADERS: [&str; 6] =
    ["connection", "content-length", "content-type", "host", "te", "transfer-encoding"];

impl Check<'_> {
    /// Reports each plugin with the grant "call". There is no endpoint, so each call of the plugin would be refused.
    pub(crate) fn calls_without_endpoint(&self, streams: &[Stream], written: &[written::Stream]) {
        for (stream, written) in streams.iter().zip(written) {
            let plugins = stream.plugins.iter().zip(&written.plugins);
            for (_, written) in plugins.filter(|(plugin, _)| plugin.grant.contains(&Grant::Call)) {
                let why = "has the grant \"call\", and there is no [[call]] that it may ask";
                self.source.report(&written.location, why);
            }
        }
    }

    /// Returns `None` if an endpoint is invalid. The problems are reported.
    pub(crate) fn calls(&self, written: &[written::Call]) -> Option<Vec<Call>> {
        self.most(written.len(), bounds::CALLS_MAX, "calls", written.last().map(|call| &call.location));
        let mut names = SeenNames::default();
        let calls: Vec<Option<Call>> = written.iter().map(|call| self.call(call, &mut names)).collect();
        calls.into_iter().collect()
    }

    fn call(&self, written: &written::Call, names: &mut SeenNames) -> Option<Call> {
        let name = self.name(&written.name, names);
        if let Some(Located { value: url, location }) = &written.url
            && let Err(why) = scrape::check(url)
        {
            let shown = scrape::shown(url);
            let like = "must be like \"https://moderation.internal/v1/check\"";
            self.source.report(location, format!("{shown:?} {why}, {like}"));
        }
        let mut files = Vec::new();
        let headers = self.headers(written, &mut files);
        let default = Call::new(name?, &written.url.as_ref()?.value);
        Some(Call {
            headers,
            timeout: value(&written.timeout).unwrap_or(default.timeout),
            max_in_flight: value(&written.max_in_flight).unwrap_or(default.max_in_flight),
            max_body_bytes: value(&written.max_body).unwrap_or(default.max_body_bytes),
            breaker: written.breaker,
            files,
            ..default
        })
    }

    /// The headers. The path of each file that they name is added to `files`, readable or not.
    fn headers(&self, written: &written::Call, files: &mut Vec<PathBuf>) -> Vec<CallHeader> {
        let Some(Located { value: table, location }) = &written.headers else { return Vec::new() };
        self.most(table.len(), bounds::CALL_HEADERS_MAX, "headers", Some(location));
        let mut headers: Vec<CallHeader> = Vec::new();
        for (name, value) in table {
            let lower = name.to_ascii_lowercase();
            let checked = match is_token(name) {
                false => Err("is not the name of a header".to_owned()),
                true if OWN_HEADERS.contains(&&*lower) => Err("is a header that Afterbay sets".to_owned()),
                true if headers.iter().any(|header| header.name == lower) => Err("is given twice".to_owned()),
                true => self.header_value(value, files),
            };
            match checked {
                Ok(value) => headers.push(CallHeader { name: lower, value: Secret(value) }),
                Err(why) => self.source.report(location, format!("{name:?} {why}")),
            }
        }
        headers
    }

    /// The value of a header. The error is the rest of a sentence, without the value.
    fn header_value(&self, value: &Json, files: &mut Vec<PathBuf>) -> Result<String, String> {
        let text = match value {
            Json::String(text) => text.clone(),
            Json::Object(members) => {
                let text = |key: &str| match members.get(key) {
                    Some(Json::String(text)) => Some(text.as_str()),
                    _ => None,
                };
                let is_known = members.keys().all(|key| key == "file" || key == "prefix");
                let (Some(file), true) = (text("file"), is_known) else {
                    return Err(VALUE.to_owned());
                };
                let path = self.dir.join(file);
                let read = disk::text(&path, bounds::CALL_HEADER_BYTES_MAX);
                files.push(path.clone());
                let read = read.map_err(|why| format!("has the file {path:?}, which {why}"))?;
                format!("{}{}", text("prefix").unwrap_or_default(), read.trim())
            }
            _ => return Err(VALUE.to_owned()),
        };
        let is_visible = |c: char| c == ' ' || c.is_ascii_graphic();
        match text.trim() == text && !text.is_empty() && text.chars().all(is_visible) {
            true if text.len() as u64 > bounds::CALL_HEADER_BYTES_MAX => {
                Err(format!("has a value of {} bytes, must have at most 8KiB", text.len()))
            }
            true => Ok(text),
            false => {
                Err("has a value that no header has, must be visible ASCII characters and spaces".to_owned())
            }
        }
    }
}

const VALUE: &str = "must be a text, or like { file = \"/run/secrets/token\", prefix = \"Bearer \" }";

/// Whether a text may be the name of a header.
fn is_token(name: &str) -> bool {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    !name.is_empty() && name.len() <= 64 && name.chars().all(is_token)
}
