//! One record of tokens for each request that has ended.
