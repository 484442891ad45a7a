//! An object store in memory that fails by a schedule.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt as _, once};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// The fate of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Done,
    /// Refused, without an effect.
    Refused,
    /// Done, but the answer is lost.
    Unanswered,
}

/// Decides about each call by its number, from 0.
type Schedule = Box<dyn FnMut(u64) -> Fate + Send>;

/// The store. Clones share it.
#[derive(Clone)]
pub(super) struct Faulty {
    inner: Arc<InMemory>,
    calls: Arc<Mutex<(u64, Schedule)>>,
}

impl Faulty {
    pub(super) fn new() -> Faulty {
        let always: Schedule = Box::new(|_| Fate::Done);
        Faulty { inner: Arc::new(InMemory::new()), calls: Arc::new(Mutex::new((0, always))) }
    }

    /// Begins another schedule. Its first call has the number 0.
    pub(super) fn set_schedule(&self, schedule: impl FnMut(u64) -> Fate + Send + 'static) {
        *self.calls.lock().unwrap() = (0, Box::new(schedule));
    }

    /// Calls since the schedule began.
    pub(super) fn calls(&self) -> u64 {
        self.calls.lock().unwrap().0
    }

    fn fate(&self) -> Fate {
        let mut calls = self.calls.lock().unwrap();
        let number = calls.0;
        calls.0 += 1;
        (calls.1)(number)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fate() {
            Fate::Done => call.await,
            Fate::Refused => Err(error("503 SlowDown")),
            Fate::Unanswered => {
                call.await?;
                Err(error("the connection was closed"))
            }
        }
    }

    /// The objects below a prefix: path and content.
    pub(super) async fn objects(&self, prefix: &str) -> BTreeMap<String, Vec<u8>> {
        let listed: Vec<_> = self.inner.list(Some(&Path::from(prefix))).try_collect().await.unwrap();
        let mut objects = BTreeMap::new();
        for object in listed {
            let bytes = self.inner.get(&object.location).await.unwrap().bytes().await.unwrap();
            objects.insert(object.location.to_string(), bytes.to_vec());
        }
        objects
    }

    pub(super) async fn remove(&self, path: &str) {
        self.inner.delete(&Path::from(path)).await.unwrap();
    }
}

fn error(why: &'static str) -> Error {
    Error::Generic { store: "faulty", source: why.into() }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

// The signatures are those that `async_trait` makes.
impl ObjectStore for Faulty {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Pin<Box<dyn Future<Output = Result<PutResult>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(self.call(self.inner.put_opts(location, payload, opts)))
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        opts: PutMultipartOptions,
    ) -> Pin<Box<dyn Future<Output = Result<Box<dyn MultipartUpload>>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let inner = self.call(self.inner.put_multipart_opts(location, opts)).await?;
            Ok(Box::new(FaultyUpload { store: self.clone(), inner }) as Box<dyn MultipartUpload>)
        })
    }

    fn get_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        options: GetOptions,
    ) -> Pin<Box<dyn Future<Output = Result<GetResult>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(self.call(self.inner.get_opts(location, options)))
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        once(async { Err(error("the archive deletes nothing")) }).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.fate() {
            Fate::Done => self.inner.list(prefix),
            Fate::Refused | Fate::Unanswered => once(async { Err(error("503 SlowDown")) }).boxed(),
        }
    }

    fn list_with_delimiter<'a, 'b, 'c>(
        &'a self,
        prefix: Option<&'b Path>,
    ) -> Pin<Box<dyn Future<Output = Result<ListResult>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(self.call(self.inner.list_with_delimiter(prefix)))
    }

    fn copy_opts<'a, 'b, 'd, 'c>(
        &'a self,
        from: &'b Path,
        to: &'d Path,
        options: CopyOptions,
    ) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
        Self: 'c,
    {
        Box::pin(self.call(self.inner.copy_opts(from, to, options)))
    }
}

#[derive(Debug)]
struct FaultyUpload {
    store: Faulty,
    inner: Box<dyn MultipartUpload>,
}

impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, part) = (self.store.clone(), self.inner.put_part(data));
        let call: BoxFuture<'static, Result<()>> = Box::pin(async move { store.call(part).await });
        call
    }

    fn complete<'a, 'c>(&'a mut self) -> Pin<Box<dyn Future<Output = Result<PutResult>> + Send + 'c>>
    where
        'a: 'c,
        Self: 'c,
    {
        let store = self.store.clone();
        Box::pin(async move { store.call(self.inner.complete()).await })
    }

    fn abort<'a, 'c>(&'a mut self) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'c>>
    where
        'a: 'c,
        Self: 'c,
    {
        self.inner.abort()
    }
}
