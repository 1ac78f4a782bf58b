//! Plans as one file, from which attaching a disk reads only the parts that it needs.
//!
//! The file has a section for each image, for each set of several similar images that get common plans
//! ([`zero_shot`](crate::zero_shot)), and for each layer. The head of the file has the settings that the plans were
//! made with, and a sorted index of the images, the sets and the layers. [`PlanFile::open`] reads the head alone,
//! mostly by two reads: of the file's first bytes and of its end. [`PlanFile::choose`] searches the index, then reads
//! and checks two sections at most.
//!
//! In a section, the blocks of a group's plans are stored sorted, each with its mask of slices and the average time of
//! its first read. A block that several plans have is stored once, or once for each of its masks if the plans have
//! different ones. A plan is a list of positions among these entries, or a reference to an equal earlier plan. Files of
//! version 1 have no times of first reads, and can still be read.
//!
//! Starts of containers with a known entrypoint have sections of their own, under the name of the image with the
//! entrypoint ([`RecordedImage::of_start`]). Plans for an image are those of all its starts.

mod section;
#[cfg(test)]
mod tests;

use crate::bandwidth::RawNanos;
use crate::container::{Container, Kind, Sections};
use crate::encoding::{Reader, Writer};
use crate::evaluate::Misses;
use crate::knowledge::{self, RecordedImage};
use crate::layers::{LayerMap, LayerPlans, read_digest};
use crate::plans::{GroupPlans, ImagePlans};
use crate::policy::Objective;
use crate::preprocess::Dropped;
use crate::train::{PlanCatalog, Plans, Provenance, Whose, choose};
use crate::zero_shot::Metadata;
use headstart_block::{Digest, Error, ReadAt, Result};
use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

const KIND: Kind = Kind { magic: *b"HSPLAN\r\n", version: 2, oldest: 1, content: "plans" };

/// An open file of plans. Only its index is in memory; plans are read when they are chosen.
#[derive(Debug)]
pub struct PlanFile<S> {
    file: Container<S>,
    provenance: Provenance,
    /// The bytes that the names of the index are parts of.
    head: Vec<u8>,
    /// Sorted by name and size; the sections in this order.
    images: Vec<(Range<usize>, u64)>,
    /// Choices of several images, whose sections come next.
    merged: usize,
    /// Sorted; their sections come last.
    layers: Vec<Digest>,
    /// Sorted by key: with the number of traces and the section.
    tiers: Vec<(Range<usize>, u64, usize)>,
}

fn wrong() -> Error {
    Error::corrupt("has an index that makes no sense")
}

impl<S: ReadAt> PlanFile<S> {
    /// Opens a file of plans that [`Plans::write`] wrote, and reads its index.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](headstart_block::ErrorKind) if the file is damaged or not a file of plans,
    /// `Unsupported` if its version is unknown, and errors of reading `source`.
    pub fn open(source: S) -> Result<Self> {
        let (file, head) = Container::open(source, KIND)?;
        let mut reader = Reader::new(&head);
        let provenance = Provenance::read(&mut reader)?;
        let count = reader.count(2)?;
        let mut images = Vec::with_capacity(count);
        for _ in 0..count {
            images.push((text_range(&mut reader, &head)?, reader.u64()?));
        }
        let merged = reader.number()?;
        let count = reader.count(32)?;
        let layers: Vec<_> = (0..count).map(|_| read_digest(&mut reader)).collect::<Result<_>>()?;
        let count = reader.count(3)?;
        let mut tiers = Vec::with_capacity(count);
        for _ in 0..count {
            tiers.push((text_range(&mut reader, &head)?, reader.u64()?, reader.number()?));
        }
        reader.end()?;
        let sections = images.len().checked_add(merged).and_then(|sum| sum.checked_add(layers.len()));
        let is_sorted = images.is_sorted_by(|a, b| (&head[a.0.clone()], a.1) < (&head[b.0.clone()], b.1))
            && tiers.is_sorted_by(|a, b| head[a.0.clone()] < head[b.0.clone()])
            && layers.is_sorted_by(|a, b| a < b);
        let in_place = tiers.iter().all(|(_, _, section)| *section < images.len().saturating_add(merged));
        if sections != Some(file.len()) || !is_sorted || !in_place {
            return Err(wrong());
        }
        Ok(Self { file, provenance, head, images, merged, layers, tiers })
    }

