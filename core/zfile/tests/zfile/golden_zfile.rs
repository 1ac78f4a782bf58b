//! The ZFiles of the golden set, and the numbers in their descriptions.

use headstart_testkit::golden_set::GoldenSet;
use serde_json::Value;

/// The ZFile of a case: its file, without the tar wrapper where it has one.
pub(crate) fn zfile(set: &GoldenSet, case: &Value) -> Vec<u8> {
    let file = set.raw(case);
    match &case["tar"] {
        Value::Null => file,
        tar => {
            let (base, size) = (number(&tar["base"]), number(&tar["size"]));
            file[base..base + size].to_vec()
        }
    }
}

pub(crate) fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}
