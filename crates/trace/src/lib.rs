//! Traces of disk I/O: recorder, Parquet files, the FAST'26 layout, statistics.
