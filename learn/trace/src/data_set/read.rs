//! One trace of a data set, with the checks that learning relies on.

use super::{DataSetLimits, Form, SkipReason};
use crate::fast26;
use crate::file::{read_any_order, read_bounded};
use crate::npy::{self, NpyRow};
use crate::record::Op;
use crate::trace::{Creation, Trace};
use headstart_block::{Error, Result};
use std::path::Path;

/// Most bytes of a read: no protocol allows that many, and code that counts blocks relies on a bound.
const READ_MAX: u64 = 1 << 30;

/// Most bytes of a disk, also of one whose size is not known: the number of a block then fits 32 bits.
const DISK_MAX: u64 = 1 << 50;

/// The reason for which a trace is skipped.
type Fault = (SkipReason, Error);

fn fault(reason: SkipReason, cause: String) -> Fault {
    (reason, Error::corrupt(cause))
}

fn by_kind(error: Error) -> Fault {
    (SkipReason::of(&error), error)
}

/// Reads the trace at `path`; the flag is `true` if it had to be sorted.
pub(super) fn read(
    path: &Path,
    form: Form,
    creation: &Creation,
    limits: &DataSetLimits,
) -> Result<(Trace, bool), Fault> {
    check_file(path, form, limits)?;
    let bytes = read_bounded(path, limits.trace.file_bytes_max).map_err(by_kind)?;
    let mut trace = match form {
        Form::Parquet => read_any_order(&bytes, &limits.trace).map_err(by_kind)?,
        Form::Listed | Form::Bare => {
            let rows = npy::decode(&bytes).map_err(by_kind)?;
            drop(bytes);
            of_rows(&rows, form, creation, limits)?
        }
    };
    let sorted = !trace.records.is_sorted_by_key(|record| record.t_us);
    if sorted {
        trace.records.sort_by_key(|record| record.t_us);
    }
    trace.link.sort_by_key(|sample| sample.t_us);
    check_records(&trace, limits)?;
    Ok((trace, sorted))
}

/// Refuses a file that is too large by its metadata in the directory: it is never read to learn its size.
fn check_file(path: &Path, form: Form, limits: &DataSetLimits) -> Result<(), Fault> {
    let meta = path.metadata().map_err(|e| by_kind(Error::io("cannot be read", e)))?;
    // Opening a pipe would wait for its writer.
    if !meta.is_file() {
        return Err((SkipReason::Unreadable, Error::unsupported("is not a file")));
    }
    let rows_max = match form {
        Form::Parquet => u64::MAX,
        Form::Listed | Form::Bare => npy::len_max(limits.trace.records_max),
    };
    if meta.len() > limits.trace.file_bytes_max.min(rows_max) {
        let cause = format!("has {} bytes: more than the limits allow", meta.len());
        return Err((SkipReason::TooLarge, Error::invalid(cause)));
    }
    Ok(())
}

/// The trace of a table of requests, whose times become those since the creation.
fn of_rows(rows: &[NpyRow], form: Form, creation: &Creation, limits: &DataSetLimits) -> Result<Trace, Fault> {
    if rows.len() > limits.trace.records_max {
        let cause = format!("has more than {} records", limits.trace.records_max);
        return Err((SkipReason::TooLarge, Error::invalid(cause)));
    }
    let mut creation = creation.clone();
    if let Some(first) = rows.iter().map(|row| row[3]).min() {
        let first =
            u64::try_from(first).map_err(|_| fault(SkipReason::Time, format!("has the time {first}")))?;
        match form {
            Form::Bare => creation.created_us = first,
            Form::Parquet | Form::Listed => fast26::not_after(&mut creation, first),
        }
    }
    // No time is before the first.
    let records = fast26::unsorted_records(rows, creation.created_us);
    let records = records.map_err(|error| (SkipReason::NoRequest, error))?;
    Ok(Trace { creation, records, ..Trace::default() })
}

/// Checks the conditions that learning relies on: requests within the disk and within the time limit.
fn check_records(trace: &Trace, limits: &DataSetLimits) -> Result<(), Fault> {
    let Some(last) = trace.records.last() else {
        return Err(fault(SkipReason::Empty, "has no requests".to_owned()));
    };
    if last.t_us > limits.span_us_max {
        let cause = format!("has a request {} s after the creation", last.t_us / 1_000_000);
        return Err(fault(SkipReason::Time, cause));
    }
    if let Some(read) = trace.records.iter().find(|r| r.op == Op::Read && r.range.len() > READ_MAX) {
        return Err(fault(SkipReason::NoRequest, format!("has a read of {} bytes", read.range.len())));
    }
    let size = if trace.creation.size > 0 { trace.creation.size.min(DISK_MAX) } else { DISK_MAX };
    let past = trace.records.iter().find(|record| record.range.end() > size);
    match past {
        Some(record) => {
            let range = record.range;
            Err(fault(SkipReason::PastDisk, format!("has a request for {range} of a disk of {size} bytes")))
        }
        None => Ok(()),
    }
}
