//! The imports with an effect outside of the instance: `store`, `call` and `health`.

use wasmtime::component::{LinkerInstance, WasmList, WasmStr};

use super::{Caller, Guest, cut};
use crate::bindings::afterbay::plugin::store::StoreError;
use crate::columns::RequestId;
use crate::effects::CallId;
use crate::grants::Store;
use crate::limits::{
    CALL_BODY_BYTES_MAX, ENDPOINT_BYTES_MAX, HEALTH_BYTES_MAX, KEY_BYTES_MAX, KEYS_LISTED_MAX,
    VALUE_BYTES_MAX,
};

fn send(
    mut caller: Caller<'_>,
    (endpoint, request, body): (WasmStr, RequestId, WasmList<u8>),
) -> wasmtime::Result<(CallId,)> {
    let endpoint = cut(&mut caller, &endpoint, ENDPOINT_BYTES_MAX)?;
    let bytes = body.as_le_slice(&caller);
    let body = match bytes.len() {
        // A body that is not sent is not copied.
        _ if !caller.data().effects.has_bodies() => Ok(Vec::new()),
        0..=CALL_BODY_BYTES_MAX => Ok(bytes.to_vec()),
        bytes => Err(bytes),
    };
    let Guest { clock, effects, .. } = caller.data_mut();
    clock.charge_bytes(body.as_ref().map_or(0, Vec::len))?;
    Ok((effects.send(endpoint, request, body)?,))
}

fn set_not_ready(mut caller: Caller<'_>, (reason,): (Option<WasmStr>,)) -> wasmtime::Result<()> {
    let reason = reason.map(|reason| cut(&mut caller, &reason, HEALTH_BYTES_MAX)).transpose()?;
    let effects = &mut caller.data_mut().effects;
    let reason = reason.map(|(reason, _)| reason);
    // A mark that is set again lasts longer.
    effects.has_health_changed |= reason.is_some() || reason != effects.not_ready;
    effects.not_ready = reason;
    Ok(())
}

/// Calls the store with a key. `bad` is the answer for a key that no store can have.
fn with_key<T>(
    mut caller: Caller<'_>,
    key: &WasmStr,
    bad: T,
    call: impl FnOnce(&dyn Store, &str, Caller<'_>) -> wasmtime::Result<T>,
) -> wasmtime::Result<(T,)> {
    let (key, bytes) = cut(&mut caller, key, KEY_BYTES_MAX)?;
    // A component that imports this interface was granted it.
    let Some(store) = caller.data().grants.store.clone().filter(|_| (1..=KEY_BYTES_MAX).contains(&bytes))
    else {
        return Ok((bad,));
    };
    Ok((call(&*store, &key, caller)?,))
}

fn get(caller: Caller<'_>, (key,): (WasmStr,)) -> wasmtime::Result<(Option<Vec<u8>>,)> {
    with_key(caller, &key, None, |store, key, mut caller| {
        let value = store.get(key);
        caller.data_mut().clock.charge_bytes(value.as_ref().map_or(0, Vec::len))?;
        Ok(value)
    })
}

fn set(
    caller: Caller<'_>,
    (key, value): (WasmStr, WasmList<u8>),
) -> wasmtime::Result<(Result<(), StoreError>,)> {
    with_key(caller, &key, Err(StoreError::BadKey), |store, key, mut caller| {
        let bytes = value.as_le_slice(&caller);
        if bytes.len() > VALUE_BYTES_MAX {
            return Ok(Err(StoreError::Full));
        }
        let stored = if caller.data().effects.are_enabled { store.set(key, bytes) } else { Ok(()) };
        let bytes = bytes.len();
        caller.data_mut().clock.charge_bytes(bytes)?;
        Ok(stored)
    })
}

fn delete(caller: Caller<'_>, (key,): (WasmStr,)) -> wasmtime::Result<()> {
    with_key(caller, &key, (), |store, key, caller| {
        if caller.data().effects.are_enabled {
            store.delete(key);
        }
        Ok(())
    })?;
    Ok(())
}

fn increment(
    caller: Caller<'_>,
    (key, delta): (WasmStr, i64),
) -> wasmtime::Result<(Result<i64, StoreError>,)> {
    with_key(caller, &key, Err(StoreError::BadKey), |store, key, caller| {
        Ok(store.increment(key, if caller.data().effects.are_enabled { delta } else { 0 }))
    })
}

fn list_keys(
    mut caller: Caller<'_>,
    (prefix, after): (WasmStr, Option<WasmStr>),
) -> wasmtime::Result<(Vec<String>,)> {
    let (prefix, bytes) = cut(&mut caller, &prefix, KEY_BYTES_MAX)?;
    let after = after.map(|after| cut(&mut caller, &after, KEY_BYTES_MAX)).transpose()?;
    let Some(store) = caller.data().grants.store.clone().filter(|_| bytes <= KEY_BYTES_MAX) else {
        return Ok((Vec::new(),));
    };
    let mut keys = store.keys(&prefix, after.as_ref().map(|(after, _)| after.as_str()), KEYS_LISTED_MAX);
    keys.truncate(KEYS_LISTED_MAX);
    caller.data_mut().clock.charge_bytes(keys.iter().map(String::len).sum())?;
    Ok((keys,))
}

pub(crate) fn link_call(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("send", send)
}

pub(crate) fn link_health(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("set-not-ready", set_not_ready)
}

pub(crate) fn link_store(mut instance: LinkerInstance<'_, Guest>) -> wasmtime::Result<()> {
    instance.func_wrap("get", get)?;
    instance.func_wrap("set", set)?;
    instance.func_wrap("delete", delete)?;
    instance.func_wrap("increment", increment)?;
    instance.func_wrap("list-keys", list_keys)
}
