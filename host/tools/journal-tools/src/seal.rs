//! `afterbay journal seal`: signs what the segments hold; and the keys of seals.

use crate::LoadConfig;
use crate::place::Place;
use afterbay_journal::reader::StreamReader;
use afterbay_journal::{NewSeals, SealReport, Sealer};
use afterbay_journal_view::erase::FrameEraser;
use afterbay_journal_view::wording::counted;
use afterbay_journal_view::{json_time, local_time};
use afterbay_terminal as screen;
use afterbay_wire::Layouts;
use anyhow::{Context, anyhow, ensure};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The program that seals.
const PROGRAM: &str = concat!("afterbay ", env!("CARGO_PKG_VERSION"));
/// The bytes before the 32 bytes of an Ed25519 key in its PEM file (RFC 8410).
const PUBLIC_KEY_BEGINS: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Seal what the journal holds: sign each segment that has ended, so that a later change is found
///
/// Seals the segments that have ended since the last seal, and prints the head of the chain. Whoever keeps that head elsewhere can
/// tell later that nothing before it was removed or made anew. `afterbay journal verify --seal` checks the seals with the public
/// key. Erasing a request leaves them valid. The segment that is being written is not sealed yet: call again. Works while
/// `afterbay run` runs.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  openssl genpkey -algorithm ed25519 -out seal.key\n  openssl pkey -in seal.key -pubout -out seal.pub\n  afterbay journal seal --key seal.key --config afterbay.toml\n  afterbay journal verify --seal seal.pub --config afterbay.toml"
)]
pub(crate) struct Args {
    /// The Ed25519 key that signs, as PEM (PKCS #8)
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object a stream
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, load: LoadConfig) -> anyhow::Result<ExitCode> {
    let key = signing_key(&args.key)?;
    let selected = args.place.select(load)?;
    let name = selected.source.name();
    ensure!(!selected.source.is_copy(), "{name}: seal needs the directory of a journal, this is a copy");
    let instance = selected.journal.instance()?.with_context(|| format!("{name}: has no file INSTANCE"))?;
    for stream in &selected.streams {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| anyhow!("the system has no random bytes"))?;
        let NewSeals { segments, head } = stream.seal(&mut Sealer {
            instance: &instance,
            program: PROGRAM,
            rows: &mut frame_eraser(stream)?,
            secret,
            sign: &|bytes| key.sign(bytes).as_ref().to_vec(),
        })?;
        if args.json {
            screen::say_json(&json!({"stream": stream.name(), "sealed": segments.len(), "head": head}));
            continue;
        }
        let head = head.map_or_else(|| "no segment has ended yet".to_owned(), |head| format!("head {head}"));
        let sealed = counted(segments.len() as u64, "segment");
        screen::say_wrapped(format!("{}: {sealed} sealed, {head}", stream.name()), 2);
    }
    Ok(ExitCode::SUCCESS)
}

/// The eraser of a stream's frames. What it overwrites of a frame is the content that a seal proves apart.
fn frame_eraser(stream: &StreamReader) -> anyhow::Result<FrameEraser<'static>> {
    let layouts = Layouts::of_text(&stream.layout()?);
    Ok(FrameEraser::new(move |_| layouts.clone()))
}

fn signing_key(file: &Path) -> anyhow::Result<Ed25519KeyPair> {
    let is_no_key =
        || format!("{}: no Ed25519 key as PEM (openssl genpkey -algorithm ed25519)", file.display());
    let pem = std::fs::read(file).with_context(|| file.display().to_string())?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(&pem).with_context(is_no_key)?;
    // OpenSSL writes the private half alone, from which the public one follows.
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der()).ok().with_context(is_no_key)
}

/// The public half of the key that seals a journal.
pub(crate) struct PublicKey(Vec<u8>);

impl PublicKey {
    pub(crate) fn read(file: &Path) -> anyhow::Result<PublicKey> {
        let is_no_key = || format!("{}: no public Ed25519 key as PEM (openssl pkey -pubout)", file.display());
        let pem = std::fs::read(file).with_context(|| file.display().to_string())?;
        let key = SubjectPublicKeyInfoDer::from_pem_slice(&pem).with_context(is_no_key)?;
        let key = key.as_ref().strip_prefix(&PUBLIC_KEY_BEGINS).with_context(is_no_key)?;
        Ok(PublicKey(key.to_vec()))
    }

    /// Checks the seals of a stream. `head` is the head of a seal that must be there.
    pub(crate) fn verify(&self, stream: &StreamReader, head: Option<&str>) -> anyhow::Result<SealReport> {
        let key = UnparsedPublicKey::new(&ED25519, &self.0);
        let is_signed = |bytes: &[u8], signature: &[u8]| key.verify(bytes, signature).is_ok();
        Ok(stream.verify_seals(&mut frame_eraser(stream)?, &is_signed, head)?)
    }
}

/// A sentence about checked seals.
pub(crate) fn sentence(report: &SealReport) -> String {
    let SealReport { segments, unsealed, erased, rewritten_frames, sealed_unix_ns, head, instance, .. } =
        report;
    let (Some(head), Some(instance)) = (head, instance) else { return "no seal could be checked".to_owned() };
    let sealed = counted(*segments, "sealed segment");
    let mut text =
        format!("{sealed} of {instance}, the last of {}, head {head}", local_time(*sealed_unix_ns));
    for (count, noun, what) in [
        (*unsealed, "newer segment", "not sealed yet"),
        (*erased, "request", "erased since"),
        (*rewritten_frames, "frame", "written anew by an erasure, whose content is not proven any more"),
    ] {
        if count > 0 {
            text += &format!("; {} {what}", counted(count, noun));
        }
    }
    text
}

/// Checked seals as JSON.
pub(crate) fn json(report: &SealReport) -> Value {
    json!({
        "segments": report.segments,
        "first": report.first.map(|first| first.to_string()),
        "unsealed": report.unsealed,
        "instance": report.instance,
        "sealed_at": json_time(report.sealed_unix_ns),
        "head": report.head,
        "erased": report.erased,
        "rewritten_frames": report.rewritten_frames,
    })
}
