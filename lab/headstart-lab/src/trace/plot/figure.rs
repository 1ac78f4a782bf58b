//! The figures' numbers and names.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// One of the paper's figures that can be drawn from a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Figure(u8);

/// Number and title; `true` if the traces have to be read for it.
const FIGURES: [(u8, &str, bool); 17] = [
    (2, "Reads that lie in several blocks, by size of block", true),
    (3, "Sizes of disks", false),
    (4, "Size of an image over that of its disk", false),
    (5, "Images of which a user makes disks", false),
    (6, "Clusters in which an image is used", false),
    (7, "Images in use by the hour", false),
    (8, "Share of reads among a boot's requests", true),
    (9, "What two boots read when", true),
    (12, "How alike an image's boots are", true),
    (13, "How much of a disk is read", true),
    (14, "Creations of the images that have the most", false),
    (15, "Time from a creation to the first read", true),
    (16, "The first blocks of two boots of one image", true),
    (18, "Time from a read to the next", true),
    (20, "Distinct blocks that a boot reads", true),
    (22, "How much a block differs between boots", true),
    (23, "How alike images are", true),
];

impl Figure {
    pub(super) fn all() -> Vec<Self> {
        FIGURES.iter().map(|(number, ..)| Self(*number)).collect()
    }

    pub(super) fn number(self) -> u8 {
        self.0
    }

    fn entry(self) -> Option<&'static (u8, &'static str, bool)> {
        FIGURES.iter().find(|(number, ..)| *number == self.0)
    }

    pub(super) fn title(self) -> String {
        self.entry().map(|(_, title, _)| (*title).to_owned()).unwrap_or_default()
    }

    pub(super) fn needs_traces(self) -> bool {
        self.entry().is_some_and(|(.., needs)| *needs)
    }

    /// The name of its files, without the extension.
    pub(super) fn file(self) -> String {
        format!("figure-{:02}", self.0)
    }
}

impl FromStr for Figure {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = |number: u8| FIGURES.iter().any(|(known, ..)| *known == number);
        text.trim().parse().ok().filter(|number| known(*number)).map(Self).ok_or_else(|| {
            let numbers: Vec<_> = FIGURES.iter().map(|(number, ..)| number.to_string()).collect();
            format!("there are the figures {}", numbers.join(", "))
        })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.to_string())
    }
}