    /// Returns the settings that the plans were made with, and the number of traces.
    #[must_use]
    pub fn provenance(&self) -> &Provenance {
        &self.provenance
    }

    /// Chooses plans as [`Plans::choose`] does, and reads only these: one section of the file, two if the image has a
    /// section without plans, none if the file has nothing for the image.
    ///
    /// # Errors
    /// `Corrupt` if a section that is read is damaged, and errors of reading the file.
    pub fn choose(&self, key: &RecordedImage, metadata: &Metadata) -> Result<ImagePlans> {
        self.choose_layered(key, metadata, None)
    }

    /// Chooses plans as [`Plans::choose_layered`] does. Only sections that the choice needs are read: those that
    /// [`choose`](Self::choose) reads, and one for each layer of `map` that the file has plans of.
    ///
    /// # Errors
    /// Those of [`PlanFile::choose`].
    pub fn choose_layered(
        &self,
        key: &RecordedImage,
        metadata: &Metadata,
        map: Option<&LayerMap>,
    ) -> Result<ImagePlans> {
        choose(self, key, metadata, map).map(Arc::unwrap_or_clone)
    }

    /// Reads all plans of the file into memory.
    ///
    /// # Errors
    /// Those of [`PlanFile::choose`].
    pub fn read_all(&self) -> Result<Plans> {
        let name = |range: &Range<usize>| {
            let bytes = self.head.get(range.clone()).ok_or_else(wrong)?;
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| wrong())
        };
        let mut keys = Vec::with_capacity(self.images.len());
        for (range, size) in &self.images {
            keys.push(RecordedImage { image: name(range)?, size: *size });
        }
        let mut images = BTreeMap::new();
        for (at, key) in keys.iter().enumerate() {
            images.insert(key.clone(), Arc::new(self.image(at)?));
        }
        let merged = (0..self.merged).map(|at| Ok(self.image(keys.len() + at)?.groups.into()));
        let merged = merged.collect::<Result<_>>()?;
        let mut tiers = BTreeMap::new();
        for (range, traces, section) in &self.tiers {
            let whose = match keys.get(*section) {
                Some(key) => Whose::Image(key.clone()),
                None => Whose::Merged(section - keys.len()),
            };
            tiers.insert(name(range)?, (*traces, whose));
        }
        let mut layers = BTreeMap::new();
        for (at, digest) in self.layers.iter().enumerate() {
            layers.insert(*digest, self.layer_plans(at)?);
        }
        Ok(Plans { provenance: self.provenance.clone(), images, merged, tiers, layers })
    }

    fn image(&self, section: usize) -> Result<ImagePlans> {
        let bytes = self.file.section(section)?;
        let mut reader = Reader::new(&bytes);
        let plans = ImagePlans::read(&mut reader, self.file.version())?;
        reader.end().map(|()| plans)
    }

    fn layer_plans(&self, at: usize) -> Result<LayerPlans> {
        let bytes = self.file.section(self.images.len() + self.merged + at)?;
        let mut reader = Reader::new(&bytes);
        let plans = LayerPlans::read(&mut reader, self.file.version())?;
        reader.end().map(|()| plans)
    }
}

/// The place in `head` of the text that comes next.
fn text_range(reader: &mut Reader<'_>, head: &[u8]) -> Result<Range<usize>> {
    let text = reader.bytes()?;
    // The reader has the bytes behind it.
    let end = head.len().checked_sub(reader.left()).ok_or_else(wrong)?;
    Ok(end - text.len()..end)
}

impl<S: ReadAt> PlanCatalog for PlanFile<S> {
    type Error = Error;

