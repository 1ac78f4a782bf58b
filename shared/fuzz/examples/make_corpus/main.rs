//! Writes the valid inputs of the corpus, with our own writers: `cargo run -p headstart-fuzz --example make_corpus`.
//!
//! They are small (the fuzzer's speed is inverse to its inputs' size) and each shows the parser something
//! that the others do not. Their names start with `valid-`, and the replay insists that they are.
//! The two qcow2 disks are not made here but by `qemu-img convert -O qcow2 -o cluster_size=512`, once with `-c`, and
//! the signing request by `openssl req -new -outform DER -addext subjectAltName=DNS:node4.lan` with a key of P-256.

mod erofs;
mod lending;
mod snapshots;

use flate2::Compression;
use flate2::write::GzEncoder;
use headstart_block::{BlockDevice, ByteRange, Digest, Result};
use headstart_cache::{BlobSpec, Cache, CacheSettings};
use headstart_export::nbd::proto::{NbdRequest, OptionHeader, command, command_flag, option};
use headstart_fuzz::{WRITABLE_FILES, join, scratch_directory};
use headstart_hash_tree::{TreeRoot, outboard_len};
use headstart_image::manifest::{Config, ImageLayer, NewImage, Tree};
use headstart_lsmt::format::{Flags, PAGE_SIZE, Page, UserTag};
use headstart_lsmt::writable::{NewDisk, WritableDisk};
use headstart_lsmt::{LayerMeta, LayerWriter, Segment};
use headstart_peer_net::frame::{FrameKind, Hello, VERSION, push_encoded, push_frame};
use headstart_plan::knowledge::KnowledgeSettings;
use headstart_plan::layers::LayerMap;
use headstart_plan::overlaybd_trace;
use headstart_plan::{Bandwidth, Knowledge, RecordedImage, TrainConfig, train};
use headstart_swarm::tracker::{self, Hint, HintAnswer, HintReport, SliceAccess};
use headstart_swarm::{BlobId, Chunks, Message, PeerKey, RejectReason, RequestId, Urgency};
use headstart_trace::data_set::DataSetLimits;
use headstart_trace::file::encode;
use headstart_trace::{
    Creation, DataSet, DirectoryLimits, LinkSample, Op, Record, Trace, TraceDirectory, fast26, npy,
};
use headstart_turbo::IndexingReader;
use headstart_turbo::format::MIN_SPAN;
use headstart_zfile::format::HEADER_SIZE;
use headstart_zfile::{Codec, ZFileOptions, ZFileWriter};
use std::fs;
use std::io::Write;
use std::path::Path;
use uuid::Uuid;

const DISK_SIZE: u64 = 1 << 20;
const ID: Uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

