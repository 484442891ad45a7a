//! Objects of the archive: a small one is put at once, a large one in parts. Memory is bounded by the size of a part.

use std::fs::File;
use std::io::Read;
use std::path::Path as LocalPath;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use tokio::time::timeout;

use crate::consumer::Failure;

/// Bytes of a part of an upload; the parts of one object go one after the other. A smaller file is put at once. S3 takes 10,000
/// parts: 80 GiB.
pub(crate) const PART_BYTES: usize = 8 << 20;
/// Time limit of one call, with the library's retries.
const CALL_MAX: Duration = Duration::from_secs(90);

/// The object store below the archive's prefix.
pub(crate) struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

impl Objects {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> Objects {
        Objects { store, prefix }
    }

    fn path(&self, name: &str) -> Result<Path, Failure> {
        let path = if self.prefix.is_root() { name.to_owned() } else { format!("{}/{name}", self.prefix) };
        Path::parse(path).map_err(Failure::outside)
    }

    /// Puts a small object, replacing one of the same name.
    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), Failure> {
        let path = self.path(name)?;
        within(self.store.put(&path, PutPayload::from(bytes))).await.map(drop)
    }

    /// Uploads a local file, replacing an object of the same name. The object appears when all of it is there.
    pub(crate) async fn upload(&self, name: &str, local: &LocalPath) -> Result<(), Failure> {
        let path = self.path(name)?;
        let mut file = File::open(local).map_err(|error| Failure::local(local, error))?;
        let first = read_part(&mut file, local)?;
        if first.len() < PART_BYTES {
            return within(self.store.put(&path, PutPayload::from(first))).await.map(drop);
        }
        let mut upload = within(self.store.put_multipart(&path)).await?;
        let mut part = first;
        let uploaded = loop {
            if part.is_empty() {
                break within(upload.complete()).await.map(drop);
            }
            if let Err(failure) = within(upload.put_part(PutPayload::from(part))).await {
                break Err(failure);
            }
            match read_part(&mut file, local) {
                Ok(next) => part = next,
                Err(failure) => break Err(failure),
            }
        };
        if uploaded.is_err() {
            // If this fails too, the bucket's rule for incomplete uploads removes the parts.
            let _ = within(upload.abort()).await;
        }
        uploaded
    }

    /// Reads a small object. `None` if it does not exist.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let path = self.path(name)?;
        within(async {
            match self.store.get(&path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(None),
                found => Ok(Some(found?.bytes().await?.to_vec())),
            }
        })
        .await
    }

    /// The file names of the objects in a directory that are greater than `after`.
    pub(crate) async fn list(&self, dir: &str, after: &str) -> Result<Vec<String>, Failure> {
        let (dir, after) = (self.path(dir)?, self.path(&format!("{dir}/{after}"))?);
        let listed = self.store.list_with_offset(Some(&dir), &after);
        let names = listed.try_filter_map(|object| {
            let name = object.location.filename().map(str::to_owned);
            async move { Ok(name) }
        });
        let mut names: Vec<String> = within(names.try_collect()).await?;
        // A directory of the local file system is in no order.
        names.sort();
        Ok(names)
    }
}

/// Reads up to [`PART_BYTES`]; nothing at the end of the file.
fn read_part(file: &mut File, path: &LocalPath) -> Result<Vec<u8>, Failure> {
    let mut part = Vec::new();
    let read = file.take(PART_BYTES as u64).read_to_end(&mut part);
    read.map_err(|error| Failure::local(path, error))?;
    Ok(part)
}

async fn within<T>(call: impl Future<Output = object_store::Result<T>>) -> Result<T, Failure> {
    match timeout(CALL_MAX, call).await {
        Ok(done) => done.map_err(|error| Failure::outside(with_causes(&error))),
        Err(_) => Err(Failure::outside(format!("no answer in {CALL_MAX:?}"))),
    }
}

/// The error with those behind it.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        let text = next.to_string();
        if !why.contains(&text) {
            why = format!("{why}: {text}");
        }
        source = next.source();
    }
    why
}
