//! containerd's language for selecting snapshots.
//!
//! ```text
//!   selectors := selector ("," selector)*          all of them hold
//!   selector  := fieldpath (operator value)?       without operator: the field is there
//!   fieldpath := field ('.' field)*
//!   field     := quoted | [A-Za-z0-9_]+
//!   operator  := "==" | "!=" | "~="                equal, not equal, a regular expression matches
//!   value     := quoted | [^\s,]+
//!   quoted    := a Go string in double quotes; after ~= also between / or |
//! ```
//!
//! A list of such texts selects what any of them selects; an empty list, or an empty text, selects everything. The
//! fields are `name`, `parent`, `kind` (`active`, `view` or `committed`) and `labels.NAME`; other fields are never
//! there. The scanner and the parser follow containerd's, with its oddities and its messages: `labels.a.b` is the label
//! `a.b`, a name with a slash has to be quoted, an absent value is not equal to anything, and a regular expression that
//! is none matches nothing.

mod parser;
mod quote;
mod scanner;

use crate::fault::{FaultKind, FaultResult, SnapshotFault};
use crate::record::SnapshotRecord;
use regex::Regex;

/// Filters of one request at most.
const FILTERS_MOST: usize = 64;

/// A selection of snapshots.
#[derive(Clone, Debug)]
pub struct SnapshotFilter {
    /// Lists of selectors, any of which selects; everything is selected if there is no list.
    any: Vec<Vec<FieldSelector>>,
}

/// One condition.
#[derive(Clone, Debug)]
struct FieldSelector {
    path: Vec<String>,
    test: FieldTest,
}

#[derive(Clone, Debug)]
enum FieldTest {
    Present,
    Equal(String),
    NotEqual(String),
    /// `None` for a text that is no regular expression.
    Matches(Option<Regex>),
}

impl SnapshotFilter {
    /// Reads filters: what any of them selects is selected. None select everything.
    ///
    /// # Errors
    /// [`FaultKind::InvalidArgument`], with containerd's message, which shows the place; also for more than 64 filters.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> FaultResult<Self> {
        let invalid = |text: String| SnapshotFault::new(FaultKind::InvalidArgument, text);
        if texts.len() > FILTERS_MOST {
            return Err(invalid(format!("{} filters, and at most {FILTERS_MOST} are read", texts.len())));
        }
        let any = texts.iter().map(|text| match text.as_ref() {
            "" => Ok(Vec::new()),
            text => {
                parser::selectors(text).map_err(|error| invalid(format!("filters: parse error: {error}")))
            }
        });
        Ok(Self { any: any.collect::<FaultResult<_>>()? })
    }

    /// `true` if a snapshot is selected.
    #[must_use]
    pub fn selects(&self, record: &SnapshotRecord) -> bool {
        self.holds(&|path| field(record, path))
    }

    /// `true` if something is selected whose fields are given by a function.
    fn holds<'a>(&self, field: &dyn Fn(&[String]) -> Option<&'a str>) -> bool {
        let all_hold =
            |selectors: &Vec<FieldSelector>| selectors.iter().all(|selector| selector.holds(field));
        self.any.is_empty() || self.any.iter().any(all_hold)
    }
}

impl FieldSelector {
    fn holds<'a>(&self, field: &dyn Fn(&[String]) -> Option<&'a str>) -> bool {
        let value = field(&self.path);
        match &self.test {
            FieldTest::Present => value.is_some(),
            FieldTest::Equal(wanted) => value == Some(wanted),
            FieldTest::NotEqual(other) => value.unwrap_or_default() != other,
            FieldTest::Matches(regex) => {
                regex.as_ref().is_some_and(|regex| regex.is_match(value.unwrap_or_default()))
            }
        }
    }
}

/// The value of a snapshot's field.
fn field<'a>(record: &'a SnapshotRecord, path: &[String]) -> Option<&'a str> {
    match path.first()?.as_str() {
        "kind" => Some(record.kind().word()),
        "name" => Some(&record.key),
        "parent" => Some(record.parent.as_deref().unwrap_or_default()),
        "labels" => record.labels.get(&path[1..].join(".")).map(String::as_str),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