fn main() -> Result<()> {
    make(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"))
}

/// Writes the inputs into a corpus. The files there that are not made here stay: what the fuzzer found, what other
/// programs made, and what earlier versions wrote, which are named by the versions of their forms.
pub(crate) fn make(to: &Path) -> Result<()> {
    for (name, bytes) in zfiles()? {
        save(to, "zfile", name, &bytes)?;
    }
    for (name, layer) in layers()? {
        save(to, "lsmt_layer", name, &layer)?;
        let packed = pack(Codec::Lz4, 4 << 10, false, &layer)?;
        let size = format!("{:o}", packed.len());
        save(to, "blob", &format!("{name}-in-tar"), &[tar_header(b'0', &size), packed.clone()].concat())?;
        save(to, "blob", &format!("{name}-undigested"), &without_digests(packed))?;
    }
    save_as(to, "lsmt_layer", "largest-size", &layer_of_largest_size()?)?;
    save(to, "lsmt_pair", "log", &pair())?;
    save(to, "lsmt_sparse", "two-pages", &sparse())?;
    save(to, "writable", "flushed-twice", &writable()?)?;
    save(
        to,
        "tar_wrapper",
        "pax",
        &[pax(5), tar_header(b'0', "0"), b"bytes".to_vec(), vec![0; 1531]].concat(),
    )?;
    save(to, "tar_wrapper", "plain", &[tar_header(b'0', "5"), b"bytes".to_vec(), vec![0; 1531]].concat())?;
    layer_tars().into_iter().try_for_each(|(name, layer)| save(to, "layer_tar", name, &layer))?;
    save(to, "erofs_parent", "two-layers", &erofs::two_layers()?)?;
    save(to, "image_archive", "docker", &docker_archive())?;
    save(to, "image_archive", "oci", &oci_archive())?;
    save(to, "image_document", "manifest", docker_manifest(&Digest::of(b"{}"), 2).as_bytes())?;
    save(to, "image_document", "index", OCI_INDEX.as_bytes())?;
    let streams = gzip_streams()?;
    for (name, stream) in &streams {
        save(to, "gzip_stream", name, stream)?;
        let index = IndexingReader::new(&stream[..], MIN_SPAN)?.finish()?.bytes;
        let index = headstart_block::ReadAt::as_slice(&index).unwrap_or_default();
        save(to, "gzip_index", name, &join(&[index, stream]))?;
    }
    save(to, "turbo_package", "ext4", &turbo_package(&streams[0].1)?)?;
    save(to, "lsmt_target", "two-files", &layer_with_target())?;
    let documents = image().documents()?;
    save(to, "manifest", "two-layers", &documents.manifest)?;
    save(to, "config", "two-layers", &documents.config)?;
    save(to, "oci_index", "one-image", OCI_INDEX.as_bytes())?;
    if !to.join("cache_sidecar/valid-synced-twice").exists() {
        // The only one that is different each time: it names the inode of a file.
        save(to, "cache_sidecar", "synced-twice", &cache_sidecar()?)?;
    }
    save(to, "swarm", "each-kind", &swarm()?)?;
    save(to, "harvest_journal", "lent-once", &lending::journal()?)?;
    save(to, "snapshot_journal", "committed-and-removed", &snapshots::journal()?)?;
    for (name, filter) in snapshots::FILTERS {
        save(to, "snapshot_filter", name, filter.as_bytes())?;
    }
    save(to, "demand_series", "capacity", b"total_obs: 3, avg_duration: 720\n300 2\n1700 3.5\n160 0\n")?;
    for (name, trace) in [("requests-and-link", trace()), ("nothing", Trace::default())] {
        save(to, "trace", name, &encode(&trace)?)?;
        save(to, "npy", name, &npy::encode(&fast26::rows(&trace)?))?;
    }
    let knowledge = knowledge()?;
    save(to, "knowledge", "two-images", &written(|out| knowledge.write(out))?)?;
    let config = TrainConfig {
        policy: "thinkahead".to_owned(),
        rates: vec![Bandwidth::mb(5)],
        ..TrainConfig::default()
    };
    let plans = train::all(&knowledge, &config, &mut |_| Ok(()))?;
    save(to, "plans", "two-images", &written(|out| plans.write(out))?)?;
    let reads = [(1, 4096, 40_000), (0, 8192, 3 << 20), (2, 0, 4096)];
    let reads = reads.map(|(layer, offset, len)| overlaybd_trace::LayerRead { layer, offset, len });
    save(to, "overlaybd_trace", "five-records", &overlaybd_trace::encode(&reads)?)?;
    for (name, structured) in [("structured", true), ("simple", false)] {
        save(to, "nbd", name, &nbd_session(structured))?;
    }
    Ok(())
}

/// Gzip streams: small, with restart points, of several members.
fn gzip_streams() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let gzip = |bytes: &[u8], level| -> Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(bytes)?;
        Ok(encoder.finish()?)
    };
    // Stored blocks have at most 64 KiB, and a word every 100 bytes gives the others something to refer to.
    let long: Vec<u8> =
        (0..220_000_u32).map(|i| if i % 100 < 92 { 0 } else { (i / 100 % 7) as u8 }).collect();
    let members = [gzip(b"the first member", 6)?, gzip(b"", 6)?, gzip(b"the third member", 1)?].concat();
    Ok(vec![
        ("small", gzip(b"a few bytes, a few bytes", 6)?),
        ("long", gzip(&long, 1)?),
        ("members", members),
    ])
}

