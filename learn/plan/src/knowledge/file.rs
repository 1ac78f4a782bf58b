//! Knowledge as a file: the settings in its head, a section for each image.

use super::{COMPARED_MAX, FOUNDING_MAX, ImageKnowledge, Knowledge, KnowledgeSettings, RecordedImage};
use crate::block_table::BlockTable;
use crate::compact_trace::Packed;
use crate::container::{Container, Kind, Sections};
use crate::encoding::{Reader, Writer};
use crate::layers::LayerMap;
use crate::preprocess::{self, ImageModel};
use crate::zero_shot::Profile;
use headstart_block::{Error, ReadAt, Result};
use std::collections::BTreeSet;
use std::io::Write;

const KIND: Kind = Kind { magic: *b"HSKNOW\r\n", version: 1, oldest: 1, content: "knowledge" };

impl KnowledgeSettings {
    pub(crate) fn write(&self, writer: &mut Writer) {
        self.model.write(writer);
        writer.len(self.founding);
        writer.number(self.faster);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let model = preprocess::ModelSettings::read(reader)?;
        let settings = Self { model, founding: reader.number()?, faster: reader.number()? };
        // These bound the work on the traces that a file holds.
        if settings.founding > FOUNDING_MAX || model.compared_max > COMPARED_MAX {
            return Err(Error::corrupt("has settings that make no sense"));
        }
        Ok(settings)
    }
}

impl RecordedImage {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.text(&self.image);
        writer.number(self.size);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { image: reader.text()?, size: reader.u64()? })
    }
}

impl Profile {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.text(&self.family);
        writer.text(&self.meta);
        writer.len(self.users.len());
        self.users.iter().for_each(|user| writer.text(user));
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let (family, meta) = (reader.text()?, reader.text()?);
        let count = reader.count(1)?;
        Ok(Self { family, meta, users: (0..count).map(|_| reader.text()).collect::<Result<_>>()? })
    }
}

impl ImageKnowledge {
    #[cfg(test)]
    pub(super) fn section(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        self.write(&mut writer);
        writer.bytes
    }

    #[cfg(test)]
    pub(super) fn of_section(
        section: &[u8],
        key: &RecordedImage,
        settings: KnowledgeSettings,
    ) -> Result<Self> {
        Self::read(&mut Reader::new(section), key, settings)
    }

    fn write(&self, writer: &mut Writer) {
        self.profile.write(writer);
        writer.numbers(self.block_table.blocks().iter().copied());
        writer.len(self.seen.len());
        self.seen.iter().for_each(|print| writer.bytes.extend(print.to_le_bytes()));
        writer.number(self.few_reads);
        writer.len(self.founding.len());
        self.founding.iter().for_each(|trace| trace.write(writer));
        writer.number(u8::from(self.model.is_some()));
        if let Some(model) = &self.model {
            model.write(writer);
        }
        writer.number(u8::from(self.layers.is_some()));
        if let Some(layers) = &self.layers {
            layers.write(writer);
        }
    }

    fn read(reader: &mut Reader<'_>, key: &RecordedImage, settings: KnowledgeSettings) -> Result<Self> {
        let mut image = Self::new(key, settings);
        image.profile = Profile::read(reader)?;
        image.block_table = BlockTable::of(image.block_table.disk_size(), reader.numbers()?)?;
        let blocks = image.block_table.len();
        let count = reader.count(8)?;
        let prints = reader.take(8 * count)?.chunks_exact(8);
        image.seen =
            prints.filter_map(|print| print.try_into().ok().map(u64::from_le_bytes)).collect::<BTreeSet<_>>();
        image.few_reads = reader.u64()?;
        let count = reader.count(3)?;
        if count > settings.founding {
            return Err(Error::corrupt("has more founding traces than it should"));
        }
        image.founding = (0..count).map(|_| Packed::read(reader, blocks)).collect::<Result<_>>()?;
        if reader.u64()? != 0 {
            image.model = Some(ImageModel::read(reader, settings.model, &image.block_table)?);
        }
        if reader.u64()? != 0 {
            image.layers = Some(LayerMap::read(reader)?);
        }
        reader.end()?;
        Ok(image)
    }
}

impl Knowledge {
    /// Writes the knowledge to `out` as a file, from which [`Knowledge::read`] makes an equal value.
    ///
    /// # Errors
    /// Errors of writing to `out`.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut sections = Sections::new(out, KIND)?;
        let (mut head, mut section) = (Writer::default(), Writer::default());
        self.settings.write(&mut head);
        head.len(self.images.len());
        for (key, image) in &self.images {
            key.write(&mut head);
            section.bytes.clear();
            image.write(&mut section);
            sections.write(&section.bytes)?;
        }
        sections.finish(&head)
    }

    /// Reads a file that [`Knowledge::write`] wrote. The memory that is allocated is proportional to the size
    /// of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](headstart_block::ErrorKind) if the file is damaged or not a file of knowledge,
    /// `Unsupported` if its version is unknown, and errors of reading `source`.
    pub fn read(source: &dyn ReadAt) -> Result<Self> {
        let (file, head) = Container::open(source, KIND)?;
        let mut reader = Reader::new(&head);
        let settings = KnowledgeSettings::read(&mut reader)?;
        let count = reader.count(2)?;
        if count != file.len() {
            return Err(Error::corrupt("has another number of images than of sections"));
        }
        let mut knowledge = Self::new(settings);
        for number in 0..count {
            let key = RecordedImage::read(&mut reader)?;
            let section = file.section(number)?;
            let image = ImageKnowledge::read(&mut Reader::new(&section), &key, settings);
            let image = image.map_err(|e| e.about(format!("image {}", key.image)))?;
            if knowledge.images.insert(key, image).is_some() {
                return Err(Error::corrupt("has an image twice"));
            }
        }
        reader.end()?;
        Ok(knowledge)
    }
}
