//! A map from open requests to a plugin's values.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::RequestId;

/// A value for each open request. Insert it in `opened` and remove it in `closed`.
///
/// This is a hash map with a fast hash for [`RequestId`]: the host assigns consecutive numbers, so one
/// multiplication spreads them.
///
/// ```
/// use afterbay_plugin::Requests;
///
/// let mut tokens = Requests::new();
/// tokens.insert(7, 0);
/// *tokens.get_mut(7).unwrap() += 3;
/// assert_eq!(tokens.remove(7), Some(3));
/// assert!(tokens.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Requests<T> {
    map: HashMap<RequestId, T, BuildHasherDefault<FibonacciHasher>>,
}

impl<T> Requests<T> {
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self { map: HashMap::default() }
    }

    /// Inserts a value and returns the previous one.
    pub fn insert(&mut self, request: RequestId, value: T) -> Option<T> {
        self.map.insert(request, value)
    }

    /// The value of a request.
    #[must_use]
    pub fn get(&self, request: RequestId) -> Option<&T> {
        self.map.get(&request)
    }

    /// The value of a request, mutable.
    pub fn get_mut(&mut self, request: RequestId) -> Option<&mut T> {
        self.map.get_mut(&request)
    }

    /// Removes a value and returns it.
    pub fn remove(&mut self, request: RequestId) -> Option<T> {
        self.map.remove(&request)
    }

    /// The number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// All values, mutable, in no particular order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (RequestId, &mut T)> {
        self.map.iter_mut().map(|(&request, value)| (request, value))
    }

    /// All values, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (RequestId, &T)> {
        self.map.iter().map(|(&request, value)| (request, value))
    }
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Multiplies by 2^64 divided by the golden ratio. The map uses both the top and the low bits of a hash.
#[derive(Clone, Copy, Debug, Default)]
struct FibonacciHasher(u64);

impl Hasher for FibonacciHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = value.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_thousand_requests_are_found_and_removed() {
        let mut requests = Requests::new();
        for request in 0..100_000 {
            assert_eq!(requests.insert(request, request * 2), None);
        }
        assert_eq!(requests.len(), 100_000);
        for request in 0..100_000 {
            assert_eq!(requests.get(request), Some(&(request * 2)));
            assert_eq!(requests.remove(request), Some(request * 2));
        }
        assert!(requests.is_empty());
    }
}