/// The blob of a TurboOCI layer, whose target is `stream`.
fn turbo_package(stream: &[u8]) -> Result<Vec<u8>> {
    let metadata = pack(Codec::Lz4, 4 << 10, true, &layer_with_target())?;
    let index = IndexingReader::new(stream, MIN_SPAN)?.finish()?.bytes;
    let index = headstart_block::ReadAt::as_slice(&index).unwrap_or_default().to_vec();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    for (name, content) in [("ext4.fs.meta", &metadata), (".turbo.ociv1", &Vec::new()), ("gzip.meta", &index)]
    {
        let header = tar_header(b'0', &format!("{:o}", content.len()));
        let padding = content.len().next_multiple_of(512) - content.len();
        encoder.write_all(&changed_header(header, &[(0, &[0; 100]), (0, name.as_bytes())]))?;
        encoder.write_all(&[content, &vec![0; padding][..]].concat())?;
    }
    encoder.write_all(&[0; 1024])?;
    Ok(encoder.finish()?)
}

/// A layer with a sector of its own, two in its target, and one of its own again.
fn layer_with_target() -> Vec<u8> {
    let at = |offset, len, place, tag| Segment::data(offset, len, place).with_layer(tag).to_record();
    let records = [at(0, 1, 8, 0), at(2, 2, 0, 1), at(8, 1, 9, 0), at(9, 1, 127, 1)];
    let page = |flags, index_offset, index_size| {
        let (uuid, parent_uuid, user_tag) = (Uuid::nil(), Uuid::nil(), UserTag::default());
        let flags = Flags(flags);
        Page { flags, index_offset, index_size, virtual_size: DISK_SIZE, uuid, parent_uuid, user_tag }
            .encode()
    };
    let mut file = page(Flags::HEADER | Flags::DATA | Flags::SEALED, 0, 0).to_vec();
    file.extend([7; 1024]);
    let index_offset = file.len() as u64;
    file.extend(records.as_flattened());
    file.extend(page(Flags::DATA | Flags::SEALED, index_offset, records.len() as u64));
    file
}

/// The knowledge from a few traces of two images, one of which has groups already.
fn knowledge() -> Result<Knowledge> {
    let directory = scratch_directory()?;
    for volume in 0..6 {
        let image = if volume < 4 { "a" } else { "b" };
        let creation = Creation {
            volume: volume.to_string(),
            image: image.to_owned(),
            family: "debian".to_owned(),
            size: 1 << 30,
            created_us: 1 << 50,
            ..Creation::default()
        };
        let read = |at: u64| Record {
            t_us: at * 1000,
            op: Op::Read,
            range: ByteRange::between((at * 3 + volume) << 20, ((at * 3 + volume) << 20) + 4096),
            service_us: Some(80),
        };
        let trace = Trace { creation, records: (0..12).map(read).collect(), ..Trace::default() };
        TraceDirectory::open(directory.path(), DirectoryLimits::default())?.save(&trace, false)?;
    }
    let mut knowledge = Knowledge::new(KnowledgeSettings { founding: 3, ..KnowledgeSettings::default() });
    let data = DataSet::open(directory.path(), &DataSetLimits::default())?;
    knowledge.learn(&data, 1, &mut |_| Ok(()))?;
    let (key, part) =
        (RecordedImage { image: "a".to_owned(), size: 1 << 30 }, ByteRange::between(0, 1 << 30));
    knowledge.set_layers(&key, LayerMap::new(vec![Digest::of(b"layer")], [(part, 0)])?)?;
    Ok(knowledge)
}

fn written(write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write(&mut bytes).map(|()| bytes)
}

/// A trace with everything that a trace can have.
fn trace() -> Trace {
    let record = |t_us, op, offset, service_us| Record {
        t_us,
        op,
        range: ByteRange::between(offset, offset + 4096),
        service_us,
    };
    let labels = [("digest".to_owned(), "sha256:0".to_owned())].into();
    Trace {
        creation: Creation {
            volume: "v".to_owned(),
            size: 1 << 30,
            created_us: 1 << 50,
            labels,
            ..Creation::default()
        },
        records: vec![
            record(5, Op::Read, 0, Some(80)),
            record(5, Op::Write, 4096, None),
            record(70_000, Op::Read, 1 << 29, Some(1)),
        ],
        link: vec![LinkSample { t_us: 1_000_000, bandwidth: Some(10_000_000), round_trip_us: Some(20_000) }],
        dropped: 7,
    }
}

