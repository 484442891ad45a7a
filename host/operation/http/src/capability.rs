//! A capability: a token that opens one name until a time. Whoever has it needs no account, and it says nothing of other names.
//!
//! `EXPIRY.MAC`: the Unix time in seconds as hexadecimal digits, and the HMAC-SHA256 of `afterbay\nEXPIRY\nNAME` as base64 for URLs.
//! Engines' connectors make it, too (`afterbay_connector/capability.py`).

use std::io::Read;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

/// Fewest and most bytes of a secret.
const SECRET_BYTES: (usize, usize) = (32, 4096);
/// Secrets that one file has at most: the one that signs, and an earlier one.
const SECRETS_MAX: usize = 2;
/// The first lines of what is signed, by what a capability opens.
const READ: &str = "afterbay";
const MIGRATE: &str = "afterbay migration";

/// The secrets of a file. The first signs.
pub struct CapabilityKeys(Vec<hmac::Key>);

/// The reason why a capability opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CapabilityError {
    /// It has another form, or was made with another secret or for another name.
    #[error("the token is not for this request")]
    Wrong,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
}

impl CapabilityKeys {
    /// Reads the secrets of a file, a line each.
    ///
    /// # Errors
    /// The rest of a sentence that begins with the file's name.
    pub fn read(file: &Path) -> Result<CapabilityKeys, String> {
        let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
        // Checked first, because opening a FIFO waits for a writer.
        if !std::fs::metadata(file).map_err(unreadable)?.is_file() {
            return Err("is not a file".to_owned());
        }
        let (mut text, (least, most)) = (String::new(), SECRET_BYTES);
        let opened = std::fs::File::open(file).map_err(unreadable)?;
        opened.take((SECRETS_MAX * (most + 2)) as u64).read_to_string(&mut text).map_err(unreadable)?;
        let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if secrets.is_empty() || secrets.len() > SECRETS_MAX {
            return Err(format!("has {} secrets, must be 1 to {SECRETS_MAX}, a line each", secrets.len()));
        }
        if let Some(wrong) = secrets.iter().map(|secret| secret.len()).find(|it| *it < least || *it > most) {
            return Err(format!("has a secret of {wrong} bytes, must be {least} to {most}"));
        }
        let key = |secret: &str| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Ok(CapabilityKeys(secrets.into_iter().map(key).collect()))
    }

    /// Makes a capability to read the stream of this name.
    #[must_use]
    pub fn mint(&self, name: &str, expires_unix_s: u64) -> String {
        self.sign(READ, name, expires_unix_s)
    }

    /// Makes a capability to send the request of this name again. It opens nothing else.
    #[must_use]
    pub fn mint_migration(&self, name: &str, expires_unix_s: u64) -> String {
        self.sign(MIGRATE, name, expires_unix_s)
    }

    fn sign(&self, purpose: &str, name: &str, expires_unix_s: u64) -> String {
        let Some(key) = self.0.first() else { return String::new() };
        let mac = hmac::sign(key, &signed(purpose, name, expires_unix_s));
        format!("{expires_unix_s:x}.{}", URL_SAFE_NO_PAD.encode(mac))
    }

    /// Checks a capability for this name. The time that it takes does not depend on the secret.
    ///
    /// # Errors
    /// It does not open the name now.
    pub fn check(&self, name: &str, capability: &str, now_unix_s: u64) -> Result<(), CapabilityError> {
        let (expires, mac) = capability.split_once('.').ok_or(CapabilityError::Wrong)?;
        let expires = u64::from_str_radix(expires, 16).map_err(|_| CapabilityError::Wrong)?;
        let mac = URL_SAFE_NO_PAD.decode(mac).map_err(|_| CapabilityError::Wrong)?;
        let signed = signed(READ, name, expires);
        if !self.0.iter().any(|key| hmac::verify(key, &signed, &mac).is_ok()) {
            return Err(CapabilityError::Wrong);
        }
        if expires < now_unix_s { Err(CapabilityError::Expired) } else { Ok(()) }
    }
}

fn signed(purpose: &str, name: &str, expires_unix_s: u64) -> Vec<u8> {
    format!("{purpose}\n{expires_unix_s:x}\n{name}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Result<CapabilityKeys, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        CapabilityKeys::read(file.path())
    }

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn a_capability_opens_its_name_until_its_time_and_nothing_else() {
        let keys_now = keys(SECRET).unwrap();
        let made = keys_now.mint("chatcmpl-7", 1000);
        // The connectors' tests have the same line.
        assert_eq!(made, "3e8.uJ7hwxv_4JWYzdA_912skAix1Md1NFS1hwzi1P9Lqcg");
        assert_eq!(keys_now.check("chatcmpl-7", &made, 1000), Ok(()));
        assert_eq!(keys_now.check("chatcmpl-7", &made, 1001), Err(CapabilityError::Expired));
        assert_eq!(keys_now.check("chatcmpl-8", &made, 0), Err(CapabilityError::Wrong));
        let later = made.replacen("3e8", "3e9", 1);
        for other in [&later, "", ".", "3e8.", "3e8.!", &made[..made.len() - 1]] {
            assert_eq!(keys_now.check("chatcmpl-7", other, 0), Err(CapabilityError::Wrong), "{other}");
        }
        let other = SECRET.replace('0', "1");
        let rotated = keys(&format!("{other}\n{SECRET}\n")).unwrap();
        assert_eq!(rotated.check("chatcmpl-7", &made, 0), Ok(()), "the earlier secret");
        assert_ne!(rotated.mint("chatcmpl-7", 1000), made);
        assert_eq!(keys(&other).unwrap().check("chatcmpl-7", &made, 0), Err(CapabilityError::Wrong));
    }

    #[test]
    fn a_capability_to_migrate_a_request_reads_nothing() {
        let keys = keys(SECRET).unwrap();
        let made = keys.mint_migration("cmpl-~7-0-1a2b3c4d", 1000);
        // The connectors' tests have the same line.
        assert_eq!(made, "3e8.kS5o6dMZgo6wJqeRPFK8sjCSfn-aciq6U_rmQzoZOew");
        assert_eq!(keys.check("cmpl-~7-0-1a2b3c4d", &made, 0), Err(CapabilityError::Wrong));
    }

    #[test]
    fn a_file_without_a_good_secret_is_refused_with_the_bound() {
        for (text, why) in [
            ("", "has 0 secrets, must be 1 to 2, a line each"),
            ("short", "has a secret of 5 bytes, must be 32 to 4096"),
            (&format!("{SECRET}\n{SECRET}\n{SECRET}"), "has 3 secrets, must be 1 to 2, a line each"),
        ] {
            assert_eq!(keys(text).err().as_deref(), Some(why));
        }
        assert_eq!(CapabilityKeys::read(Path::new("/")).err().as_deref(), Some("is not a file"));
    }
}
