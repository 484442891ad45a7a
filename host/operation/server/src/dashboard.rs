//! The dashboard: one page, its style and its modules, as bytes in the binary.
//!
//! The server that sends the files chooses the routes. The page expects itself at `/`, its files at `/ui/NAME`, and the admin
//! API at `/v1`.

use sha2::{Digest, Sha256};
use std::sync::LazyLock;

/// The policy under which a browser may show the page: its own files and its own server, and no inline script or style.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The name of the page itself.
pub const PAGE: &str = "index.html";

/// A file of the page.
#[derive(Debug)]
pub struct File {
    /// The name in `assets`.
    pub name: &'static str,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The value of `ETag`: a digest of the contents in quotes.
    pub etag: String,
    /// The contents.
    pub bytes: &'static [u8],
}

macro_rules! assets {
    ($($name:literal)*) => { [$(($name, include_bytes!(concat!("../assets/", $name)).as_slice())),*] };
}

const ASSETS: [(&str, &[u8]); 14] = assets![
    "index.html"
    "style.css"
    "icon.svg"
    "api.js"
    "app.js"
    "chart.js"
    "dom.js"
    "format.js"
    "history.js"
    "live.js"
    "now.js"
    "plugins.js"
    "request.js"
    "requests.js"
];

static FILES: LazyLock<Vec<File>> =
    LazyLock::new(|| ASSETS.iter().map(|(name, bytes)| File::new(name, bytes)).collect());

impl File {
    fn new(name: &'static str, bytes: &'static [u8]) -> File {
        let content_type = match name.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => "application/octet-stream",
        };
        let digest = Sha256::digest(bytes);
        let etag =
            format!("\"{}\"", digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>());
        File { name, content_type, etag, bytes }
    }
}

/// The file of this name.
pub fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts() -> impl Iterator<Item = (&'static str, &'static str)> {
        FILES.iter().map(|file| (file.name, std::str::from_utf8(file.bytes).unwrap_or_default()))
    }

    #[test]
    fn every_file_of_the_directory_is_in_the_binary_with_its_kind() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let mut names: Vec<String> = Vec::new();
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        let mut known: Vec<&str> = FILES.iter().map(|file| file.name).collect();
        names.sort();
        known.sort_unstable();
        assert_eq!(names, known);
        assert!(FILES.iter().all(|file| file.content_type != "application/octet-stream"));
    }

    #[test]
    fn the_page_is_small_and_names_no_other_site() {
        let bytes: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(bytes < 100_000, "{bytes} bytes");
        for (name, text) in texts() {
            // The namespace of SVG is a name, not an address.
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("://") && !text.contains("\"//"), "{name}");
        }
    }

    #[test]
    fn no_text_becomes_markup_or_code() {
        for (name, text) in texts().filter(|(name, _)| name.ends_with(".js")) {
            for bad in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "createContextualFragment",
                "srcdoc",
                "setHTML",
                "localStorage.setItem(\"token",
            ] {
                assert!(!text.contains(bad), "{name} has {bad}");
            }
        }
        let (_, page) = texts().find(|(name, _)| *name == PAGE).unwrap_or_default();
        assert!(!page.contains("style=") && !page.contains("<style") && !page.contains(" on"), "{page}");
    }
}