/// All that an NBD client may say.
fn nbd_session(structured: bool) -> Vec<u8> {
    let ask = |option: u32, data: &[u8]| {
        let header = OptionHeader { option, len: u32::try_from(data.len()).unwrap_or(0) };
        [&header.encode()[..], data].concat()
    };
    let request = |command: u16, flags: u16, offset: u64, len: u32| {
        NbdRequest { flags, command, cookie: 7, offset, len }.encode().to_vec()
    };
    let mut session = vec![3u32.to_be_bytes().to_vec(), ask(option::LIST, &[])];
    if structured {
        let context = b"\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation";
        session.extend([
            ask(option::STRUCTURED_REPLY, &[]),
            ask(option::LIST_META_CONTEXT, context),
            ask(option::SET_META_CONTEXT, context),
            ask(option::INFO, b"\0\0\0\x01a\0\x02\0\x01\0\x02"),
            ask(option::GO, b"\0\0\0\x01a\0\0"),
            request(command::BLOCK_STATUS, command_flag::REQ_ONE, 0, 1 << 20),
            request(command::READ, command_flag::DF, 4096, 4096),
        ]);
    } else {
        session.push(ask(option::EXPORT_NAME, b"a"));
    }
    session.extend([
        request(command::READ, 0, 0, 4096),
        [request(command::WRITE, command_flag::FUA, 512, 3), vec![9; 3]].concat(),
        request(command::WRITE_ZEROES, command_flag::NO_HOLE, 100, 1000),
        request(command::TRIM, 0, 100, 1000),
        request(command::CACHE, 0, 0, 4096),
        request(command::FLUSH, 0, 0, 0),
        request(command::RESIZE, 0, 2 << 20, 0),
        request(command::DISCONNECT, 0, 0, 0),
    ]);
    session.concat()
}

/// The sidecar of a blob without a tree, of which some units are durable in both slots.
fn cache_sidecar() -> Result<Vec<u8>> {
    let directory = scratch_directory()?;
    let cache = Cache::open(directory.path(), CacheSettings::default())?;
    let bytes = text(100_000);
    let spec = BlobSpec { digest: Digest::of(&bytes), len: bytes.len() as u64, tree: None, origin: None };
    let blob = cache.blob(&spec)?;
    for unit in [1, 4] {
        blob.insert(unit as u64 * blob.unit(), &bytes[unit * 16384..][..16384])?;
        cache.sync()?;
    }
    let mut paths = fs::read_dir(directory.path())?.map(|entry| entry.map(|entry| entry.path()));
    let sidecar =
        paths.find(|path| path.as_ref().is_ok_and(|path| path.extension().is_some_and(|end| end == "map")));
    Ok(fs::read(sidecar.transpose()?.unwrap_or_default())?)
}

/// An input that is valid.
fn save(to: &Path, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    save_as(to, target, &format!("valid-{name}"), bytes)
}

fn save_as(to: &Path, target: &str, name: &str, bytes: &[u8]) -> Result<()> {
    let directory = to.join(target);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join(name), bytes)?;
    Ok(())
}

/// Bytes that compress, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"a layer of a disk "[at * at % 17]).collect()
}

fn pack(codec: Codec, frame_size: u32, crc: bool, content: &[u8]) -> Result<Vec<u8>> {
    let options = ZFileOptions { codec, frame_size, crc, ..ZFileOptions::default() };
    let mut writer = ZFileWriter::new(Vec::new(), &options)?;
    writer.write_all(content)?;
    Ok(writer.finish()?.0)
}

fn zfiles() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let lz4 = pack(Codec::Lz4, 4 << 10, true, &text(9000))?;
    let zstd = pack(Codec::Zstd, 4 << 10, false, &text(9000))?;
    Ok(vec![
        ("empty", pack(Codec::Lz4, 4 << 10, true, &[])?),
        ("lz4-undigested", without_digests(lz4.clone())),
        ("lz4", lz4),
        ("zstd-short-frame", pack(Codec::Zstd, 64 << 10, true, &text(3000))?),
        ("zstd-undigested", without_digests(zstd.clone())),
        ("zstd-header-decides", with_header_overwritten(zstd)),
    ])
}

/// The offset of the low byte of the flags in header and trailer, and the meaning of its bits.
const ZFILE_FLAGS: usize = 32;
const INDEX_VALID: u8 = 1 << 3;
const DIGEST: u8 = 1 << 4;

/// As early writers made them. A fuzzer cannot guess checksums: only here do its changes get past them.
fn without_digests(mut blob: Vec<u8>) -> Vec<u8> {
    let trailer = blob.len() - HEADER_SIZE;
    blob[ZFILE_FLAGS] &= !DIGEST;
    blob[trailer + ZFILE_FLAGS] &= !DIGEST;
    blob
}

