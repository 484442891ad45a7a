//! Checks `[archive]`: the URL of an object store. Nothing is resolved or requested here.

use std::path::Path;

use crate::check::Check;
use crate::checked::Archive;
use crate::location::Located;
use crate::{bounds, scrape, written};

impl Check<'_> {
    /// Returns `None` without the table, and if its URL is missing or wrong. The problems are reported.
    pub(crate) fn archive(
        &self,
        written: Option<&written::Archive>,
        journal: Option<&Path>,
    ) -> Option<Archive> {
        let Located { value, location } = written?.url.as_ref()?;
        // The slashes of a scheme alone stay: its error then names the missing bucket.
        let url = Some(value.trim_end_matches('/')).filter(|url| !url.ends_with(':')).unwrap_or(value);
        let checked = check(url).and_then(|()| match (url.strip_prefix("file://"), journal) {
            (Some(dir), Some(journal)) if Path::new(dir).starts_with(journal) => {
                Err("is inside the journal's directory")
            }
            _ => Ok(()),
        });
        if let Err(why) = checked {
            let shown = scrape::shown(value);
            self.source.report(location, format!("{shown:?} {why}, must be like \"s3://bucket/prefix\""));
            return None;
        }
        Some(Archive { url: url.to_owned() })
    }
}

fn check(url: &str) -> Result<(), &'static str> {
    let (scheme, rest) = url.split_once("://").ok_or("has no scheme s3, gs, az or file")?;
    if rest.contains(['?', '#']) {
        return Err("has a query, but credentials come from the environment");
    }
    if rest.contains('@') {
        return Err("has a user, but credentials come from the environment");
    }
    if url.len() > bounds::ARCHIVE_URL_BYTES_MAX {
        return Err("is longer than 512 bytes");
    }
    let prefix = match scheme {
        "file" => rest.strip_prefix('/').filter(|path| !path.is_empty()).ok_or("has no absolute path")?,
        "s3" | "gs" | "az" => {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if bucket.is_empty() || !bucket.chars().all(is_plain) {
                return Err("has no bucket");
            }
            prefix
        }
        _ => return Err("has a scheme other than s3, gs, az and file"),
    };
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._=".contains(c);
        !part.is_empty() && ![".", ".."].contains(&part) && part.chars().all(is_plain)
    };
    match prefix.is_empty() || prefix.split('/').all(is_part) {
        true => Ok(()),
        false => Err("has a part that is empty or has a character other than a-z A-Z 0-9 - . _ ="),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_archive_is_a_bucket_or_a_directory_and_perhaps_a_prefix() {
        for good in
            ["s3://b", "s3://a-bucket.x/pre/fix=1", "gs://b/p", "az://container/p", "file:///mnt/a_b/c.d"]
        {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        let keys = ["s3://key:secret@b/p", "s3://b/p?sig=secret", "s3://b/p#x"];
        let places = ["", "bucket/p", "http://h/b", "S3://b", "s3://", "s3:///p", "file://", "file://host/p"];
        let prefixes = ["s3://b//p", "s3://b/p/../q", "s3://b/p q", "s3://b/p*"];
        for bad in keys.iter().chain(&places).chain(&prefixes) {
            assert!(check(bad).is_err(), "{bad}");
        }
        assert!(check(&format!("s3://b/{}", "p".repeat(512))).is_err());
    }
}