    fn own(&self, key: &RecordedImage) -> Result<Option<Arc<ImagePlans>>> {
        let image = key.image.as_bytes();
        let first = self.images.partition_point(|(name, _)| &self.head[name.clone()] < image);
        let mut starts = Vec::new();
        for (at, (name, size)) in self.images.iter().enumerate().skip(first) {
            let name = &self.head[name.clone()];
            if !name.starts_with(image) {
                break;
            }
            let known = String::from_utf8(name.to_owned()).map_err(|_| wrong())?;
            let known = RecordedImage { image: known, size: *size };
            if let Some(entrypoint) = known.entrypoint_of(&key.image).filter(|_| *size == key.size) {
                starts.push((entrypoint.to_owned(), Arc::new(self.image(at)?)));
            }
        }
        let is_known = !starts.is_empty();
        let starts = starts.iter().map(|(entrypoint, plans)| (&**entrypoint, Arc::clone(plans)));
        Ok(is_known.then(|| Arc::new(ImagePlans::of_starts(starts))))
    }

    fn tier(&self, key: &str) -> Option<(usize, u64)> {
        let found = self.tiers.binary_search_by(|(name, ..)| self.head[name.clone()].cmp(key.as_bytes()));
        found.ok().map(|at| (self.tiers[at].2, self.tiers[at].1))
    }

    fn groups(&self, whose: usize) -> Result<Vec<GroupPlans>> {
        Ok(self.image(whose)?.groups)
    }

    fn knows(&self, layer: &Digest) -> bool {
        self.layers.binary_search(layer).is_ok()
    }

    fn layer(&self, layer: &Digest) -> Result<Option<LayerPlans>> {
        self.layers.binary_search(layer).ok().map(|at| self.layer_plans(at)).transpose()
    }
}

impl Plans {
    /// Writes the plans to `out` as a file for [`PlanFile::open`]; equal plans give equal files.
    ///
    /// # Errors
    /// Errors of writing to `out`.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut sections = Sections::new(out, KIND)?;
        let (mut head, mut section) = (Writer::default(), Writer::default());
        self.provenance.write(&mut head);
        head.len(self.images.len());
        for (key, plans) in &self.images {
            key.write(&mut head);
            section.bytes.clear();
            plans.write(&mut section);
            sections.write(&section.bytes)?;
        }
        head.len(self.merged.len());
        for groups in &self.merged {
            section.bytes.clear();
            section::write_merged(groups, &mut section);
            sections.write(&section.bytes)?;
        }
        head.len(self.layers.len());
        for (digest, layer) in &self.layers {
            head.bytes.extend(digest.as_bytes());
            section.bytes.clear();
            layer.write(&mut section);
            sections.write(&section.bytes)?;
        }
        head.len(self.tiers.len());
        for (key, (traces, whose)) in &self.tiers {
            head.text(key);
            head.number(*traces);
            head.len(match whose {
                Whose::Image(key) => self.images.range(..key).count(),
                Whose::Merged(at) => self.images.len() + at,
            });
        }
        sections.finish(&head)
    }
}

impl Provenance {
    fn write(&self, writer: &mut Writer) {
        writer.text(&self.policy);
        match self.objective {
            Objective::Hits => writer.number(0_u8),
            Objective::Boot { round_trip, misses, hot } => {
                writer.number(1_u8);
                writer.number(round_trip);
                writer.number(match misses {
                    Misses::Block => 0_u8,
                    Misses::RangeThenRest => 1,
                    Misses::Range => 2,
                });
                writer.number(u8::from(hot));
            }
        }
        writer.numbers(self.rates.iter().copied());
        writer.number(self.seed);
        self.learning.write(writer);
        writer.number(self.traces);
        self.dropped.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let policy = reader.text()?;
        let objective = match reader.u64()? {
            0 => Objective::Hits,
            1 => {
                let round_trip: RawNanos = reader.u64()?;
                let misses = match reader.u64()? {
                    0 => Misses::Block,
                    1 => Misses::RangeThenRest,
                    2 => Misses::Range,
                    _ => return Err(wrong()),
                };
                Objective::Boot { round_trip, misses, hot: reader.u64()? != 0 }
            }
            _ => return Err(wrong()),
        };
        Ok(Self {
            policy,
            objective,
            rates: reader.numbers()?,
            seed: reader.u64()?,
            learning: knowledge::KnowledgeSettings::read(reader)?,
            traces: reader.u64()?,
            dropped: Dropped::read(reader)?,
        })
    }
}