/// As writers that can seek make them: the header has the trailer's index fields.
fn with_header_overwritten(mut blob: Vec<u8>) -> Vec<u8> {
    let trailer = blob.len() - HEADER_SIZE;
    blob.copy_within(trailer + 40..trailer + 68, 40);
    blob[ZFILE_FLAGS] = (blob[ZFILE_FLAGS] | INDEX_VALID) & !DIGEST;
    blob
}

/// A pax header whose records say that the next member has `size` bytes.
fn pax(size: u64) -> Vec<u8> {
    let mut records = format!("10 size={size}\n").into_bytes();
    let header = tar_header(b'x', &format!("{:o}", records.len()));
    records.resize(512, 0);
    [header, records].concat()
}

/// A POSIX tar header; `size` in octal.
fn tar_header(kind: u8, size: &str) -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"blob");
    header[124..124 + size.len()].copy_from_slice(size.as_bytes());
    header[148..156].fill(b' ');
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u64 = header.iter().copied().map(u64::from).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// A header with other bytes at these places.
fn changed_header(mut header: Vec<u8>, changes: &[(usize, &[u8])]) -> Vec<u8> {
    for (at, bytes) in changes {
        header[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().copied().map(u64::from).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

/// Layers of images: entries of the oldest form, of PAX, of GNU, and sparse files.
fn layer_tars() -> Vec<(&'static str, Vec<u8>)> {
    const GNU: (usize, &[u8]) = (257, b"ustar  \0");
    let content = |bytes: &[u8]| {
        let mut content = bytes.to_vec();
        content.resize(bytes.len().next_multiple_of(512), 0);
        content
    };
    let extended = |records: &[&str]| {
        let whole = |record: &&str| format!("{} {record}\n", record.len() + 4);
        let text: String = records.iter().map(whole).collect();
        [tar_header(b'x', &format!("{:o}", text.len())), content(text.as_bytes())].concat()
    };
    let old = |kind, size| changed_header(tar_header(kind, size), &[(257, &[0; 8]), (0, b"old/")]);
    let pax = [
        old(0, "0"),
        extended(&["path=a/file", "mtime=-1.250000000", "uid=4000000000", "SCHILY.xattr.user.a=b"]),
        tar_header(b'0', "5"),
        content(b"bytes"),
        tar_header(b'1', "1750"),
        vec![7; 1024],
        changed_header(tar_header(b'3', "0"), &[(329, b"0000001\x000000003\0")]),
    ];
    let gnu = [
        changed_header(tar_header(b'L', "5"), &[GNU]),
        content(b"long"),
        changed_header(tar_header(b'K', "7"), &[GNU]),
        content(b"target"),
        changed_header(tar_header(b'2', "0"), &[GNU, (108, b"\x80\0\0\0\xff\0\0\0"), (136, &[0xff; 12])]),
        changed_header(
            tar_header(b'S', "3"),
            &[GNU, (386, b"00000000010\x0000000000003\0"), (482, b"\x0100000000100\0")],
        ),
        vec![0; 512],
        content(b"abc"),
    ];
    let sparse = [
        extended(&["GNU.sparse.size=100", "GNU.sparse.numblocks=1", "GNU.sparse.map=10,5"]),
        tar_header(b'0', "5"),
        content(b"bytes"),
        extended(&["GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=100"]),
        tar_header(b'0', "1005"),
        content(b"2\n0\n2\n50\n3\n"),
        content(b"bytes"),
    ];
    let end = [0; 1024];
    vec![
        ("pax", [&pax.concat()[..], &end].concat()),
        ("gnu", [&gnu.concat()[..], &end].concat()),
        ("sparse", [&sparse.concat()[..], &end].concat()),
    ]
}

/// A member of an archive.
fn member(name: &str, kind: u8, link: &str, content: &[u8]) -> Vec<u8> {
    let header = tar_header(kind, &format!("{:o}", content.len()));
    let mut member = changed_header(header, &[(0, &[0; 100]), (0, name.as_bytes()), (157, link.as_bytes())]);
    member.extend(content);
    member.resize(member.len().next_multiple_of(512), 0);
    member
}

/// The config of an image of one layer, `low`, once or twice.
fn container_config(layers: usize) -> String {
    let ids = vec![format!("\"{}\"", Digest::of(b"low")); layers].join(",");
    format!(r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":[{ids}]}}}}"#)
}

/// An archive in the old form of `docker save`, without digests: a changed byte reaches the code behind them.
fn docker_archive() -> Vec<u8> {
    let list = r#"[{"Config":"c.json","RepoTags":["app:1"],"Layers":["a/layer.tar","b/layer.tar"]}]"#;
    let parts = [
        member("a/layer.tar", b'0', "", b"low"),
        member("b/layer.tar", b'2', "../a/layer.tar", b""),
        member("c.json", b'0', "", container_config(2).as_bytes()),
        member("manifest.json", b'0', "", list.as_bytes()),
        vec![0; 1024],
    ];
    parts.concat()
}

/// A manifest in Docker's format, of one layer, `low`.
fn docker_manifest(config: &Digest, size: usize) -> String {
    let layer = Digest::of(b"low");
    format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",
"config":{{"mediaType":"application/vnd.docker.container.image.v1+json","size":{size},"digest":"{config}"}},
"layers":[{{"mediaType":"application/vnd.docker.image.rootfs.diff.tar","size":3,"digest":"{layer}"}}]}}"#
    )
}

/// An OCI layout of one image as an archive.
fn oci_archive() -> Vec<u8> {
    let config = container_config(1);
    let manifest = docker_manifest(&Digest::of(config.as_bytes()), config.len());
    let (digest, size) = (Digest::of(manifest.as_bytes()), manifest.len());
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"mediaType":"application/vnd.docker.distribution.manifest.v2+json",
"size":{size},"digest":"{digest}","platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#
    );
    let blob =
        |content: &[u8]| member(&format!("blobs/sha256/{}", Digest::of(content).hex()), b'0', "", content);
    let parts = [
        member("oci-layout", b'0', "", br#"{"imageLayoutVersion":"1.0.0"}"#),
        member("index.json", b'0', "", index.as_bytes()),
        blob(manifest.as_bytes()),
        blob(config.as_bytes()),
        blob(b"low"),
        vec![0; 1024],
    ];
    parts.concat()
}

fn layers() -> Result<Vec<(&'static str, Vec<u8>)>> {
    let meta = LayerMeta {
        virtual_size: DISK_SIZE,
        uuid: ID,
        parent_uuid: Uuid::nil(),
        user_tag: UserTag::new("a tag")?,
    };
    let empty = LayerWriter::new(Vec::new(), meta.clone())?;
    let mut full = LayerWriter::new(Vec::new(), meta)?;
    full.data(512, &text(1024))?;
    full.zeroes(ByteRange::between(4096, 8192))?;
    full.data(8192, &text(512))?;
    full.data(DISK_SIZE - 512, &text(512))?;
    Ok(vec![("empty", empty.finish()?.0), ("data-and-zeros", full.finish()?.0)])
}

/// A disk of as many bytes as a number can say: rounding that up overflows.
fn layer_of_largest_size() -> Result<Vec<u8>> {
    let meta = LayerMeta { virtual_size: DISK_SIZE, ..LayerMeta::default() };
    let mut writer = LayerWriter::new(Vec::new(), meta)?;
    writer.data(0, &text(512))?;
    let mut layer = writer.finish()?.0;
    for page in [0, layer.len() - PAGE_SIZE] {
        layer[page + 48..page + 56].fill(0xff);
    }
    Ok(layer)
}

fn page(flags: u32) -> Page {
    Page {
        flags: Flags(flags),
        index_offset: PAGE_SIZE as u64,
        index_size: 0,
        virtual_size: DISK_SIZE,
        uuid: ID,
        parent_uuid: Uuid::nil(),
        user_tag: UserTag::default(),
    }
}

/// An image with a tag, among entries of other tools.
const OCI_INDEX: &str = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[
{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":1623,
"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
"annotations":{"org.opencontainers.image.ref.name":"latest"},"platform":{"os":"linux","architecture":"amd64"}},
{"mediaType":"application/vnd.oci.image.index.v1+json","size":2,
"digest":"sha384:000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"}]}"#;

