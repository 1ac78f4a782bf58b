//! Writing a trace.

use super::{COLUMNS, HEADER_MAX, Header, KEY, LINK, PAGE_MAX, Physical, READ, VERSION, WRITE};
use crate::record::{Op, Record};
use crate::trace::{LinkSample, Trace};
use headstart_block::{Error, ErrorKind, Result};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fmt::Write as _;
use std::sync::Arc;

/// Rows of a row group: bounds the memory of writing and reading.
pub(super) const GROUP_ROWS: usize = 1 << 18;

/// Rows whose values may be in memory before the writer checks for a full page.
const BATCH_ROWS: usize = 1024;

/// Returns the content of a Parquet file with the trace. Requests and samples are written in the order that they
/// have in `trace`; [`read`](fn@super::read) accepts them only in the order of time.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the metadata of the creation take more than 64 KiB; [`ErrorKind::Io`] if the Parquet
/// writer fails.
pub fn encode(trace: &Trace) -> Result<Vec<u8>> {
    let header = Header { version: VERSION, creation: &trace.creation, dropped: trace.dropped };
    let header = serde_json::to_string(&header)
        .map_err(|e| Error::invalid("the creation cannot be written").caused_by(e))?;
    if header.len() > HEADER_MAX {
        return Err(Error::invalid(format!("the creation's metadata take {} bytes", header.len()))
            .remedy(format!("leave labels out: there is room for {HEADER_MAX} bytes")));
    }
    write(trace, header)
        .map_err(|e| Error::new(ErrorKind::Io, "the trace cannot be written as Parquet").caused_by(e))
}

fn write(trace: &Trace, header: String) -> Result<Vec<u8>, ParquetError> {
    let schema = Arc::new(parse_message_type(&schema())?);
    let properties = WriterProperties::builder()
        .set_created_by(concat!("headstart ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(vec![KeyValue::new(KEY.to_owned(), header)]))
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_write_page_header_statistics(false)
        // With room for a last batch and levels.
        .set_data_page_size_limit(PAGE_MAX / 2)
        .set_write_batch_size(BATCH_ROWS)
        .build();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    for records in trace.records.chunks(GROUP_ROWS) {
        write_group(&mut writer, &Values::of_records(records))?;
    }
    for samples in trace.link.chunks(GROUP_ROWS) {
        write_group(&mut writer, &Values::of_link(samples))?;
    }
    writer.into_inner()
}

fn schema() -> String {
    let mut schema = "message trace {".to_owned();
    for column in &COLUMNS {
        let repetition = if column.nullable { "optional" } else { "required" };
        let physical = match column.physical {
            Physical::Int32 => "int32",
            Physical::Int64 => "int64",
        };
        // Writing to a string cannot fail.
        let _ = write!(schema, " {repetition} {physical} {} (INTEGER({},false));", column.name, column.bits);
    }
    schema + " }"
}

/// The columns of one row group, in their order.
struct Values {
    t_us: Vec<i64>,
    op: Vec<i32>,
    offset: Vec<i64>,
    length: Vec<i64>,
    service_us: Vec<Option<i32>>,
    bandwidth: Vec<Option<i64>>,
    round_trip_us: Vec<Option<i32>>,
}

impl Values {
    fn of_records(records: &[Record]) -> Self {
        let op = |record: &Record| if record.op == Op::Write { WRITE } else { READ }.cast_signed();
        Self {
            t_us: records.iter().map(|record| record.t_us.cast_signed()).collect(),
            op: records.iter().map(op).collect(),
            offset: records.iter().map(|record| record.range.offset().cast_signed()).collect(),
            length: records.iter().map(|record| record.range.len().cast_signed()).collect(),
            service_us: records.iter().map(|record| record.service_us.map(u32::cast_signed)).collect(),
            bandwidth: vec![None; records.len()],
            round_trip_us: vec![None; records.len()],
        }
    }

    fn of_link(samples: &[LinkSample]) -> Self {
        Self {
            t_us: samples.iter().map(|sample| sample.t_us.cast_signed()).collect(),
            op: vec![LINK.cast_signed(); samples.len()],
            offset: vec![0; samples.len()],
            length: vec![0; samples.len()],
            service_us: vec![None; samples.len()],
            bandwidth: samples.iter().map(|sample| sample.bandwidth.map(u64::cast_signed)).collect(),
            round_trip_us: samples.iter().map(|sample| sample.round_trip_us.map(u32::cast_signed)).collect(),
        }
    }
}

fn write_group(writer: &mut SerializedFileWriter<Vec<u8>>, values: &Values) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    let mut number = 0;
    while let Some(mut column) = group.next_column()? {
        match number {
            0 => column.typed::<Int64Type>().write_batch(&values.t_us, None, None)?,
            1 => column.typed::<Int32Type>().write_batch(&values.op, None, None)?,
            2 => column.typed::<Int64Type>().write_batch(&values.offset, None, None)?,
            3 => column.typed::<Int64Type>().write_batch(&values.length, None, None)?,
            4 => {
                let (present, levels) = split(&values.service_us);
                column.typed::<Int32Type>().write_batch(&present, Some(&levels), None)?
            }
            5 => {
                let (present, levels) = split(&values.bandwidth);
                column.typed::<Int64Type>().write_batch(&present, Some(&levels), None)?
            }
            _ => {
                let (present, levels) = split(&values.round_trip_us);
                column.typed::<Int32Type>().write_batch(&present, Some(&levels), None)?
            }
        };
        column.close()?;
        number += 1;
    }
    group.close()?;
    Ok(())
}

/// The present values, and for each row 1 if it has one, otherwise 0.
fn split<T: Copy>(values: &[Option<T>]) -> (Vec<T>, Vec<i16>) {
    (values.iter().copied().flatten().collect(), values.iter().map(|v| i16::from(v.is_some())).collect())
}
