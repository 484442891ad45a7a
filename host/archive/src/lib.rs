//! Requests of the journal as Parquet files in an object store.