fn image() -> NewImage {
    let layer = |name: &[u8]| {
        let tree =
            Tree { root: TreeRoot::of(name), digest: Digest::of(b"tree"), size: outboard_len(100_000) };
        ImageLayer::new(Digest::of(name), 100_000, tree)
    };
    NewImage {
        layers: vec![layer(b"low"), layer(b"high")],
        virtual_size: DISK_SIZE,
        options: "zstd,frame=32768,crc".to_owned(),
        config: Config::default(),
        optimized_from: None,
        converted_from: None,
        belongs_to: None,
    }
}

/// A log with an overwrite, a discard and padding.
fn pair() -> Vec<u8> {
    let mut data = page(Flags::HEADER | Flags::DATA).encode().to_vec();
    data.extend(text(2048));
    let mut index = page(Flags::HEADER).encode().to_vec();
    for record in
        [Segment::data(10, 3, 8), Segment::PADDING, Segment::data(11, 1, 11), Segment::zeroed(100, 50, 12)]
    {
        index.extend(record.to_record());
    }
    join(&[&data, &index])
}

/// Two sealed groups in the log.
fn writable() -> Result<Vec<u8>> {
    let directory = scratch_directory()?;
    let new = NewDisk { size: DISK_SIZE, parent: "sha256:of-a-manifest".to_owned(), uuid: ID };
    let disk = WritableDisk::create(directory.path(), None, &new)?;
    disk.write_at(&text(1024), 512)?;
    disk.flush()?;
    disk.write_at(&text(512), 1024)?;
    disk.write_zeroes(ByteRange::between(8192, 65536))?;
    disk.flush()?;
    drop(disk);
    let files = WRITABLE_FILES.map(|name| fs::read(directory.path().join(name)));
    let [state, data, index] = files;
    Ok(join(&[&state?, &data?, &index?]))
}

/// A disk of two pages, all data.
fn sparse() -> Vec<u8> {
    let mut header = page(Flags::HEADER | Flags::DATA | Flags::SPARSE);
    header.virtual_size = 2 * PAGE_SIZE as u64;
    let mut file = header.encode().to_vec();
    file.extend(text(2 * PAGE_SIZE));
    file
}

/// A connection with a frame of each kind in it, and a message of each.
fn swarm() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let hello =
        Hello { version: VERSION, name: "a.example".into(), is_root: true, is_tracker: true, nonce: [7; 32] };
    push_encoded(&mut bytes, FrameKind::Hello, &hello)?;
    push_frame(&mut bytes, FrameKind::Proof, 1, 0, &[9; 32]);
    let (blob, request) = (BlobId(1), RequestId(300));
    let chunks = Chunks { first: 4, count: 3 };
    let runs = vec![chunks, Chunks::one(150)];
    let messages = [
        Message::Have { blob, runs: runs.clone() },
        Message::Lost { blob, runs: runs.clone() },
        Message::Ask { request, blob, chunks, urgency: Urgency::Demand, hops: 2, no_redirect: false },
        Message::Pending { request, chunks },
        Message::Reject {
            request,
            chunks,
            why: RejectReason::Busy,
            others: vec![PeerKey(1 << 60), PeerKey(2)],
        },
        Message::Cancel { request },
        Message::Join,
        Message::JoinAccepted,
        Message::JoinRefused,
        Message::Sketch { blob, least: vec![1, 2, u32::MAX] },
        Message::Read { blob, runs },
    ];
    for message in &messages {
        push_encoded(&mut bytes, FrameKind::Message, message)?;
    }
    push_frame(&mut bytes, FrameKind::Chunk, 300, 4, &[1; 100]);
    push_frame(&mut bytes, FrameKind::Push, 1, 5, &[2; 100]);
    push_frame(&mut bytes, FrameKind::Withdrawn, 1, 0, &[]);
    let (image, epoch) = (tracker::ImageKey(1 << 60), 3);
    let accesses = vec![SliceAccess { slice: 70, at_ms: 900 }, SliceAccess { slice: 3, at_ms: 1 }];
    push_encoded(
        &mut bytes,
        FrameKind::Report,
        &HintReport { image, joined: 1, accesses, epoch, version: 2 },
    )?;
    let hints = vec![Hint { slice: 70, disks: 300, mean_ms: 900 }];
    push_encoded(&mut bytes, FrameKind::Hints, &HintAnswer { image, epoch, version: 4, disks: 400, hints })?;
    push_frame(&mut bytes, FrameKind::Ping, 0, 0, &[]);
    push_frame(&mut bytes, FrameKind::Bye, 0, 0, &[]);
    Ok(bytes)
}
